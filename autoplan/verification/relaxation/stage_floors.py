"""Least time of a stage for each number of layers under a memory limit, with recompute of parts of layers.

First come the least sum and the least maximum of these times over all splits of the layers.

Notation (this file only)::

    l, P     layers of a stage; contents: numbers of layers, or sequences of layer types
    K, k     saved activations of a microbatch [byte]; microbatches in flight
    D        transient memory within the limit [byte]
    a_r      bytes of K that recompute mode r of a layer saves
    x_r      layers with recompute mode r; R_r seconds that it adds for one

Transient memory is at least k K plus that of the events before a backward, and (k - 1) K plus that of those
behind it. So recompute has to save what K exceeds both quotients by, the ``need``. It takes no less than the
minimum of the sum of x_r R_r over real x_r >= 0 with the sum of x_r a_r >= need and that of x_r <= l, which a
vertex of that polytope attains: it has one mode, or two of which both constraints are tight. With several
layer types, it takes no less than the need times the least seconds per byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Ints, mapped
from autoplan.costs.core.layer_types import Prefixes, layer_types_of
from autoplan.costs.memory.footprint import Footprint, saved_bytes, stage_fits
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import Stages, end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.schema.job import Job
from autoplan.schema.recompute import FULL, listed_modes
from autoplan.schema.stage_layers import even_stages, order_of
from autoplan.verification.enumeration import even_only


def least_sum(seconds: Array, ranges: LayerRanges) -> Array:
    """Return a lower bound on the sum over stages, [C] [s]; ``seconds`` by choice, stage and content.

    With one layer type and any multiplier x, a split of all layers L has a sum of at least sum over stages of
    min over n of (t(n) - x n), plus x L. The multiplier is the largest increment among the L - p smallest, at
    which this is exact for convex times.
    """
    if ranges.even:
        total: Array = seconds[..., 0].sum(axis=1)
        return total
    if ranges.prefixes is not None:
        return _over_paths(seconds, ranges, np.add)
    multiplier = _increment(seconds, ranges.units - ranges.pp)[:, None, None]
    reduced = (seconds - multiplier * (ranges.layers / ranges.v)).min(axis=2).sum(axis=1)
    least: Array = reduced + multiplier[:, 0, 0] * ranges.units
    return least


def _increment(seconds: Array, count: int) -> Array:
    """Return the ``count``-th smallest finite increment of the times with one more unit of layers, [C]."""
    if count < 1 or seconds.shape[2] < 2:
        return np.zeros(len(seconds))
    with np.errstate(invalid="ignore"):
        increments = np.diff(seconds, axis=2).reshape(len(seconds), -1)
    increments = np.where(np.isfinite(increments), increments, np.inf)
    at = min(count, increments.shape[1]) - 1
    increment = np.partition(increments, at, axis=1)[:, at]
    return np.where(np.isfinite(increment), increment, 0.0)


def least_maximum(seconds: Array, ranges: LayerRanges) -> Array:
    """Return a lower bound on the largest stage time, [C] [s]; infinite where no split is possible.

    With one layer type, times that grow with layers have as many entries up to x as the stages can hold units
    of layers within x: the L-th smallest entry is needed. Times that do not grow are lowered until they do.
    """
    if ranges.even:
        largest: Array = seconds[..., 0].max(axis=1)
        return largest
    if ranges.prefixes is not None:
        return _over_paths(seconds, ranges, np.maximum)
    growing = np.minimum.accumulate(seconds[..., ::-1], axis=2)[..., ::-1]
    flat, at = growing.reshape(len(seconds), -1), ranges.units - 1
    entry = np.partition(flat, at, axis=1)[:, at] if at < flat.shape[1] else np.full(len(flat), np.inf)
    least: Array = np.maximum(entry, growing[..., 0].max(axis=1))
    return least


def _over_paths(seconds: Array, ranges: LayerRanges, combined: Callable[[Array, Array], Array]) -> Array:
    """Return the least sum or maximum over all sequences of ranges that follow one another, [C]."""
    units, most = ranges.place.shape
    behind = np.full((units + 1, len(seconds)), np.inf)
    behind[units] = 0.0
    for s in reversed(range(ranges.pp)):
        of_stage = np.full_like(behind, np.inf)
        by_content = np.ascontiguousarray(seconds[:, s].T)
        first, last = (0, 0) if s == 0 else (s, units - 1)
        for n in range(1, most + 1):
            end = min(last, units - n - (ranges.pp - 1 - s)) + 1
            if end > first:
                here = by_content[ranges.place[first:end, n - 1]]
                np.minimum(
                    of_stage[first:end],
                    combined(here, behind[first + n : end + n]),
                    out=of_stage[first:end],
                )
        behind = of_stage
    least: Array = behind[0]
    return least


@dataclass(frozen=True, slots=True)
class LayerRanges:
    """The P contents of stages: numbers of layers or, with several layer types, sequences of types.

    ``layers`` has shape [1, P], or [p, 1] with ``even``: each stage may hold one content only. With several
    layer types, ``prefixes`` has the sequences, and ``place`` [U, N] the index of the content that begins
    after a v layers and has (n + 1) v of them, for a < U and n < N. ``units`` is U: all layers over v.
    """

    pp: int
    v: int
    units: int
    even: bool
    layers: Array
    prefixes: Prefixes | None
    place: Ints

    @property
    def index(self) -> Ints:
        """Indices of the contents, in the shape of ``layers``."""
        return np.arange(self.layers.size).reshape(self.layers.shape)


def ranges_of(job: Job, pp: int, v: int) -> LayerRanges | None:
    """Return the contents of ``pp`` stages of ``v`` virtual stages.

    None where chunks of layers of several types differ in length: these are not modelled here.
    """
    kinds, total = layer_types_of(job.model, job.workload.sequence_length), job.model.layers
    if pp == 1 or even_only(job, pp, v):
        return _even(job, pp, v)
    most = total // v - pp + 1
    if kinds.several:
        return _several_types(kinds.sequence, len(kinds.models), pp, v)
    layers = v * np.arange(1.0, most + 1)[None]
    return LayerRanges(
        pp, v, total // v, even=False, layers=layers, prefixes=None, place=np.zeros((1, 1), int)
    )


def _even(job: Job, pp: int, v: int) -> LayerRanges | None:
    kinds, total = layer_types_of(job.model, job.workload.sequence_length), job.model.layers
    layers, prefixes = even_stages(total, pp, v), None
    if kinds.several:
        if any(n % v for n in layers):
            return None
        starts = [0, *accumulate(layers)][:-1]
        orders = [order_of(kinds.sequence, a, n, v) for a, n in zip(starts, layers, strict=True)]
        prefixes = Prefixes.of(orders, len(kinds.models))
    column = np.array(layers, dtype=float)[:, None]
    return LayerRanges(
        pp, v, total // v, even=True, layers=column, prefixes=prefixes, place=np.zeros((1, 1), int)
    )


def _several_types(sequence: tuple[int, ...], kinds: int, pp: int, v: int) -> LayerRanges:
    """Return the contents of a model with several layer types; ranges of the same sequence are one."""
    units = len(sequence) // v
    numbers: dict[tuple[int, ...], int] = {}
    place = np.zeros((units, units - pp + 1), dtype=np.int64)
    for a in range(units):
        for n in range(1, min(units - pp + 1, units - a) + 1):
            order = order_of(sequence, a * v, n * v, v)
            place[a, n - 1] = numbers.setdefault(order, len(numbers))
    layers = np.array([[float(len(order)) for order in numbers]])
    prefixes = Prefixes.of(list(numbers), kinds)
    return LayerRanges(pp, v, units, even=False, layers=layers, prefixes=prefixes, place=place)


@dataclass(frozen=True, slots=True)
class FixedRecompute:
    """Memory of stages whose layers all use one recompute mode, [C, p, P] [byte]; infinite if too large.

    ``seconds`` are those that recompute adds to a microbatch.
    """

    seconds: Array
    used: Array

    def seconds_at(self, limit: Array) -> Array:
        """Return the time of recompute under ``limit`` [C], infinite where a stage does not fit [s]."""
        return np.where(self.used <= limit[:, None, None], self.seconds, np.inf)


@dataclass(frozen=True, slots=True)
class ChosenRecompute:
    """Numbers of stages whose layers choose their recompute, broadcast to [C, p, P]; bytes and seconds.

    ``outside`` is persistent and framework memory, ``share`` the fragmentation of transient memory, ``most``
    the D of the upper end of fragmentation. ``least`` are seconds that every mix adds; ``save`` and ``cost``
    are bytes and seconds of each recompute mode of a layer, ``rate`` and ``saveable`` the least seconds per
    byte and all bytes that can be saved.
    """

    layers: Array
    outside: Array
    share: Array
    most: Array
    before: Array
    behind: Array
    update: Array
    in_flight: Array
    saved: Array
    least: Array
    rate: Array
    saveable: Array
    save: ByMode
    cost: ByMode

    def broadcast(self, shape: tuple[int, ...]) -> ChosenRecompute:
        """Return the same numbers as arrays of ``shape``."""
        return mapped(self, lambda x: np.broadcast_to(x, shape))

    def seconds_at(self, limit: Array) -> Array:
        """Return the least time of recompute under ``limit`` [C], infinite where none is enough [s]."""
        transient = np.minimum((limit[:, None, None] - self.outside) / self.share, self.most)
        k = self.in_flight
        interval = (transient - self.before) / k
        with np.errstate(divide="ignore", invalid="ignore"):
            behind = np.where(k > 1, (transient - self.behind) / (k - 1), np.inf)
        need = self.saved - np.minimum(interval, behind)
        impossible = (need > self.saveable * (1 + 1e-12)) | (transient < self.update)
        seconds = np.maximum(np.where(need > 0, self._least_seconds(need), 0.0), self.least)
        return np.where(impossible, np.inf, seconds)

    def _least_seconds(self, need: Array) -> Array:
        """Return the least sum of x_r R_r that saves ``need`` bytes [s]."""
        n = self.layers
        with np.errstate(divide="ignore", invalid="ignore"):
            pairs = [(a, self.cost[mode]) for mode, a in self.save.items()]
            vertices = [np.where(need / a <= n, need / a * cost, np.inf) for a, cost in pairs]
            for (a, cost), (b, other_cost) in combinations(pairs, 2):
                # Both constraints are tight: all layers are recomputed, y of them in the second mode.
                y = (need - n * a) / (b - a)
                mixed = np.where((y >= 0) & (y <= n), n * cost + y * (other_cost - cost), np.inf)
                vertices.append(np.where(np.isnan(mixed), np.inf, mixed))
        least = np.fmin.reduce(vertices)
        return np.where(np.isfinite(least), least, need * self.rate)


@dataclass(frozen=True, slots=True)
class StageFloors:
    """Least times of C choices, p stages and P contents; arrays of shape [C, p, P].

    ``seconds`` of a microbatch and its ``weight`` gradient without ``recompute`` that may be chosen; ``tail``
    is a lower bound on the end of step [s].
    """

    seconds: Array
    weight: Array
    tail: Array
    recompute: FixedRecompute | ChosenRecompute

    def seconds_at(self, limit: Array) -> Array:
        """Return the least time of each content under ``limit`` bytes a device [C], [C, p, P] [s]."""
        seconds: Array = self.seconds + self.recompute.seconds_at(limit)
        return seconds


def stages_of_ranges(kinds: Sequence[Stages], ranges: LayerRanges, mix: ByMode) -> Stages:
    """Return the coefficients of stages with that recompute, which broadcast to [C, p, P]; times in [s]."""
    kinds = [kind.take((slice(None), slice(None), None)) for kind in kinds]
    if ranges.prefixes is None:
        return kinds[0]
    return mixed_stages_of(kinds, ranges.prefixes.layer_counts(ranges.index, mix))


def fixed_floors(kinds: Sequence[Stages], ranges: LayerRanges, mode: str, limit: float) -> StageFloors:
    """Return the floors of stages whose layers all use ``mode``; ``limit`` is the job's [byte]."""
    n, mix = ranges.layers, ({} if mode == "none" else {mode: ranges.layers})
    stages = stages_of_ranges(kinds, ranges, mix)
    used, fits = stage_fits(stages.memory, n, mix, limit)
    backward = stage_backward(stages, n, {})
    seconds, weight, tail, recompute, used = np.broadcast_arrays(
        stage_forward(stages, n) + backward,
        stage_weight(stages, n),
        end_of_step(stages, n, mix).total,
        stage_backward(stages, n, mix) - backward,
        np.where(fits > 0, used, np.inf),
    )
    return StageFloors(seconds, weight, tail, FixedRecompute(recompute, used))


def chosen_floors(kinds: Sequence[Stages], ranges: LayerRanges, modes: Collection[str]) -> StageFloors:
    """Return the floors of stages each of whose layers uses one of ``modes``."""
    n, listed = ranges.layers, listed_modes(modes)
    stages = stages_of_ranges(kinds, ranges, {})
    seconds = stage_forward(stages, n) + stage_backward(stages, n, {})

    def of_recompute(which: np.ufunc) -> Array:
        return _of_all_layers(
            kinds, ranges, lambda x: which(which.reduce([x.recompute[mode] for mode in listed]), 0.0)
        )

    seconds = seconds + of_recompute(np.minimum)
    # Nothing hides more of the gradient reduction than the longest backward.
    longest = {FULL: of_recompute(np.maximum) / n}
    tail = end_of_step(replace(stages, recompute=longest), n, {FULL: n}).total
    seconds, weight, tail = np.broadcast_arrays(seconds, stage_weight(stages, n), tail)
    recompute = _chosen(kinds, ranges, stages.memory, modes)
    return StageFloors(seconds, weight, tail, recompute.broadcast(seconds.shape))


def _of_all_layers(kinds: Sequence[Stages], ranges: LayerRanges, of: Callable[[Stages], Array]) -> Array:
    """Return the sum over a stage's layers of a number ``of`` their type, [C, p, P]."""
    values = [of(kind)[..., None] for kind in kinds]
    if ranges.prefixes is None:
        return ranges.layers * values[0]
    counts = ranges.prefixes.layer_counts(ranges.index, {}).layers
    return sum((n * value for n, value in zip(counts, values, strict=True)), np.zeros(()))


def _chosen(
    kinds: Sequence[Stages], ranges: LayerRanges, memory: Footprint, modes: Collection[str]
) -> ChosenRecompute:
    """Return the numbers of the recompute that the layers may choose."""
    n, zero = ranges.layers, np.zeros_like(ranges.layers)
    outside = memory.persistent.at(n)
    one_type = ranges.prefixes is None
    savings, costs = _savings(kinds[0], modes), _costs(kinds[0], modes)
    save, cost = (
        {mode: x[..., None] if one_type else unknown for mode, x in by_mode.items()}
        for by_mode, unknown in ((savings, np.zeros(())), (costs, np.array(np.inf)))
    )
    least = _of_all_layers(kinds, ranges, lambda x: np.minimum.reduce([*_costs(x, modes).values()]))
    return ChosenRecompute(
        layers=n,
        outside=outside + memory.framework,
        share=memory.share,
        most=(memory.high_limit - memory.high_framework - outside) / memory.high_fragmentation,
        before=np.maximum(memory.before.at(n), memory.last.at(n)),
        behind=memory.late.at(n),
        update=memory.update.at(n),
        in_flight=memory.in_flight,
        saved=saved_bytes(memory, n, {}),
        least=zero if "none" in modes else least,
        save=save,
        cost=cost,
        rate=np.minimum.reduce([_rate(kind, modes)[..., None] for kind in kinds]),
        saveable=_of_all_layers(kinds, ranges, lambda x: np.maximum.reduce([*_savings(x, modes).values()])),
    )


def _savings(kind: Stages, modes: Collection[str]) -> dict[str, Array]:
    """Return the bytes that each recompute mode of a layer saves, 0 where not among ``modes``."""
    return {
        mode: np.maximum(kind.memory.none - kind.memory.recomputed[mode], 0.0) * (mode in modes)
        for mode in listed_modes(modes)
    }


def _costs(kind: Stages, modes: Collection[str]) -> dict[str, Array]:
    """Return the seconds that each recompute mode of a layer adds, infinite where not among ``modes``."""
    return {
        mode: np.maximum(kind.recompute[mode], 0.0 if mode in modes else np.inf)
        for mode in listed_modes(modes)
    }


def _rate(kind: Stages, modes: Collection[str]) -> Array:
    """Return the least seconds per byte saved; 0 where nothing can be saved."""
    savings, costs = _savings(kind, modes), _costs(kind, modes)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = [np.where(x > 0, costs[mode] / x, np.inf) for mode, x in savings.items()]
    least = np.minimum.reduce(rates)
    return np.where(np.isfinite(least), least, 0.0)
