"""Splits of the layers by dynamic programming: a fast layout, and options that no layout as fast has.

Notation (this file only)::

    t_s  ticks of stage s for one chunk            p  stages       m  microbatches
    U_s  sum of t from stage s on, so that U_0 is the sum of all
    r_s  chunks that stage s passes on the path around it (``path_counts.steady_rounds``)

Under 1F1B with m > p, a step takes at least U_0 + max over s of (U_s + r_s t_s) and the least tail, and most
layouts take no longer (``path_counts.usual_paths``); interleaved ones with m > p take longer where forward
and backward are slowest on different stages. For a limit on the maximum, the least U_0 follows stage by stage
from the last. What is left out here is left out by a bound in whole ticks: the solver's menu
stays complete for every layout as fast as the one known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, step_ticks
from autoplan.search.bounds.path_counts import steady_rounds

__all__ = ["least_behind", "least_slowest", "quick_layout", "without_slow"]

#: Layouts that are looked at for a quick one, and by what share of a step each has to be more even.
_TRIES = 12
_CLOSER = 1e-6

#: Least sum of t from a stage on and the option it takes there, by the layers held from that stage on.
_Sums = dict[int, tuple[int, Alternative]]


def quick_layout(
    alternatives: Alternatives, layers: int, ceiling: int
) -> tuple[tuple[Alternative, ...] | None, int]:
    """Return a layout of ``alternatives`` as fast as could be found, and its ticks.

    None and ``ceiling`` where none that was found takes as little.
    """
    if not _applies(alternatives):
        return None, ceiling
    most, found = ceiling, None
    for _ in range(_TRIES):
        chosen = _least_sum(alternatives, layers, most)
        if chosen is None:
            break
        ticks = step_ticks(alternatives, chosen) if alternatives.keeps_rules(chosen) else ceiling + 1
        if ticks <= ceiling:
            ceiling, found = ticks, tuple(chosen)
        most = _paced(alternatives, chosen) - max(1, int(ceiling * _CLOSER))
    return found, ceiling


def without_slow(alternatives: Alternatives, layers: int, busy: int) -> Alternatives | None:
    """Return ``alternatives`` without those that no pipeline of up to ``busy`` ticks has, or None."""
    if alternatives.schedule.gpipe or alternatives.schedule.p == 1 or alternatives.fixed:
        return alternatives
    if alternatives.schedule.apart:
        return (
            _within_apart(alternatives, layers, busy)
            if alternatives.schedule.m >= alternatives.schedule.p
            else alternatives
        )
    stages = _passed_first(alternatives, layers, busy)
    alternatives = replace(alternatives, stages=stages)
    if alternatives.empty or not _applies(alternatives):
        return None if alternatives.empty else alternatives
    sums = _sums(alternatives, layers, busy)
    if layers not in sums[0]:
        return None
    # The sum of all is at least this much of the step, and leaves the rest to the maximum.
    most = busy - sums[0][layers][0]
    stages = _kept(alternatives, layers, _sums(alternatives, layers, most), busy, _pace(alternatives, layers))
    return replace(alternatives, stages=stages) if all(stages) else None


def _within_apart(alternatives: Alternatives, layers: int, busy: int) -> Alternatives | None:
    """Return ``alternatives`` without options too slow for zero-bubble; None if none is left.

    A step takes at least m t_s and the forwards before stage s. Where that is more, its w_s forwards give way
    to the F and B of the stages behind, to which the first microbatch goes and from which it comes back.
    """
    p, m = alternatives.schedule.p, alternatives.schedule.m
    ahead = _least_ways(alternatives, range(p), lambda o: o.forward_ticks)
    behind = _least_ways(alternatives, range(p)[::-1], lambda o: o.forward_ticks + o.input_ticks)
    stages = []
    for s, row in enumerate(alternatives.stages):
        kept: dict[Alternative, None] = {}
        for held, before in ahead[s].items():
            for o in row:
                after = behind[p - 1 - s].get(layers - held - o.layers)
                if after is None or (alternatives.placed and o.first != held):
                    continue
                meanwhile = after - (p - 1 - s) * o.forward_ticks
                if before + m * o.both_ticks + max(meanwhile, 0) <= busy:
                    kept[o] = None
        stages.append(tuple(o for o in row if o in kept))
    return replace(alternatives, stages=tuple(stages)) if all(stages) else None


def _least_ways(
    alternatives: Alternatives, stages: Sequence[int], ticks: Callable[[Alternative], int]
) -> list[dict[int, int]]:
    """Return the least sum of ``ticks`` of the first n ``stages``, from n = 0, by the layers they hold."""
    ways: list[dict[int, int]] = [{0: 0}]
    for s in stages:
        after: dict[int, int] = {}
        for held, total in ways[-1].items():
            for o in alternatives.stages[s]:
                now, sum_ = held + o.layers, total + ticks(o)
                after[now] = min(sum_, after.get(now, sum_))
        ways.append(after)
    return ways


def least_behind(alternatives: Alternatives, layers: int, busy: int) -> list[int]:
    """Return the least U_s of each stage, over all splits that a pipeline of ``busy`` ticks may have."""
    return [
        min((total for total, _ in here.values()), default=0) for here in _sums(alternatives, layers, busy)
    ]


def least_slowest(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return options on a path of places whose slowest takes least; None if there is no path."""
    ways: dict[int, tuple[int, tuple[Alternative, ...]]] = {0: (0, ())}
    for row in alternatives.stages:
        after: dict[int, tuple[int, tuple[Alternative, ...]]] = {}
        for o in row:
            if o.first in ways:
                slowest, before = ways[o.first]
                now, ticks = o.first + o.layers, max(slowest, o.both_ticks)
                if now not in after or ticks < after[now][0]:
                    after[now] = (ticks, (*before, o))
        ways = after
    return ways[layers][1] if layers in ways else None


def _applies(alternatives: Alternatives) -> bool:
    s = alternatives.schedule
    around = steady_rounds(s, 0) >= (s.v - 1) * s.p
    return around and not s.gpipe and not s.apart and s.m > s.p > 1 and not alternatives.fixed


def _passed_first(alternatives: Alternatives, layers: int, busy: int) -> tuple[tuple[Alternative, ...], ...]:
    """Return options of splits that leave each stage s time for all of its chunks: P_s + m v t_s <= ``busy``.

    P_s is the sum of t of the stages before it: its first forward comes no sooner, and its last backward is
    that much before the end, whatever the microbatches. It holds for every schedule that does its backward
    whole and in turn.
    """
    chunks, before = alternatives.schedule.m * alternatives.schedule.v, {0: 0}
    reached: list[dict[int, int]] = []
    for row in alternatives.stages:
        reached.append(before)
        after: dict[int, int] = {}
        for held, ticks in before.items():
            for o in row:
                if ticks + chunks * o.both_ticks <= busy and not (alternatives.placed and o.first != held):
                    now = held + o.layers
                    after[now] = min(ticks + o.both_ticks, after.get(now, busy))
        before = after
    stages: list[tuple[Alternative, ...]] = []
    ends = {layers}
    for row, starts in zip(reversed(alternatives.stages), reversed(reached), strict=True):
        kept: dict[Alternative, None] = {}
        begins: set[int] = set()
        for o in row:
            for end in ends:
                ticks = starts.get(end - o.layers, busy)
                if ticks + chunks * o.both_ticks <= busy and not (
                    alternatives.placed and o.first != end - o.layers
                ):
                    kept[o] = None
                    begins.add(end - o.layers)
        stages.append(tuple(kept))
        ends = begins
    return tuple(stages[::-1])


def _rounds(alternatives: Alternatives, s: int) -> int:
    """Return how often a stage's own time counts in the maximum, beside U_s."""
    return steady_rounds(alternatives.schedule, s)


def _sums(alternatives: Alternatives, layers: int, most: int) -> list[_Sums]:
    """Return the least U_s for each number of layers held from s on, with U_s + r_s t_s <= ``most``."""
    fewest, largest = 0, 0
    ranges = []
    for row in alternatives.stages:
        ranges.append((layers - largest, layers - fewest))
        fewest += min(o.layers for o in row)
        largest += max(o.layers for o in row)
    behind: dict[int, int] = {0: 0}
    sums: list[_Sums] = []
    placed = alternatives.placed
    for s in reversed(range(alternatives.schedule.p)):
        here: _Sums = {}
        least, greatest = ranges[s]
        for held, ticks in behind.items():
            for o in alternatives.stages[s]:
                now, total = held + o.layers, ticks + o.both_ticks
                allowed = least <= now <= greatest and total + _rounds(alternatives, s) * o.both_ticks <= most
                if allowed and (now not in here or total < here[now][0]):
                    if placed and o.first != layers - now:
                        continue
                    here[now] = (total, o)
        behind = {held: total for held, (total, _) in here.items()}
        sums.append(here)
    return sums[::-1]


def _pace(alternatives: Alternatives, layers: int) -> int:
    """Return the ticks that the slowest stage takes at least, since the stages hold all layers."""
    ticks = sorted({o.both_ticks for row in alternatives.stages for o in row})

    def enough(most: int) -> bool:
        held = [
            max((o.layers for o in row if o.both_ticks <= most), default=-layers)
            for row in alternatives.stages
        ]
        return sum(held) >= layers

    return ticks[bisect_left(ticks[:-1], x=True, key=enough)]


def _least_sum(alternatives: Alternatives, layers: int, most: int) -> list[Alternative] | None:
    """Return the options of least sum whose maximum is at most ``most``."""
    sums = _sums(alternatives, layers, most)
    if layers not in sums[0]:
        return None
    chosen = []
    for here in sums:
        chosen.append(here[layers][1])
        layers -= chosen[-1].layers
    return chosen


def _paced(alternatives: Alternatives, chosen: list[Alternative]) -> int:
    """Return max over s of U_s + r_s t_s."""
    total, most = 0, 0
    for s in reversed(range(len(chosen))):
        total += chosen[s].both_ticks
        most = max(most, total + _rounds(alternatives, s) * chosen[s].both_ticks)
    return most


def _kept(
    alternatives: Alternatives, layers: int, sums: list[_Sums], busy: int, pace: int
) -> tuple[tuple[Alternative, ...], ...]:
    """Return options on some split whose sum and whose maximum, here, leave it within ``busy``."""
    # For the slowest stage q, U_q + q t_q is at least U_0, and r_q at least r_0 + q.
    paced, chunks = _rounds(alternatives, 0) * pace, alternatives.schedule.m * alternatives.schedule.v
    before: dict[int, int] = {0: 0}
    stages = []
    for s, row in enumerate(alternatives.stages):
        after = {held: total for held, (total, _) in sums[s + 1].items()} if s + 1 < len(sums) else {0: 0}
        kept: dict[Alternative, None] = {}
        reached: dict[int, int] = {}
        for held, ticks in before.items():
            for o in row:
                now, behind = held + o.layers, after.get(layers - held - o.layers)
                if behind is None or (alternatives.placed and o.first != held):
                    continue
                here = behind + o.both_ticks
                rest = max(here + _rounds(alternatives, s) * o.both_ticks, ticks + here + paced)
                if max(ticks + here + rest, ticks + chunks * o.both_ticks) <= busy:
                    kept[o] = None
                    reached[now] = min(ticks + o.both_ticks, reached.get(now, busy))
        before = reached
        stages.append(tuple(o for o in row if o in kept))
    return tuple(stages)
