"""What the bound of a candidate tells of those that differ from it in the order of ranks alone.

These need the same memory for the same layers and recompute. A layout of the other takes as long as the same
layout of this one, and what a stage without recompute takes longer, if recompute of a layer costs it no less:

    t'(l, s, f) >= t(l, s, f) + X' - X + l (x' - x)

with X what a stage takes outside layers and x a layer, forward and backward. So a bound on the sum of all
stages, and one on the slowest, shift by the least that this may be; other tails are looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.stage.stage_times import Stages
from autoplan.search.bounds.step_bound import Bound, least_busy, least_end_of_step
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.rank_orders import regardless_of_order

__all__ = ["SymmetricCandidates"]


class _Schedules(NamedTuple):
    """Depth, microbatches and virtual stages of candidates, and what they run; ``apart`` nowhere."""

    pp: int
    m: Array
    v: Array
    gpipe: NDArray[np.bool_]
    apart: NDArray[np.bool_]
    kinds: tuple[Stages, ...] = ()


@dataclass(frozen=True, slots=True)
class SymmetricCandidates:
    """Candidates of a group, by what they are but for their order; those of one kind are neighbours.

    ``kind`` has shape [C]; kind k begins at ``edges[k]``. Seconds of a stage outside layers, of a layer and
    of its recompute in both ways have shape [C, p], the least tail and the fewest layers of a stage [C].
    """

    layers: int
    fewest: Array
    kind: NDArray[np.int64]
    edges: NDArray[np.int64]
    schedules: _Schedules
    fixed: Array
    layer: Array
    selective: Array
    full: Array
    tail: Array

    @staticmethod
    def of(group: PricedCandidates) -> SymmetricCandidates:
        """Return the siblings in ``group``; where layers differ, no two candidates are."""
        count, stages = len(group.candidates), group.stages
        kind = regardless_of_order(group.candidates) if group.places is None else np.arange(count)
        return SymmetricCandidates(
            layers=group.layers,
            fewest=group.fewest,
            kind=kind,
            edges=np.searchsorted(kind, np.arange(kind[-1] + 2)),
            schedules=_Schedules(group.pp, group.m, group.v, group.gpipe, group.apart),
            fixed=stages.forward.fixed + stages.backward.fixed,
            layer=stages.forward.layer + stages.backward.layer,
            selective=stages.selective,
            full=stages.full,
            tail=least_end_of_step(group),
        )

    def tell(self, index: NDArray[np.int64], known: Bound, bounds: Array) -> None:
        """Raise the ``bounds`` of siblings of the candidates at ``index``, which have those ``known``."""
        if self.kind[-1] + 1 < len(self.kind):
            np.maximum.at(bounds, *self._told(index, known))

    def _told(self, index: NDArray[np.int64], known: Bound) -> tuple[NDArray[np.int64], Array]:
        """Return siblings of the candidates at ``index``, and what no step of theirs is below [s].

        ``known`` bounds those at ``index``. Siblings to which recompute is cheaper are left out, and those
        that do weight gradients apart, whose bound asks more of a stage than its time.
        """
        rows, others = self._pairs(index)
        dearer = (self.selective[others] >= self.selective[index[rows]]) & (
            self.full[others] >= self.full[index[rows]]
        )
        some = dearer.all(axis=1) & ~self.schedules.apart[others]
        rows, others = rows[some], others[some]
        own, s = index[rows], self.schedules
        here = _Schedules(s.pp, s.m[own], s.v[own], s.gpipe[own], s.apart[own])
        fixed = self.fixed[others] - self.fixed[own]
        layer = (self.layer[others] - self.layer[own]).min(axis=1)
        total = known.stage_sum[rows] + fixed.sum(axis=1) + self.layers * layer
        more = fixed.min(axis=1) + np.minimum(self.fewest[own] * layer, self.layers * layer)
        slowest = np.maximum(known.slowest[rows] + more, total / here.pp)
        possible = np.isfinite(known.step_seconds[rows])
        times = (np.where(possible, seconds, 0.0) for seconds in (total, slowest))
        least = np.where(possible, least_busy(here, *times) + self.tail[others], np.inf)
        # What is known is so of stages with up to n layers: with more, the stage alone bounds the step.
        more_layers = self.fixed[others] + (known.stage_seconds.shape[2] + 1) * self.layer[others]
        beyond = here.m * more_layers.min(axis=1)
        return others, np.where(known.cut[rows], np.minimum(least, beyond), least)

    def _pairs(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows of ``index``, and beside each a sibling of what stands there."""
        begin, end = self.edges[self.kind[index]], self.edges[self.kind[index] + 1]
        rows = np.repeat(np.arange(len(index)), end - begin)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
        others = begin[rows] + within
        apart = others != index[rows]
        return rows[apart], others[apart]
