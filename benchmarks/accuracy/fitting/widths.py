"""Half-widths of the intervals of step time, from runs that the fit had not seen.

Notation (this file only)::

    y     measured over predicted step time                                   [1]
    x     share of the step that no measured table prices                     [1]
    w     width below, hypot(a, b x), see ``autoplan.costs.uncertainty``            [1]
    r     width above over w                                                  [1]
    s     what the step takes longer on a slow machine, over it               [1]
    u     width above, r w + s; of experts whose stack has an r of their own, with that one

Chosen is what has the least interval score, w + u + 2/(1 - 0.9) max(0, 1 - w - y, y - 1 - u) on average
(Gneiting and Raftery 2007, section 6.2): narrow intervals are good, and each miss costs twenty times what it
misses by. Errors of one publication go together, and a plan is for a machine that nobody published, so that
publications weigh alike, those with ten runs or more: one run of fewer weighs as one of ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from benchmarks.accuracy.fitting.leaving import LeftOut
from benchmarks.accuracy.outcomes import publication
from benchmarks.accuracy.scores import publication_weights

__all__ = ["Widths", "score", "weights_of", "widths_at", "widths_of"]

_COVERED: Final = 0.9
#: Widths are even per cents: runs do not tell them apart any finer. More than 100 % would say nothing.
_GRID: Final = tuple(percent / 100.0 for percent in range(2, 101, 2))
#: Ratios of the width above to the one below that are tried.
_SLOWER: Final = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)


@dataclass(frozen=True, slots=True)
class Widths:
    """a, b and r, the score that they have, and the share of the runs inside, publications weighing alike."""

    time: float
    time_modelled: float
    slower: float
    score: float
    covered: float


def score(y: Array, w: Array, above: Array | None = None, weights: Array | None = None) -> float:
    """Return the mean interval score of intervals 1 - w to 1 + above for ``y``; left out, above is w.

    >>> score(np.array([1.0, 1.3]), np.array([0.2, 0.2]))  # 0.4, and 0.4 + 20 x 0.1
    1.4
    """
    above = w if above is None else above
    beyond = np.maximum(0.0, np.maximum(1.0 - w - y, y - 1.0 - above))
    scores = w + above + 2.0 / (1.0 - _COVERED) * beyond
    return round(float(np.average(scores, weights=weights)), 12)


def weights_of(found: Sequence[LeftOut]) -> Array:
    """Return the weight of every run [1]: publications of ten runs and more weigh alike."""
    return publication_weights([publication(x.source) for x in found])


def widths_of(found: Sequence[LeftOut]) -> Widths:
    """Return the widths with the least score; of equal ones the narrowest."""
    runs, weights = _Runs.of(found), weights_of(found)
    tried = [(runs.below(a, b), a, b) for a, b in product(_GRID, (0.0, *_GRID))]
    least = min(
        (score(runs.ratio, w, runs.above(w, r), weights), a, b, r) for (w, a, b), r in product(tried, _SLOWER)
    )
    return widths_at(found, *least[1:])


def widths_at(found: Sequence[LeftOut], time: float, time_modelled: float, slower: float) -> Widths:
    """Return the widths a, b and r with their score, and the share of the runs inside."""
    runs, weights = _Runs.of(found), weights_of(found)
    w = runs.below(time, time_modelled)
    above = runs.above(w, slower)
    inside = (runs.ratio >= 1.0 - w) & (runs.ratio <= 1.0 + above)
    covered = float(np.average(inside, weights=weights))
    return Widths(time, time_modelled, slower, score(runs.ratio, w, above, weights), covered)


@dataclass(frozen=True, slots=True)
class _Runs:
    """y, x and s of every run, and the r of experts where their stack has one, else 0."""

    ratio: Array
    modelled: Array
    slow: Array
    experts: Array

    @staticmethod
    def of(found: Sequence[LeftOut]) -> _Runs:
        values = [
            (x.measured / x.predicted, x.modelled_share, x.slow_share, x.ratio_of_experts or 0.0)
            for x in found
        ]
        return _Runs(*np.array(values).T)

    def below(self, time: float, time_modelled: float) -> Array:
        width: Array = np.hypot(time, time_modelled * self.modelled)
        return width

    def above(self, below: Array, slower: float) -> Array:
        width: Array = np.where(self.experts > 0.0, self.experts, slower) * below + self.slow
        return width
