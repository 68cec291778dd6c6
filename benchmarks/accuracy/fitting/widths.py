"""Half-widths of the intervals of step time, from runs that the fit had not seen.

Notation (this file only)::

    y     measured over predicted step time                                   [1]
    x     share of the step that no measured table prices                     [1]
    w     half-width hypot(a, b x), see ``autoplan.costs.uncertainty``              [1]

Chosen is what has the least interval score, 2 w + 2/(1 - 0.9) max(0, |y - 1| - w) on average (Gneiting and
Raftery 2007, section 6.2): narrow intervals are good, and each miss costs ten times what it misses by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from benchmarks.accuracy.fitting.leaving import LeftOut

__all__ = ["Widths", "score", "widths_of"]

_COVERED: Final = 0.9
#: Widths are whole per cent: runs do not tell them apart any finer. More than 100 % would say nothing.
_GRID: Final = tuple(percent / 100.0 for percent in range(1, 101))


@dataclass(frozen=True, slots=True)
class Widths:
    """a and b, the score that they have, and the share of the runs inside."""

    time: float
    time_modelled: float
    score: float
    covered: float


def score(y: Array, w: Array) -> float:
    """Return the mean interval score of intervals 1 - w to 1 + w for ``y``.

    >>> score(np.array([1.0, 1.3]), np.array([0.2, 0.2]))  # 0.4, and 0.4 + 20 x 0.1
    1.4
    """
    beyond = np.maximum(0.0, np.abs(y - 1.0) - w)
    return round(float(np.mean(2.0 * w + 2.0 / (1.0 - _COVERED) * beyond)), 12)


def widths_of(found: Sequence[LeftOut]) -> Widths:
    """Return the widths with the least score; of equal ones the narrowest."""
    y = np.array([x.measured / x.predicted for x in found])
    share = np.array([x.modelled_share for x in found])
    scored = [(score(y, np.hypot(a, b * share)), a, b) for a, b in product(_GRID, _GRID)]
    least, a, b = min(scored)
    inside = np.abs(y - 1.0) <= np.hypot(a, b * share)
    return Widths(a, b, least, float(inside.mean()))
