"""Planning a job, and the prediction of one of its layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from autoplan.catalog import entry_names, load_job, stack
from autoplan.costs.machine import peak_flops
from autoplan.costs.predict import predict
from autoplan.errors import LayoutError, UnsupportedError
from autoplan.plans import Front, Plan, broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout, parse_layout

__all__ = ["MOST_LAYERS", "evaluate", "plan", "plannable", "valid_layout"]

#: Deeper models than any in use would make the search long without a word of warning.
MOST_LAYERS: Final = 256


def plan(job: Job | str | Path, *, progress: Callable[[int, float], None] | None = None) -> Front:
    """Return the proven Pareto front of ``job``: a loaded job, a path to its file or a shipped name.

    ``progress`` is called after each plan found with their number and the plan's share of the memory limit.
    The front is empty, with reasons, when no layout is feasible. Raises SpecError or CatalogError for a
    job that cannot be read, UnsupportedError for one that this version cannot plan.
    """
    job = plannable(job)
    from autoplan.search import search

    return search(job, progress=progress)


def evaluate(job: Job | str | Path, layout: Layout | str) -> Plan:
    """Return ``layout`` with its prediction for ``job``, whether or not it fits.

    Raises LayoutError with every rule that the layout breaks.
    """
    job = plannable(job)
    layout = valid_layout(job, layout)
    return Plan(layout, predict(job, layout))


def valid_layout(job: Job, layout: Layout | str) -> Layout:
    """Return ``layout``, read where it is text; raises LayoutError with every rule of ``job`` it breaks."""
    if isinstance(layout, str):
        layout = parse_layout(
            layout,
            layers=job.model.layers,
            devices=job.cluster.devices,
            zero=job.stack.rules.default_zero,
        )
    broken = broken_rules(job, layout)
    if broken:
        raise LayoutError([f"{layout} breaks a rule: {sentence}" for sentence in broken])
    return layout


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
    if job.adapters is not None and (model.moe is not None or model.mla is not None):
        what = "experts" if model.moe is not None else "latent attention"
        raise UnsupportedError(f"adapters beside {what} are not priced yet: leave out `adapters`")
    if model.layers > MOST_LAYERS:
        raise UnsupportedError(f"{model.name} has {model.layers} layers: up to {MOST_LAYERS} are planned")
    peak_flops(job.cluster, job.precision)
    return job
