"""Lower bounds on the step of choices of degrees under memory limits, and whether their layouts fit.

Lower bounds on the makespan of a schedule, from sums and maxima of its stages' times.

Notation (this file only)::

    p  stages                 m  microbatches of a step     v  virtual stages of a device   M  chunks: m v
    t_s  time of stage s for one microbatch, F_s its forward, W_s its weight gradient       [s]
    U    sum of t over stages        c  the longest t        P_s  sum of t over stages before s
    R_s  sum of t from s on

Each makespan in ``costs.pipeline.critical_path`` is a maximum over paths, one or more for each stage s:

    GPipe         U + (m - 1) c
    direct        P_s / v + m t_s
    1F1B          U + R_s + (m - 1 - p + s) t_s, where m > p - s
    interleaved   U + (R_s + (M - (v + 1) p + 2 s) t_s) / v and ((v - 1) U + P_s + (M - (v - 1) p) t_s) / v,
                  where M - 2 is at least the forwards that stage s runs before its first backward
    zero bubble   m t_s + sum of F before s + sum of t - W behind s - (p - 1 - s) F_s, where m >= p

A maximum is no less than the mean of its paths, which is a weighted sum of stage times: ``StageWeights``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints, ScheduleCode, recompute_mode, taken
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.mixed_stages import price_layer_types
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.job import Job
from autoplan.schema.recompute import FULL, listed_modes, total
from autoplan.verification.enumeration import modes_of
from autoplan.verification.listing.branch_and_bound import RemainingStages
from autoplan.verification.listing.layout_listing import row_prices, rows_of
from autoplan.verification.relaxation.stage_floors import (
    LayerRanges,
    StageFloors,
    chosen_floors,
    fixed_floors,
    least_maximum,
    least_sum,
    ranges_of,
    stages_of_ranges,
)


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Weights of the stages' times and of their weight gradients in the mean of the paths, [C, p] [1].

    The makespan is at least the sum of ``time`` t less ``weight`` W over the stages.
    """

    time: Array
    weight: Array


def stage_weights(candidates: Candidates, microbatches: Array) -> StageWeights:
    """Return the weights of the mean of the paths of each choice's schedule [1].

    >>> one = Candidates(2, *(np.array([x]) for x in (1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0)))
    >>> stage_weights(one, np.array([8.0])).time.tolist()  # U + R_s + (5 + s) t_s of both stages, halved
    [[4.0, 5.0]]
    """
    p, s = candidates.pp, np.arange(candidates.pp, dtype=float)
    m, v = microbatches[:, None], candidates.vpp[:, None].astype(float)
    schedule, chunks = candidates.schedule[:, None], m * v
    direct = (m + (p - 1 - s) / v) / p
    steady = 1 + (m - p + 2 * s) / p
    rounds = 1 + (s + 1 + chunks - (v + 1) * p + 2 * s) / (p * v)
    time = np.where(m > p, steady, direct)
    time = np.where((v > 1) & (chunks >= (v + 1) * p), rounds, np.where(v > 1, direct, time))
    time = np.where(schedule == ScheduleCode.GPIPE, 1 + (m - 1) / p, time)
    split = schedule == ScheduleCode.ZERO_BUBBLE
    time = np.where(split, (m + np.where(m >= p, s, 0.0)) / p, time)
    return StageWeights(time, np.where(split & (m >= p), s / p, 0.0))


def least_makespan(candidates: Candidates, microbatches: Array, total: Array, slowest: Array) -> Array:
    """Return a lower bound on the makespan by the least ``total`` and ``slowest`` stage time, [C] [s].

    The slowest stage s has P_s <= s c, so under 1F1B with m > p: 2 U - P_s + (m - 1 - p + s) c >= 2 U +
    (m - 1 - p) c. With a step T, P_(s+1) <= P_s (1 - 1/M) + v T / M by the direct paths: over all stages U <=
    v T (1 - (1 - 1/M)^p), and with m <= p up to stage p - m + 1, whose 1F1B path is 2 U - P.

    >>> one = Candidates(2, *(np.array([x]) for x in (1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0)))
    >>> least_makespan(one, np.array([8.0]), np.array([6.0]), np.array([3.0])).tolist()  # (8 + 2 - 1) x 3
    [27.0]
    """
    p, m, v, c = candidates.pp, microbatches, candidates.vpp.astype(float), slowest
    chunks, schedule = m * v, candidates.schedule
    few = 2 * total / (2 - (1 - 1 / m) ** np.maximum(p - m + 1, 0))
    steady = np.where(m > p, 2 * total + (m - 1 - p) * c, few)
    geometric = total / v / (1 - (1 - 1 / chunks) ** p)
    rounds = ((v - 1) * total + (chunks - (v - 1) * p) * c) / v
    interleaved = np.where(chunks >= (v + 1) * p, np.maximum(geometric, rounds), geometric)
    others = np.where(v > 1, interleaved, steady)
    others = np.where(schedule == ScheduleCode.ZERO_BUBBLE, 0.0, others)
    others = np.where(schedule == ScheduleCode.GPIPE, total + (m - 1) * c, others)
    least: Array = np.maximum(m * c, others)
    return least


#: Entries of one array [C, p, P] that are processed at once.
_BLOCK: Final = 200_000


@dataclass(frozen=True, slots=True)
class ChoiceFloors:
    """Choices of one depth and their least times: ``stages`` of [C, p, P], and a least ``tail`` [C] [s].

    ``index`` is the position of each choice in its group.
    """

    candidates: Candidates
    index: Ints
    ranges: LayerRanges
    stages: StageFloors
    microbatches: Array
    weights: StageWeights
    tail: Array

    def __len__(self) -> int:
        return len(self.candidates)

    def take(self, index: Any) -> ChoiceFloors:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the choices at ``index``."""
        return ChoiceFloors(
            self.candidates.take(index),
            self.index[index],
            self.ranges,
            taken(self.stages, index),
            self.microbatches[index],
            taken(self.weights, index),
            self.tail[index],
        )

    def steps(self, limit: Array) -> Array:
        """Return a lower bound on the step of every layout within ``limit`` bytes a device, [C] [s].

        Infinite where no layout is within the limit.
        """
        seconds = self.stages.seconds_at(limit)
        slowest = least_maximum(seconds, self.ranges)
        possible = np.isfinite(slowest)
        total = least_sum(seconds, self.ranges)
        paths = self.weights.time[..., None] * seconds - self.weights.weight[..., None] * self.stages.weight
        mean = least_sum(paths, self.ranges)
        with np.errstate(invalid="ignore"):
            makespan = np.maximum(least_makespan(self.candidates, self.microbatches, total, slowest), mean)
        return np.where(possible, makespan + self.tail, np.inf)


@dataclass(frozen=True, slots=True)
class PricedBlock:
    """Priced choices of one depth, schedule chunks and recompute whose arrays fit into a core's cache."""

    job: Job
    candidates: Candidates
    index: Ints
    kinds: tuple[Stages, ...]
    ranges: LayerRanges
    modes: tuple[str, ...]
    unit: int

    def take(self, positions: Ints) -> PricedBlock:
        """Return the block of the choices at ``positions``."""
        kinds = tuple(kind.take(positions) for kind in self.kinds)
        taken_choices, index = self.candidates.take(positions), self.index[positions]
        return replace(self, candidates=taken_choices, index=index, kinds=kinds)

    def fits(self) -> NDArray[np.bool_]:
        """Return which choices have a layout within the job's memory limit for certain, [C]."""
        limit = memory_limit_bytes(self.job)
        fits = some_fit(self.kinds, self.ranges, self.modes, self.unit, limit)
        shape = (len(self.index), self.ranges.pp, self.ranges.layers.shape[1])
        return some_split(np.broadcast_to(fits, shape), self.ranges)

    def floors(self) -> ChoiceFloors:
        """Return the lower bounds of the block."""
        limit, number = memory_limit_bytes(self.job), microbatches(self.job, self.candidates).astype(float)
        if len(self.modes) == 1:
            stages = fixed_floors(self.kinds, self.ranges, self.modes[0], limit)
        else:
            stages = chosen_floors(self.kinds, self.ranges, self.modes)
        return ChoiceFloors(
            candidates=self.candidates,
            index=self.index,
            ranges=self.ranges,
            stages=stages,
            microbatches=number,
            weights=stage_weights(self.candidates, number),
            tail=_least_tail(stages.tail, self.ranges),
        )


@dataclass(frozen=True, slots=True)
class BoundedGroup:
    """Choices of one depth: the positions of those that ``never`` fit by their model states alone.

    ``unbounded`` are those that are not modelled here; ``blocks`` bound the others.
    """

    never: Ints
    unbounded: Ints
    blocks: tuple[PricedBlock, ...]


def bounded_group(job: Job, group: Candidates, machine: Machine) -> BoundedGroup:
    """Return the choices of ``group`` priced, in blocks, without those whose model states never fit."""
    keys = np.stack([group.vpp, group.uniform_recompute, group.recompute_num_layers])
    columns, inverse = np.unique(keys, axis=1, return_inverse=True)
    none = np.zeros(0, dtype=np.int64)
    never, unbounded, blocks = [none], [none], []
    for number, (v, moved, unit) in enumerate(columns.T.tolist()):
        index, ranges = np.flatnonzero(inverse.ravel() == number), ranges_of(job, group.pp, v)
        if ranges is None:
            unbounded.append(index)
            continue
        mode = recompute_mode(moved)
        modes = tuple(modes_of(job)) if mode is None else (mode,)
        kinds = price_layer_types(job, group.take(index), machine)
        possible = states_fit(job, kinds)
        never.append(index[~possible])
        size = max(1, _BLOCK // (group.pp * ranges.layers.shape[1]))
        for start in range(0, int(possible.sum()), size):
            at = np.flatnonzero(possible)[start : start + size]
            part = tuple(kind.take(at) for kind in kinds)
            blocks.append(PricedBlock(job, group.take(index[at]), index[at], part, ranges, modes, unit))
    return BoundedGroup(np.concatenate(never), np.concatenate(unbounded), tuple(blocks))


def _least_tail(tail: Array, ranges: LayerRanges) -> Array:
    """Return a lower bound on the longest end of step of a stage, [C] [s].

    It is no less than the least of any one stage, and some stage has its share of the layers or more.
    """
    each: Array = tail.min(axis=2).max(axis=1)
    if ranges.even:
        return each
    many = ranges.layers[0] >= ranges.units * ranges.v / ranges.pp
    least: Array = np.maximum(each, tail[..., many].min(axis=(1, 2)))
    return least


def states_fit(job: Job, kinds: Sequence[Stages]) -> NDArray[np.bool_]:
    """Return which choices may hold persistent memory and the update on all devices together, [C].

    Each layer counts with the least that any stage needs for it.
    """
    types, limit = layer_types_of(job.model, job.workload.sequence_length), memory_limit_bytes(job)
    counts, memory = np.bincount(np.array(types.sequence)), [kind.memory for kind in kinds]
    first = memory[0]
    needed = first.persistent.fixed + first.framework + first.share * first.update.fixed
    total = needed.sum(axis=1)
    for n, x in zip(counts.tolist(), memory, strict=True):
        total = total + n * (x.persistent.layer + x.share * x.update.layer).min(axis=1)
    devices = first.persistent.fixed.shape[1]
    possible: NDArray[np.bool_] = np.asarray(total) <= limit * (1 + 1e-9) * devices
    return possible


def some_split(fits: NDArray[np.bool_], ranges: LayerRanges) -> NDArray[np.bool_]:
    """Return which choices have a split all of whose stages fit, for certain, [C]."""
    if ranges.even or ranges.prefixes is not None:
        return np.isfinite(least_maximum(np.where(fits, 0.0, np.inf), ranges))
    # Where a stage fits with up to n units of layers, it can hold any number up to n.
    contiguous = np.logical_and.accumulate(fits, axis=2).sum(axis=2)
    possible: NDArray[np.bool_] = (contiguous >= 1).all(axis=1) & (contiguous.sum(axis=1) >= ranges.units)
    return possible


def some_fit(
    kinds: Sequence[Stages], ranges: LayerRanges, modes: Collection[str], unit: int, limit: float
) -> NDArray[np.bool_]:
    """Return for which stages and contents one of a few recompute mixes fits ``limit`` bytes, [C, p, P].

    ``unit`` is the number of layers of a recompute unit.
    """
    fitting = np.zeros((1, 1, 1), dtype=bool)
    for counts in _few_mixes(ranges.layers, modes, unit):
        recomputed = total(counts, np.zeros_like(ranges.layers))
        possible = np.logical_and.reduce([count >= 0 for count in counts.values()])
        possible &= (recomputed <= ranges.layers) & (("none" in modes) | (recomputed == ranges.layers))
        mix = {mode: np.where(possible, count, 0.0) for mode, count in counts.items()}
        _, fits = stage_fits(stages_of_ranges(kinds, ranges, mix).memory, ranges.layers, mix, limit)
        fitting = fitting | ((fits > 0) & possible)
    return fitting


def _few_mixes(n: Array, modes: Collection[str], unit: int) -> Iterator[dict[str, Array]]:
    """Yield numbers of layers with each recompute mode, few or most of all."""
    none = dict.fromkeys(listed_modes(modes), np.zeros_like(n))
    in_part = [mode for mode in none if mode in modes and mode != FULL]
    if "none" in modes:
        yield none
    for left in range(3):
        yield from (none | {mode: n - left} for mode in in_part)
        if FULL in modes:
            whole = none | {FULL: (n - left) - (n - left) % unit}
            yield whole
            yield from (whole | {mode: n - whole[FULL]} for mode in in_part)


def fits_by_listing(
    job: Job,
    kinds: Sequence[Stages],
    ranges: LayerRanges,
    modes: Sequence[str],
    unit: int,
    possible: NDArray[np.bool_],
) -> bool:
    """Return whether a layout of a single choice fits, by all mixes of contents for which that is unknown.

    Layers have one type, and some stage may hold the contents that are ``possible``, [p, P].
    """
    fits = np.broadcast_to(
        some_fit(kinds, ranges, modes, unit, memory_limit_bytes(job))[0], possible.shape
    ).copy()
    layers = np.broadcast_to(ranges.layers, possible.shape).astype(np.int64)
    unknown = set(layers[possible & ~fits].tolist())
    only = modes[0] if len(modes) == 1 else None
    rows = rows_of(job, ranges.pp, ranges.v, unit, only, among=unknown) if unknown else None
    if rows is not None:
        by_count = np.maximum.reduceat(row_prices(job, kinds, rows)[-1], rows.starts, axis=1) > 0
        for column, count in enumerate(rows.layers[rows.starts].tolist()):
            fits |= (layers == count) & by_count[:, column, None]
    if ranges.even:
        return bool(fits[:, 0].all())
    counts = [(-1, count) for count in layers[0].tolist()]
    sums = RemainingStages.of(counts, ranges.units * ranges.v, np.where(fits, 0.0, np.inf)).sums
    return bool(sums[0][-1] < np.inf)
