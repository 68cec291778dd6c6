"""The fastest layout of a job whose search is narrowed, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.deadline import Deadline, DeadlineOver
from autoplan.errors import AutoplanError
from autoplan.results import Plan
from autoplan.schema.job import Job

__all__ = ["FastestPlan", "fastest_within"]


@dataclass(frozen=True, slots=True)
class FastestPlan:
    """The fastest plan of a job, ``proven`` unless a deadline ended the search; else None and ``why``.

    ``least_bytes`` is the least memory of a device with which a layout would fit, where none does.
    """

    plan: Plan | None
    why: str = ""
    proven: bool = True
    least_bytes: float | None = None


def fastest_within(job: Job, deadline: Deadline) -> FastestPlan:
    """Return the fastest plan of ``job``, which has one number of devices and one batch size."""
    from autoplan.search import least_needed, search

    if (reason := deadline.reason) is not None:
        return FastestPlan(None, f"not solved: {reason}", proven=False)
    try:
        front = search(job, fastest_only=True, deadline=deadline)
    except AutoplanError as error:
        return FastestPlan(None, str(error), proven=False)
    if front.plans:
        return FastestPlan(front.plans[0], proven=front.certificate.status == "optimal")
    try:
        with deadline.in_force():
            least = least_needed(job)
    except DeadlineOver:
        return FastestPlan(None, f"none was found: {deadline.reason}", proven=False)
    if least is None:
        return FastestPlan(None, "every such layout violates a rule")
    within = job.limits.step_time is not None or bool(job.rules)
    why = "no such layout is within the limits" if within else "no such layout fits"
    return FastestPlan(None, why, least_bytes=least)
