"""``python -m tests.mutants [WORD...]``: plant each fault in a copy and see whether quick tests notice it.

Each fault whose words hold every WORD, or all of them, is planted alone in a copy of the package. The table
says which test noticed it. Exit code 1 where one was not noticed, 2 where the tests fail without any fault
or a fault does not fit into its file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.planted_faults import FAULTS, TESTS, Fault, planted

ROOT = Path(__file__).resolve().parents[2]
#: What tests read beside the package: linked into the copy, which they do not write.
LINKED = ("benchmarks", "costmodels", "hardware", "specs", "tests", "pyproject.toml")
#: Longest run of the tests for one fault; a fault may also make a loop endless.
MOST_SECONDS = 300


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a folder with a copy of the package and links to all else, and take it away after."""
    with tempfile.TemporaryDirectory(prefix="autoplan-mutant-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "autoplan", folder / "autoplan", ignore=shutil.ignore_patterns("__pycache__"))
        for entry in LINKED:
            (folder / entry).symlink_to(ROOT / entry)
        yield folder


def noticed_by(folder: Path) -> str | None:
    """Return the first test that fails in ``folder``, a word for what else went wrong, None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    # Options of a run around this one would add workers or markers.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTHONPYCACHEPREFIX")}
    environment = {**clean, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *TESTS],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "out of time"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed.group(1).removeprefix("tests/") if failed else f"exit code {done.returncode}"


def imported_from(folder: Path) -> Path:
    """Return where a program in ``folder`` finds the package."""
    done = subprocess.run(
        [sys.executable, "-c", "import autoplan; print(autoplan.__file__)"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


def outcome(fault: Fault | None) -> tuple[str | None, float]:
    """Return which test notices ``fault``, or fails without one, and the seconds that it took."""
    began = time.monotonic()
    with copied() as folder:
        if fault is None and not imported_from(folder).is_relative_to(folder):
            return "the copy is not what is imported", 0.0
        if fault is not None:
            path = folder / fault.file
            path.write_text(planted(fault, path.read_text(encoding="utf-8")), encoding="utf-8")
        return noticed_by(folder), time.monotonic() - began


def chosen(words: list[str]) -> list[Fault]:
    """Return the faults in whose file and meaning every one of ``words`` stands."""
    return [fault for fault in FAULTS if all(word in f"{fault.file} {fault.means}" for word in words)]


def misfits(faults: list[Fault]) -> list[str]:
    """Return a sentence for each fault that does not fit into its file."""
    sentences = []
    for fault in faults:
        try:
            planted(fault, (ROOT / fault.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            sentences.append(str(error))
    return sentences


def main(words: list[str]) -> int:
    """Print the table of the faults, and how many were noticed."""
    faults = chosen(words)
    problems = misfits(faults) if faults else [f"no fault has {' and '.join(words)} in its file or meaning"]
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 2
    failing, seconds = outcome(None)
    if failing:
        print(f"without any fault, this fails: {failing}", file=sys.stderr)
        return 2
    print(f"without any fault all tests pass, in {seconds:.0f} s", flush=True)
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for fault, (test, seconds) in zip(faults, pool.map(outcome, faults), strict=True):
            missed += test is None
            place = fault.file.removeprefix("autoplan/costs/")
            print(f"{fault.means} ({place}): {test or 'NOT NOTICED'}, {seconds:.0f} s", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
