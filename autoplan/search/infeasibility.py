"""Reasons of infeasibility: the limit that the best layout exceeds, by how much, and on which stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_needed
from autoplan.costs.predict import predict
from autoplan.results import Rejection
from autoplan.results.merged_front import step_limit
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.search.bounds.contents_bound import contents_memory, most_recompute
from autoplan.search.bounds.memory_bound import can_fit, least_memory, least_stage_memory
from autoplan.search.space.candidate_space import conflicting_rules, counts_of
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.rank_orders import order_classes
from autoplan.units import format_bytes, format_seconds

__all__ = ["reasons_of", "short_of_memory", "smallest_layout"]


def short_of_memory(
    job: Job, groups: Sequence[PricedCandidates]
) -> tuple[list[PricedCandidates], tuple[Rejection, ...]]:
    """Return the groups without candidates that fit with no recompute, and a rejection that counts these."""
    limit = memory_limit_bytes(job)
    fitting, rejected = [], 0
    for group in groups:
        # Memory does not depend on the order of ranks.
        _, first, inverse = np.unique(order_classes(group.candidates), return_index=True, return_inverse=True)
        fits = can_fit(group.take(first), limit)[inverse]
        rejected += int(counts_of(job, group.candidates)[~fits].sum())
        if fits.any():
            fitting.append(group.take(np.flatnonzero(fits)))
    reason = f"do not fit into {format_bytes(limit)} a device with any recompute that the job allows"
    return fitting, (Rejection(reason, rejected, "memory"),) if rejected else ()


def smallest_layout(groups: Sequence[PricedCandidates]) -> Layout:
    """Return the layout of least peak memory over all groups."""
    peaks = [least_memory(group) for group in groups]
    best = int(np.argmin([p.min() for p in peaks]))
    group, i = groups[best], int(peaks[best].argmin())
    if group.places is not None:
        places, one = group.places, group.take(np.array([i]))
        return _with_least_recompute(group, i, tuple(places.smallest_peak(contents_memory(one, places)[0])))
    least = least_stage_memory(group.take(np.array([i])))[0]
    layers = _spread(least, float(peaks[best][i]), group)
    return _with_least_recompute(group, i, layers)


def _spread(least: np.ndarray, peak: float, group: PricedCandidates) -> tuple[int, ...]:
    """Return a layer split in which no stage exceeds ``peak`` bytes, the first stages as full as possible."""
    counts = np.arange(1, group.layers + 1)
    fits = least <= peak * (1 + 1e-12)
    most = np.where(fits, counts, 0).max(axis=1)
    fewest = np.where(fits, counts, group.layers + 1).min(axis=1)
    layers, remaining = list(fewest), group.layers - int(fewest.sum())
    for stage in range(group.pp):
        more = min(remaining, int(most[stage] - fewest[stage]))
        layers[stage] += more
        remaining -= more
    return tuple(int(n) for n in layers)


def _with_least_recompute(group: PricedCandidates, i: int, layers: tuple[int, ...]) -> Layout:
    """Return the layout of candidate ``i`` with the recompute of least memory on each stage."""
    counts = np.asarray(layers, dtype=np.float64)
    mixes = most_recompute(counts, group.candidates.recompute_num_layers[i], group.modes)
    bytes_needed = np.stack(
        [np.where(allowed, _needed(group, i, layers, s, f), np.inf) for s, f, allowed in mixes]
    )
    best = bytes_needed.argmin(axis=0)
    selective, full = (tuple(int(mixes[b][k][j]) for j, b in enumerate(best)) for k in (0, 1))
    return group.layout(i, layers, selective, full)


def _needed(group: PricedCandidates, i: int, layers: Sequence[int], selective: Array, full: Array) -> Array:
    """Return the memory that each stage of candidate ``i`` needs to fit, shape [p] [bytes]."""
    needed = []
    for stage, (n, s, f) in enumerate(zip(layers, selective, full, strict=True)):
        memory = group.holding(i, stage)(sum(layers[:stage]), n, s, f).memory
        needed.append(stage_needed(memory, np.array(float(n)), s, f))
    return np.array(needed, dtype=np.float64)


def reasons_of(job: Job, groups: Sequence[PricedCandidates], fastest: float | None) -> tuple[str, ...]:
    """Return the reasons why no layout is feasible, as sentences.

    ``fastest`` is the step [s] of the fastest layout within the memory, where there is one.
    """
    if not groups:
        rules = "; ".join(conflicting_rules(job))
        return (f"no layout of {job.cluster.devices} devices satisfies all of these rules: {rules}",)
    limit = memory_limit_bytes(job)
    layout = smallest_layout(groups)
    predicted = predict(job, layout)
    fullest = max(predicted.memory.stages, key=lambda stage: stage.total)
    if fastest is None:
        needed = fullest.total if job.limits.memory_confidence == "central" else fullest.total_high
        upper = "" if needed == fullest.total else "(upper end of the 90 % interval) "
        missing = needed - limit
        memory_reason = (
            f"memory: the layout that needs least, {layout}, needs {format_bytes(needed)} {upper}on "
            f"each device of stage {fullest.stage} (fullest at: {fullest.event}), "
            f"{format_bytes(missing)} more than the {format_bytes(limit)} of "
            f"{job.cluster.device.title} that may be used"
        )
        return memory_reason, _state_sentence(job, layout)
    most = step_limit(job)
    allowed = most[1] if most else "no limit is set"
    time_reason = (
        f"step time: the fastest layout that fits takes {format_seconds(fastest)} a step, and {allowed}"
    )
    return (time_reason,)


def _state_sentence(job: Job, layout: Layout) -> str:
    predicted = predict(job, layout)
    memory = max(predicted.memory.stages, key=lambda stage: stage.total)
    state = memory.parameters + memory.gradients + memory.optimizer
    return (
        f"of these, parameters, gradients and optimizer state are {format_bytes(state)} "
        f"({job.model.name} on {job.cluster.devices} devices)"
    )
