"""Layouts that are listed in part: their first stages, and what the rest takes at least.

Letters are those of ``layout_listing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoplan.costs.core.candidates import Array, Ints

__all__ = ["First", "Rest", "nothing"]


@dataclass(frozen=True, slots=True)
class Rest:
    """The least sum of t and the least slowest t of the stages from s on with n layers, [p + 1, L + 1]."""

    sums: Array
    slowest: Array

    @staticmethod
    def of(places: Sequence[tuple[int, int]], total: int, both: Array) -> Rest:
        """Return the least of all ways to hold the layers; ``both`` is t by stage and number of layers [s].

        ``places`` are the layers before a stage (-1 where they make no difference) and its own.
        """
        p, size = len(both), total + 1
        sums, slowest = np.full((p + 1, size), np.inf), np.full((p + 1, size), np.inf)
        sums[p, 0] = slowest[p, 0] = 0.0
        for s in reversed(range(p)):
            for time, (before, held) in zip(both[s].tolist(), places, strict=True):
                if time < np.inf and held < size:
                    # With so many layers before it, the stage and those behind hold the rest.
                    left = slice(held, size) if before < 0 else slice(size - 1 - before, size - before)
                    after = slice(left.start - held, left.stop - held)
                    sums[s, left] = np.minimum(sums[s, left], time + sums[s + 1, after])
                    least = np.maximum(time, slowest[s + 1, after])
                    slowest[s, left] = np.minimum(slowest[s, left], least)
        return Rest(sums, slowest)


@dataclass(slots=True)
class First:
    """Partial layouts of the first stages: one row each."""

    mixes: Ints  # [S, k]
    held: Ints
    total: Array  # sum of t so far
    gone: Array  # sum of F so far
    passed: Array  # sum of F and B, without weight gradients done apart
    plain: Array  # the longest of the first kind of path, by the stages so far
    turning: Array  # likewise of the second: (m - 1 - p + s) t_s - sum of t before s, less what it shares
    forward: Array  # the longest forward and backward so far
    backward: Array
    tail: Array

    def take(self, index: Any) -> First:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the rows at ``index``."""
        return First(*(getattr(self, name)[index] for name in self.__slots__))


def nothing() -> First:
    """Return the beginning of every layout: no stage yet."""
    zero, none = np.zeros(1), np.full(1, -np.inf)
    start = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    return First(*start, zero, zero, zero, zero, none, zero, zero, none)
