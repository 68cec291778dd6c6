"""Fit of the few numbers of an engine's version that may be fitted: scale of a step and host times.

Each is one value for all runs of a version together, whatever their source, model, device or load. The loss
is the mean of the absolute logarithms of predicted over measured, each at most one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from itertools import repeat
from math import log
from statistics import fmean
from typing import Final

from autoplan.schema.serving.engine_facts import StepFacts
from benchmarks.serving.served_jobs import engine_of, try_step
from benchmarks.serving.served_predictions import predicted
from benchmarks.serving.served_runs import ServedRun
from benchmarks.skips import Skipped

__all__ = ["FITTED", "fitted_steps", "loss_of"]

#: What is fitted, in this order, and the factors by which each is tried.
FITTED: Final = ("scale", "host", "scale", "host_per_request", "eager_kernel", "front_end", "scale", "host")
_FACTORS: Final = {
    "scale": (0.7, 0.8, 0.87, 0.93, 0.97, 1.03, 1.07, 1.15, 1.3, 1.5),
    "host": (0.0, 0.25, 0.5, 0.75, 1.4, 2.0, 3.0, 5.0),
    "host_per_request": (0.0, 0.3, 0.6, 1.7, 3.0, 6.0),
    "eager_kernel": (0.3, 0.6, 0.8, 1.25, 1.6, 2.5),
    "front_end": (0.0, 0.5, 2.0, 3.0, 4.0),
}
#: Most runs of a version that a fit looks at, evenly taken.
_MOST_RUNS: Final = 40


def fitted_steps(
    runs: Iterable[ServedRun], pool: Executor
) -> Iterator[tuple[str, StepFacts, float, float, int]]:
    """Yield each engine's version with its fitted step, the loss before and after, and the runs."""
    groups: dict[str, list[ServedRun]] = defaultdict(list)
    for run in runs:
        try:
            groups[str(engine_of(run))].append(run)
        except Skipped:
            continue
    for name, group in sorted(groups.items()):
        start = engine_of(group[0]).facts.step
        if start is None:
            continue
        taken = group[:: max(1, len(group) // _MOST_RUNS)]
        before = _loss(name, start, taken, pool)
        best, least = start, before
        for field in FITTED:
            for factor in _FACTORS[field]:
                tried = _scaled(best, field, factor)
                loss = _loss(name, tried, taken, pool)
                if loss < least - 1e-4:
                    best, least = tried, loss
        yield name, best, before, least, len(taken)


def _scaled(step: StepFacts, field: str, factor: float) -> StepFacts:
    number = getattr(step, field)
    return step.model_copy(update={field: number.model_copy(update={"value": number.value * factor})})


def _loss(name: str, step: StepFacts, runs: list[ServedRun], pool: Executor) -> float:
    losses = pool.map(loss_of, runs, repeat(name), repeat(step), chunksize=4)
    known = [loss for loss in losses if loss is not None]
    return fmean(known) if known else 0.0


def loss_of(run: ServedRun, name: str, step: StepFacts) -> float | None:
    """Return the loss of one run under a step; None where it has no prediction."""
    try_step(name, step)
    try:
        found = predicted(run)
    except Skipped:
        return None
    finally:
        try_step(name, None)
    errors = [
        min(1.0, abs(log(value / measured)))
        for metric, measured in run.figures.items()
        if (value := found.values[metric]) is not None and value > 0
    ]
    return fmean(errors) if errors else None
