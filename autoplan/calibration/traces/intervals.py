"""Sets of time as sorted intervals that do not touch, in whole nanoseconds.

Notation (this file only)::

    n  intervals of a set      w  windows      [1]
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Times:
    """A set of time: the starts and ends of its intervals [ns], shape [n] each, sorted, without overlap."""

    start: Instants
    end: Instants

    @staticmethod
    def of(start: Instants, end: Instants) -> Times:
        """Return the union of intervals, in any order and overlapping.

        >>> Times.of(np.array([5, 0, 1]), np.array([6, 2, 3])).seconds  # 0 to 3, 5 to 6
        4e-09
        """
        positive = end > start
        start, end = start[positive], end[positive]
        if not len(start):
            return NO_TIME
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        begins = np.concatenate([[True], start[1:] > end[:-1]])
        ends = np.concatenate([begins[1:], [True]])
        return Times(start[begins], end[ends])

    @property
    def seconds(self) -> float:
        """Length of the set [s]."""
        return float((self.end - self.start).sum()) / 1e9

    def within(self, start: Instants, end: Instants) -> Instants:
        """Return how much of each window from ``start`` to ``end`` is in the set [ns], shape [w].

        >>> Times.of(np.array([0, 5]), np.array([2, 9])).within(np.array([1]), np.array([6])).tolist()
        [2]
        """
        return self._until(end) - self._until(start)

    def _until(self, instant: Instants) -> Instants:
        """Return the length of the set before each instant [ns]."""
        if not len(self.start):
            return np.zeros_like(instant)
        before = np.concatenate([[0], np.cumsum(self.end - self.start)])
        index = np.searchsorted(self.start, instant, side="right")
        last = np.maximum(index - 1, 0)
        partial = np.clip(instant - self.start[last], 0, self.end[last] - self.start[last])
        covered: Instants = np.where(index > 0, before[last] + partial, 0).astype(np.int64)
        return covered

    def holds(self, instant: Instants) -> NDArray[np.bool_]:
        """Return whether each instant is in the set.

        >>> Times.of(np.array([2]), np.array([4])).holds(np.array([1, 2, 3, 4])).tolist()
        [False, True, True, False]
        """
        if not len(self.start):
            return np.zeros(len(instant), dtype=np.bool_)
        index = np.searchsorted(self.start, instant, side="right") - 1
        inside: NDArray[np.bool_] = (index >= 0) & (instant < self.end[np.maximum(index, 0)])
        return inside

    def gaps(self, start: int, end: int) -> Times:
        """Return what of the window from ``start`` to ``end`` is not in the set.

        >>> gaps = Times.of(np.array([2]), np.array([3])).gaps(0, 5)
        >>> gaps.start.tolist(), gaps.end.tolist()
        ([0, 3], [2, 5])
        """
        inside = (self.end > start) & (self.start < end)
        begins = np.concatenate([[start], np.minimum(self.end[inside], end)])
        ends = np.concatenate([np.maximum(self.start[inside], start), [end]])
        positive = ends > begins
        return Times(begins[positive].astype(np.int64), ends[positive].astype(np.int64))


NO_TIME = Times(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def instants_of(values: Sequence[int] | array[int]) -> Instants:
    """Return instants as an array [ns].

    >>> instants_of([1, 2]).dtype.name
    'int64'
    """
    return np.asarray(values, dtype=np.int64)


def united(sets: Sequence[Times]) -> Times:
    """Return the union of sets of time.

    >>> one, two = (Times.of(np.array([x]), np.array([x + 2])) for x in (0, 1))
    >>> united([one, two]).seconds
    3e-09
    """
    if not sets:
        return NO_TIME
    return Times.of(np.concatenate([x.start for x in sets]), np.concatenate([x.end for x in sets]))
