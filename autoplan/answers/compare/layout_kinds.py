"""The fastest layout of each kind: of data, tensor, pipeline, context and expert parallelism alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from autoplan.answers.explain.ask import FastestPlan, fastest_within
from autoplan.deadline import Deadline
from autoplan.schema.job import Degrees, Job

__all__ = [
    "LayoutKind",
    "fastest_of_kinds",
    "layout_kinds",
    "narrowed",
]


#: Keys of the search that a kind sets, but for the degree it is named after.
_DEGREES: Final = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
_EVERY_ZERO: Final = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class LayoutKind:
    """A kind of layouts: the degrees that are above one, and the ZeRO stages allowed."""

    name: str
    above_one: tuple[str, ...] = ()
    zero: tuple[int, ...] = _EVERY_ZERO


def layout_kinds(job: Job) -> tuple[LayoutKind, ...]:
    """Return the kinds of layouts that ``job`` may have, with the remaining devices in data parallelism."""
    sharded = job.stack.memory.parameters_sharded_from
    data = (
        LayoutKind("data parallel", zero=tuple(range(sharded))),
        LayoutKind("sharded data parallel", zero=tuple(range(sharded, 4))),
    )
    names = {
        "tensor_parallel": "tensor parallel",
        "pipeline_parallel": "pipeline parallel",
        "context_parallel": "context parallel",
    }
    if job.model.moe is not None:
        names["expert_parallel"] = "expert parallel"
    return (*data, *(LayoutKind(name, (key,)) for key, name in names.items()))


def fastest_of_kinds(
    job: Job, deadline: Deadline, progress: Callable[[int, int, str], None] = lambda *_: None
) -> Iterator[tuple[LayoutKind, FastestPlan]]:
    """Yield each kind of layouts of ``job`` with its fastest one, or why there is none.

    ``progress`` is called with the kinds done, the kinds in all, and the next one.
    """
    kinds = layout_kinds(job)
    for done, kind in enumerate(kinds):
        progress(done, len(kinds), kind.name)
        narrow_job = narrowed(job, kind)
        if narrow_job is None:
            yield kind, FastestPlan(None, "the job's search excludes it")
        else:
            yield kind, fastest_within(narrow_job, deadline)


def narrowed(job: Job, kind: LayoutKind) -> Job | None:
    """Return ``job`` with a search of ``kind`` alone; None where its own search excludes that."""
    search, changes = job.search, {}
    for key in _DEGREES:
        allowed = _degrees(job.cluster.devices, above_one=key in kind.above_one)
        changes[key] = _both(getattr(search, key), allowed)
    changes["zero_stage"] = _both(search.zero_stage, kind.zero)
    if not all(changes.values()):
        return None
    return replace(job, search=search.model_copy(update=changes), objectives=("step_time",))


def _degrees(devices: int, *, above_one: bool) -> tuple[int, ...]:
    if not above_one:
        return (1,)
    return tuple(degree for degree in range(2, devices + 1) if devices % degree == 0)


def _both(degrees: Degrees, allowed: tuple[int, ...]) -> tuple[int, ...]:
    """Return the values that the job's own search and a kind allow."""
    if degrees == "any":
        return allowed
    values = degrees if isinstance(degrees, tuple) else (degrees,)
    return tuple(value for value in values if value in allowed)
