"""Valid lower bounds on the step time of a candidate under a memory limit.

Recompute is relaxed to shares of layers; the split of layers over stages stays whole. Two numbers follow:
the least bottleneck (the k-th smallest stage time, k counting virtual stages) and the least sum of stage
times (the k smallest marginal times, since stage time is convex in its layers). What a schedule makes of
the two at least (``least_busy``), and the least tail, bound the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.memory.footprint import bytes_to_save
from autoplan.costs.stage.stage_times import Stages, end_of_step_floor, stage_backward, stage_forward
from autoplan.search.bounds.contents_bound import contents_bounds, least_time
from autoplan.search.space.priced_candidates import PricedCandidates, Schedule

__all__ = [
    "Bound",
    "Shares",
    "bound",
    "bound_by",
    "k_th_stage",
    "least_apart",
    "least_busy",
    "least_end_of_step",
    "least_of_stages",
    "least_steps",
    "longest_stage",
    "lowest",
]


class Scheduled(Protocol):
    """Candidates of a depth ``pp``: microbatches, virtual stages, whether they run GPipe, shape [C].

    And whether they do weight gradients apart; ``kinds`` are asked for where some do.
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
    def apart(self) -> NDArray[np.bool_]: ...
    @property
    def kinds(self) -> Sequence[Stages]: ...


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds of C candidates; ``stage_seconds`` has shape [C, p, n], infinite where impossible.

    It goes up to the most layers that a step of the seconds asked for has room for, n <= L; ``cut`` says
    where memory has room for more. Where layers differ, it has one entry for each content of the group's
    places. ``lasting_seconds`` bounds longer steps, too. ``slowest`` is what some stage takes at least.
    """

    step_seconds: Array
    lasting_seconds: Array
    stage_seconds: Array
    stage_sum: Array
    slowest: Array
    tail: Array
    cut: NDArray[np.bool_]


def bound(group: PricedCandidates, limit: Array | float, most: float = np.inf) -> Bound:
    """Return lower bounds on the step of each candidate with every device within ``limit`` bytes.

    ``limit`` is one for all, or one for each candidate, shape [C]. Steps above ``most`` seconds are of no
    interest: a bound above it says that the candidate has none within it.
    """
    if group.places is None:
        seconds, cut = _stage_seconds(group, limit, most)
        found = bound_by(group, seconds)
        step = found.step_seconds
        return replace(found, lasting_seconds=np.where(cut, np.minimum(step, most), step), cut=cut)
    seconds, tail = contents_bounds(group, group.places, limit)
    return _bound_of(group, seconds, group.places.least_sum(seconds), group.places.least_peak(seconds), tail)


def bound_by(group: PricedCandidates, seconds: Array) -> Bound:
    """Return lower bounds on steps whose stages take at least ``seconds``, shape [C, p, L].

    They may grow in any way with the layers. Where the group has one candidate, there may be several of them.
    """
    total, bottleneck = least_of_stages(group, seconds)
    return _bound_of(group, seconds, total, bottleneck, least_end_of_step(group))


def _bound_of(group: PricedCandidates, seconds: Array, total: Array, bottleneck: Array, tail: Array) -> Bound:
    possible = np.isfinite(bottleneck)
    busy = least_busy(group, total, np.where(possible, bottleneck, 0.0))
    step = np.where(possible, busy + tail, np.inf)
    none = np.zeros(len(step), dtype=bool)
    return Bound(step, step, stage_seconds=seconds, stage_sum=total, slowest=bottleneck, tail=tail, cut=none)


def least_of_stages(group: PricedCandidates, seconds: Array) -> tuple[Array, Array]:
    """Return the least sum of stage times, and what some stage takes at least, shape [C]."""
    k = group.layers / group.v
    slowest = np.where(_held(seconds) >= group.layers, k_th_stage(seconds, k), np.inf)
    return _least_sum(seconds, k, group.pp), slowest


def _held(seconds: Array) -> NDArray[np.int64]:
    """Return how many layers all stages hold at most whose times are ``seconds``, 0 where one holds none."""
    finite = np.isfinite(seconds)
    most = np.where(finite.any(axis=2), seconds.shape[2] - finite[..., ::-1].argmax(axis=2), 0)
    held: NDArray[np.int64] = np.where(most.all(axis=1), most.sum(axis=1), 0)
    return held


def least_steps(group: PricedCandidates) -> Array:
    """Return what no step of each candidate is below under any limit, shape [C], told without its stages."""
    if group.places is not None:
        total = least_time(group, group.places)
        return least_busy(group, total, total / group.pp)
    stages = group.stages
    layer, fixed = stages.forward.layer + stages.backward.layer, stages.forward.fixed + stages.backward.fixed
    total = fixed.sum(axis=1) + group.layers * layer.min(axis=1)
    slowest = np.maximum(total / group.pp, (fixed + group.fewest[:, None] * layer).max(axis=1))
    return least_busy(group, total, slowest) + least_end_of_step(group)


def least_busy(group: Scheduled, total: Array, bottleneck: Array) -> Array:
    """Return a bound on the pipeline's time by the sum and the largest of its stage times, shape [C].

    With P_s the sum of t over stages before s, the paths of ``critical_path`` hold P_s + m t_s v/v; for the
    slowest stage, P_s + 2 (t_s + ...) + (m - 2 - w_s) t_s with P_s <= s t_s. From these:

    GPipe: sum + (m-1) max. All others: m max. 1F1B: 2 sum + (m-1-p) max where m > p, 2 p sum / (2p-m+1)
    elsewhere (P_L is at most (p-m+1)/p of T, for the last stage L that fills up). Interleaved: P_s + M t_s
    <= T stage by stage, so sum <= v T (1 - (1 - 1/M)^p). Zero-bubble: ``least_apart``.
    """
    m, v, p = group.m, group.v, group.pp
    gpipe_makespan = total + (m - 1) * bottleneck
    many = 2 * total + (m - 1 - p) * bottleneck
    plain = np.where(m > p, many, 2 * p * total / np.maximum(2 * p - m + 1, 1))
    chunked = total / v / (1 - (1 - 1 / (m * v)) ** p)
    one_f_one_b_makespan = np.maximum(m * bottleneck, np.where(v > 1, chunked, plain))
    least: Array = np.where(group.gpipe, gpipe_makespan, one_f_one_b_makespan)
    if group.apart.any():
        least = np.where(group.apart, least_apart(m, p, total, bottleneck, _shares(group.kinds)), least)
    return least


class Shares(NamedTuple):
    """Shares of a stage's time: forward at least and at most, forward with input gradient at least, [C]."""

    forward: Array
    most_forward: Array
    without_weights: Array


def least_apart(m: Array, p: int, total: Array, bottleneck: Array, shares: Shares) -> Array:
    """Return a bound on the time of zero-bubble by the sum and the largest of its stage times, shape [C].

    Stage x, the slowest, takes c. For m >= p there is a path on which the first microbatch comes to x, goes
    to the last stage and back, and x does the rest: m c + the forwards of stages before x + forward and input
    gradient of those behind - (p-1-x) forwards of x. By the shares of forward (at least a, at most g) and of
    both (at least b): m c + a S + (b - a) S' - g (p-1-x) c, S being the sum of the others, and S' of those
    behind x at least S - x c. This is least for x = 0 or for x c = S.
    """
    a, g, b = shares
    others = total - bottleneck
    at_first = b * others - g * (p - 1) * bottleneck
    between = a * others - g * (p * bottleneck - total)
    # A slower stage makes a step longer, as long as there are enough microbatches.
    enough = (m >= p) & (m >= b + g * (p - 1)) & (m >= a + g * p)
    more = np.where(enough, np.maximum(np.minimum(at_first, between), 0.0), 0.0)
    least: Array = m * bottleneck + more
    return least


def _shares(kinds: Sequence[Stages]) -> Shares:
    """Return the shares of each candidate, over its stages, numbers of layers and kinds of recompute."""
    found = []
    for x in kinds:
        again = np.maximum(np.maximum(x.selective, x.full), 0.0)
        # With more layers the shares go from those of one, with what is outside of layers, to a layer's own.
        for fixed in (1.0, 0.0):
            forward = fixed * x.forward.fixed + x.forward.layer
            both = forward + fixed * x.backward.fixed + x.backward.layer
            weight = fixed * x.weight.fixed + x.weight.layer
            found.append((forward / (both + again), forward / both, 1.0 - weight / both))
    least, most, without = (np.stack(rows) for rows in zip(*found, strict=True))
    return Shares(least.min(axis=(0, 2)), most.max(axis=(0, 2)), without.min(axis=(0, 2)))


def lowest(bounds: Array, count: int) -> NDArray[np.int64]:
    """Return where the ``count`` least of ``bounds`` are, in their order; none that are infinite."""
    last = np.partition(bounds, min(count, len(bounds)) - 1)[:count].max()
    near = np.flatnonzero((bounds <= last) & np.isfinite(bounds))
    return near[np.argsort(bounds[near], kind="stable")[:count]]


def longest_stage(alternatives: Schedule, total: float, busy: float) -> float:
    """Return the seconds that a stage takes at most in a pipeline of ``busy``, by the same bounds.

    ``total`` is the least sum of stage times.
    """
    m, p = alternatives.m, alternatives.p
    if alternatives.gpipe:
        return (busy - total) / (m - 1) if m > 1 else busy
    alone = busy / m
    if alternatives.v > 1 or alternatives.apart or m <= p + 1:
        return alone
    return min(alone, (busy - 2 * total) / (m - 1 - p))


def _stage_seconds(
    group: PricedCandidates, limit: Array | float, most: float
) -> tuple[Array, NDArray[np.bool_]]:
    """Return the relaxed time of each stage for each number of layers, shape [C, p, n].

    Stages that alone make a step longer than ``most`` are left out; where memory has room for such ones,
    the second array says so, shape [C].
    """
    stages = group.stages.take((..., None))
    reach = _reach(group, most)
    layers = np.arange(1.0, reach + 1)
    limits = np.asarray(limit, dtype=np.float64).reshape(-1, 1, 1)
    again = _relaxed_recompute(stages, layers, limits, group.modes)
    none = np.zeros(())
    seconds = stage_forward(stages, layers) + stage_backward(stages, layers, none, none) + again
    # More layers never need less: where the last ones do not fit, none beyond them do.
    cut: NDArray[np.bool_] = np.isfinite(seconds[..., -1]).any(axis=1) & np.array(reach < group.layers)
    return np.where(group.allowed()[..., :reach], seconds, np.inf), cut


def _reach(group: PricedCandidates, most: float) -> int:
    """Return how many layers a stage has at most in a step within ``most`` seconds: m of it are no longer."""
    if not np.isfinite(most):
        return group.layers
    none = np.zeros(())
    fixed, one = (
        stage_forward(group.stages, n) + stage_backward(group.stages, n, none, none)
        for n in (none, np.ones(()))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.floor((most / group.m[:, None] - fixed) / (one - fixed)) + 1
    return int(np.clip(np.nanmax(room), group.fewest.max(), group.layers))


def _relaxed_recompute(stages: Stages, layers: Array, limit: Array, modes: frozenset[str]) -> Array:
    """Return the least time that recompute of fractions of layers adds to save what must be saved.

    Of two ways to save bytes the cheaper one a byte comes first; whole recompute then takes the place of
    selective on layer after layer.
    """
    memory = stages.memory
    need = bytes_to_save(memory, layers, limit)
    save_s = memory.none - memory.selective
    save_f = memory.none - memory.full
    inf = np.array(np.inf)
    cost_s = stages.selective if "selective" in modes else inf
    cost_f = stages.full if "full" in modes else inf
    with np.errstate(divide="ignore", invalid="ignore"):
        rate_s = np.where(save_s > 0, cost_s / save_s, np.inf)
        rate_f = np.where(save_f > 0, cost_f / save_f, np.inf)
        swap = np.where(save_f > save_s, (cost_f - cost_s) / (save_f - save_s), np.inf)
        first = np.minimum(need, layers * save_s)
        rest = need - first
        # Selective first where it is the cheaper saver, whole recompute alone otherwise.
        mixed = first * rate_s + np.where(rest > 0, rest * swap, 0.0)
        alone = np.where(need <= layers * save_f, need * rate_f, np.inf)
        room = np.where(np.isfinite(rate_f), np.maximum(save_f, save_s), save_s)
    cost = np.where((rate_s < rate_f) & np.isfinite(rate_s), mixed, alone)
    cost = np.where(need <= layers * room, cost, np.inf)
    paid = np.where(need > 0, cost, 0.0)
    # Layers that may not go without recompute pay at least the cheaper mode each.
    floor = 0.0 if "none" in modes else layers * np.minimum(cost_s, cost_f)
    least: Array = np.maximum(np.where(np.isnan(paid), np.inf, paid), floor)
    return least


def k_th_stage(seconds: Array, k: Array) -> Array:
    """Return the least time that some stage must take, shape [C].

    Stage time grows with layers, so the number of entries below a time is the number of virtual stages
    that fit under it: the k-th smallest entry is needed, and every stage's smallest.
    """
    flat = np.sort(seconds.reshape(len(seconds), -1), axis=1)
    # One entry a stage where stages are fixed: fewer than k entries are finite, and all are needed.
    finite = np.isfinite(flat).sum(axis=1)
    fixed = np.isfinite(seconds).sum(axis=2).max(axis=1) == 1
    rank = np.where(fixed, finite, k).astype(np.int64) - 1
    kth = flat[np.arange(len(flat)), np.clip(rank, 0, flat.shape[1] - 1)]
    kth = np.where(rank < flat.shape[1], kth, np.inf)
    least: Array = np.maximum(kth, seconds.min(axis=2).max(axis=1))
    return least


def _least_sum(seconds: Array, k: Array, pp: int) -> Array:
    """Return the least sum of stage times over all splits of the layers, shape [C]."""
    candidates = len(seconds)
    fixed = np.isfinite(seconds).sum(axis=2).max(axis=1) <= 1
    first = seconds.min(axis=2)
    packed = np.sort(np.where(np.isfinite(seconds), seconds, np.inf), axis=2)
    with np.errstate(invalid="ignore"):
        steps = np.diff(packed, axis=2)
    steps = np.where(np.isfinite(steps), steps, np.inf).reshape(candidates, -1)
    order = np.sort(steps, axis=1)
    taken = np.arange(order.shape[1])[None, :] < (k - pp)[:, None]
    more = np.where(taken, order, 0.0).sum(axis=1)
    total: Array = first.sum(axis=1) + np.where(fixed, 0.0, more)
    return total


def least_end_of_step(group: PricedCandidates) -> Array:
    """Return the least tail of each candidate: some stage has it at its fewest layers."""
    floor = end_of_step_floor(group.stages, group.fewest[:, None])
    if group.pp == 1:
        floor = end_of_step_floor(group.stages, np.array(float(group.layers)))
    least: Array = floor.max(axis=1)
    return least
