"""Branch and bound over all layouts of one choice inside a box of objective space, stage by stage.

Boxes of objective space are what a front excludes: no layout has less memory and a shorter step.
With T and M the step and memory of a plan, and e the thinning, a front claims of every layout that

- it is not faster than a plan within that plan's memory;
- it is dominated within e: some plan is no slower and at most e larger, or no larger and at most e slower.

The region that violates a claim lies below a staircase, the union of the boxes at its corners.

Notation (this file only)::

    t_s  seconds of stage s for one microbatch, forward and backward    p  stages    m  microbatches
    v    virtual stages of a device                                     U  sum of t of all stages

A stage's recompute mix is left out where another mix of the same layers dominates it in backward time and end
of step, and no rule of the user distinguishes the two. Only mixes within the memory of the box are listed. A
partial layout is pruned where no completion is inside the box, or none satisfies the user's rules. Lower
bounds on a step are

- the sum of t of the stages before s, over v, plus m t_s: the path through the first forwards to s, all work
  of s, and the last backwards to the first stage;
- under 1F1B with m > p - s, U + (sum of t from s on) + (m - 1 - p + s) t_s: before its first backward stage s
  waits for the first microbatch to return, after its last forward for the last one, and between the two it
  does the others;
- under interleaved 1F1B with M = m v, where stage s runs at most M - 2 forwards before its first backward:
  U + (sum of t from s on + (M - (v + 1) p + 2 s) t_s) / v, through the rounds of the last stage; and
  ((v - 1) U + sum of t before s + (M - (v - 1) p) t_s) / v, through those of stage s;
- under GPipe U + (m - 1)(max F + max B), which is the makespan;
- under zero-bubble, where other stages wait for the input gradient B and not for the weight gradient W: the
  sum of F before s, plus m t_s; with m >= p, the sum of F and B of all stages plus m t_s, less what s does
  of it while it waits (p - s forwards, one B), less the B before s.

Of two partial layouts with the same layers, one whose parts of all these bounds are no less is left out
first: it has no smaller bound with any other stages. If no bound is inside the box then, no layout is. If one
is, and the layout itself is not, all are listed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.pipeline.schedules import pipeline_seconds
from autoplan.deadline import ENDLESS, Deadline
from autoplan.schema.layout import Layout
from autoplan.verification.listing.layout_listing import Listing

#: Relative tolerance of steps: rounding to the solver's ticks.
_SAME: Final = 1e-6

#: Ticks of the solver's memory up to the limit, and the tolerance in ticks.
_MEMORY_TICKS: Final = 2**16
_SAME_TICKS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Box:
    """Layouts with at most ``memory_bytes`` and a step below ``step_seconds``."""

    memory_bytes: float
    step_seconds: float


def tick_bytes(limit: float) -> float:
    """Return the tolerance of memory claims, from the solver's ticks [byte]."""
    return _SAME_TICKS * limit / _MEMORY_TICKS


def boxes_of(
    plans: Sequence[tuple[float, float]],
    *,
    thinning: float,
    limit: float,
    longest: float = math.inf,
    objectives: Collection[str] = ("step_time", "peak_memory"),
    others: Sequence[tuple[float, float]] = (),
) -> list[Box]:
    """Return the boxes excluded by a front of ``plans`` (step [s], memory [byte]), the largest memory first.

    ``limit`` and ``longest`` are the job's limits on memory and step. What ``others`` dominate, plans of
    other programs, is not excluded.

    >>> boxes_of([], thinning=0.01, limit=4.0)
    [Box(memory_bytes=4.0, step_seconds=inf)]
    >>> boxes = boxes_of([(2.0, 3.0)], thinning=0.01, limit=4.0)
    >>> [(round(box.memory_bytes, 2), round(box.step_seconds, 2)) for box in boxes]
    [(4.0, 1.98), (3.0, 2.0), (2.97, inf)]
    """
    if not plans:
        return [Box(limit, longest)]
    ticks = tick_bytes(limit)
    fastest = Box(limit, plans[0][0] / (1 + _SAME))
    if set(objectives) == {"step_time"}:
        return [fastest]
    smallest = Box(min(memory for _, memory in plans) - ticks, longest)
    if set(objectives) == {"peak_memory"}:
        return [smallest]
    below_plans = [Box(memory - ticks, step / (1 + _SAME)) for step, memory in plans]
    return maximal([*below_plans, *_undominated(plans, others, thinning, limit, longest)])


def _undominated(
    plans: Sequence[tuple[float, float]],
    others: Sequence[tuple[float, float]],
    thinning: float,
    limit: float,
    longest: float,
) -> list[Box]:
    """Return the boxes of layouts that no plan dominates within ``thinning``, and none of ``others``."""
    ticks = tick_bytes(limit)
    thinned = [(step / (1 + _SAME), memory * (1 - thinning) - ticks) for step, memory in plans]
    thinned += [(step / (1 + thinning) / (1 + _SAME), memory - ticks) for step, memory in plans]
    thinned += [(step / (1 + _SAME), memory - ticks) for step, memory in others]
    boxes, smallest = [], limit
    for step, memory in sorted(thinned):
        boxes.append(Box(smallest, step))
        smallest = min(smallest, memory)
    return [*boxes, Box(smallest, longest)]


def maximal(boxes: Sequence[Box]) -> list[Box]:
    """Return ``boxes`` without those that another one contains."""
    maximal: list[Box] = []
    for box in sorted(boxes, key=lambda c: (-c.memory_bytes, -c.step_seconds)):
        if not maximal or box.step_seconds > maximal[-1].step_seconds:
            maximal.append(box)
    return maximal


@dataclass(frozen=True, slots=True)
class RemainingStages:
    """Least sum of t and least slowest t of the stages from s on with n layers, [p + 1, L + 1] [s]."""

    sums: Array
    slowest: Array

    @staticmethod
    def of(ranges: Sequence[tuple[int, int]], total: int, both: Array) -> RemainingStages:
        """Return the minima over all splits; ``both`` is t by stage and layer range [s].

        ``ranges`` are the layers before a stage (-1 for one layer type) and the layers of the stage.
        """
        p, size = len(both), total + 1
        sums, slowest = np.full((p + 1, size), np.inf), np.full((p + 1, size), np.inf)
        sums[p, 0] = slowest[p, 0] = 0.0
        for s in reversed(range(p)):
            for seconds, (before, stage_layers) in zip(both[s].tolist(), ranges, strict=True):
                if seconds < np.inf and stage_layers < size:
                    # The layers before the stage fix how many it and the later stages have.
                    remaining = (
                        slice(stage_layers, size) if before < 0 else slice(size - 1 - before, size - before)
                    )
                    after = slice(remaining.start - stage_layers, remaining.stop - stage_layers)
                    sums[s, remaining] = np.minimum(sums[s, remaining], seconds + sums[s + 1, after])
                    least = np.maximum(seconds, slowest[s + 1, after])
                    slowest[s, remaining] = np.minimum(slowest[s, remaining], least)
        return RemainingStages(sums, slowest)


@dataclass(slots=True)
class FirstStages:
    """Partial layouts of the first stages, one per row."""

    mixes: Ints  # [S, k]
    layers: Ints  # of the first stages
    total: Array  # sum of t so far
    forward_sum: Array  # sum of F so far
    split_sum: Array  # sum of F and B without weight gradients, where the backward is split
    direct_path: Array  # longest path of the first kind through the stages so far
    return_path: Array  # likewise of the second kind: (m - 1 - p + s) t_s - sum of t before s
    round_path: Array  # likewise of the third kind, interleaved: sum of t before s + (M - (v - 1) p) t_s
    forward: Array  # largest forward and backward so far
    backward: Array
    tail: Array

    def take(self, index: Any) -> FirstStages:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the rows at ``index``."""
        return FirstStages(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def joined(parts: Sequence[FirstStages]) -> FirstStages:
        """Return the rows of all ``parts``."""
        names = tuple(field.name for field in fields(FirstStages))
        return FirstStages(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def no_stage() -> FirstStages:
    """Return the partial layout without stages, the root of the branch and bound."""
    zero, never = np.zeros(1), np.full(1, -np.inf)
    no_stages = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    return FirstStages(*no_stages, zero, zero, zero, zero, never, never, zero, zero, never)


#: Partial layouts processed at once, and those of one choice and box after which it is left open.
_CHUNK: Final = 200_000
_MOST: Final = 40_000_000
#: Partial layouts of one depth that are kept, and passes that leave dominated ones out.
_MOST_KEPT: Final = 400_000
_PASSES: Final = 24

#: Parts of the bounds; each bound grows with each of them.
_PARTS: Final = (
    "total",
    "forward_sum",
    "split_sum",
    "direct_path",
    "return_path",
    "round_path",
    "forward",
    "backward",
    "tail",
)


class _UndecidedError(Exception):
    """A choice has too many partial layouts inside a box to list them, or the time is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of the branch and bound of a choice inside a box: a layout with its step [s], or none.

    ``listed`` is the number of partial and complete layouts; ``open`` says that a limit was reached.
    """

    layout: Layout | None
    step_seconds: float
    listed: int
    open: bool = False


def below(listing: Listing, box: Box, deadline: Deadline = ENDLESS) -> Outcome:
    """Return a layout of ``listing`` inside ``box``, if one exists; open where ``deadline`` ends before."""
    fits = listing.fits & listing.satisfied & (listing.memory <= box.memory_bytes)
    remaining = RemainingStages.of(listing.layer_ranges, listing.total, _shortest(listing, fits))
    if not remaining.sums[0][listing.total] < np.inf:
        return Outcome(None, np.inf, 0)
    alternatives = [_non_dominated(listing, fits[s], s) for s in range(listing.pp)]
    sums = _split_sums(listing, fits)
    search = _BranchAndBound(listing, box.step_seconds, alternatives, remaining, sums, deadline)
    try:
        return search.solution()
    except _UndecidedError:
        return Outcome(None, np.inf, search.listed, open=True)


def reach(listing: Listing) -> Box | None:
    """Return the least memory of a layout and a lower bound on the step, as a box; None if no layout fits.

    A box with less memory, or with a step not above the bound, has no layout.
    """
    memory = np.where(listing.fits, listing.memory, np.inf)
    least_memory = RemainingStages.of(
        listing.layer_ranges, listing.total, np.minimum.reduceat(memory, listing.starts, axis=1)
    ).slowest[0][listing.total]
    if not least_memory < np.inf:
        return None
    remaining = RemainingStages.of(listing.layer_ranges, listing.total, _shortest(listing, listing.fits))
    search = _BranchAndBound(listing, np.inf, [], remaining, _split_sums(listing, listing.fits), ENDLESS)
    return Box(float(least_memory), float(search.lower_bound()))


def _shortest(listing: Listing, fits: NDArray[np.bool_]) -> Array:
    """Return the least t of each stage by layer range, over mixes that fit [s]."""
    backward = np.minimum.reduceat(np.where(fits, listing.backward, np.inf), listing.starts, axis=1)
    shortest: Array = listing.forward[:, listing.starts] + backward
    return shortest


def _split_sums(listing: Listing, fits: NDArray[np.bool_]) -> Array:
    """Return the least sum of F and B of the stages from s on with n layers, [p + 1, L + 1] [s]."""
    if not listing.split_backward:
        return np.zeros((listing.pp + 1, listing.total + 1))
    without_weight = np.where(fits, listing.backward - listing.weight, np.inf)
    shortest = np.minimum.reduceat(listing.forward + without_weight, listing.starts, axis=1)
    return RemainingStages.of(listing.layer_ranges, listing.total, shortest).sums


def _non_dominated(listing: Listing, fits: NDArray[np.bool_], stage: int) -> Ints:
    """Return the mixes of a stage that fit and that no other mix of the same layers dominates.

    A mix does not dominate one that a rule of the user distinguishes from it.
    """
    index = np.flatnonzero(fits)
    backward, tail = listing.backward[stage], listing.tail[stage]
    kinds = [listing.before, listing.layers]
    kinds += [listing.recomputed[x] for x in sorted(listing.recomputed.keys() & listing.rules.distinguishing)]
    order = index[np.lexsort((tail[index], backward[index], *(kind[index] for kind in reversed(kinds))))]
    edges = [np.diff(kind[order], prepend=-2, append=-2) != 0 for kind in kinds]
    bounds = np.flatnonzero(np.logical_or.reduce(edges))
    non_dominated = []
    for start, end in pairwise(bounds):
        same_layers = order[start:end]
        least = np.minimum.accumulate(tail[same_layers])
        non_dominated.append(same_layers[np.r_[True, tail[same_layers][1:] < least[:-1]]])
    return np.concatenate(non_dominated) if non_dominated else order


def _of_least_backward(listing: Listing, mixes: Ints, stage: int) -> Ints:
    """Return of ``mixes`` the one of least backward time for each range of layers."""
    ranges = (listing.before[mixes], listing.layers[mixes])
    order = np.lexsort((listing.backward[stage, mixes], *reversed(ranges)))
    changes = [np.diff(column[order], prepend=-2) != 0 for column in ranges]
    return mixes[order[np.logical_or.reduce(changes)]]


@dataclass(slots=True)
class _BranchAndBound:
    """Branch and bound over the stages of a choice for a step below ``most`` seconds."""

    listing: Listing
    most: float
    alternatives: list[Ints]
    remaining: RemainingStages
    split_sums: Array
    deadline: Deadline
    listed: int = 0

    def lower_bound(self) -> float:
        """Return a lower bound on the step of all layouts [s]."""
        return float(self._lower_bound(no_stage(), 0)[0])

    def solution(self) -> Outcome:
        """Return a layout with a step below ``most``, or none."""
        none = Outcome(None, np.inf, 0)
        if not self.lower_bound() < self.most:
            return none
        if self.listing.rules.relations:
            solutions = (self._best(complete) for complete in self._solutions(no_stage(), 0))
            return next(filter(None, solutions), Outcome(None, np.inf, self.listed))
        undominated = self._non_dominated_solutions()
        if undominated is not None and not len(undominated.layers):
            return Outcome(None, np.inf, self.listed)
        best = None if undominated is None else self._best(undominated)
        return best or self._by_tail()

    def _by_tail(self) -> Outcome:
        """Return a layout with a step below ``most``, or none, for each end of step that a stage may have.

        The makespan grows with every stage's time: among the mixes of a stage's layers whose end of step is
        no longer than some time, the one of least backward is in a fastest layout with no longer end of step.
        """
        x, all_of_stage = self.listing, self.alternatives
        tails = [x.tail[s, mixes] for s, mixes in enumerate(all_of_stage)]
        for longest in np.unique(np.concatenate(tails))[::-1].tolist():
            within = [mixes[tail <= longest] for mixes, tail in zip(all_of_stage, tails, strict=True)]
            self.alternatives = [_of_least_backward(x, mixes, s) for s, mixes in enumerate(within)]
            for complete in self._solutions(no_stage(), 0):
                if (best := self._best(complete)) is not None:
                    return best
        self.alternatives = all_of_stage
        return Outcome(None, np.inf, self.listed)

    def _best(self, complete: FirstStages) -> Outcome | None:
        """Return the fastest of ``complete`` layouts, if it is below ``most``."""
        if not len(complete.layers):
            return None
        seconds = self._steps(complete)
        best = int(seconds.argmin())
        if not seconds[best] < self.most:
            return None
        return Outcome(self.listing.layout(complete.mixes[best]), float(seconds[best]), self.listed)

    def _non_dominated_solutions(self) -> FirstStages | None:
        """Return non-dominated complete layouts whose bound is below ``most``; None for too many.

        Without one, no layout has a step below ``most``.
        """
        first = no_stage()
        for stage in range(self.listing.pp):
            size = max(1, _CHUNK // max(1, len(self.alternatives[stage])))
            starts = range(0, len(first.layers), size)
            parts = [self._extended_by(first.take(slice(i, i + size)), stage) for i in starts]
            first = _undominated_stages(FirstStages.joined(parts)) if parts else first
            if len(first.layers) > _MOST_KEPT:
                return None
        return first

    def _extended_by(self, first: FirstStages, stage: int) -> FirstStages:
        """Return ``first`` with the alternatives of ``stage``; raises for too many, or too late."""
        extended = self._extended(first, stage)
        self.listed += len(extended.layers)
        if self.listed > _MOST or self.deadline.over:
            raise _UndecidedError
        return extended

    def _solutions(self, first: FirstStages, stage: int) -> Iterator[FirstStages]:
        """Yield, in chunks, all completions of ``first`` whose bound is below ``most``."""
        if stage == self.listing.pp:
            yield first
            return
        size = max(1, _CHUNK // max(1, len(self.alternatives[stage])))
        for start in range(0, len(first.layers), size):
            extended = self._extended_by(first.take(slice(start, start + size)), stage)
            if len(extended.layers):
                yield from self._solutions(extended, stage + 1)

    def _extended(self, first: FirstStages, s: int) -> FirstStages:
        """Return ``first`` extended by every alternative of stage ``s``, without those that can be pruned."""
        x, alternatives = self.listing, self.alternatives[s]
        rows, columns = np.divmod(np.arange(len(first.layers) * len(alternatives)), len(alternatives))
        mix = alternatives[columns]
        layers = first.layers[rows] + x.layers[mix]
        follows = (x.before[mix] < 0) | (x.before[mix] == first.layers[rows])
        possible = np.flatnonzero((layers <= x.total) & follows)
        possible = possible[self.remaining.sums[s + 1, x.total - layers[possible]] < np.inf]
        rows, mix, layers = rows[possible], mix[possible], layers[possible]
        before, f, b = first.total[rows], x.forward[s, mix], x.backward[s, mix]
        both, forward_sum, split_sum = f + b, first.forward_sum[rows], first.split_sum[rows]
        without_weight = b - x.weight[s, mix]
        return_path, round_path = x.returns(s, both, before)
        if x.split_backward:
            return_path = x.m * both - (x.pp - s) * f - without_weight - (split_sum - forward_sum)
        extended = FirstStages(
            mixes=np.concatenate([first.mixes[rows], mix[:, None]], axis=1),
            layers=layers,
            total=before + both,
            forward_sum=forward_sum + f,
            split_sum=split_sum + f + without_weight,
            direct_path=np.maximum(
                first.direct_path[rows], (forward_sum if x.split_backward else before / x.v) + x.m * both
            ),
            return_path=np.maximum(first.return_path[rows], return_path),
            round_path=np.maximum(first.round_path[rows], round_path),
            forward=np.maximum(first.forward[rows], f),
            backward=np.maximum(first.backward[rows], b),
            tail=np.maximum(first.tail[rows], x.tail[s, mix]),
        )
        extended = extended.take(self._lower_bound(extended, s + 1) < self.most)
        return extended.take(x.satisfiable(extended.mixes)) if x.rules.relations else extended

    def _lower_bound(self, first: FirstStages, s: int) -> Array:
        """Return a lower bound on the step of all completions from stage ``s`` on [s]."""
        x, remaining = self.listing, self.listing.total - first.layers
        total = first.total + self.remaining.sums[s, remaining]
        slowest = self.remaining.slowest[s, remaining]
        least = np.maximum(
            first.direct_path, (first.forward_sum if x.split_backward else first.total / x.v) + x.m * slowest
        )
        if x.split_backward:
            if x.m >= x.pp:
                least = np.maximum(least, first.split_sum + self.split_sums[s, remaining] + first.return_path)
        elif x.gpipe:
            both = np.maximum(first.forward + first.backward, slowest)
            least = np.maximum(least, total + (x.m - 1) * both)
        elif x.v == 1:
            least = np.maximum(least, 2 * total + first.return_path)
            if s < x.pp and x.m > x.pp - s:
                least = np.maximum(least, total + (x.m - x.pp + s) * slowest)
        else:
            least = np.maximum(least, self._interleaved(first, s, total, slowest))
        seconds: Array = least + np.maximum(first.tail, 0.0)
        return seconds

    def _interleaved(self, first: FirstStages, s: int, total: Array, slowest: Array) -> Array:
        """Return the bounds of interleaved 1F1B through rounds of all stages [s]."""
        x = self.listing
        rounds = (x.v - 1) * total
        least = np.maximum(x.v * total + total + first.return_path, rounds + first.round_path)
        if s < x.pp and x.steady_passes(s) >= 0:
            least = np.maximum(least, x.v * total + (x.steady_passes(s) + 1) * slowest)
            own_passes = x.m * x.v - (x.v - 1) * x.pp
            least = np.maximum(least, rounds + first.total + own_passes * slowest)
        return least / x.v

    def _steps(self, complete: FirstStages) -> Array:
        """Return the step times of complete layouts [s]."""
        x = self.listing
        stage = np.arange(x.pp)
        forward, backward, weight = (
            part[stage, complete.mixes] for part in (x.forward, x.backward, x.weight)
        )
        m, v, schedule = (np.array(number) for number in (float(x.m), float(x.v), x.schedule))
        seconds: Array = pipeline_seconds(forward, backward, m, v, schedule, weight) + complete.tail
        return seconds


def _undominated_stages(first: FirstStages) -> FirstStages:
    """Return partial layouts without most of those that another one with the same layers dominates."""
    for number in range(_PASSES):
        parts = np.stack([getattr(first, name) for name in _PARTS])
        finite = np.where(np.isfinite(parts), parts, 0.0)
        order = np.lexsort((finite.sum(axis=0), first.layers))
        first, parts = first.take(order), parts[:, order]
        starts = np.flatnonzero(np.diff(first.layers, prepend=-1))
        sizes = np.diff(starts, append=len(first.layers))
        if not (sizes > number + 1).any():
            break
        # One more of each number of layers is compared with all behind it.
        champion = np.repeat(np.minimum(starts + number, starts + sizes - 1), sizes)
        dominated = (parts >= parts[:, champion]).all(axis=0) & (np.arange(len(champion)) > champion)
        first = first.take(~dominated)
    return first
