"""Reasons of infeasibility: the limit that the best layout exceeds, by how much, and on which stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Candidates, taken
from autoplan.costs.core.prediction import StageMemory
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import footprint_without_transient, stage_needed
from autoplan.costs.memory.mixed_layers import mixed_footprint
from autoplan.costs.predict import predict
from autoplan.deadline import check_deadline
from autoplan.results.front import Rejection
from autoplan.results.merged_front import step_limit
from autoplan.rules.user_constraints import even_only
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import listed_modes
from autoplan.search.bounds.contents_bound import contents_memory, most_recompute
from autoplan.search.bounds.memory_bound import (
    can_fit,
    floors_fit,
    least_memory,
    least_stage_memory,
    memory_floors,
    reachable_sums,
)
from autoplan.search.space.candidate_space import Space, conflicting_rules, layout_counts, space_of
from autoplan.search.space.choices import first_of_classes, order_classes, recompute_modes
from autoplan.search.space.priced_candidates import SizedCandidates, sized, sized_parts
from autoplan.units import format_bytes, format_seconds

#: Candidates times stages that are sized at once: 4 MB an array.
_BLOCK = 500_000


def fitting_candidates(
    job: Job, space: Space, *, even: bool
) -> tuple[list[SizedCandidates], tuple[Rejection, ...]]:
    """Return the candidates that fit in memory with some recompute, and a rejection that counts the others.

    Candidates are sized block by block, so that only those that fit are held in memory.
    """
    limit = memory_limit_bytes(job)
    fitting: dict[tuple[object, ...], list[SizedCandidates]] = {}
    rejected = 0
    modes = recompute_modes(job)
    for block in _blocks(space):
        possible, too_large = _without_too_large(job, block, limit, even=even)
        rejected += too_large
        for group in sized(job, possible, modes, even=even) if len(possible) else ():
            check_deadline()
            # Memory does not depend on the order of ranks.
            classes = order_classes(group.candidates)
            fits = can_fit(group.take(first_of_classes(classes)), limit)[classes]
            if not fits.all():
                rejected += layout_counts(job, group.candidates.take(~fits)).total()
            if fits.any():
                fitting.setdefault(group.key, []).append(group.take(np.flatnonzero(fits)))
    reason = f"do not fit into {format_bytes(limit)} a device with any recompute that the job allows"
    rejections = (Rejection(reason, rejected, "memory"),) if rejected else ()
    return [first.with_others(others) for first, *others in fitting.values()], rejections


def _without_too_large(job: Job, block: Candidates, limit: float, *, even: bool) -> tuple[Candidates, int]:
    """Return the candidates whose model states and saved activations may fit, and the layouts of the others.

    Most candidates need more than the limit without any transient memory.
    """
    classes = order_classes(block)
    one_order = block.take(first_of_classes(classes))
    may_fit = np.zeros(len(one_order), dtype=bool)
    modes = recompute_modes(job)
    for index, group in sized_parts(job, one_order, modes, even=even, footprint=footprint_without_transient):
        may_fit[index] = floors_fit(group, memory_floors(group), limit)
    possible = may_fit[classes]
    rejected = 0 if possible.all() else layout_counts(job, block.take(~possible)).total()
    return block.take(possible), rejected


def _blocks(space: Space) -> Iterator[Candidates]:
    """Yield the candidates of ``space``, so many at once that arrays of their stages stay small."""
    for candidates in space.groups:
        size = max(1, _BLOCK // candidates.pp)
        for start in range(0, len(candidates), size):
            yield candidates.take(np.arange(start, min(start + size, len(candidates))))


def _sized_blocks(job: Job, space: Space, *, even: bool) -> Iterator[SizedCandidates]:
    """Yield the candidates of ``space`` with their memory, block by block."""
    for block in _blocks(space):
        yield from sized(job, block, recompute_modes(job), even=even)


def least_needed(job: Job) -> float | None:
    """Return the least memory with which a layout of ``job`` fits [bytes]; None where the rules exclude all.

    Nothing is solved: this takes as long as sizing the candidates.
    """
    groups = _sized_blocks(job, space_of(job), even=even_only(job))
    return min((float(least_memory(group).min()) for group in groups), default=None)


def fits_memory(job: Job) -> bool:
    """Return whether some layout satisfies the rules on degrees and fits in memory, without a solve."""
    limit = memory_limit_bytes(job)
    groups = _sized_blocks(job, space_of(job), even=even_only(job))
    return any(can_fit(group, limit).any() for group in groups)


def smallest_layout(job: Job, space: Space, *, even: bool) -> Layout:
    """Return the layout of least peak memory of ``space``, which has candidates."""
    peak, one = inf, None
    for group in _sized_blocks(job, space, even=even):
        peaks = least_memory(group)
        if peaks.min() < peak or one is None:
            i = int(peaks.argmin())
            peak, one = float(peaks[i]), group.take(np.array([i]))
    assert one is not None  # noqa: S101 - the space has candidates
    places = one.places
    if places is not None:
        return _with_least_recompute(one, tuple(places.smallest_peak(contents_memory(one, places)[0])))
    return _with_least_recompute(one, _spread(least_stage_memory(one)[0], peak, one))


def _spread(least: np.ndarray, peak: float, group: SizedCandidates) -> tuple[int, ...]:
    """Return a layer split in which no stage exceeds ``peak`` bytes, the first stages as full as possible."""
    fits = least <= peak * (1 + 1e-12)
    sums, remaining, layers = reachable_sums(fits), group.layers, []
    for row, after in zip(fits, sums[1:], strict=True):
        possible = (np.flatnonzero(row[:remaining]) + 1).tolist()
        layers.append(max(n for n in possible if after >> (remaining - n) & 1))
        remaining -= layers[-1]
    return tuple(layers)


def _with_least_recompute(one: SizedCandidates, layers: tuple[int, ...]) -> Layout:
    """Return the layout of a single candidate with the recompute of least memory on each stage."""
    counts = np.asarray(layers, dtype=np.float64)
    mixes = most_recompute(counts, one.candidates.recompute_num_layers[0], one.modes)
    bytes_needed = np.stack([np.where(allowed, _needed(one, layers, mix), np.inf) for mix, allowed in mixes])
    best = bytes_needed.argmin(axis=0)
    recomputed = {
        mode: tuple(int(mixes[b][0][mode][j]) for j, b in enumerate(best)) for mode in listed_modes(one.modes)
    }
    return one.candidates.layout(0, layers, recomputed)


def _needed(one: SizedCandidates, layers: Sequence[int], recomputed: ByMode) -> Array:
    """Return the memory that each stage of a single candidate needs to fit, shape [p] [bytes]."""
    needed = []
    for stage, n in enumerate(layers):
        mix = {mode: counts[stage] for mode, counts in recomputed.items()}
        of_types, first = [taken(footprint, (0, stage)) for footprint in one.footprints], sum(layers[:stage])
        memory = of_types[0]
        if one.places is not None:
            order = one.places.order(stage, first, n)
            memory = mixed_footprint(of_types, one.places.prefixes.layer_counts(order, mix))
        needed.append(stage_needed(memory, np.array(float(n)), mix))
    return np.array(needed, dtype=np.float64)


def reasons_of(job: Job, space: Space, fastest: float | None) -> tuple[str, ...]:
    """Return the reasons why no layout is feasible, as sentences.

    ``fastest`` is the step [s] of the fastest layout within the memory, None without one.
    """
    if not space.groups:
        rules = "; ".join(conflicting_rules(job))
        return (f"no layout of {job.cluster.devices_words} satisfies all of these rules: {rules}",)
    limit = memory_limit_bytes(job)
    layout = smallest_layout(job, space, even=even_only(job))
    predicted = predict(job, layout)
    fullest = max(predicted.memory.stages, key=lambda stage: stage.total)
    if fastest is None:
        needed = fullest.total if job.limits.memory_confidence == "central" else fullest.total_high
        upper = "" if needed == fullest.total else "(with fragmentation) "
        missing = needed - limit
        memory_reason = (
            f"memory: the layout that needs least, {layout}, needs {format_bytes(needed)} {upper}on "
            f"each device of stage {fullest.stage} (fullest at: {fullest.event}), "
            f"{format_bytes(missing)} more than the {format_bytes(limit)} of "
            f"{job.cluster.device.title} that may be used"
        )
        return memory_reason, _state_sentence(job, fullest)
    most = step_limit(job)
    allowed = most[1] if most else "no limit is set"
    time_reason = (
        f"step time: the fastest layout that fits takes {format_seconds(fastest)} a step, and {allowed}"
    )
    return (time_reason,)


def _state_sentence(job: Job, memory: StageMemory) -> str:
    state = memory.parameters + memory.gradients + memory.optimizer
    return (
        f"of these, parameters, gradients and optimizer state are {format_bytes(state)} "
        f"({job.model.name} on {job.cluster.devices_words})"
    )
