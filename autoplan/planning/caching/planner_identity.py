"""What an answer is the same by: the resolved job, and the program and the solver that found it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autoplan.kinds import kind_of
from autoplan.schema.job import Job
from autoplan.version import __version__

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["APART", "fingerprint", "planner_name"]

#: Folders of code that no answer comes from.
APART: Final = frozenset({"answers", "calibration", "cli", "commands", "launch", "report", "verification"})


@cache
def planner_name() -> str:
    """Return what plans are the same by: the version of autoplan, its code and its solver.

    The code is that which an answer comes from: commands, reports and checks may change, and answers stay.
    """
    root = Path(str(files("autoplan")))
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in root.rglob("*.py")):
        if name.split("/")[0] not in APART:
            digest.update(name.encode())
            digest.update(file.read_bytes())
    try:
        solver = version("ortools")
    except PackageNotFoundError:
        solver = "unknown"
    return f"autoplan {__version__} (code {digest.hexdigest()[:12]}, ortools {solver})"


def fingerprint(job: Job | ServingJob) -> str:
    """Return a text that two jobs share when they are the same to the same program, whatever their names.

    It covers the resolved job: model, devices, network, the numbers of the cost model, search and limits; of
    a serving job also the trace of its requests. Raises as ``load_job`` does where that cannot be read.
    """
    named = " ".join((planner_name(), *kind_of(job).hashes(job)))
    return hashlib.sha256(named.encode()).hexdigest()
