"""ε-constraint sweep of the Pareto front: minimise step time under a memory limit, then tighten the limit.

Each solve covers the candidates whose lower bound does not exceed the incumbent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import distinct
from autoplan.deadline import DeadlineOver, current_deadline
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import MODES
from autoplan.search.alternatives.domain_reduction import OpenCandidate
from autoplan.search.alternatives.layer_splits import primal_heuristic
from autoplan.search.alternatives.stage_alternatives import Alternative, Scale, step_ticks
from autoplan.search.best_first_search import BestFirstSearch, CandidateSolver
from autoplan.search.cp.constraint_model import Solution, SolverStoppedError
from autoplan.search.space.priced_candidates import PricedCandidates

#: Memory limits whose bound is computed for the next plan, and how many of the promising ones are tried.
_PROBES = 48
_TRIES = 2
#: A layout is slower than another one where its bound exceeds that one's step by this share.
_MARGIN = 1e-6


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


class FrontSweep:
    """State of the ε-constraint sweep of one job: its candidates, and counters for the certificate.

    ``others`` are steps [s] and memory [byte] of plans of other programs for the same question: ``cut`` says
    that the sweep ended where they dominate every smaller layout.
    """

    def __init__(
        self,
        groups: Sequence[PricedCandidates],
        scale: Scale,
        ceiling_seconds: float,
        others: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.groups = groups
        self.others = sorted(others)
        self.cut = False
        #: Within this limit a layout may be on the front beside ``others`` [ticks].
        self._undominated = np.inf
        self.scale = scale
        self.solver = CandidateSolver(groups, scale, int(ceiling_seconds / scale.tick_seconds))
        self.candidates = BestFirstSearch(groups, self.solver)
        self.stopped = False
        self.solved: set[tuple[int, int]] = set()

    def reset_bounds(self) -> None:
        """Reset all lower bounds, so that a looser limit may follow."""
        self.candidates.reset_bounds()

    @property
    def bound_seconds(self) -> float:
        """Lower bound on the step of every layout within the tightest memory limit so far [s]."""
        return self.candidates.bound_seconds

    def front(self, limit_ticks: int, thinning: float) -> Iterator[FrontPoint]:
        """Yield Pareto-optimal layouts, fastest first.

        Each needs at most 1 - thinning of the memory of the one before it, and less where that costs at most
        ``thinning`` in step time.
        """
        incumbent = np.inf
        while limit_ticks > 0:
            try:
                point = self.fastest(limit_ticks, incumbent)
            except SolverStoppedError:
                self.stopped = True
                return
            if point is None:
                return
            yield point
            self.stopped = self.stopped or current_deadline().over
            if self.stopped:
                return
            try:
                self.cut = self._rest_is_dominated(point.memory_ticks - 1)
                if self.cut:
                    return
                limit_ticks, incumbent = self._next_limit(point, thinning)
            except (DeadlineOver, SolverStoppedError):
                self.stopped = True
                return

    def _rest_is_dominated(self, limit_ticks: int) -> bool:
        """Return whether it is proven, by bounds, that others dominate every layout within the limit.

        One of ``others`` dominates all layouts that are slower and need no less memory. So none may be as
        fast as the fastest of them that fits, nor as the next one within the memory of that, and so on.
        """
        if not self.others or limit_ticks >= self._undominated:
            return False
        bounds, limit = self.candidates.saved_bounds(), limit_ticks
        for step, memory in [*self.others, (np.inf, 0.0)]:
            ticks = int(np.ceil(memory / self.scale.tick_bytes))
            if ticks > limit:
                continue
            if self.candidates.bound_seconds <= step * (1 + _MARGIN) and not self._none_within(limit, step):
                self.candidates.restore_bounds(bounds)
                self._undominated = limit
                return False
            limit = ticks
        return True

    def _none_within(self, limit_ticks: int, seconds: float) -> bool:
        """Return whether bounds prove that no layout within the limit is as fast."""
        self.candidates.live = []
        limit, most = limit_ticks * self.scale.tick_bytes, min(seconds, self.solver.ceiling_seconds)
        best = self.candidates.open_candidates(limit, most)
        return best >= most and not self.solver.reduced(self.candidates.live, best, limit).live

    def _next_limit(self, point: FrontPoint, thinning: float) -> tuple[int, float]:
        """Return the next memory limit [ticks], and the step of an incumbent within it [s], else infinite.

        The limit is as low as costs at most ``thinning`` in step time. A layout whose memory lies between the
        two limits is dominated, within ``thinning``, by the next plan.
        """
        step_down = min(point.memory_ticks - 1, int(point.memory_ticks * (1.0 - thinning)))
        if thinning <= 0 or step_down <= 0:
            return step_down, np.inf
        most = point.step_ticks * self.scale.tick_seconds * (1.0 + thinning)
        limits = distinct(np.linspace(step_down / 2, step_down, _PROBES).astype(np.int64))
        quick = self.candidates.quick_incumbents(point.group, point.position, limits, most, _TRIES)
        return (step_down, np.inf) if quick is None else quick

    def fastest(self, limit_ticks: int, incumbent: float = np.inf) -> FrontPoint | None:
        """Return the fastest layout within the memory limit; None where the problem is infeasible.

        ``incumbent`` is the step of a layout within the limit, where the caller has one [s]. When the
        deadline in force passes, the best layout so far is returned. Raises SolverStoppedError without one.
        """
        self.candidates.live = []
        try:
            return self._proven_fastest(limit_ticks, incumbent)
        except (DeadlineOver, SolverStoppedError):
            self.stopped = True
            return self._best_known()

    def first(self, limit_ticks: int) -> FrontPoint | None:
        """Return a layout within the memory limit, by the primal heuristic alone; None where it has none."""
        self.candidates.live = []
        try:
            self.candidates.open_candidates(limit_ticks * self.scale.tick_bytes, np.inf)
            return self._best_known()
        except SolverStoppedError:
            return None

    def _proven_fastest(self, limit_ticks: int, incumbent: float) -> FrontPoint | None:
        limit = limit_ticks * self.scale.tick_bytes
        best = self.candidates.open_candidates(limit, incumbent)
        domains = self.solver.reduced(self.candidates.live, best, limit)
        if not domains.live:
            return None
        self.solved.update((c.group, c.position) for c in domains.live)
        solution = self.solver.solution(domains, limit_ticks)
        if solution is None:
            return None
        return FrontPoint.of(domains.live[solution.candidate], solution)

    def _best_known(self) -> FrontPoint:
        """Return the fastest layout of the primal heuristic among the candidates opened so far."""
        for best in sorted(self.candidates.live, key=lambda c: c.incumbent_seconds):
            chosen = primal_heuristic(best.alternatives, self.solver.layers)
            if chosen is None or (step := step_ticks(best.alternatives, chosen)) > self.solver.ceiling:
                continue
            seconds = min(self.bound_seconds, self.solver.ceiling_seconds)
            return FrontPoint(
                group=best.group,
                position=best.position,
                chosen=chosen,
                step_ticks=step,
                memory_ticks=max(o.memory_ticks for o in chosen),
                bound_ticks=min(step, int(seconds / self.scale.tick_seconds)),
            )
        raise SolverStoppedError
