"""One point of the Pareto front, as the solver found it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.schema.layout import Layout
from autoplan.schema.recompute import MODES
from autoplan.search.alternatives.domain_reduction import OpenCandidate
from autoplan.search.alternatives.stage_alternatives import Alternative
from autoplan.search.cp.constraint_model import Solution
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["FrontPoint"]


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A layout of the Pareto front: its candidate, its alternative of each stage, and its proven bound."""

    group: int
    position: int
    chosen: tuple[Alternative, ...]
    step_ticks: int
    memory_ticks: int
    bound_ticks: int

    def layout(self, groups: Sequence[PricedCandidates]) -> Layout:
        """Return the layout, of one of ``groups``."""
        recomputed = {mode.name: tuple(o.count(mode.name) for o in self.chosen) for mode in MODES}
        layers = tuple(o.layers for o in self.chosen)
        return groups[self.group].candidates.layout(self.position, layers, recomputed)

    @staticmethod
    def of(candidate: OpenCandidate, solution: Solution) -> FrontPoint:
        """Return the point of a candidate's ``solution``."""
        return FrontPoint(
            group=candidate.group,
            position=candidate.position,
            chosen=solution.chosen,
            step_ticks=solution.step_ticks,
            memory_ticks=solution.memory_ticks,
            bound_ticks=solution.bound_ticks,
        )
