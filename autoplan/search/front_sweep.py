"""ε-constraint sweep of the Pareto front: minimise step time under a memory limit, then tighten the limit.

Each solve covers the candidates whose lower bound does not exceed the incumbent. Lower bounds only grow as
the limit tightens, so most candidates are bounded once for all limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import distinct
from autoplan.deadline import DeadlineOver, check_deadline, current_deadline
from autoplan.search.alternatives.contents_alternatives import alternatives_of_contents
from autoplan.search.alternatives.domain_reduction import (
    OpenCandidate,
    ReducedDomains,
    reduced_domains,
    within_step,
)
from autoplan.search.alternatives.fastest_alternatives import RecentFastest
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.mix_prices import RecentMixPrices
from autoplan.search.alternatives.primal_heuristic import primal_heuristic
from autoplan.search.alternatives.stage_alternatives import Alternatives, slowest_path_ticks, step_ticks
from autoplan.search.alternatives.uniform_recompute import UniformCases
from autoplan.search.bounds.memory_floors import TooSmallLimits
from autoplan.search.bounds.path_counts import Paths
from autoplan.search.bounds.step_bound import Bound, bound, least_steps, longest_stage, lowest
from autoplan.search.bounds.symmetry import SymmetricCandidates
from autoplan.search.cp.constraint_model import Solution, SolverStoppedError, solve
from autoplan.search.front_point import FrontPoint
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["FrontSweep"]

_BATCH = 24
#: Memory limits whose bound is computed for the next plan, and how many of the promising ones are tried.
_PROBES = 48
_TRIES = 2
#: Batches whose coefficients are kept: those of the limit before are often asked for again.
_KEPT = 4
#: A candidate is excluded where its bound exceeds the incumbent by this share, which is more than the
#: rounding of a bound. A layout takes no less than its bound, and no less in ticks than in seconds: what is
#: dominated in seconds is dominated in ticks, too.
_MARGIN = 1e-6
#: Bounds are exact for steps up to this factor above the least bound of a batch. The factor is applied
#: repeatedly until the incumbent lies within it.
_LOOKAHEAD = 2.0
#: Step limits, as multiples of a candidate's bound, that are solved for in turn under the user's own rules.
_STEP_GUESSES = (1.01, 1.04, 1.15, 1.5, 3.0)
#: Share of a step that is shorter than half a tick.
_HALF_A_TICK = 1e-12


class FrontSweep:
    """State of the ε-constraint sweep of one job: lower bounds, and counters for the certificate."""

    def __init__(self, groups: Sequence[PricedCandidates], scale: Scale, ceiling_seconds: float) -> None:
        self.groups = groups
        self.scale = scale
        self.ceiling = int(ceiling_seconds / scale.tick_seconds)
        self.symmetric = [SymmetricCandidates.of(group) for group in groups]
        self.reset_bounds()
        self.too_small = TooSmallLimits(groups, scale.limit_bytes)
        self.live: list[OpenCandidate] = []
        self.solves = 0
        self.stopped = False
        self.paths = Paths()
        self.mix_prices = RecentMixPrices(scale)
        self.fastest_mixes = RecentFastest(scale)
        self.solved: set[tuple[int, int]] = set()
        self.parts: dict[tuple[int, bytes], PricedCandidates] = {}

    def reset_bounds(self) -> None:
        """Reset all lower bounds: they hold for the tightest limit so far and for tighter ones only."""
        self.bounds = [least_steps(g) for g in self.groups]
        self.cases: dict[tuple[int, int], UniformCases] = {}

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
                limit_ticks, incumbent = self._next_limit(point, thinning)
            except DeadlineOver:
                self.stopped = True
                return

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
        group = self._part(point.group, np.array([point.position]))
        lower = bound(group, limits * self.scale.tick_bytes, most)
        for i in np.flatnonzero(lower.step_seconds <= most)[:_TRIES]:
            limit = float(limits[i] * self.scale.tick_bytes)
            if group.by_uniform_cases(0):
                cases = self.cases[point.group, point.position]
                within = cases.within(limit, most, remember=False)
                alternatives_by_stage = [cases.alternatives(x, self.scale, _MARGIN, most) for x in within]
            else:
                key = point.group, point.position
                alternatives_by_stage = [self._alternatives(key, group, 0, limit, most, lower.at(int(i)))]
            incumbent = min((self._heuristic_seconds(x, most) for x in alternatives_by_stage), default=np.inf)
            if incumbent <= most:
                return int(limits[i]), incumbent
        return step_down, np.inf

    def _alternatives(
        self, key: tuple[int, int], group: PricedCandidates, i: int, limit: float, best: float, lower: Bound
    ) -> Alternatives:
        most = best * (1 + _MARGIN)
        if lower.places is None:
            return self.fastest_mixes.of(group, i, limit, most, lower)
        longest = longest_stage(group.schedule(i), float(lower.stage_sum[i]), most - float(lower.tail[i]))
        useful, prices = lower.stage_seconds[i] <= longest, self.mix_prices.of(key, group, i)
        return alternatives_of_contents(group, lower.places, i, limit, useful, prices, longest=longest)

    def fastest(self, limit_ticks: int, incumbent: float = np.inf) -> FrontPoint | None:
        """Return the fastest layout within the memory limit; None where the problem is infeasible.

        ``incumbent`` is the step of a layout within the limit, where the caller has one [s]. When the
        deadline in force passes, the best layout so far is returned. Raises SolverStoppedError without one.
        """
        self.live = []
        try:
            return self._proven_fastest(limit_ticks, incumbent)
        except (DeadlineOver, SolverStoppedError):
            self.stopped = True
            return self._best_known()

    def first(self, limit_ticks: int) -> FrontPoint | None:
        """Return a layout within the memory limit, by the primal heuristic alone; None where it has none."""
        self.live = []
        try:
            self._open_candidates(limit_ticks * self.scale.tick_bytes, np.inf)
            return self._best_known()
        except SolverStoppedError:
            return None

    def _proven_fastest(self, limit_ticks: int, incumbent: float) -> FrontPoint | None:
        limit = limit_ticks * self.scale.tick_bytes
        best = self._open_candidates(limit, incumbent)
        domains = self._reduced(self.live, best, limit)
        if not domains.live:
            return None
        self.solved.update((c.group, c.position) for c in domains.live)
        solution = self._solved(domains, limit_ticks)
        if solution is None:
            return None
        return FrontPoint.of(domains.live[solution.candidate], solution)

    def _reduced(self, live: Sequence[OpenCandidate], best: float, limit: float) -> ReducedDomains:
        """Return the reduced domains of ``live`` for steps of up to ``best`` seconds."""
        layers, most = self.groups[0].layers, best * (1 + _MARGIN)
        near = [c for c in live if c.bound_seconds <= most]
        cut_by_step = [cut for c in near if (cut := within_step(c, layers, most, self.scale)) is not None]
        ceiling = min(self.ceiling, int(best / self.scale.tick_seconds) + 1)
        return reduced_domains(cut_by_step, self.groups, self.scale, ceiling, limit)

    def _solved(self, domains: ReducedDomains, limit_ticks: int) -> Solution | None:
        self.solves += 1
        alternatives, layers = [c.alternatives for c in domains.live], self.groups[0].layers
        known, least = domains.incumbent, domains.least
        return solve(alternatives, layers, domains.ceiling, limit_ticks, self.paths, known=known, least=least)

    @property
    def bound_seconds(self) -> float:
        """Lower bound on the step of every layout within the tightest memory limit so far [s]."""
        return min(float(bounds.min()) for bounds in self.bounds)

    def _best_known(self) -> FrontPoint:
        """Return the fastest layout of the primal heuristic among the candidates opened so far."""
        layers = self.groups[0].layers
        for best in sorted(self.live, key=lambda c: c.incumbent_seconds):
            chosen = primal_heuristic(best.alternatives, layers)
            if chosen is None or (step := step_ticks(best.alternatives, chosen)) > self.ceiling:
                continue
            seconds = min(self.bound_seconds, self.ceiling * self.scale.tick_seconds)
            return FrontPoint(
                group=best.group,
                position=best.position,
                chosen=chosen,
                step_ticks=step,
                memory_ticks=max(o.memory_ticks for o in chosen),
                bound_ticks=min(step, int(seconds / self.scale.tick_seconds)),
            )
        raise SolverStoppedError

    def _open_candidates(self, limit: float, incumbent: float) -> float:
        """Open the candidates whose lower bound does not exceed the incumbent: find their alternatives.

        Return the step of the incumbent after them [s]; ``live`` has the candidates.
        """
        best = min(incumbent, self.ceiling * self.scale.tick_seconds)
        updated = [np.zeros(len(b), dtype=bool) for b in self.bounds]
        sized: set[int] = set()
        while (batch := self._next_batch(updated, best)) is not None:
            check_deadline()
            group, index = batch
            if group not in sized:
                self.too_small.exclude(group, limit, self.bounds[group])
                sized.add(group)
                continue
            updated[group][index] = True
            best = min(best, self._rebounded(group, index, limit, best))
        return best

    def _next_batch(
        self, updated: list[NDArray[np.bool_]], best: float
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Return the group of the least bound not yet updated, and its candidates of least bound."""
        outdated = [np.where(f, np.inf, b) for f, b in zip(updated, self.bounds, strict=True)]
        least = [float(s.min(initial=np.inf)) for s in outdated]
        group = int(np.argmin(least))
        if least[group] > best * (1 + _MARGIN) or not np.isfinite(least[group]):
            return None
        return group, lowest(outdated[group], min(_BATCH, self.groups[group].block_size))

    def _rebounded(self, group: int, index: NDArray[np.int64], limit: float, best: float) -> float:
        """Update the bounds of a batch and open its candidates that may beat ``best``, least bound first.

        Bounds are computed for steps near the least of them first, then for longer steps until the incumbent
        lies within: bounds and alternatives are complete for every step as fast as the incumbent. Return the
        step of the incumbent [s].
        """
        part, opened_before = self._part(group, index), len(self.live)
        near = best if part.rules else min(best, float(self.bounds[group][index].min()))
        while True:
            near *= _LOOKAHEAD
            relaxation = bound(part, limit, near)
            self.bounds[group][index] = np.maximum(self.bounds[group][index], relaxation.monotone_seconds)
            del self.live[opened_before:]
            incumbent = self._open_of_batch(group, index, part, relaxation, limit, best)
            if incumbent * (1 + _MARGIN) <= near or not relaxation.cut.any():
                break
        self.symmetric[group].tell(index, relaxation, self.bounds[group])
        return incumbent

    def _part(self, group: int, index: NDArray[np.int64]) -> PricedCandidates:
        """Return the candidates at ``index`` of a group."""
        key = group, index.tobytes()
        part = self.parts.pop(key, None) or self.groups[group].take(index)
        self.parts[key] = part
        if len(self.parts) > _KEPT:
            del self.parts[next(iter(self.parts))]
        return part

    def _open_of_batch(
        self,
        group: int,
        index: NDArray[np.int64],
        part: PricedCandidates,
        relaxation: Bound,
        limit: float,
        best: float,
    ) -> float:
        """Open the candidates of a batch that may beat ``best``; return the incumbent after them [s]."""
        self.fastest_mixes.begin(relaxation, best * (1 + _MARGIN))
        within_best = np.flatnonzero(relaxation.step_seconds <= best * (1 + _MARGIN))
        for i in within_best[np.argsort(relaxation.step_seconds[within_best], kind="stable")].tolist():
            check_deadline()
            lower = float(self.bounds[group][index[i]])
            if relaxation.step_seconds[i] > best * (1 + _MARGIN):
                break
            if lower > best * (1 + _MARGIN):
                # Its bound was proven under the user's own rules, which the relaxation leaves out.
                continue
            relaxed = float(relaxation.stage_sum[i]), float(relaxation.tail[i])
            candidate = OpenCandidate(
                group, int(index[i]), lower, np.inf, *relaxed, Alternatives((), part.schedule(i))
            )
            open_up = self._by_case if part.by_uniform_cases(i) else self._single
            opened = open_up(candidate, part, i, relaxation, limit, best)
            self.live.extend(c for c in opened if not c.alternatives.empty)
            best = min([best, *(c.incumbent_seconds for c in opened)])
        return best

    def _single(
        self,
        candidate: OpenCandidate,
        part: PricedCandidates,
        i: int,
        lower: Bound,
        limit: float,
        best: float,
    ) -> list[OpenCandidate]:
        """Return the candidate with an incumbent: heuristic, or proven where it has rules on stages."""
        key = candidate.group, candidate.position
        if not part.parts(i):
            alternatives = self._alternatives(key, part, i, limit, best, lower)
            return [self._with_incumbent(candidate, alternatives, best)]
        live = self._solved_under_rules(
            candidate, lambda most: self._alternatives(key, part, i, limit, most, lower), limit, best
        )
        self._raise_bound(live, live.bound_seconds)
        return [live]

    def _by_case(
        self,
        candidate: OpenCandidate,
        part: PricedCandidates,
        i: int,
        lower: Bound,
        limit: float,
        best: float,
    ) -> list[OpenCandidate]:
        """Return the candidate once for each uniform recompute that may be the fastest."""
        del lower
        key = candidate.group, candidate.position
        if key not in self.cases:
            self.cases[key] = UniformCases.of(part, i)
        cases, opened = self.cases[key], []
        for case in cases.within(limit, best * (1 + _MARGIN), remember=True):
            if case.step_seconds > best * (1 + _MARGIN):
                break
            bounds = (case.step_seconds, np.inf, case.stage_sum, case.tail)
            open_case = OpenCandidate(*key, *bounds, candidate.alternatives)
            alternatives_within = partial(cases.alternatives, case, self.scale, _MARGIN)
            if cases.across:
                live = self._solved_under_rules(open_case, alternatives_within, limit, best)
            else:
                live = self._with_incumbent(open_case, alternatives_within(best), best)
            cases.bounds[case.number] = max(live.bound_seconds, cases.bounds[case.number])
            best = min(best, live.incumbent_seconds)
            opened.append(live)
        self._raise_bound(candidate, float(cases.bounds.min()))
        return opened

    def _raise_bound(self, live: OpenCandidate, seconds: float) -> None:
        bounds = self.bounds[live.group]
        bounds[live.position] = max(bounds[live.position], seconds)

    def _with_incumbent(self, live: OpenCandidate, alternatives: Alternatives, most: float) -> OpenCandidate:
        """Return the candidate with ``alternatives`` and the heuristic's incumbent within ``most`` s."""
        incumbent = self._heuristic_seconds(alternatives, most)
        return replace(live, alternatives=alternatives, incumbent_seconds=incumbent)

    def _solved_under_rules(
        self,
        candidate: OpenCandidate,
        alternatives_within: Callable[[float], Alternatives],
        limit: float,
        best: float,
    ) -> OpenCandidate:
        """Return a candidate that has rules of the user's own about its stages, with its fastest layout.

        The primal heuristic may break these rules, and the bound relaxes them. So the solver runs with ever
        longer step limits, which keeps the domains small. A proven optimum is a bound of the candidate at
        this memory limit and all tighter ones.
        """
        guesses = [guess for share in _STEP_GUESSES if (guess := candidate.bound_seconds * share) < best]
        for guess in (*guesses, best):
            live = self._with_incumbent(candidate, alternatives_within(guess), guess)
            if live.incumbent_seconds <= guess:
                return live
            # The alternatives are complete for steps up to the guess only: a slower layout proves nothing.
            live, least = self._solved_single(replace(live, incumbent_seconds=np.inf), limit, guess)
            # As a bound it is exact in ticks: it excludes what is a tick above the best.
            proven = least * self.scale.tick_seconds * (1 + _MARGIN) * (1 - _HALF_A_TICK)
            if proven > candidate.bound_seconds:
                candidate, live = (replace(c, bound_seconds=proven) for c in (candidate, live))
            if live.incumbent_seconds < np.inf:
                return live
        return live

    def _solved_single(self, live: OpenCandidate, limit: float, best: float) -> tuple[OpenCandidate, int]:
        """Return ``live`` with its optimum, if that is within ``best``, and its lower bound in ticks."""
        single = [] if live.alternatives.empty else [replace(live, bound_seconds=0.0)]
        domains = self._reduced(single, best, limit)
        if not domains.live:
            return live, domains.ceiling + 1
        solution = self._solved(domains, round(limit / self.scale.tick_bytes))
        if solution is None:
            return live, domains.ceiling + 1
        fastest = solution.step_ticks * self.scale.tick_seconds
        return replace(live, incumbent_seconds=fastest), solution.bound_ticks

    def _heuristic_seconds(self, alternatives: Alternatives, most: float) -> float:
        """Return the step of the heuristic's layout; infinite without, and where it exceeds ``most`` [s]."""
        chosen = primal_heuristic(alternatives, self.groups[0].layers)
        if chosen is None or slowest_path_ticks(alternatives, chosen) * self.scale.tick_seconds > most:
            return np.inf
        return step_ticks(alternatives, chosen) * self.scale.tick_seconds
