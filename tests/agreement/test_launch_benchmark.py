"""The benchmark of public launch files: what it lists, what it breaks, and what it emits again."""

import re
from pathlib import Path

import yaml

from autoplan.answers.configure.ask import read
from autoplan.launch.configuration import Configuration
from benchmarks.launches.__main__ import scored
from benchmarks.launches.breakages import broken_files, lines_of_variants
from benchmarks.launches.round_trip import round_trip
from benchmarks.reading import read_entries

LISTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "launches").glob("files*.yaml"))
#: Files whose deciding lines are shipped: those of clones are read by the benchmark itself.
PUBLIC = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "support" / "public_launches.yaml").read_text()
)


def entries():
    """Return all entries of the lists."""
    return [entry for file in LISTS for entry in read_entries(file, "runs")]


def shipped():
    """Yield entries of the files whose text is here, with the text by path."""
    for case in PUBLIC:
        path = case["path"].rpartition("/")[2]
        entry = {**case, "path": path, "values": case.get("read", {})}
        yield entry, {path: case["text"]}


def test_files_are_many_and_each_has_its_source():
    """150 files and more of 15 frameworks, none of them twice with the same variables."""
    listed = entries()
    keys = [(e["repository"], e["path"], str(e.get("set"))) for e in listed]

    assert len(listed) >= 150
    assert len({entry["framework"] for entry in listed}) >= 15
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[0-9a-f]{40}", entry["commit"]) for entry in listed)
    assert all(("refused" in entry) != ("values" in entry) for entry in listed)


def test_broken_files_are_refused_with_their_line():
    """Nine of ten and more; those that are read are said by name."""
    variants = list(broken_files(shipped()))
    good = [variant for variant in variants if variant.kind in {"refused with line", "open"}]
    lines = list(lines_of_variants(variants))

    assert len(variants) >= 40
    assert len(good) >= 0.9 * len(variants), "\n".join(lines)
    assert sum(line.startswith(("read ", "refused ")) for line in lines) == len(variants) - len(good)


def test_what_is_read_is_emitted_and_read_alike(tmp_path):
    """No file is read again otherwise than it was emitted, and some of them can be emitted."""
    trips = []
    for number, (entry, texts) in enumerate(shipped()):
        path = tmp_path / str(number) / entry["path"]
        path.parent.mkdir()
        path.write_text(texts[entry["path"]])
        if "refused" not in entry:
            found = read(path, devices=entry.get("devices"))
            assert isinstance(found, Configuration)
            trips.append(round_trip(entry["path"], found))

    assert not [trip for trip in trips if trip.kind == "differs"]
    assert sum(trip.kind == "alike" for trip in trips) >= 5


def test_a_wrong_and_an_open_value_are_told_apart(tmp_path):
    """A value that is not read is open, another one wrong, and one of a refused file refused."""
    entry = {
        "repository": "a/b",
        "path": "ds.json",
        "framework": "deepspeed",
        "values": {"zero": 2, "mbs": 4},
    }
    text = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'

    kinds = {score.field: score.kind for score in scored(entry, {"ds.json": text}, tmp_path)}
    refused = [score.kind for score in scored(entry, {"ds.json": "{]"}, tmp_path)]

    assert kinds == {"zero": "wrong", "mbs": "open"}
    assert refused == ["refused", "refused"]
