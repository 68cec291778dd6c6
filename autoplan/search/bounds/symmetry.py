"""Transfer of a candidate's lower bound to candidates that differ from it in rank order alone.

They need the same memory for the same layers and recompute. Where recompute of a layer costs the other
candidate no less, its stage takes at least the time t of this one plus the difference without recompute:

    t'(l, s, f) >= t(l, s, f) + X' - X + l (x' - x)

with X the time of a stage outside its layers and x that of a layer, forward and backward. So the bounds on
the sum of stage times and on the slowest stage shift by the minimum of this difference; the bound on the end
of step is the other candidate's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, ByMode
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.recompute import listed_modes
from autoplan.search.bounds.step_bound import Bound, least_end_of_step, least_makespan
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.rank_orders import order_classes


class _Schedules(NamedTuple):
    """Depth, microbatches, virtual stages and schedules of candidates; no backward is split."""

    pp: int
    m: Array
    v: Array
    gpipe: NDArray[np.bool_]
    split_backward: NDArray[np.bool_]
    kinds: tuple[Stages, ...] = ()


@dataclass(frozen=True, slots=True)
class SymmetricCandidates:
    """Candidates of a group in classes that differ in rank order alone; those of a class are neighbours.

    ``kind`` is the class, shape [C]; class k begins at ``edges[k]``. Seconds of a stage outside layers, of a
    layer and of its recompute by mode have shape [C, p]; the least end of step and the fewest
    layers of a stage have shape [C].
    """

    layers: int
    fewest: Array
    kind: NDArray[np.int64]
    edges: NDArray[np.int64]
    schedules: _Schedules
    fixed: Array
    layer: Array
    recompute: ByMode
    tail: Array

    @staticmethod
    def of(group: PricedCandidates) -> SymmetricCandidates:
        """Return the classes of ``group``; with several layer types every candidate is a class."""
        count, stages = len(group.candidates), group.stages
        kind = order_classes(group.candidates) if group.places is None else np.arange(count)
        return SymmetricCandidates(
            layers=group.layers,
            fewest=group.fewest,
            kind=kind,
            edges=np.searchsorted(kind, np.arange(kind[-1] + 2)),
            schedules=_Schedules(group.pp, group.m, group.v, group.gpipe, group.split_backward),
            fixed=stages.forward.fixed + stages.backward.fixed,
            layer=stages.forward.layer + stages.backward.layer,
            recompute={mode: stages.recompute[mode] for mode in listed_modes(group.modes)},
            tail=least_end_of_step(group),
        )

    def tell(self, index: NDArray[np.int64], bound: Bound, bounds: Array) -> None:
        """Raise the ``bounds`` of candidates in the classes of ``index``, whose own bounds are ``bound``."""
        if self.kind[-1] + 1 < len(self.kind):
            np.maximum.at(bounds, *self._bounds_of_others(index, bound))

    def _bounds_of_others(self, index: NDArray[np.int64], bound: Bound) -> tuple[NDArray[np.int64], Array]:
        """Return candidates in the classes of ``index``, and lower bounds on their steps [s].

        ``bound`` bounds those at ``index``. Candidates with cheaper recompute are left out, as are those with
        split backward, whose bound depends on more than the time of a stage.
        """
        rows, others = self._pairs(index)
        costlier = np.logical_and.reduce([x[others] >= x[index[rows]] for x in self.recompute.values()])
        valid = costlier.all(axis=1) & ~self.schedules.split_backward[others]
        rows, others = rows[valid], others[valid]
        orders, s = index[rows], self.schedules
        schedules = _Schedules(s.pp, s.m[orders], s.v[orders], s.gpipe[orders], s.split_backward[orders])
        fixed = self.fixed[others] - self.fixed[orders]
        layer = (self.layer[others] - self.layer[orders]).min(axis=1)
        total = bound.stage_sum[rows] + fixed.sum(axis=1) + self.layers * layer
        shift = fixed.min(axis=1) + np.minimum(self.fewest[orders] * layer, self.layers * layer)
        slowest = np.maximum(bound.slowest[rows] + shift, total / schedules.pp)
        finite = np.isfinite(bound.step_seconds[rows])
        bounds = (np.where(finite, seconds, 0.0) for seconds in (total, slowest))
        least = np.where(finite, least_makespan(schedules, *bounds) + self.tail[others], np.inf)
        # ``known`` is valid for stages of up to n layers; with more, the stage alone bounds the step.
        cut_seconds = self.fixed[others] + (bound.stage_seconds.shape[2] + 1) * self.layer[others]
        cut_bound = schedules.m * cut_seconds.min(axis=1)
        return others, np.where(bound.cut[rows], np.minimum(least, cut_bound), least)

    def _pairs(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs: a row of ``index``, and another candidate of the class of its candidate."""
        begin, end = self.edges[self.kind[index]], self.edges[self.kind[index] + 1]
        rows = np.repeat(np.arange(len(index)), end - begin)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
        others = begin[rows] + offset
        distinct = others != index[rows]
        return rows[distinct], others[distinct]
