"""Planning within a command whose answer is not the front, but one plan of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from autoplan.commands.interrupts import stopped_by_signals
from autoplan.commands.lean import load_solver
from autoplan.commands.options import command_deadline
from autoplan.commands.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoplan.results import Front, Plan
    from autoplan.schema.job import Job

__all__ = [
    "asked_plan",
    "planned",
]


def asked_plan(  # noqa: PLR0913 - a keyword for each choice
    job: str,
    number: int | None,
    layout: str | None,
    deadline: float | None,
    *,
    target: str,
    program: str | None = None,
    choose: Callable[[Front], int],
    cache: bool | None = False,
) -> tuple[Job, Plan, int]:
    """Return the plan that a command line asks for, after its job, and its number on the front.

    ``job`` is a job to plan, or a saved answer; with ``layout`` nothing is searched. A job that leaves its
    program open is planned for those that ``target`` writes, or for ``program``; the ``number`` of a plan is
    that of the whole front, unless ``program`` is named. Without a ``number`` it is the one that ``choose``
    takes of the front.
    """
    from autoplan import planning
    from autoplan.catalog import load_job
    from autoplan.catalog.programs import written_for
    from autoplan.errors import InfeasibleError
    from autoplan.results.merged_front import at_batch

    if planning.is_saved_plan(job):
        if layout is not None:
            raise typer.BadParameter("a saved plan has its layouts: give --plan", param_hint="--layout")
        if number is None:
            number = planning.saved_number(job, target=target, program=program)
        return *planning.saved_plan(job, number), number
    loaded = load_job(job)
    if program is not None or number is None:
        loaded = written_for(loaded, target, program)
    if layout is not None:
        loaded = planning.chosen(loaded, layout)
        return loaded, planning.evaluate(loaded, layout), 1
    front = planned(loaded, deadline, cache=cache)
    if not front.feasible:
        raise InfeasibleError([*front.reasons, "`autoplan plan` says what helps"])
    number = choose(front) if number is None else number
    if number > len(front.plans):
        raise typer.BadParameter(f"the front has {len(front.plans)} plans", param_hint="--plan")
    return at_batch(loaded, front.plans[number - 1]), front.plans[number - 1], number


def planned(job: Job, deadline: float | None, *, cache: bool | None = False) -> Front:
    """Return the front of ``job``, with progress on standard error; a signal ends the command."""
    from autoplan import planning

    progress, limit = Progress(), command_deadline(job.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        try:
            load_solver()
            front = planning.plan(job, progress=progress, deadline=limit, cache=cache)
        finally:
            progress.close()
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)
    return front
