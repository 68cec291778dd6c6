"""Why the fastest plan wins: the best layout of every other choice, each found by solving for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from autoplan.errors import AutoplanError, InfeasibleError, UnsupportedError
from autoplan.planning.plan_and_evaluate import plannable
from autoplan.results import Plan
from autoplan.results.standing import Alternative, Choice, differences
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["explain_choice"]

#: Choices of one kind that are looked at, those nearest to the fastest plan's.
_MOST_VALUES: Final = 6


def explain_choice(
    job: Job | str | Path, *, progress: Callable[[int, int, str], None] = lambda *_: None
) -> Choice:
    """Return the fastest plan of ``job`` beside the best plan of each other choice.

    ``progress`` is told questions done, questions in all, and which is next. Raises InfeasibleError with the
    reasons where no layout is feasible.
    """
    job = plannable(job)
    if job.choices:
        raise UnsupportedError(
            "a choice is explained for one number of devices and one batch: set devices and"
            " workload.global_batch_size to one each, or name a layout"
        )
    from autoplan.search import search

    alone = replace(job, objectives=("step_time",))
    front = search(alone)
    if not front.plans:
        raise InfeasibleError(front.reasons)
    best = front.plans[0]
    questions = list(_questions(alone, best.layout))
    found = []
    for done, (key, value, narrowed) in enumerate(questions):
        progress(done, len(questions), f"{key} {value}")
        found.append(_alternative(best, key, value, narrowed))
    return Choice(best, tuple(found))


def _alternative(best: Plan, key: str, value: str, job: Job) -> Alternative:
    from autoplan.search import least_needed, search

    try:
        front = search(job, fastest_only=True)
    except AutoplanError as error:
        return Alternative(key, value, None, str(error))
    if front.plans:
        plan = front.plans[0]
        return Alternative(key, value, plan, "", differences(plan.predicted, best.predicted))
    if least_needed(job) is None:
        return Alternative(key, value, None, "every such layout breaks a rule")
    why = "no such layout fits" if job.limits.step_time is None else "no such layout keeps the limits"
    return Alternative(key, value, None, why)


def _questions(job: Job, best: Layout) -> Iterator[tuple[str, str, Job]]:
    """Yield each choice that is open and differs from the best layout's, as a job that has to make it."""
    from autoplan.verification.choice_listing import modes_of, valid_choices

    groups = list(valid_choices(job))
    columns = {
        "tensor_parallel": ("tp", best.tp),
        "data_parallel": ("dp", best.dp),
        "microbatch_size": ("microbatch", best.microbatch),
        "zero_stage": ("zero", best.zero),
        "virtual_stages": ("vpp", best.vpp),
    }
    values = {key: {int(x) for g in groups for x in getattr(g, name)} for key, (name, _) in columns.items()}
    own = {key: mine for key, (_, mine) in columns.items()}
    values["pipeline_parallel"], own["pipeline_parallel"] = {g.pp for g in groups}, best.pp
    for key in ("tensor_parallel", "pipeline_parallel", *(k for k in columns if k != "tensor_parallel")):
        mine = own[key]
        near = sorted(values[key] - {mine}, key=lambda x: (abs(x.bit_length() - mine.bit_length()), x))
        for value in sorted(near[:_MOST_VALUES]):
            yield key, str(value), _narrowed(job, key, value)
    yield from _switches(job, best, modes_of(job))


def _switches(job: Job, best: Layout, modes: tuple[str, ...]) -> Iterator[tuple[str, str, Job]]:
    if best.tp > 1 and job.search.sequence_parallel == "any":
        other = "off" if best.sequence_parallel else "on"
        yield "sequence_parallel", other, _narrowed(job, "sequence_parallel", other)
    used = {"selective"} if any(best.selective) else set()
    used |= {"full"} if any(best.full) else set()
    used |= {"none"} if sum(best.selective) + sum(best.full) < sum(best.layers) else set()
    for mode in modes:
        if len(modes) > 1 and used != {mode}:
            yield "recompute", mode, _narrowed(job, "recompute", mode)
    if not best.even and job.search.stages == "any":
        yield "stages", "even", _narrowed(job, "stages", "even")


def _narrowed(job: Job, key: str, value: object) -> Job:
    return replace(job, search=job.search.model_copy(update={key: value}))
