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

from autoplan.search.alternatives.stage_alternatives import Menu, Option, step_ticks
from autoplan.search.bounds.path_counts import steady_rounds

__all__ = ["least_behind", "least_slowest", "quick_layout", "without_slow"]

#: Layouts that are looked at for a quick one, and by what share of a step each has to be more even.
_TRIES = 12
_CLOSER = 1e-6

#: Least sum of t from a stage on and the option it takes there, by the layers held from that stage on.
_Sums = dict[int, tuple[int, Option]]


def quick_layout(menu: Menu, layers: int, ceiling: int) -> tuple[tuple[Option, ...] | None, int]:
    """Return a layout of ``menu`` as fast as could be found, and its ticks.

    None and ``ceiling`` where none that was found takes as little.
    """
    if not _applies(menu):
        return None, ceiling
    most, found = ceiling, None
    for _ in range(_TRIES):
        options = _least_sum(menu, layers, most)
        if options is None:
            break
        ticks = step_ticks(menu, options) if menu.keeps_rules(options) else ceiling + 1
        if ticks <= ceiling:
            ceiling, found = ticks, tuple(options)
        most = _paced(menu, options) - max(1, int(ceiling * _CLOSER))
    return found, ceiling


def without_slow(menu: Menu, layers: int, busy: int) -> Menu | None:
    """Return ``menu`` without options that no pipeline of up to ``busy`` ticks has; None if none is left."""
    if menu.schedule.gpipe or menu.schedule.p == 1 or menu.fixed:
        return menu
    if menu.schedule.apart:
        return _within_apart(menu, layers, busy) if menu.schedule.m >= menu.schedule.p else menu
    stages = _passed_first(menu, layers, busy)
    menu = replace(menu, stages=stages)
    if menu.empty or not _applies(menu):
        return None if menu.empty else menu
    sums = _sums(menu, layers, busy)
    if layers not in sums[0]:
        return None
    # The sum of all is at least this much of the step, and leaves the rest to the maximum.
    most = busy - sums[0][layers][0]
    stages = _kept(menu, layers, _sums(menu, layers, most), busy, _pace(menu, layers))
    return replace(menu, stages=stages) if all(stages) else None


def _within_apart(menu: Menu, layers: int, busy: int) -> Menu | None:
    """Return ``menu`` without options too slow for zero-bubble; None if none is left.

    A step takes at least m t_s and the forwards before stage s. Where that is more, its w_s forwards give way
    to the F and B of the stages behind, to which the first microbatch goes and from which it comes back.
    """
    p, m = menu.schedule.p, menu.schedule.m
    ahead = _least_ways(menu, range(p), lambda o: o.forward_ticks)
    behind = _least_ways(menu, range(p)[::-1], lambda o: o.forward_ticks + o.input_ticks)
    stages = []
    for s, row in enumerate(menu.stages):
        kept: dict[Option, None] = {}
        for held, before in ahead[s].items():
            for o in row:
                after = behind[p - 1 - s].get(layers - held - o.layers)
                if after is None or (menu.placed and o.first != held):
                    continue
                meanwhile = after - (p - 1 - s) * o.forward_ticks
                if before + m * o.both_ticks + max(meanwhile, 0) <= busy:
                    kept[o] = None
        stages.append(tuple(o for o in row if o in kept))
    return replace(menu, stages=tuple(stages)) if all(stages) else None


def _least_ways(menu: Menu, stages: Sequence[int], ticks: Callable[[Option], int]) -> list[dict[int, int]]:
    """Return the least sum of ``ticks`` of the first n ``stages``, from n = 0, by the layers they hold."""
    ways: list[dict[int, int]] = [{0: 0}]
    for s in stages:
        after: dict[int, int] = {}
        for held, total in ways[-1].items():
            for o in menu.stages[s]:
                now, sum_ = held + o.layers, total + ticks(o)
                after[now] = min(sum_, after.get(now, sum_))
        ways.append(after)
    return ways


def least_behind(menu: Menu, layers: int, busy: int) -> list[int]:
    """Return the least U_s of each stage, over all splits that a pipeline of ``busy`` ticks may have."""
    return [min((total for total, _ in here.values()), default=0) for here in _sums(menu, layers, busy)]


def least_slowest(menu: Menu, layers: int) -> tuple[Option, ...] | None:
    """Return options on a path of places whose slowest takes least; None if there is no path."""
    ways: dict[int, tuple[int, tuple[Option, ...]]] = {0: (0, ())}
    for row in menu.stages:
        after: dict[int, tuple[int, tuple[Option, ...]]] = {}
        for o in row:
            if o.first in ways:
                slowest, before = ways[o.first]
                now, ticks = o.first + o.layers, max(slowest, o.both_ticks)
                if now not in after or ticks < after[now][0]:
                    after[now] = (ticks, (*before, o))
        ways = after
    return ways[layers][1] if layers in ways else None


def _applies(menu: Menu) -> bool:
    s = menu.schedule
    around = steady_rounds(s, 0) >= (s.v - 1) * s.p
    return around and not s.gpipe and not s.apart and s.m > s.p > 1 and not menu.fixed


def _passed_first(menu: Menu, layers: int, busy: int) -> tuple[tuple[Option, ...], ...]:
    """Return options of splits that leave each stage s time for all of its chunks: P_s + m v t_s <= ``busy``.

    P_s is the sum of t of the stages before it: its first forward comes no sooner, and its last backward is
    that much before the end, whatever the microbatches. It holds for every schedule that does its backward
    whole and in turn.
    """
    chunks, before = menu.schedule.m * menu.schedule.v, {0: 0}
    reached: list[dict[int, int]] = []
    for row in menu.stages:
        reached.append(before)
        after: dict[int, int] = {}
        for held, ticks in before.items():
            for o in row:
                if ticks + chunks * o.both_ticks <= busy and not (menu.placed and o.first != held):
                    now = held + o.layers
                    after[now] = min(ticks + o.both_ticks, after.get(now, busy))
        before = after
    stages: list[tuple[Option, ...]] = []
    ends = {layers}
    for row, starts in zip(reversed(menu.stages), reversed(reached), strict=True):
        kept: dict[Option, None] = {}
        begins: set[int] = set()
        for o in row:
            for end in ends:
                ticks = starts.get(end - o.layers, busy)
                if ticks + chunks * o.both_ticks <= busy and not (menu.placed and o.first != end - o.layers):
                    kept[o] = None
                    begins.add(end - o.layers)
        stages.append(tuple(kept))
        ends = begins
    return tuple(stages[::-1])


def _rounds(menu: Menu, s: int) -> int:
    """Return how often a stage's own time counts in the maximum, beside U_s."""
    return steady_rounds(menu.schedule, s)


def _sums(menu: Menu, layers: int, most: int) -> list[_Sums]:
    """Return the least U_s for each number of layers held from s on, with U_s + r_s t_s <= ``most``."""
    fewest, largest = 0, 0
    ranges = []
    for row in menu.stages:
        ranges.append((layers - largest, layers - fewest))
        fewest += min(o.layers for o in row)
        largest += max(o.layers for o in row)
    behind: dict[int, int] = {0: 0}
    sums: list[_Sums] = []
    placed = menu.placed
    for s in reversed(range(menu.schedule.p)):
        here: _Sums = {}
        least, greatest = ranges[s]
        for held, ticks in behind.items():
            for o in menu.stages[s]:
                now, total = held + o.layers, ticks + o.both_ticks
                allowed = least <= now <= greatest and total + _rounds(menu, s) * o.both_ticks <= most
                if allowed and (now not in here or total < here[now][0]):
                    if placed and o.first != layers - now:
                        continue
                    here[now] = (total, o)
        behind = {held: total for held, (total, _) in here.items()}
        sums.append(here)
    return sums[::-1]


def _pace(menu: Menu, layers: int) -> int:
    """Return the ticks that the slowest stage takes at least, since the stages hold all layers."""
    ticks = sorted({o.both_ticks for row in menu.stages for o in row})

    def enough(most: int) -> bool:
        held = [max((o.layers for o in row if o.both_ticks <= most), default=-layers) for row in menu.stages]
        return sum(held) >= layers

    return ticks[bisect_left(ticks[:-1], x=True, key=enough)]


def _least_sum(menu: Menu, layers: int, most: int) -> list[Option] | None:
    """Return the options of least sum whose maximum is at most ``most``."""
    sums = _sums(menu, layers, most)
    if layers not in sums[0]:
        return None
    options = []
    for here in sums:
        options.append(here[layers][1])
        layers -= options[-1].layers
    return options


def _paced(menu: Menu, options: list[Option]) -> int:
    """Return max over s of U_s + r_s t_s."""
    total, most = 0, 0
    for s in reversed(range(len(options))):
        total += options[s].both_ticks
        most = max(most, total + _rounds(menu, s) * options[s].both_ticks)
    return most


def _kept(menu: Menu, layers: int, sums: list[_Sums], busy: int, pace: int) -> tuple[tuple[Option, ...], ...]:
    """Return options on some split whose sum and whose maximum, here, leave it within ``busy``."""
    # For the slowest stage q, U_q + q t_q is at least U_0, and r_q at least r_0 + q.
    paced, chunks = _rounds(menu, 0) * pace, menu.schedule.m * menu.schedule.v
    before: dict[int, int] = {0: 0}
    stages = []
    for s, row in enumerate(menu.stages):
        after = {held: total for held, (total, _) in sums[s + 1].items()} if s + 1 < len(sums) else {0: 0}
        kept: dict[Option, None] = {}
        reached: dict[int, int] = {}
        for held, ticks in before.items():
            for o in row:
                now, behind = held + o.layers, after.get(layers - held - o.layers)
                if behind is None or (menu.placed and o.first != held):
                    continue
                here = behind + o.both_ticks
                rest = max(here + _rounds(menu, s) * o.both_ticks, ticks + here + paced)
                if max(ticks + here + rest, ticks + chunks * o.both_ticks) <= busy:
                    kept[o] = None
                    reached[now] = min(ticks + o.both_ticks, reached.get(now, busy))
        before = reached
        stages.append(tuple(o for o in row if o in kept))
    return tuple(stages)
