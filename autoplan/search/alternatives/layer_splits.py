"""Layer splits: primal heuristics, by greed and by dynamic programming, and domain reduction by step bounds.

Paths of a schedule's precedence graph are counts of the passes of each stage. A row of the model bounds the
makespan from below by the length of one path. ``usual_paths`` are critical for most layouts; where a layout
takes longer than its rows say, ``longest_path`` gives the critical path to add.

Notation (this file only)::

    t_s  ticks of stage s for one chunk            p  stages       m  microbatches
    U_s  suffix sum: t from stage s on, so that U_0 is the sum of all
    r_s  chunks of stage s on the path through its steady phase (``steady_rounds``)

Under 1F1B with m > p, a step takes at least U_0 + max over s of (U_s + r_s t_s) and the least end of step,
and most layouts take no longer (``usual_paths``); interleaved ones with m > p take longer where
forward and backward are slowest on different stages. For a limit on the maximum, the least U_0 follows stage
by stage from the last. An alternative is removed only by a lower bound in integer ticks, so the domains stay
complete for every layout as fast as the incumbent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.deadline import check_deadline
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, step_ticks
from autoplan.search.space.priced_candidates import PricedCandidates, Schedule

#: Forwards [0] and backwards [1] of each stage on a path, shape [2, p]; with a split backward,
#: input gradients [1] and weight gradients [2], shape [3, p].
Passes: TypeAlias = NDArray[np.int64]


class Paths:
    """Pool of the paths that rows are made of, by schedule; paths added once serve later models."""

    def __init__(self) -> None:
        self._paths: dict[Schedule, list[Passes]] = {}

    def of(self, schedule: Schedule) -> list[Passes]:
        """Return the usual paths of ``schedule``, and those added so far."""
        return self._paths.setdefault(schedule, usual_paths(schedule))

    def critical(self, schedule: Schedule, ticks: Sequence[Sequence[int]], makespan: int) -> Paths:
        """Return a pool of one path alone, which is as long as ``makespan`` for these ticks of each stage."""
        paths, pool = self.of(schedule), Paths()
        lengths = np.tensordot(np.array(paths), np.array(ticks), axes=2)
        longest = int(lengths.argmax())
        path = paths[longest] if lengths[longest] == makespan else longest_path(schedule, ticks)
        pool._paths[schedule] = [path]
        return pool

    def add(self, schedule: Schedule, ticks: Sequence[Sequence[int]]) -> Passes | None:
        """Add and return the critical path for these ticks of each stage; None where the pool has it."""
        path, paths = longest_path(schedule, ticks), self.of(schedule)
        if any(np.array_equal(path, other) for other in paths):
            return None
        paths.append(path)
        return path


class _Path:
    """Length of a path in ticks, and its composition: parts with their multiplicities.

    A path without parts passes one entry once. The passes are counted only for the longest path.
    """

    __slots__ = ("entry", "parts", "ticks")

    def __init__(self, ticks: int, parts: tuple[tuple[int, _Path], ...], entry: int = -1) -> None:
        self.ticks = ticks
        self.parts = parts
        self.entry = entry

    def __add__(self, other: _Path) -> _Path:
        """Return the concatenation of two paths."""
        return _Path(self.ticks + other.ticks, ((1, self), (1, other)))

    def __rmul__(self, times: int) -> _Path:
        """Return the path repeated ``times`` times."""
        return _Path(times * self.ticks, ((times, self),))

    def passes(self, entries: int) -> NDArray[np.int64]:
        """Return how often the path passes each of the entries."""
        counts: NDArray[np.int64] = np.zeros(entries, dtype=np.int64)
        stack = [(1, self)]
        while stack:
            times, path = stack.pop()
            stack += [(times * count, part) for count, part in path.parts]
            if not path.parts:
                counts[path.entry] += times
        return counts


def longest_path(schedule: Schedule, ticks: Sequence[Sequence[int]]) -> Passes:
    """Return the critical path of the schedule, for these ticks of each part and stage."""
    p = schedule.p
    paths = [
        [_Path(time, (), kind * p + stage) for stage, time in enumerate(row)]
        for kind, row in enumerate(ticks)
    ]
    return schedule.time(paths, _longest).passes(len(ticks) * p).reshape(len(ticks), p)


def _longest(paths: Sequence[_Path]) -> _Path:
    return max(paths, key=lambda path: path.ticks)


def usual_paths(schedule: Schedule) -> list[Passes]:
    """Return the paths that are critical for most layouts.

    For each stage s: once through the stages before it and all chunks on s; and, where s has a steady state,
    twice through s and the stages after it, with the other chunks on s.
    """
    if schedule.split_backward:
        return [path for s in range(schedule.p) for path in _split_backward_paths(schedule, s)]
    p, chunks = schedule.p, schedule.m * schedule.v
    paths = []
    for s in range(p):
        through_stage = np.zeros((2, p), dtype=np.int64)
        through_stage[:, :s], through_stage[:, s] = 1, chunks
        paths.append(through_stage)
        steady = steady_rounds(schedule, s)
        if steady >= (schedule.v - 1) * p:
            around = np.ones((2, p), dtype=np.int64)
            around[:, s:] = 2
            around[:, s] += steady
            paths.append(around)
    return paths


def _split_backward_paths(schedule: Schedule, s: int) -> Iterator[Passes]:
    """Yield paths of a schedule with split backward that stay on stage ``s``.

    The first microbatch arrives at s, or passes the last stage and returns to s; then s does all its work.
    The path ends with its weight gradients, or the last input gradient continues to the first stage.
    """
    p, m = schedule.p, schedule.m
    for through_last in (False, True) if m >= p > s + 1 else (False,):
        path = np.zeros((3, p), dtype=np.int64)
        path[0, :s], path[:, s] = 1, m
        if through_last:
            path[0, s] -= p - 1 - s
            path[:2, s + 1 :] = 1
        yield path
        if s and m > s:
            to_first = path.copy()
            to_first[2, s] -= s + 1
            to_first[1, :s] += 1
            to_first[2, 0] += 1
            yield to_first


def steady_rounds(schedule: Schedule, s: int) -> int:
    """Return the chunks of stage ``s`` in steady state: those besides the two that later stages also have."""
    later_stages = schedule.p - 1 - s
    return schedule.m * schedule.v - 2 - (later_stages if schedule.v == 1 else 2 * later_stages)


def useful_counts(part: PricedCandidates, seconds: Array, longest: float) -> Array:
    """Return stage times [p, L]: infinite where too slow, or where the other stages cannot take the rest."""
    fast_enough = np.where(seconds <= longest, seconds, np.inf)
    counts = np.arange(1, seconds.shape[1] + 1)
    most_layers = np.where(np.isfinite(fast_enough), counts, 0).max(axis=1)
    others = most_layers.sum() - most_layers
    useful: Array = np.where(counts[None, :] + others[:, None] >= part.layers, fast_enough, np.inf)
    return useful


def primal_heuristic(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return a feasible layout: one alternative a stage, ``layers`` in all; None on failure."""
    chosen = None if alternatives.empty else _greedy_layout(alternatives.quickest, layers)
    return chosen if chosen is not None and alternatives.keeps_rules(chosen) else None


def _greedy_layout(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return alternatives of ``layers`` in all, greedily: add layers to the stage that stays fastest.

    Where layers differ, return those whose slowest stage is fastest.
    """
    if alternatives.placed:
        return min_max_layout(alternatives, layers)
    indices = [0] * len(alternatives.stages)
    assigned = sum(row[0].layers for row in alternatives.stages)
    next_alternatives = [(row[1].stage_ticks, i) for i, row in enumerate(alternatives.stages) if len(row) > 1]
    heapify(next_alternatives)
    while assigned < layers:
        if not next_alternatives:
            return None
        _, i = heappop(next_alternatives)
        row, k = alternatives.stages[i], indices[i] + 1
        assigned, indices[i] = assigned + row[k].layers - row[k - 1].layers, k
        if k + 1 < len(row):
            heappush(next_alternatives, (row[k + 1].stage_ticks, i))
    if assigned != layers:
        return None
    return tuple(row[k] for row, k in zip(alternatives.stages, indices, strict=True))


#: Iterations of the heuristic, and by what share of a step each has to lower the maximum.
_TRIES = 12
_LEAST_DECREASE = 1e-6

#: Least suffix sum of t and the alternative of its first stage, by the layers from that stage on.
_Sums = dict[int, tuple[int, Alternative]]


def sum_and_maximum_heuristic(
    alternatives: Alternatives, layers: int, ceiling: int
) -> tuple[tuple[Alternative, ...] | None, int]:
    """Return the fastest layout of the heuristic, and its ticks.

    None and ``ceiling`` where it has none within ``ceiling``.
    """
    if not has_sum_and_maximum(alternatives):
        return None, ceiling
    most, fastest = ceiling, None
    for _ in range(_TRIES):
        chosen = _least_sum(alternatives, layers, most)
        if chosen is None:
            break
        ticks = step_ticks(alternatives, chosen) if alternatives.keeps_rules(chosen) else ceiling + 1
        if ticks <= ceiling:
            ceiling, fastest = ticks, tuple(chosen)
        most = _maximum(alternatives, chosen) - max(1, int(ceiling * _LEAST_DECREASE))
    return fastest, ceiling


def within_makespan(alternatives: Alternatives, layers: int, makespan: int) -> Alternatives | None:
    """Return ``alternatives`` without those too slow for ``makespan`` ticks; None if none is left."""
    if alternatives.schedule.gpipe or alternatives.schedule.p == 1 or alternatives.fixed:
        return alternatives
    if alternatives.schedule.split_backward:
        return (
            _within_split_backward(alternatives, layers, makespan)
            if alternatives.schedule.m >= alternatives.schedule.p
            else alternatives
        )
    stages = _within_prefix_bound(alternatives, layers, makespan)
    alternatives = replace(alternatives, stages=stages)
    if alternatives.empty or not has_sum_and_maximum(alternatives):
        return None if alternatives.empty else alternatives
    sums = _least_suffixes(alternatives, layers, makespan)
    if layers not in sums[0]:
        return None
    # The makespan is at least the sum plus the maximum, so the least sum bounds the maximum.
    most = makespan - sums[0][layers][0]
    stages = _within_sum_and_maximum(
        alternatives,
        layers,
        _least_suffixes(alternatives, layers, most),
        makespan,
        _least_slowest_ticks(alternatives, layers),
    )
    return replace(alternatives, stages=stages) if all(stages) else None


def _within_split_backward(alternatives: Alternatives, layers: int, makespan: int) -> Alternatives | None:
    """Return ``alternatives`` without those too slow for a split backward; None if none is left.

    The makespan (zero bubble) is at least m t_s and the forwards before stage s. Where it is longer, the F
    and B of the later stages, which the first microbatch passes before its B on stage s, replace its
    p - 1 - s warm-up forwards.
    """
    p, m = alternatives.schedule.p, alternatives.schedule.m
    forward_before = _least_prefix_sums(alternatives, range(p), lambda o: o.forward_ticks)
    behind = _least_prefix_sums(alternatives, range(p)[::-1], lambda o: o.forward_ticks + o.input_ticks)
    stages = []
    for s, row in enumerate(alternatives.stages):
        check_deadline()
        usable: dict[Alternative, None] = {}
        after = alternatives.by_begin(s)
        for layers_before, prefix in forward_before[s].items():
            for o in after(layers_before):
                suffix = behind[p - 1 - s].get(layers - layers_before - o.layers)
                if suffix is None:
                    continue
                extra = suffix - (p - 1 - s) * o.forward_ticks
                if prefix + m * o.stage_ticks + max(extra, 0) <= makespan:
                    usable[o] = None
        stages.append(tuple(o for o in row if o in usable))
    return replace(alternatives, stages=tuple(stages)) if all(stages) else None


def _least_prefix_sums(
    alternatives: Alternatives, stages: Sequence[int], ticks: Callable[[Alternative], int]
) -> list[dict[int, int]]:
    """Return the least sum of ``ticks`` of the first n ``stages``, n from 0, by their number of layers."""
    prefixes: list[dict[int, int]] = [{0: 0}]
    for s in stages:
        check_deadline()
        extended: dict[int, int] = {}
        for count, ticks_before in prefixes[-1].items():
            for o in alternatives.stages[s]:
                layers, total_ticks = count + o.layers, ticks_before + ticks(o)
                extended[layers] = min(total_ticks, extended.get(layers, total_ticks))
        prefixes.append(extended)
    return prefixes


def least_suffix_sums(alternatives: Alternatives, layers: int, makespan: int) -> list[int]:
    """Return the least U_s of each stage, over all layer splits within a makespan of ``makespan`` ticks."""
    return [
        min((total for total, _ in sums.values()), default=0)
        for sums in _least_suffixes(alternatives, layers, makespan)
    ]


def min_max_layout(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return the contiguous layout whose slowest stage takes least (min-max); None if infeasible."""
    layouts: dict[int, tuple[int, tuple[Alternative, ...]]] = {0: (0, ())}
    for row in alternatives.stages:
        extended: dict[int, tuple[int, tuple[Alternative, ...]]] = {}
        for o in row:
            if o.first in layouts:
                slowest, prefix = layouts[o.first]
                layers_through, ticks = o.first + o.layers, max(slowest, o.stage_ticks)
                if layers_through not in extended or ticks < extended[layers_through][0]:
                    extended[layers_through] = (ticks, (*prefix, o))
        layouts = extended
    return layouts[layers][1] if layers in layouts else None


def has_sum_and_maximum(alternatives: Alternatives) -> bool:
    """Return whether a step is at least U_0 + max over s of (U_s + r_s t_s) and the end of step."""
    s = alternatives.schedule
    steady = steady_rounds(s, 0) >= (s.v - 1) * s.p
    return steady and not s.gpipe and not s.split_backward and s.m > s.p > 1 and not alternatives.fixed


def _within_prefix_bound(
    alternatives: Alternatives, layers: int, makespan: int
) -> tuple[tuple[Alternative, ...], ...]:
    """Return the alternatives of splits with P_s + m v t_s <= ``makespan`` on every stage s.

    P_s is the prefix sum of t before stage s: forwards of one microbatch precede its first forward, and
    backwards of one follow its last backward. The bound holds for every schedule that does not split
    backward.
    """
    chunks, prefixes = alternatives.schedule.m * alternatives.schedule.v, {0: 0}
    reached: list[dict[int, int]] = []
    for s in range(len(alternatives.stages)):
        check_deadline()
        reached.append(prefixes)
        extended: dict[int, int] = {}
        after = alternatives.by_begin(s)
        for layers_before, ticks in prefixes.items():
            for o in after(layers_before):
                if ticks + chunks * o.stage_ticks <= makespan:
                    through = layers_before + o.layers
                    extended[through] = min(ticks + o.stage_ticks, extended.get(through, makespan))
        prefixes = extended
    stages: list[tuple[Alternative, ...]] = []
    ends = {layers}
    for row, starts in zip(reversed(alternatives.stages), reversed(reached), strict=True):
        check_deadline()
        usable: dict[Alternative, None] = {}
        begins: set[int] = set()
        for o in row:
            # Where layers differ, an alternative has one place.
            for end in ends & {o.first + o.layers} if alternatives.placed else ends:
                ticks = starts.get(end - o.layers, makespan)
                if ticks + chunks * o.stage_ticks <= makespan:
                    usable[o] = None
                    begins.add(end - o.layers)
        stages.append(tuple(usable))
        ends = begins
    return tuple(stages[::-1])


def _rounds(alternatives: Alternatives, s: int) -> int:
    """Return r_s: how often the time of a stage counts in the maximum, in addition to U_s."""
    return steady_rounds(alternatives.schedule, s)


def _least_suffixes(alternatives: Alternatives, layers: int, most: int) -> list[_Sums]:
    """Return the least U_s by the number of layers from s on, with U_s + r_s t_s <= ``most``."""
    fewest, largest = 0, 0
    ranges = []
    for row in alternatives.stages:
        ranges.append((layers - largest, layers - fewest))
        fewest += min(o.layers for o in row)
        largest += max(o.layers for o in row)
    suffixes: dict[int, int] = {0: 0}
    sums: list[_Sums] = []
    for s in reversed(range(alternatives.schedule.p)):
        check_deadline()
        extended: _Sums = {}
        least, greatest = ranges[s]
        rounds, before = _rounds(alternatives, s), alternatives.by_end(s, layers)
        for layers_after, ticks in suffixes.items():
            for o in before(layers_after):
                layers_from, stage_ticks = layers_after + o.layers, o.stage_ticks
                total = ticks + stage_ticks
                allowed = least <= layers_from <= greatest and total + rounds * stage_ticks <= most
                if allowed and (layers_from not in extended or total < extended[layers_from][0]):
                    extended[layers_from] = (total, o)
        suffixes = {layers_after: total for layers_after, (total, _) in extended.items()}
        sums.append(extended)
    return sums[::-1]


def _least_slowest_ticks(alternatives: Alternatives, layers: int) -> int:
    """Return a lower bound on the slowest stage, given that the stages hold all layers [ticks]."""
    ticks = sorted({o.stage_ticks for row in alternatives.stages for o in row})

    def enough(most: int) -> bool:
        most_layers = [
            max((o.layers for o in row if o.stage_ticks <= most), default=-layers)
            for row in alternatives.stages
        ]
        return sum(most_layers) >= layers

    return ticks[bisect_left(ticks[:-1], x=True, key=enough)]


def _least_sum(alternatives: Alternatives, layers: int, most: int) -> list[Alternative] | None:
    """Return the layout of least sum whose maximum is at most ``most``; None if infeasible."""
    sums = _least_suffixes(alternatives, layers, most)
    if layers not in sums[0]:
        return None
    chosen = []
    for by_layers in sums:
        chosen.append(by_layers[layers][1])
        layers -= chosen[-1].layers
    return chosen


def _maximum(alternatives: Alternatives, chosen: list[Alternative]) -> int:
    """Return max over s of U_s + r_s t_s."""
    total, most = 0, 0
    for s in reversed(range(len(chosen))):
        total += chosen[s].stage_ticks
        most = max(most, total + _rounds(alternatives, s) * chosen[s].stage_ticks)
    return most


def _within_sum_and_maximum(
    alternatives: Alternatives, layers: int, sums: list[_Sums], makespan: int, slowest: int
) -> tuple[tuple[Alternative, ...], ...]:
    """Return the alternatives of splits whose sum and maximum allow ``makespan`` ticks."""
    # For the slowest stage q, U_q + q t_q is at least U_0, and r_q at least r_0 + q.
    slowest_rounds = _rounds(alternatives, 0) * slowest
    chunks = alternatives.schedule.m * alternatives.schedule.v
    prefixes: dict[int, int] = {0: 0}
    stages = []
    for s, row in enumerate(alternatives.stages):
        check_deadline()
        suffixes = {n: total for n, (total, _) in sums[s + 1].items()} if s + 1 < len(sums) else {0: 0}
        usable: dict[Alternative, None] = {}
        extended: dict[int, int] = {}
        rounds, after = _rounds(alternatives, s), alternatives.by_begin(s)
        for layers_before, ticks in prefixes.items():
            for o in after(layers_before):
                through, stage_ticks = layers_before + o.layers, o.stage_ticks
                suffix = suffixes.get(layers - through)
                if suffix is None:
                    continue
                from_stage = suffix + stage_ticks
                rest = max(from_stage + rounds * stage_ticks, ticks + from_stage + slowest_rounds)
                if max(ticks + from_stage + rest, ticks + chunks * stage_ticks) <= makespan:
                    usable[o] = None
                    extended[through] = min(ticks + stage_ticks, extended.get(through, makespan))
        prefixes = extended
        stages.append(tuple(o for o in row if o in usable))
    return tuple(stages)
