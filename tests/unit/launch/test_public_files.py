"""Public launch files of six frameworks are read as a careful reader reads them.

``tests/support/public_launches.yaml`` has their sources, and the values that decide their layouts.
"""

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from autoplan.errors import SpecError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.recognition import recognised
from autoplan.schema.layout import parse_layout

FILE = Path(__file__).resolve().parents[2] / "support" / "public_launches.yaml"
CASES = yaml.safe_load(FILE.read_text(encoding="utf-8"))
CLONES = os.environ.get("AUTOPLAN_PUBLIC_REPOSITORIES", "")


def name_of(case):
    """Return what a case is called."""
    return f"{case['framework']}: {case['repository']}/{case['path']}"


def original(case):
    """Return the text of the public file; skips where there is no clone of its repository."""
    folder = Path(CLONES) / case["repository"].replace("/", "+") / "repo"
    if not CLONES or not folder.is_dir():
        pytest.skip("AUTOPLAN_PUBLIC_REPOSITORIES has no clone of it")
    shown = ["git", "-C", str(folder), "show", f"{case['commit']}:{case['path']}"]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout


def assert_read_right(case, text):
    """Hold what is read against what a careful reader finds."""
    file = LaunchFile(case["path"].rpartition("/")[2], text, devices=case.get("devices"))
    target = recognised(file)
    assert target.name == case["framework"]
    if "refused" in case:
        with pytest.raises(SpecError, match=case["refused"]):
            target.read(file)
        return
    found = target.read(file)
    facts = {**found.job, **found.job.get("workload", {})}
    devices = found.job["devices"]
    own = parse_layout(found.layout_string, layers=case["layers"], devices=devices)
    assert own == parse_layout(case["layout"], layers=case["layers"], devices=devices)
    assert {key: facts.get(key) for key in case["read"]} == case["read"]
    assert set(case.get("open", ())) <= set(found.unspecified)


def test_there_are_files_of_six_frameworks():
    """Twenty files and more, each with its source, and more than two of every framework."""
    counts = Counter(case["framework"] for case in CASES)

    assert len(CASES) >= 20
    assert len(counts) >= 6
    assert min(counts.values()) >= 3
    assert all(len(case["commit"]) == 40 and case["path"] for case in CASES)
    assert len({(case["repository"], case["path"]) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_values_of_a_public_file_are_its_layout(case):
    """Degrees, sharding, recompute, batch and precision are those of the file."""
    assert_read_right(case, case["text"])


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_public_file_itself_is_read_alike(case):
    """The original, with all else that is in it, has the same layout."""
    assert_read_right(case, original(case))
