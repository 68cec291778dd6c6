"""Planning within a command whose answer is not the front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from autoplan.cli.shared.interrupts import stopped_by_signals
from autoplan.cli.shared.lean import load_solver
from autoplan.cli.shared.progress import Progress

if TYPE_CHECKING:
    from autoplan.results import Front
    from autoplan.schema.job import Job

__all__ = ["planned"]


def planned(job: Job, deadline: float | None) -> Front:
    """Return the front of ``job``, with progress on standard error; a signal ends the command."""
    from autoplan import planning
    from autoplan.deadline import Deadline

    progress, limit = Progress(), Deadline(job.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        try:
            load_solver()
            front = planning.plan(job, progress=progress, deadline=limit)
        finally:
            progress.close()
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)
    return front
