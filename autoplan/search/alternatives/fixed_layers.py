"""Least step and least memory of a candidate whose stages can only choose their recompute.

Where every stage has one number of layers, as with virtual stages that are equal once embedding and head
count as layers, its alternatives trade a longer backward for a shorter end of step (``reduction_overlap``).
The makespan does not decrease when a backward grows. So for a limit on the longest end of step, the fastest
layout has the shortest backward within it on every stage, and the least step is that of one of these layouts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import reduce
from math import inf

import numpy as np
from numpy.typing import NDArray

from autoplan.deadline import check_deadline
from autoplan.search.alternatives.layout_labels import LeastLayout
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives

__all__ = ["least_of_fixed_layers"]

_Row = Sequence[Alternative]


def least_of_fixed_layers(
    alternatives: Alternatives, layers: int, ceiling: int
) -> LeastLayout | float | None:
    """Return the least step of a candidate, the least memory with it, and a layout that has both [ticks].

    Infinite where no step is within ``ceiling`` ticks; None where stages can choose their number of layers,
    where the layers are not ``layers`` in all, and where there is nothing to choose.
    """
    rows = alternatives.stages
    if alternatives.placed or alternatives.fixed or not all(map(_differs_in_backward_only, rows)):
        return None
    if sum(row[0].layers for row in rows) != layers:
        return None
    fastest = _fastest(alternatives, ceiling)
    if fastest is None:
        return inf
    step, chosen = fastest
    sizes = sorted({o.memory_ticks for row in rows for o in row})
    low, high = 0, bisect_left(sizes, _memory(chosen))
    # The layout is often the smallest already, so the next smaller size is asked for first.
    middle = high - 1
    while low < high:
        smaller = _fastest(alternatives, step, sizes[middle])
        if smaller is None:
            low = middle + 1
        else:
            chosen = smaller[1]
            high = bisect_left(sizes, _memory(chosen))
        middle = (low + high) // 2
    return LeastLayout(step, _memory(chosen), chosen)


def _differs_in_backward_only(row: _Row) -> bool:
    first = row[0]
    return all(
        o.layers == first.layers
        and o.forward_ticks == first.forward_ticks
        and o.weight_ticks == first.weight_ticks
        for o in row
    )


def _memory(chosen: _Row) -> int:
    return max(o.memory_ticks for o in chosen)


def _fastest(
    alternatives: Alternatives, most: int, most_memory: float = inf
) -> tuple[int, tuple[Alternative, ...]] | None:
    """Return the least step and its layout of at most ``most_memory``; None without one within ``most``."""
    check_deadline()
    rows = [
        sorted((o for o in row if o.memory_ticks <= most_memory), key=lambda o: o.backward_ticks)
        for row in alternatives.stages
    ]
    if not all(rows):
        return None
    shortest = max(min(o.end_of_step_ticks for o in row) for row in rows)
    ends = np.array(
        sorted({o.end_of_step_ticks for row in rows for o in row if o.end_of_step_ticks >= shortest})
    )
    # The first alternative of each stage that ends within each of the limits.
    firsts = [
        np.argmax(np.array([o.end_of_step_ticks for o in row]) <= ends[:, None], axis=1) for row in rows
    ]
    makespans = alternatives.schedule.time(
        [
            [
                np.array([getattr(o, part) for o in row])[first]
                for row, first in zip(rows, firsts, strict=True)
            ]
            for part in alternatives.schedule.parts
        ],
        _elementwise_largest,
    )
    best = int(np.argmin(makespans + ends))
    step = int(makespans[best] + ends[best])
    if step > most:
        return None
    return step, tuple(row[first[best]] for row, first in zip(rows, firsts, strict=True))


def _elementwise_largest(times: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return reduce(np.maximum, times)
