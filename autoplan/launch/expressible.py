"""Which plans a target can express, and what it lacks for the others."""

from __future__ import annotations

from autoplan.catalog.programs import targets_of
from autoplan.launch.registry import find_target
from autoplan.launch.target import InexpressibleError, PlannedRun, Target
from autoplan.results.front import Front
from autoplan.results.merged_front import at_batch, target_of
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout


def expressible_number(front: Front, target: str | None = None) -> int:
    """Return the number of the fastest plan that its target can express; 1 where there is none.

    ``target`` is one of a framework, in the place of that of each plan's program or stack.
    That is the first one where a program runs the plans: its rules left out all others, and it is not written
    to be sure.
    """
    for number, plan in enumerate(front.plans, 1):
        job = at_batch(front.job, plan)
        run, name = plan.program or job.program, target_of(job, plan)
        if target is not None and not find_target(target).starts:
            # What one program is to run is not written for another where that has plans.
            name = target if run is None or target in targets_of(run) else None
        if name is None:
            continue
        by_rules = run is not None and run.target == name
        if by_rules or missing_part(find_target(name), job, plan.layout) is None:
            return number
    return 1


def missing_part(target: Target, job: Job, layout: Layout) -> str | None:
    """Return what of ``layout`` the target cannot express; None where it can, or is only read."""
    missing = inexpressible(target, PlannedRun(job, layout))
    return missing.part if missing else None


def inexpressible(target: Target, run: PlannedRun) -> InexpressibleError | None:
    """Return what the target cannot express of ``run``; None where it can all."""
    try:
        if target.emit is not None:
            target.emit(run)
    except InexpressibleError as error:
        return error
    return None
