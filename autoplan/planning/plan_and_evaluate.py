"""Planning a job, and the prediction of one of its layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autoplan.catalog import entry_names, load_job, stack
from autoplan.costs.device.machine import peak_flops
from autoplan.costs.predict import predict
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.results import Front, Plan
from autoplan.results.merged_front import merged
from autoplan.rules import broken_rules
from autoplan.schema.job import Job, RoutingSpec
from autoplan.schema.layout import Layout, devices_of, parse_layout

if TYPE_CHECKING:
    from autoplan.deadline import Deadline

__all__ = ["MOST_LAYERS", "chosen", "evaluate", "plan", "plannable", "read_layout", "valid_layout"]

#: Deeper models than any in use would make the search long without a word of warning.
MOST_LAYERS: Final = 256


def plan(
    job: Job | str | Path,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | None = None,
) -> Front:
    """Return the proven Pareto front of ``job``: a loaded job, a path to its file or a shipped name.

    ``progress`` is called after each plan found with their number and the plan's share of the memory limit.
    The front is empty, with reasons, when no layout is feasible. Raises SpecError or CatalogError for a
    job that cannot be read, UnsupportedError for one that this version cannot plan. When ``deadline`` ends,
    the front is the best so far, and its certificate says so.
    """
    job = plannable(job)
    from autoplan.deadline import ENDLESS
    from autoplan.search import search

    deadline = deadline or ENDLESS
    if not job.choices:
        return search(job, progress=progress, deadline=deadline)
    return merged(job, [search(choice, progress=progress, deadline=deadline) for choice in job.choices])


def evaluate(job: Job | str | Path, layout: Layout | str) -> Plan:
    """Return ``layout`` with its prediction for ``job``, whether or not it fits.

    Raises LayoutError with every rule that the layout breaks.
    """
    job = chosen(plannable(job), layout)
    layout = valid_layout(job, layout)
    return Plan(layout, predict(job, layout))


def chosen(job: Job, layout: Layout | str) -> Job:
    """Return the one of ``job``'s choices that ``layout`` is for: the one with as many devices.

    Raises LayoutError where there is none, UnsupportedError where the job asks for several batches.
    """
    if not job.choices:
        return job
    batches = dict.fromkeys(choice.workload.global_batch_size for choice in job.choices)
    if len(batches) > 1:
        raise UnsupportedError(
            "one layout is looked at for one batch: set workload.global_batch_size to one of "
            + ", ".join(map(str, batches))
        )
    devices = layout.devices if isinstance(layout, Layout) else devices_of(layout)
    numbers = [choice.cluster.devices for choice in job.choices]
    if devices in numbers:
        return job.choices[numbers.index(devices)]
    raise LayoutError(
        [f"the layout is for {devices} devices and the job for {', '.join(map(str, numbers))}: give dp too"]
    )


def valid_layout(job: Job, layout: Layout | str) -> Layout:
    """Return ``layout``, read where it is text; raises LayoutError with every rule of ``job`` it breaks."""
    layout = read_layout(job, layout)
    broken = broken_rules(job, layout)
    if broken:
        raise LayoutError([f"{layout} breaks a rule: {sentence}" for sentence in broken])
    return layout


def read_layout(job: Job, layout: Layout | str) -> Layout:
    """Return ``layout``, read with ``job``'s defaults where it is text; raises LayoutError if it is none."""
    if isinstance(layout, Layout):
        return layout
    return parse_layout(
        layout,
        layers=job.model.layers,
        devices=job.cluster.devices,
        zero=job.stack.rules.default_zero,
    )


def plannable(job: Job | str | Path) -> Job:
    """Return the loaded job; raises UnsupportedError for what this version cannot price."""
    job = job if isinstance(job, Job) else load_job(job)
    model = job.model
    if model.moe is not None and job.stack.experts is None:
        stacks = [name for name in entry_names("stack") if stack(name).experts is not None]
        raise UnsupportedError(
            f"{model.name} has experts, which {job.stack.title} does not run: "
            f"set `stack` to one of {', '.join(stacks)}"
        )
    if model.moe is None and job.routing != RoutingSpec():
        raise UnsupportedError(f"{model.name} has no experts to route tokens to: leave out `routing`")
    if job.adapters is not None and (model.moe is not None or model.mla is not None):
        what = "experts" if model.moe is not None else "latent attention"
        raise UnsupportedError(f"adapters beside {what} are not priced yet: leave out `adapters`")
    if model.layers > MOST_LAYERS:
        raise UnsupportedError(f"{model.name} has {model.layers} layers: up to {MOST_LAYERS} are planned")
    peak_flops(job.cluster, job.precision)
    return job
