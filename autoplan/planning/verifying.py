"""Checking a saved answer without the solver that gave it."""

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
    """Return what holds and what fails of the answer that ``file`` holds: the JSON of ``autoplan plan``.

    The solver has no part in it: rules, prices, counts and the front are checked against layouts listed one
    by one, up to eight devices unless ``exhaustive``; the user's own rules are read anew for each. With
    ``job``, the answer has to be for it as it is now.
    ``progress`` is told choices done, choices in all, and which is next. Raises SpecError or CatalogError for
    what cannot be read.
    """
    saved = read_front(read_file(Path(file)), name=str(file))
    planned = plannable(job_from(saved.resolved, name=str(file)))
    now = None if job is None else plannable(job)
    from autoplan.verification import Stated, checks_of

    checks = checks_of(Stated.of(saved, planned), now, progress, exhaustive=exhaustive)
    return Verdict(str(file), checks)
