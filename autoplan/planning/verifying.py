"""Verification of a saved front, independent of the search and its solver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autoplan.catalog import read_file
from autoplan.planning.plan_and_evaluate import plannable
from autoplan.results.verdict import Verdict
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import job_from
from autoplan.schema.saved_front import read_front

__all__ = ["verify"]


def verify(
    file: str | Path,
    *,
    job: Job | str | Path | None = None,
    exhaustive: bool = False,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Verdict:
    """Return the verdict on the front in ``file``, the JSON of ``autoplan plan``: checks passed and failed.

    Without the solver: rules, predictions, counts and the front are checked against an enumeration of all
    layouts, for up to eight devices unless ``exhaustive``. With ``job``, the front also has to be that of
    ``job`` as it is now.
    ``progress`` is called with the choices done, the choices in all, and the next one. Raises SpecError or
    CatalogError for a file that cannot be read.
    """
    saved = read_front(read_file(Path(file)), name=str(file))
    planned = plannable(job_from(saved.resolved, name=str(file)))
    current = None if job is None else plannable(job)
    from autoplan.verification import Stated, checks_of

    checks = checks_of(Stated.of(saved, planned), current, progress, exhaustive=exhaustive)
    return Verdict(str(file), checks)
