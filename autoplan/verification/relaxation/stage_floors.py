"""Least time of a stage for each number of layers under a memory limit, with recompute of parts of layers.

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
from itertools import combinations

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, mapped
from autoplan.costs.memory.footprint import Footprint, saved_bytes, stage_fits
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import Stages, end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.schema.recompute import FULL, listed_modes
from autoplan.verification.relaxation.split_minima import LayerRanges


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
    the D of the upper end of the interval. ``least`` are seconds that every mix adds; ``save`` and ``cost``
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
