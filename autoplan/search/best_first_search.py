"""Best-first search over candidates: those of the least lower bound are opened first, up to the incumbent.

To open a candidate is to find its alternatives under the memory limit, and a layout of them. Lower bounds
only grow as the limit tightens, so most candidates are bounded once for all limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.deadline import check_deadline
from autoplan.search.alternatives.contents_alternatives import RecentMixPrices, alternatives_of_contents
from autoplan.search.alternatives.domain_reduction import (
    OpenCandidate,
    ReducedDomains,
    reduced_domains,
    within_step,
)
from autoplan.search.alternatives.fastest_alternatives import RecentFastest, UniformCases
from autoplan.search.alternatives.layer_splits import Paths, primal_heuristic
from autoplan.search.alternatives.stage_alternatives import (
    Alternatives,
    Scale,
    slowest_path_ticks,
    step_ticks,
)
from autoplan.search.bounds.memory_bound import TooSmallLimits
from autoplan.search.bounds.step_bound import (
    Bound,
    SymmetricCandidates,
    bound,
    least_steps,
    longest_stage,
    lowest,
)
from autoplan.search.cp.constraint_model import Solution, solve
from autoplan.search.space.priced_candidates import PricedCandidates

_BATCH = 24
#: Candidates of least bound whose floors of memory are compared with the limit at once, at first.
_SIZED = 256
#: Batches whose coefficients are kept: those of the limit before are often asked for again.
_KEPT = 4
#: A candidate is excluded where its bound exceeds the incumbent by this share, which is more than the
#: rounding of a bound. A layout takes no less than its bound, and no less in ticks than in seconds: what is
#: dominated in seconds is dominated in ticks, too.
_MARGIN = 1e-6
#: Bounds are exact for steps up to this factor above the least bound of a batch. The factor is applied
#: repeatedly until the incumbent lies within it.
_LOOKAHEAD = 2.0
#: Step limits, as multiples of a candidate's bound, that are solved for in turn under the user's rules.
_STEP_GUESSES = (1.01, 1.04, 1.15, 1.5, 3.0)
#: Share of a step that is shorter than half a tick.
_HALF_A_TICK = 1e-12


#: Lower bounds of candidates by group, and of their cases of uniform recompute.
Bounds: TypeAlias = tuple[list[Array], dict[tuple[int, int], Array]]


class CandidateSolver:
    """Solves for the fastest layout of open candidates, by heuristic or exactly, and counts exact solves."""

    def __init__(self, groups: Sequence[PricedCandidates], scale: Scale, ceiling: int) -> None:
        self.groups = groups
        self.scale = scale
        #: The longest step that is searched [ticks].
        self.ceiling = ceiling
        self.layers = groups[0].layers
        self.solves = 0
        self._paths = Paths()

    @property
    def ceiling_seconds(self) -> float:
        """The longest step that is searched [s]."""
        return self.ceiling * self.scale.tick_seconds

    def reduced(self, live: Sequence[OpenCandidate], best: float, limit: float) -> ReducedDomains:
        """Return the reduced domains of ``live`` for steps of up to ``best`` seconds."""
        most = best * (1 + _MARGIN)
        near = [c for c in live if c.bound_seconds <= most]
        cut_by_step = [
            cut for c in near if (cut := within_step(c, self.layers, most, self.scale)) is not None
        ]
        ceiling = min(self.ceiling, int(best / self.scale.tick_seconds) + 1)
        return reduced_domains(cut_by_step, self.groups, self.scale, ceiling, limit)

    def solution(self, domains: ReducedDomains, limit_ticks: int) -> Solution | None:
        """Return the fastest layout of ``domains`` within the memory limit, or None."""
        self.solves += 1
        alternatives, layers = [c.alternatives for c in domains.live], self.layers
        incumbent, least = domains.incumbent, domains.least
        return solve(
            alternatives, layers, domains.ceiling, limit_ticks, self._paths, incumbent=incumbent, least=least
        )

    def solved_alone(self, live: OpenCandidate, limit: float, best: float) -> tuple[OpenCandidate, int]:
        """Return ``live`` with its optimum, if that is within ``best``, and its lower bound in ticks."""
        single = [] if live.alternatives.empty else [replace(live, bound_seconds=0.0)]
        domains = self.reduced(single, best, limit)
        if not domains.live:
            return live, domains.ceiling + 1
        solution = self.solution(domains, round(limit / self.scale.tick_bytes))
        if solution is None:
            return live, domains.ceiling + 1
        fastest = solution.step_ticks * self.scale.tick_seconds
        return replace(live, incumbent_seconds=fastest), solution.bound_ticks

    def heuristic_seconds(self, alternatives: Alternatives, most: float) -> float:
        """Return the step of the heuristic's layout; infinite without, and where it exceeds ``most`` [s]."""
        chosen = primal_heuristic(alternatives, self.layers)
        if chosen is None or slowest_path_ticks(alternatives, chosen) * self.scale.tick_seconds > most:
            return np.inf
        return step_ticks(alternatives, chosen) * self.scale.tick_seconds


class _Opened(NamedTuple):
    """A candidate once opened, once for each case of it, and a lower bound on its step [s]."""

    live: list[OpenCandidate]
    bound_seconds: float


class _CandidateOpening:
    """Opens one candidate after the other: finds its alternatives, and an incumbent among them.

    What does not depend on the memory limit is remembered: prices of mixes and cases of uniform recompute.
    """

    def __init__(self, solver: CandidateSolver) -> None:
        self._solver = solver
        self._mix_prices = RecentMixPrices(solver.scale)
        self._fastest_mixes = RecentFastest(solver.scale)
        self._cases: dict[tuple[int, int], UniformCases] = {}

    def forget_bounds(self) -> None:
        """Forget the bounds of cases: they hold for the tightest limit so far and for tighter ones only."""
        self._cases = {}

    def saved_bounds(self) -> dict[tuple[int, int], Array]:
        """Return the bounds of cases as they are."""
        return {key: cases.bounds.copy() for key, cases in self._cases.items()}

    def restore_bounds(self, saved: dict[tuple[int, int], Array]) -> None:
        """Take back bounds that ``saved_bounds`` returned; those of cases that are new since begin anew."""
        for key, cases in self._cases.items():
            cases.bounds = saved[key] if key in saved else cases.floor.copy()

    def begin(self, batch: Bound, best: float) -> None:
        """Expect candidates of ``batch`` next, for steps of up to ``best`` seconds."""
        self._fastest_mixes.begin(batch, best * (1 + _MARGIN))

    def opened(
        self,
        candidate: OpenCandidate,
        part: PricedCandidates,
        i: int,
        lower: Bound,
        limit: float,
        best: float,
    ) -> _Opened:
        """Return the ``candidate``, row ``i`` of ``part``, opened for steps of up to ``best`` seconds."""
        if part.by_uniform_cases(i):
            return self._by_case(candidate, part, i, limit, best)
        return self._single(candidate, part, i, lower, limit, best)

    def quick_incumbent(
        self, key: tuple[int, int], group: PricedCandidates, limit: float, most: float, lower: Bound
    ) -> float:
        """Return the step of the heuristic's layout of an opened candidate, alone in ``group`` [s].

        It is infinite where no layout is found within ``limit`` bytes and ``most`` seconds.
        """
        solver = self._solver
        if group.by_uniform_cases(0):
            cases = self._cases[key]
            within = cases.within(limit, most, remember=False)
            alternatives_by_case = [cases.alternatives(x, solver.scale, _MARGIN, most) for x in within]
        else:
            alternatives_by_case = [self._alternatives(key, group, 0, limit, most, lower)]
        return min((solver.heuristic_seconds(x, most) for x in alternatives_by_case), default=np.inf)

    def _alternatives(
        self, key: tuple[int, int], group: PricedCandidates, i: int, limit: float, best: float, lower: Bound
    ) -> Alternatives:
        most = best * (1 + _MARGIN)
        if lower.places is None:
            return self._fastest_mixes.of(group, i, limit, most, lower)
        longest = longest_stage(group.schedule(i), float(lower.stage_sum[i]), most - float(lower.tail[i]))
        useful, prices = lower.stage_seconds[i] <= longest, self._mix_prices.of(key, group, i)
        return alternatives_of_contents(group, lower.places, i, limit, useful, prices, longest=longest)

    def _single(
        self,
        candidate: OpenCandidate,
        part: PricedCandidates,
        i: int,
        lower: Bound,
        limit: float,
        best: float,
    ) -> _Opened:
        """Return the candidate with an incumbent: heuristic, or proven where it has rules on stages."""
        key = candidate.group, candidate.position
        if not part.parts(i):
            alternatives = self._alternatives(key, part, i, limit, best, lower)
            live = self._with_incumbent(candidate, alternatives, best)
        else:
            live = self._solved_under_rules(
                candidate, lambda most: self._alternatives(key, part, i, limit, most, lower), limit, best
            )
        return _Opened([live], live.bound_seconds)

    def _by_case(
        self, candidate: OpenCandidate, part: PricedCandidates, i: int, limit: float, best: float
    ) -> _Opened:
        """Return the candidate once for each uniform recompute that may be the fastest."""
        key = candidate.group, candidate.position
        if key not in self._cases:
            self._cases[key] = UniformCases.of(part, i)
        cases, opened = self._cases[key], []
        for case in cases.within(limit, best * (1 + _MARGIN), remember=True):
            if case.step_seconds > best * (1 + _MARGIN):
                break
            bounds = (case.step_seconds, np.inf, case.stage_sum, case.tail)
            open_case = OpenCandidate(*key, *bounds, candidate.alternatives)
            alternatives_within = partial(cases.alternatives, case, self._solver.scale, _MARGIN)
            if cases.across:
                live = self._solved_under_rules(open_case, alternatives_within, limit, best)
            else:
                live = self._with_incumbent(open_case, alternatives_within(best), best)
            cases.bounds[case.number] = max(live.bound_seconds, cases.bounds[case.number])
            best = min(best, live.incumbent_seconds)
            opened.append(live)
        return _Opened(opened, float(cases.bounds.min()))

    def _with_incumbent(self, live: OpenCandidate, alternatives: Alternatives, most: float) -> OpenCandidate:
        """Return the candidate with ``alternatives`` and the heuristic's incumbent within ``most`` s."""
        incumbent = self._solver.heuristic_seconds(alternatives, most)
        return replace(live, alternatives=alternatives, incumbent_seconds=incumbent)

    def _solved_under_rules(
        self,
        candidate: OpenCandidate,
        alternatives_within: Callable[[float], Alternatives],
        limit: float,
        best: float,
    ) -> OpenCandidate:
        """Return a candidate that has user's rules about its stages, with its fastest layout.

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
            unsolved = replace(live, incumbent_seconds=np.inf)
            live, least = self._solver.solved_alone(unsolved, limit, guess)
            # As a bound it is exact in ticks: it excludes what is a tick above the best.
            proven = least * self._solver.scale.tick_seconds * (1 + _MARGIN) * (1 - _HALF_A_TICK)
            if proven > candidate.bound_seconds:
                candidate, live = (replace(c, bound_seconds=proven) for c in (candidate, live))
            if live.incumbent_seconds < np.inf:
                return live
        return live


class _Outdated:
    """Bounds of each group, infinite where they are updated for a memory limit, and the least of each.

    The bounds of one group change at a time: those of the others are not compared again.
    """

    def __init__(self, bounds: Sequence[Array]) -> None:
        self._of_groups = bounds
        self._updated = [np.zeros(len(of_group), dtype=bool) for of_group in bounds]
        self.bounds = list(bounds)
        self.least = [float(of_group.min(initial=np.inf)) for of_group in bounds]

    def without(self, group: int, index: NDArray[np.int64]) -> None:
        """Take the bounds of ``group`` as they are now, but for those at ``index``, which are updated."""
        self._updated[group][index] = True
        self.bounds[group] = np.where(self._updated[group], np.inf, self._of_groups[group])
        self.least[group] = float(self.bounds[group].min(initial=np.inf))


class BestFirstSearch:
    """Lower bounds on the steps of all candidates, and the candidates that are open under a memory limit."""

    def __init__(self, groups: Sequence[PricedCandidates], solver: CandidateSolver) -> None:
        self._groups = groups
        self._solver = solver
        self._opening = _CandidateOpening(solver)
        self._symmetric = [SymmetricCandidates.of(group) for group in groups]
        self._too_small = TooSmallLimits(groups, solver.scale.limit_bytes)
        self._bounds = [least_steps(group) for group in groups]
        self.live: list[OpenCandidate] = []
        self._parts: dict[tuple[int, bytes], PricedCandidates] = {}

    def reset_bounds(self) -> None:
        """Reset all lower bounds: they hold for the tightest limit so far and for tighter ones only."""
        self._bounds = [least_steps(group) for group in self._groups]
        self._opening.forget_bounds()

    def saved_bounds(self) -> Bounds:
        """Return all lower bounds as they are, for ``restore_bounds`` after a tighter limit."""
        return [bounds.copy() for bounds in self._bounds], self._opening.saved_bounds()

    def restore_bounds(self, saved: Bounds) -> None:
        """Take back bounds that ``saved_bounds`` returned."""
        self._bounds = saved[0]
        self._opening.restore_bounds(saved[1])

    @property
    def bound_seconds(self) -> float:
        """Lower bound on the step of every layout within the tightest memory limit so far [s]."""
        return min(float(bounds.min()) for bounds in self._bounds)

    def quick_incumbents(
        self, group: int, position: int, limits: NDArray[np.int64], most: float, tries: int
    ) -> tuple[int, float] | None:
        """Return the first of the memory ``limits`` [ticks] with a layout of a candidate, and its step [s].

        Only ``tries`` of the limits are tried, those first whose bound is within ``most`` seconds, by the
        heuristic; None where it finds no layout within ``most``.
        """
        part = self._part(group, np.array([position]))
        limits_bytes = limits * self._solver.scale.tick_bytes
        lower = bound(part, limits_bytes, most)
        for i in np.flatnonzero(lower.step_seconds <= most)[:tries].tolist():
            incumbent = self._opening.quick_incumbent(
                (group, position), part, float(limits_bytes[i]), most, lower.at(i)
            )
            if incumbent <= most:
                return int(limits[i]), incumbent
        return None

    def open_candidates(self, limit: float, incumbent: float) -> float:
        """Open the candidates whose lower bound does not exceed the incumbent: find their alternatives.

        Return the step of the incumbent after them [s]; ``live`` has the candidates.
        """
        best = min(incumbent, self._solver.ceiling_seconds)
        outdated = _Outdated(self._bounds)
        while (batch := self._next_batch(outdated, limit, best)) is not None:
            check_deadline()
            group, index = batch
            best = min(best, self._rebounded(group, index, limit, best))
            outdated.without(group, index)
        return best

    def _next_batch(
        self, outdated: _Outdated, limit: float, best: float
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Return the group of the least bound not yet updated, and its candidates of least bound.

        Those that floors of memory exclude are not among them; they are sought among twice as many each time.
        """
        sized = _SIZED
        while True:
            group = int(np.argmin(outdated.least))
            if outdated.least[group] > best * (1 + _MARGIN) or not np.isfinite(outdated.least[group]):
                return None
            index = lowest(outdated.bounds[group], sized)
            if not self._too_small.exclude(group, limit, self._bounds[group], index):
                return group, index[: min(_BATCH, self._groups[group].block_size)]
            outdated.without(group, np.zeros(0, dtype=np.int64))
            sized *= 2

    def _rebounded(self, group: int, index: NDArray[np.int64], limit: float, best: float) -> float:
        """Update the bounds of a batch and open its candidates that may beat ``best``, least bound first.

        Bounds are computed for steps near the least of them first, then for longer steps until the incumbent
        lies within: bounds and alternatives are complete for every step as fast as the incumbent. Return the
        step of the incumbent [s].
        """
        part, opened_before = self._part(group, index), len(self.live)
        bounds = self._bounds[group]
        near = best if part.rules else min(best, float(bounds[index].min()))
        while True:
            near *= _LOOKAHEAD
            relaxation = bound(part, limit, near)
            bounds[index] = np.maximum(bounds[index], relaxation.monotone_seconds)
            del self.live[opened_before:]
            incumbent = self._open_of_batch(group, index, part, relaxation, limit, best)
            if incumbent * (1 + _MARGIN) <= near or not relaxation.cut.any():
                break
        self._symmetric[group].tell(index, relaxation, bounds)
        return incumbent

    def _part(self, group: int, index: NDArray[np.int64]) -> PricedCandidates:
        """Return the candidates at ``index`` of a group."""
        key = group, index.tobytes()
        part = self._parts.pop(key, None) or self._groups[group].take(index)
        self._parts[key] = part
        if len(self._parts) > _KEPT:
            del self._parts[next(iter(self._parts))]
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
        self._opening.begin(relaxation, best)
        bounds = self._bounds[group]
        within_best = np.flatnonzero(relaxation.step_seconds <= best * (1 + _MARGIN))
        for i in within_best[np.argsort(relaxation.step_seconds[within_best], kind="stable")].tolist():
            check_deadline()
            position, lower = int(index[i]), float(bounds[index[i]])
            if relaxation.step_seconds[i] > best * (1 + _MARGIN):
                break
            if lower > best * (1 + _MARGIN):
                # Its bound was proven under the user's rules, which the relaxation leaves out.
                continue
            relaxed = float(relaxation.stage_sum[i]), float(relaxation.tail[i])
            candidate = OpenCandidate(
                group, position, lower, np.inf, *relaxed, Alternatives((), part.schedule(i))
            )
            opened = self._opening.opened(candidate, part, i, relaxation, limit, best)
            bounds[position] = max(bounds[position], opened.bound_seconds)
            self.live.extend(c for c in opened.live if not c.alternatives.empty)
            best = min([best, *(c.incumbent_seconds for c in opened.live)])
        return best
