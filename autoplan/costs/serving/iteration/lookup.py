"""Tables that a simulation reads many times: a line over one number, a sheet over two.

Notation (this file only)::

    x, y  where a line or a sheet is read                                            [1]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array

__all__ = ["Line", "Sheet", "line_of", "sheet_of"]


@dataclass(frozen=True, slots=True)
class Line:
    """A function of one number, linear between nodes, and beyond the last as between the last two."""

    nodes: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float) -> float:
        """Return the value at ``x``; below the first node that of the first.

        >>> line = Line((1.0, 2.0, 4.0), (1.0, 3.0, 5.0))
        >>> line.at(0.5), line.at(3.0), line.at(8.0)
        (1.0, 4.0, 9.0)
        """
        nodes, values = self.nodes, self.values
        if x <= nodes[0]:
            return values[0]
        i = min(bisect_right(nodes, x), len(nodes) - 1)
        low, high = nodes[i - 1], nodes[i]
        return values[i - 1] + (values[i] - values[i - 1]) * (x - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A function of two numbers, linear in each between nodes, and beyond the last likewise."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    def at(self, x: float, y: float) -> float:
        """Return the value at (x, y); below the first nodes that of the first.

        >>> Sheet((1.0, 2.0), (0.0, 1.0), ((0.0, 1.0), (2.0, 5.0))).at(1.5, 0.5)
        2.0
        """
        first, second = self.first, self.second
        i = min(max(bisect_right(first, x), 1), len(first) - 1)
        j = min(max(bisect_right(second, y), 1), len(second) - 1)
        u = max(0.0, (x - first[i - 1]) / (first[i] - first[i - 1]))
        v = max(0.0, (y - second[j - 1]) / (second[j] - second[j - 1]))
        low, high = self.rows[i - 1], self.rows[i]
        a = low[j - 1] + (low[j] - low[j - 1]) * v
        return a + (high[j - 1] + (high[j] - high[j - 1]) * v - a) * u


def line_of(nodes: Sequence[float], values: Array) -> Line:
    """Return the line through ``values``, made non-decreasing.

    >>> line_of((1, 2, 4), np.array([1.0, 3.0, 2.0])).values
    (1.0, 3.0, 3.0)
    """
    rising = np.maximum.accumulate(values)
    return Line(tuple(map(float, nodes)), tuple(rising.tolist()))


def sheet_of(first: Sequence[float], second: Sequence[float], values: Array) -> Sheet:
    """Return the sheet through ``values`` [first, second], made non-decreasing along both.

    >>> sheet_of((1, 2), (1, 2), np.array([[1.0, 2.0], [0.0, 4.0]])).rows
    ((1.0, 2.0), (1.0, 4.0))
    """
    rising = np.maximum.accumulate(np.maximum.accumulate(values, axis=0), axis=1)
    return Sheet(tuple(map(float, first)), tuple(map(float, second)), tuple(map(tuple, rising.tolist())))
