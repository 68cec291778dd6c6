"""Valid lower bounds on the step time of a candidate under a memory limit.

Recompute is relaxed to fractions of layers; the split of layers over stages stays integral. Two numbers
follow: the least bottleneck (the k-th smallest stage time, k counting virtual stages) and the least sum of
stage times (the k smallest marginal times, since stage time is convex in its layers). The bound on the step
is a bound on the schedule's makespan by these two (``least_makespan``) plus the least end of step.

The bound of a candidate transfers to those that differ from it in rank order alone. They need the same memory
for the same layers and recompute. Where recompute of a layer costs the other candidate no less, its stage
takes at least the time t of this one plus the difference without recompute:

    t'(l, s, f) >= t(l, s, f) + X' - X + l (x' - x)

with X the time of a stage outside its layers and x that of a layer, forward and backward. So the bounds on
the sum of stage times and on the slowest stage shift by the minimum of this difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, ByMode
from autoplan.costs.memory.footprint import bytes_to_save
from autoplan.costs.stage.stage_times import Stages, end_of_step_floor, stage_backward, stage_forward
from autoplan.deadline import check_deadline
from autoplan.schema.recompute import listed_modes
from autoplan.search.bounds.contents_bound import contents_bounds, least_stage_sum, recompute_steps
from autoplan.search.space.choices import order_classes
from autoplan.search.space.priced_candidates import PricedCandidates, Schedule
from autoplan.search.space.stage_contents import Places


class _Scheduled(Protocol):
    """Candidates of a depth ``pp``: microbatches, virtual stages, whether they run GPipe, shape [C].

    ``split_backward`` says whether their backward is split; ``kinds`` is read where it is for some.
    """

    @property
    def pp(self) -> int: ...
    @property
    def m(self) -> Array: ...
    @property
    def v(self) -> Array: ...
    @property
    def gpipe(self) -> NDArray[np.bool_]: ...
    @property
    def split_backward(self) -> NDArray[np.bool_]: ...
    @property
    def kinds(self) -> Sequence[Stages]: ...


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds of C candidates; ``stage_seconds`` has shape [C, p, n], infinite where impossible.

    It goes up to the largest number of layers that a step within the time asked for can have, n <= L; ``cut``
    says where more layers may fit in memory. With several layer types it has one entry per content of
    ``places``. ``monotone_seconds`` is also valid for longer steps. ``slowest`` bounds the slowest stage.
    """

    step_seconds: Array
    monotone_seconds: Array
    stage_seconds: Array
    stage_sum: Array
    slowest: Array
    tail: Array
    cut: NDArray[np.bool_]
    places: Places | None = None

    def at(self, row: int) -> Bound:
        """Return the bounds of one candidate, or of a group's one candidate at one of several limits."""
        rows = slice(row, row + 1)
        return replace(
            self,
            step_seconds=self.step_seconds[rows],
            monotone_seconds=self.monotone_seconds[rows],
            stage_seconds=self.stage_seconds[rows],
            stage_sum=self.stage_sum[rows],
            slowest=self.slowest[rows],
            # Without recompute the end of the step is the same at all limits.
            tail=self.tail if len(self.tail) == 1 else self.tail[rows],
            cut=self.cut if len(self.cut) == 1 else self.cut[rows],
        )


def bound(group: PricedCandidates, limit: Array | float, most: float = np.inf) -> Bound:
    """Return lower bounds on the step of each candidate with every device within ``limit`` bytes.

    ``limit`` is a number, or has shape [C]; for a group of one candidate, C may be any number. Steps above
    ``most`` seconds are out of scope: a bound above ``most`` proves that the candidate has no step within it.
    """
    check_deadline()
    if group.places is None:
        seconds, cut = _stage_seconds(group, limit, most)
        bounds = bound_by(group, seconds)
    else:
        places = group.places.up_to(most_layers_within(group, most))
        seconds, tail = contents_bounds(group, places, limit)
        least_sum, least_peak = places.least_sum(seconds), places.least_peak(seconds)
        bounds = replace(_bound_of(group, seconds, least_sum, least_peak, tail), places=places)
        cut = np.full(len(group.candidates), places.most < group.places.most)
    step = bounds.step_seconds
    return replace(bounds, monotone_seconds=np.where(cut, np.minimum(step, most), step), cut=cut)


def bound_by(group: PricedCandidates, seconds: Array) -> Bound:
    """Return lower bounds on steps whose stages take at least ``seconds``, shape [C, p, L].

    ``seconds`` need not be convex in the layers. For a group of one candidate, C may be any number.
    """
    total, bottleneck = least_of_stages(group, seconds)
    return _bound_of(group, seconds, total, bottleneck, least_end_of_step(group))


def _bound_of(group: PricedCandidates, seconds: Array, total: Array, bottleneck: Array, tail: Array) -> Bound:
    possible = np.isfinite(bottleneck)
    busy = least_makespan(group, total, np.where(possible, bottleneck, 0.0))
    step = np.where(possible, busy + tail, np.inf)
    no_cut = np.zeros(len(step), dtype=bool)
    return Bound(
        step, step, stage_seconds=seconds, stage_sum=total, slowest=bottleneck, tail=tail, cut=no_cut
    )


def least_of_stages(group: PricedCandidates, seconds: Array) -> tuple[Array, Array]:
    """Return lower bounds on the sum of stage times and on the slowest stage, shape [C]."""
    k, possible, first = group.layers / group.v, np.isfinite(seconds), seconds.min(axis=2)
    # Fixed stages have one finite entry.
    fixed = possible.sum(axis=2).max(axis=1) <= 1
    kth = np.maximum(_k_th_entry(seconds, k, possible, fixed), first.max(axis=1))
    slowest = np.where(most_layers_of_stages(possible) >= group.layers, kth, np.inf)
    return first.sum(axis=1) + np.where(fixed, 0.0, _least_marginal(seconds, k - group.pp)), slowest


def most_layers_of_stages(possible: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the largest total of ``possible`` layers [C, p, n], 0 where a stage has none, shape [C]."""
    most = np.where(possible.any(axis=2), possible.shape[2] - possible[..., ::-1].argmax(axis=2), 0)
    total: NDArray[np.int64] = np.where(most.all(axis=1), most.sum(axis=1), 0)
    return total


def least_steps(group: PricedCandidates) -> Array:
    """Return lower bounds on the step of each candidate under any memory limit, shape [C] [s]."""
    if group.places is not None:
        total = least_stage_sum(group, group.places)
        return least_makespan(group, total, total / group.pp)
    stages = group.stages
    layer, fixed = stages.forward.layer + stages.backward.layer, stages.forward.fixed + stages.backward.fixed
    total = fixed.sum(axis=1) + group.layers * layer.min(axis=1)
    slowest = np.maximum(total / group.pp, (fixed + group.fewest[:, None] * layer).max(axis=1))
    return least_makespan(group, total, slowest) + least_end_of_step(group)


def least_makespan(group: _Scheduled, total: Array, bottleneck: Array) -> Array:
    """Return a lower bound on the makespan by the sum and the largest of the stage times, shape [C].

    With P_s the sum of t over stages before s, the paths of ``critical_path`` hold P_s + m t_s v/v; for the
    slowest stage, P_s + 2 (t_s + ...) + (m - 2 - w_s) t_s with P_s <= s t_s. From these:

    GPipe: sum + (m-1) max. All others: m max. 1F1B: 2 sum + (m-1-p) max where m > p, 2 p sum / (2p-m+1)
    elsewhere (P_L is at most (p-m+1)/p of T, for the last stage L that fills up). Interleaved: P_s + M t_s
    <= T stage by stage, so sum <= v T (1 - (1 - 1/M)^p). Zero-bubble: ``least_zero_bubble``.
    """
    m, v, p = group.m, group.v, group.pp
    gpipe_makespan = total + (m - 1) * bottleneck
    steady = 2 * total + (m - 1 - p) * bottleneck
    not_interleaved = np.where(m > p, steady, 2 * p * total / np.maximum(2 * p - m + 1, 1))
    interleaved = total / v / (1 - (1 - 1 / (m * v)) ** p)
    one_f_one_b_makespan = np.maximum(m * bottleneck, np.where(v > 1, interleaved, not_interleaved))
    least: Array = np.where(group.gpipe, gpipe_makespan, one_f_one_b_makespan)
    if group.split_backward.any():
        least = np.where(
            group.split_backward, least_zero_bubble(m, p, total, bottleneck, _time_shares(group.kinds)), least
        )
    return least


class Shares(NamedTuple):
    """Bounds on shares of a stage's time, [C]: forward (lower, upper), forward and dgrad (lower)."""

    forward: Array
    most_forward: Array
    without_weights: Array


def least_zero_bubble(m: Array, p: int, total: Array, bottleneck: Array, shares: Shares) -> Array:
    """Return a lower bound on the zero-bubble makespan by the sum and the largest stage time, shape [C].

    Stage x, the slowest, takes c. For m >= p one path takes the first microbatch to x, through the last stage
    and to x in the backward, and x does the rest: m c + the forwards of stages before x + forward and input
    gradient of those after x - (p-1-x) forwards of x. By the shares of forward (at least a, at most g) and of
    both (at least b): m c + a S + (b - a) S' - g (p-1-x) c, S being the sum of the others, and S' of those
    after x at least S - x c. This is least for x = 0 or for x c = S.
    """
    a, g, b = shares
    others = total - bottleneck
    at_first = b * others - g * (p - 1) * bottleneck
    between = a * others - g * (p * bottleneck - total)
    # The bound grows with the bottleneck only with enough microbatches.
    enough = (m >= p) & (m >= b + g * (p - 1)) & (m >= a + g * p)
    exposed = np.where(enough, np.maximum(np.minimum(at_first, between), 0.0), 0.0)
    least: Array = m * bottleneck + exposed
    return least


def _time_shares(kinds: Sequence[Stages]) -> Shares:
    """Return bounds on the shares of each candidate over stages, numbers of layers and recompute mixes."""
    shares = []
    for x in kinds:
        recompute = np.maximum(np.maximum.reduce(list(x.recompute.values())), 0.0)
        # With the number of layers the shares go from those of one layer and embedding or head to a layer's.
        for fixed in (1.0, 0.0):
            forward = fixed * x.forward.fixed + x.forward.layer
            both = forward + fixed * x.backward.fixed + x.backward.layer
            weight = fixed * x.weight.fixed + x.weight.layer
            shares.append((forward / (both + recompute), forward / both, 1.0 - weight / both))
    lower, upper, without_weights = (np.stack(rows) for rows in zip(*shares, strict=True))
    return Shares(lower.min(axis=(0, 2)), upper.max(axis=(0, 2)), without_weights.min(axis=(0, 2)))


def lowest(bounds: Array, count: int) -> NDArray[np.int64]:
    """Return the indices of the ``count`` smallest finite ``bounds``, in ascending order of bound."""
    last = np.partition(bounds, min(count, len(bounds)) - 1)[:count].max()
    within = np.flatnonzero((bounds <= last) & np.isfinite(bounds))
    return within[np.argsort(bounds[within], kind="stable")[:count]]


def longest_stage(alternatives: Schedule, total: float, busy: float) -> float:
    """Return an upper bound on a stage's time where the makespan is at most ``busy`` [s].

    It inverts ``least_makespan``; ``total`` is the least sum of stage times.
    """
    m, p = alternatives.m, alternatives.p
    if alternatives.gpipe:
        return (busy - total) / (m - 1) if m > 1 else busy
    by_work = busy / m
    if alternatives.v > 1 or alternatives.split_backward or m <= p + 1:
        return by_work
    return min(by_work, (busy - 2 * total) / (m - 1 - p))


def _stage_seconds(
    group: PricedCandidates, limit: Array | float, most: float
) -> tuple[Array, NDArray[np.bool_]]:
    """Return the relaxed time of each stage for each number of layers, shape [C, p, n].

    Numbers of layers with which a stage alone exceeds a step of ``most`` are cut off; the second array says
    where such a number fits in memory, shape [C].
    """
    stages = group.stages.take((..., None))
    most_layers = most_layers_within(group, most)
    layers = np.arange(1.0, most_layers + 1)
    limits = np.asarray(limit, dtype=np.float64).reshape(-1, 1, 1)
    recompute = _relaxed_recompute(stages, layers, limits, group.modes)
    seconds = stage_forward(stages, layers) + stage_backward(stages, layers, {}) + recompute
    # Memory grows with layers: where the last number does not fit, no larger one does.
    cut: NDArray[np.bool_] = np.isfinite(seconds[..., -1]).any(axis=1) & np.array(most_layers < group.layers)
    return np.where(group.allowed()[..., :most_layers], seconds, np.inf), cut


def most_layers_within(group: PricedCandidates, most: float) -> int:
    """Return the largest number of layers of a stage in a step within ``most`` seconds: m t <= ``most``."""
    if not np.isfinite(most):
        return group.layers
    fixed = reduce(np.minimum, [kind.forward.fixed + kind.backward.fixed for kind in group.kinds])
    layer = reduce(np.minimum, [kind.forward.layer + kind.backward.layer for kind in group.kinds])
    with np.errstate(divide="ignore", invalid="ignore"):
        most_layers = np.floor((most / group.m[:, None] - fixed) / layer) + 1
    # The largest that is a number.
    reached, fewest = float(np.fmax.reduce(most_layers, axis=None)), float(group.fewest.max())
    return int(min(max(reached, fewest), group.layers))


def _relaxed_recompute(stages: Stages, layers: Array, limit: Array, modes: frozenset[str]) -> Array:
    """Return the least time that recompute of fractions of layers takes to save the bytes above ``limit``.

    Items of ``recompute_steps`` are taken in order, of all layers each but the last.
    """
    need = bytes_to_save(stages.memory, layers, limit)
    steps, least_of_layer = recompute_steps(stages, modes)
    remainder, cost, most_saved = need, np.zeros(()), np.zeros(())
    with np.errstate(invalid="ignore"):
        for rate, size in steps:
            taken = np.minimum(remainder, layers * size)
            cost = cost + np.where(remainder > 0, taken * rate, 0.0)
            remainder, most_saved = remainder - taken, most_saved + size
    cost = np.where(need <= layers * most_saved, cost, np.inf)
    recompute = np.where(need > 0, cost, 0.0)
    # Without the mode none, every layer costs at least the cheapest mode.
    least: Array = np.maximum(np.where(np.isnan(recompute), np.inf, recompute), layers * least_of_layer)
    return least


def k_th_stage(seconds: Array, k: Array) -> Array:
    """Return a lower bound on the slowest stage, shape [C].

    Stage time grows with layers, so the number of entries below a time is the number of virtual stages
    that fit under it: the k-th smallest entry is needed, and every stage's smallest.
    """
    possible = np.isfinite(seconds)
    fixed = possible.sum(axis=2).max(axis=1) == 1
    kth = _k_th_entry(seconds, k, possible, fixed)
    least: Array = np.maximum(kth, seconds.min(axis=2).max(axis=1))
    return least


def _k_th_entry(seconds: Array, k: Array, possible: NDArray[np.bool_], fixed: NDArray[np.bool_]) -> Array:
    """Return the k-th smallest of the times of all stages, shape [C]; infinite with fewer stages.

    Where stages are ``fixed``, fewer than k entries are ``possible``, and all are needed.
    """
    flat = np.sort(seconds.reshape(len(seconds), -1), axis=1)
    rank = np.where(fixed, possible.sum(axis=(1, 2)), k).astype(np.int64) - 1
    kth = flat[np.arange(len(flat)), np.clip(rank, 0, flat.shape[1] - 1)]
    return np.where(rank < flat.shape[1], kth, np.inf)


def _least_marginal(seconds: Array, more: Array) -> Array:
    """Return the least seconds that so many ``more`` layers add to those of the fewest, shape [C]."""
    packed = np.sort(seconds, axis=2)
    with np.errstate(invalid="ignore"):
        steps = packed[..., 1:] - packed[..., :-1]
    steps = np.where(np.isfinite(steps), steps, np.inf).reshape(len(seconds), -1)
    order = np.sort(steps, axis=1)
    chosen = np.arange(order.shape[1])[None, :] < more[:, None]
    marginal: Array = np.where(chosen, order, 0.0).sum(axis=1)
    return marginal


def least_end_of_step(group: PricedCandidates) -> Array:
    """Return a lower bound on the end of step: the largest of the stages with the fewest layers, [C] [s]."""
    floor = end_of_step_floor(group.stages, group.fewest[:, None])
    if group.pp == 1:
        floor = end_of_step_floor(group.stages, np.array(float(group.layers)))
    least: Array = floor.max(axis=1)
    return least


class _Schedules(NamedTuple):
    """Depth, microbatches, virtual stages and schedules of candidates; no backward is split."""

    pp: int
    m: Array
    v: Array
    gpipe: NDArray[np.bool_]
    split_backward: NDArray[np.bool_]
    kinds: tuple[Stages, ...] = ()


@dataclass(frozen=True, slots=True)
class SymmetricCandidates:
    """Candidates of a group in classes that differ in rank order alone; those of a class are neighbours.

    ``kind`` is the class, shape [C]; class k begins at ``edges[k]``. Seconds of a stage outside layers, of a
    layer and of its recompute by mode have shape [C, p]; the least end of step and the fewest
    layers of a stage have shape [C].
    """

    layers: int
    fewest: Array
    kind: NDArray[np.int64]
    edges: NDArray[np.int64]
    schedules: _Schedules
    fixed: Array
    layer: Array
    recompute: ByMode
    tail: Array

    @staticmethod
    def of(group: PricedCandidates) -> SymmetricCandidates:
        """Return the classes of ``group``; with several layer types every candidate is a class."""
        count, stages = len(group.candidates), group.stages
        kind = order_classes(group.candidates) if group.places is None else np.arange(count)
        return SymmetricCandidates(
            layers=group.layers,
            fewest=group.fewest,
            kind=kind,
            edges=np.searchsorted(kind, np.arange(kind[-1] + 2)),
            schedules=_Schedules(group.pp, group.m, group.v, group.gpipe, group.split_backward),
            fixed=stages.forward.fixed + stages.backward.fixed,
            layer=stages.forward.layer + stages.backward.layer,
            recompute={mode: stages.recompute[mode] for mode in listed_modes(group.modes)},
            tail=least_end_of_step(group),
        )

    def tell(self, index: NDArray[np.int64], bound: Bound, bounds: Array) -> None:
        """Raise the ``bounds`` of candidates in the classes of ``index``, which have ``bound``."""
        if self.kind[-1] + 1 < len(self.kind):
            np.maximum.at(bounds, *self._bounds_of_others(index, bound))

    def _bounds_of_others(self, index: NDArray[np.int64], bound: Bound) -> tuple[NDArray[np.int64], Array]:
        """Return candidates in the classes of ``index``, and lower bounds on their steps [s].

        ``bound`` bounds those at ``index``. Candidates with cheaper recompute are left out, as are those with
        split backward, whose bound depends on more than the time of a stage.
        """
        rows, others = self._pairs(index)
        costlier = np.logical_and.reduce([x[others] >= x[index[rows]] for x in self.recompute.values()])
        valid = costlier.all(axis=1) & ~self.schedules.split_backward[others]
        rows, others = rows[valid], others[valid]
        orders, s = index[rows], self.schedules
        schedules = _Schedules(s.pp, s.m[orders], s.v[orders], s.gpipe[orders], s.split_backward[orders])
        fixed = self.fixed[others] - self.fixed[orders]
        layer = (self.layer[others] - self.layer[orders]).min(axis=1)
        total = bound.stage_sum[rows] + fixed.sum(axis=1) + self.layers * layer
        shift = fixed.min(axis=1) + np.minimum(self.fewest[orders] * layer, self.layers * layer)
        slowest = np.maximum(bound.slowest[rows] + shift, total / schedules.pp)
        finite = np.isfinite(bound.step_seconds[rows])
        bounds = (np.where(finite, seconds, 0.0) for seconds in (total, slowest))
        least = np.where(finite, least_makespan(schedules, *bounds) + self.tail[others], np.inf)
        # ``known`` is valid for stages of up to n layers; with more, the stage alone bounds the step.
        cut_seconds = self.fixed[others] + (bound.stage_seconds.shape[2] + 1) * self.layer[others]
        cut_bound = schedules.m * cut_seconds.min(axis=1)
        return others, np.where(bound.cut[rows], np.minimum(least, cut_bound), least)

    def _pairs(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs: a row of ``index``, and another candidate of the class of its candidate."""
        begin, end = self.edges[self.kind[index]], self.edges[self.kind[index] + 1]
        rows = np.repeat(np.arange(len(index)), end - begin)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
        others = begin[rows] + offset
        distinct = others != index[rows]
        return rows[distinct], others[distinct]
