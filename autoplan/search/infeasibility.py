"""Why nothing fits: which limit the best layout misses, by how much, and on which stage."""

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
from autoplan.search.bounds.memory_bound import fits_somehow, least_memory, least_stage_memory
from autoplan.search.space.candidate_space import conflicting_rules, counts_of
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.rank_orders import regardless_of_order
from autoplan.units import format_bytes, format_seconds

__all__ = ["reasons_of", "short_of_memory", "smallest_layout"]


def short_of_memory(
    job: Job, groups: Sequence[PricedCandidates]
) -> tuple[list[PricedCandidates], tuple[Rejection, ...]]:
    """Return the groups without candidates that no recompute fits, and how many layouts fell so."""
    limit = memory_limit_bytes(job)
    fitting, lost = [], 0
    for group in groups:
        # Memory does not depend on the order of ranks.
        _, first, back = np.unique(
            regardless_of_order(group.candidates), return_index=True, return_inverse=True
        )
        fits = fits_somehow(group.take(first), limit)[back]
        lost += int(counts_of(job, group.candidates)[~fits].sum())
        if fits.any():
            fitting.append(group.take(np.flatnonzero(fits)))
    reason = f"covered, but no recompute makes them fit into {format_bytes(limit)} a device"
    return fitting, (Rejection(reason, lost, "memory"),) if lost else ()


def smallest_layout(groups: Sequence[PricedCandidates]) -> Layout:
    """Return the layout that needs the least memory of its fullest device, over all groups."""
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
    """Return layers a stage, none above ``peak`` bytes: fill each as far as it goes, in order."""
    counts = np.arange(1, group.layers + 1)
    fits = least <= peak * (1 + 1e-12)
    most = np.where(fits, counts, 0).max(axis=1)
    fewest = np.where(fits, counts, group.layers + 1).min(axis=1)
    layers, left = list(fewest), group.layers - int(fewest.sum())
    for stage in range(group.pp):
        more = min(left, int(most[stage] - fewest[stage]))
        layers[stage] += more
        left -= more
    return tuple(int(n) for n in layers)


def _with_least_recompute(group: PricedCandidates, i: int, layers: tuple[int, ...]) -> Layout:
    """Return the layout of candidate ``i`` in whose stages the kind of recompute saves the most."""
    held = np.asarray(layers, dtype=np.float64)
    mixes = most_recompute(held, group.candidates.checkpoint[i], group.modes)
    needs = np.stack([np.where(ok, _needed(group, i, layers, s, f), np.inf) for s, f, ok in mixes])
    best = needs.argmin(axis=0)
    selective, full = (tuple(int(mixes[b][k][j]) for j, b in enumerate(best)) for k in (0, 1))
    return group.layout(i, layers, selective, full)


def _needed(group: PricedCandidates, i: int, layers: Sequence[int], selective: Array, full: Array) -> Array:
    """Return the bytes by which each stage of candidate ``i`` is judged to fit, shape [p]."""
    found = []
    for stage, (n, s, f) in enumerate(zip(layers, selective, full, strict=True)):
        memory = group.holding(i, stage)(sum(layers[:stage]), n, s, f).memory
        found.append(stage_needed(memory, np.array(float(n)), s, f))
    return np.array(found, dtype=np.float64)


def reasons_of(job: Job, groups: Sequence[PricedCandidates], fastest: float | None) -> tuple[str, ...]:
    """Return sentences that say why no layout is feasible.

    ``fastest`` is the step [s] of the fastest layout within the memory, where there is one.
    """
    if not groups:
        rules = "; ".join(conflicting_rules(job))
        return (f"no way to lay out {job.cluster.devices} devices keeps these rules together: {rules}",)
    limit = memory_limit_bytes(job)
    layout = smallest_layout(groups)
    predicted = predict(job, layout)
    fullest = max(predicted.memory.stages, key=lambda stage: stage.total)
    if fastest is None:
        needed = fullest.total if job.limits.memory_confidence == "central" else fullest.total_high
        upper = "" if needed == fullest.total else "at the upper end of its interval "
        missing = needed - limit
        missed = (
            f"memory: the layout that needs least, {layout}, needs {upper}{format_bytes(needed)} on "
            f"each device of stage {fullest.stage} (fullest at: {fullest.event}), "
            f"{format_bytes(missing)} more than the {format_bytes(limit)} of "
            f"{job.cluster.device.title} that may be used"
        )
        return missed, _state_sentence(job, layout)
    most = step_limit(job)
    allowed = most[1] if most else "no limit is set"
    late = f"step time: the fastest layout that fits takes {format_seconds(fastest)} a step, and {allowed}"
    return (late,)


def _state_sentence(job: Job, layout: Layout) -> str:
    predicted = predict(job, layout)
    memory = max(predicted.memory.stages, key=lambda stage: stage.total)
    state = memory.parameters + memory.gradients + memory.optimizer
    return (
        f"of these, parameters, gradients and optimizer state are {format_bytes(state)} "
        f"({job.model.name} on {job.cluster.devices} devices)"
    )
