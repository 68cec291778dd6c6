"""The front by repeated solving: the fastest layout under a memory limit, then a tighter limit.

Each question is asked of the candidates whose lower bound does not exceed the best layout known; bounds
only grow as the limit tightens, so most candidates are looked at once and never again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autoplan.deadline import ENDLESS, Deadline
from autoplan.search.alternatives.contents_alternatives import alternatives_of_contents
from autoplan.search.alternatives.domain_reduction import Live, Narrow, narrowed, tightened
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.primal_heuristic import offered, primal_heuristic
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    alternatives_of,
    step_ticks,
)
from autoplan.search.alternatives.uniform_recompute import Cases
from autoplan.search.bounds.path_counts import Paths
from autoplan.search.bounds.step_bound import Bound, bound, least_steps, longest_stage, lowest
from autoplan.search.bounds.symmetry import SymmetricCandidates
from autoplan.search.cp.constraint_model import Solution, SolverStoppedError, solve
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["Found", "FrontSweep"]

_BATCH = 24
#: Limits that are tried for the next plan, and how many of the promising ones are built.
_PROBES = 48
_TRIES = 2
#: Bounds exclude what is above the best step known by this share, which is more than their own rounding. A
#: layout takes no less than its bound, and no less in ticks than in seconds: so it is beaten in ticks, too.
_MARGIN = 1e-6
#: Bounds look this far beyond the best step known: candidates above it wait until the best is there. Where
#: none is known, beyond the least bound, and as far again and again until a layout is found.
_OUTLOOK = 2.0
#: Steps, as shares of a candidate's bound, that are asked for in turn where the user's own rules matter.
_GUESSES = (1.01, 1.04, 1.15, 1.5, 3.0)
#: Share of a step that is less than any tick.
_HALF_A_TICK = 1e-12


@dataclass(frozen=True, slots=True)
class Found:
    """One optimal layout: where its candidate stands, its options, and what the solver proved."""

    group: int
    position: int
    chosen: tuple[Alternative, ...]
    step_ticks: int
    memory_ticks: int
    bound_ticks: int


class FrontSweep:
    """The search for one job: lower bounds so far, and counters for the certificate."""

    def __init__(
        self,
        groups: Sequence[PricedCandidates],
        scale: Scale,
        ceiling_seconds: float,
        deadline: Deadline = ENDLESS,
    ) -> None:
        self.deadline = deadline
        self.groups = groups
        self.scale = scale
        self.ceiling = int(ceiling_seconds / scale.tick_seconds)
        self.siblings = [SymmetricCandidates.of(group) for group in groups]
        self.forget()
        self.solves = 0
        self.stopped = False
        self.paths = Paths()
        self.solved: set[tuple[int, int]] = set()

    def forget(self) -> None:
        """Forget all bounds, which hold for the tightest limit asked for and below it only."""
        self.bounds = [least_steps(g) for g in self.groups]
        self.cases: dict[tuple[int, int], Cases] = {}

    def front(self, limit_ticks: int, thinning: float) -> Iterator[Found]:
        """Yield Pareto-optimal layouts, fastest first, each at most 1 - thinning as large as the last.

        Where a larger step down costs less than ``thinning`` in time, it is taken.
        """
        known = np.inf
        while limit_ticks > 0:
            try:
                found = self.fastest(limit_ticks, known)
            except SolverStoppedError:
                self.stopped = True
                return
            if found is None:
                return
            yield found
            self.stopped = self.stopped or self.deadline.over
            if self.stopped:
                return
            limit_ticks, known = self._next_limit(found, thinning)

    def _next_limit(self, found: Found, thinning: float) -> tuple[int, float]:
        """Return the memory to ask for next: as little as costs at most ``thinning`` in time.

        Layouts between here and there are matched by the next plan, which is smaller and hardly slower. The
        step of a layout within that memory follows, infinite where none is known [s].
        """
        step_down = min(found.memory_ticks - 1, int(found.memory_ticks * (1.0 - thinning)))
        if thinning <= 0 or step_down <= 0:
            return step_down, np.inf
        most = found.step_ticks * self.scale.tick_seconds * (1.0 + thinning)
        limits = np.unique(np.linspace(step_down / 2, step_down, _PROBES).astype(np.int64))
        group = self.groups[found.group].take(np.full(len(limits), found.position))
        lower = bound(group, limits * self.scale.tick_bytes, most)
        for i in np.flatnonzero(lower.step_seconds <= most)[:_TRIES]:
            limit = float(limits[i] * self.scale.tick_bytes)
            if group.by_cases(int(i)):
                cases = self.cases[found.group, found.position]
                within = cases.within(limit, most, remember=False)
                alternatives_by_stage = [
                    cases.alternatives(case, self.scale, _MARGIN, most) for case in within
                ]
            else:
                alternatives_by_stage = [self._menu(group, int(i), limit, most, lower)]
            known = min(map(self._incumbent, alternatives_by_stage), default=np.inf)
            if known <= most:
                return int(limits[i]), known
        return step_down, np.inf

    def _menu(self, group: PricedCandidates, i: int, limit: float, best: float, lower: Bound) -> Alternatives:
        busy = best * (1 + _MARGIN) - float(lower.tail[i])
        longest = longest_stage(group.schedule(i), float(lower.stage_sum[i]), busy)
        seconds = lower.stage_seconds[i]
        if group.places is not None:
            some = seconds <= longest
            return alternatives_of_contents(group, group.places, i, limit, some, self.scale, longest=longest)
        wanted = offered(group, seconds, longest)
        return alternatives_of(group, i, limit, wanted, self.scale, longest=longest)

    def fastest(self, limit_ticks: int, known: float = np.inf) -> Found | None:
        """Return the fastest layout within the limit, of all layouts; None when there is none.

        ``known`` is the step of a layout within the limit, where the caller has one [s]. When patience ends,
        it is the best layout known. Raises SolverStoppedError when none is.
        """
        limit = limit_ticks * self.scale.tick_bytes
        live, best, unseen = self._survivors(limit, known)
        narrow = self._narrow(live, best, limit)
        if not narrow.live:
            return self._best_known(live, unseen) if self.stopped else None
        self.solved.update((c.group, c.position) for c in narrow.live)
        try:
            solution = self._solved(narrow, limit_ticks, self.deadline)
        except SolverStoppedError:
            self.stopped = True
            return self._best_known(live, unseen)
        if solution is None:
            return None
        bound = min(solution.bound_ticks, self._floor_ticks(unseen))
        return _found(narrow.live[solution.candidate], replace(solution, bound_ticks=bound))

    def _narrow(self, live: Sequence[Live], best: float, limit: float) -> Narrow:
        """Return ``live`` with what a step of ``best`` seconds may have, and a ceiling on the step."""
        layers, most = self.groups[0].layers, best * (1 + _MARGIN)
        near = [c for c in live if c.bound_seconds <= most]
        tight = [each for c in near if (each := tightened(c, layers, most, self.scale)) is not None]
        ceiling = min(self.ceiling, int(best / self.scale.tick_seconds) + 1)
        return narrowed(tight, self.groups, self.scale, ceiling, limit)

    def _solved(self, narrow: Narrow, limit_ticks: int, deadline: Deadline) -> Solution | None:
        self.solves += 1
        alternatives_by_stage, layers = [c.alternatives for c in narrow.live], self.groups[0].layers
        return solve(
            alternatives_by_stage, layers, narrow.ceiling, limit_ticks, self.paths, deadline, narrow.known
        )

    def _floor_ticks(self, seconds: float) -> int:
        return int(min(seconds, self.ceiling * self.scale.tick_seconds) / self.scale.tick_seconds)

    def _best_known(self, live: Sequence[Live], unseen: float) -> Found:
        """Return the fastest layout that filling the menus finds; no other is below ``unseen`` seconds."""
        layers = self.groups[0].layers
        known = [
            (c, chosen) for c in live if (chosen := primal_heuristic(c.alternatives, layers)) is not None
        ]
        steps = [step_ticks(c.alternatives, chosen) for c, chosen in known]
        step = min(steps, default=self.ceiling + 1)
        if step > self.ceiling:
            raise SolverStoppedError
        best, chosen = known[steps.index(step)]
        bound = self._floor_ticks(min([unseen, *(c.bound_seconds for c in live)]))
        return Found(
            group=best.group,
            position=best.position,
            chosen=chosen,
            step_ticks=step,
            memory_ticks=max(o.memory_ticks for o in chosen),
            bound_ticks=min(step, bound),
        )

    def _survivors(self, limit: float, known: float) -> tuple[list[Live], float, float]:
        """Return candidates with menus, in order of bounds, until no other bound is below the best.

        The best step known follows, and what no other candidate is below; both in seconds.
        """
        live: list[Live] = []
        best = min(known, self.ceiling * self.scale.tick_seconds)
        fresh = [np.zeros(len(b), dtype=bool) for b in self.bounds]
        while True:
            batch = self._next_batch(fresh, best)
            if batch is None:
                return live, best, np.inf
            if live and self.deadline.over:
                self.stopped = True
                left = (np.where(f, np.inf, b).min() for f, b in zip(fresh, self.bounds, strict=True))
                return live, best, float(min(left))
            group, index = batch
            fresh[group][index] = True
            live.extend(self._refreshed(group, index, limit, best))
            best = min([best, *(c.incumbent_seconds for c in live)])

    def _next_batch(
        self, fresh: list[NDArray[np.bool_]], best: float
    ) -> tuple[int, NDArray[np.int64]] | None:
        """Return the group with the least stale bound and its candidates of least bound."""
        stale = [np.where(f, np.inf, b) for f, b in zip(fresh, self.bounds, strict=True)]
        least = [float(s.min(initial=np.inf)) for s in stale]
        group = int(np.argmin(least))
        if least[group] > best * (1 + _MARGIN) or not np.isfinite(least[group]):
            return None
        return group, lowest(stale[group], min(_BATCH, self.groups[group].block_size))

    def _refreshed(self, group: int, index: NDArray[np.int64], limit: float, best: float) -> list[Live]:
        """Bound a batch anew and return menus of those that may beat ``best``, least bound first.

        Where no layout is known yet, bounds look a little beyond the least of them, and further where no
        layout turns up so near: bounds and menus are complete for every step as fast as the best.
        """
        part = self.groups[group].take(index)
        near = best if part.rules else min(best, float(self.bounds[group][index].min()))
        while True:
            near *= _OUTLOOK
            fresh = bound(part, limit, near)
            self.bounds[group][index] = np.maximum(self.bounds[group][index], fresh.lasting_seconds)
            live, now = self._taken_up(group, index, part, fresh, limit, best)
            if now * (1 + _MARGIN) <= near or not fresh.cut.any():
                break
        self.siblings[group].tell(index, fresh, self.bounds[group])
        return live

    def _taken_up(
        self,
        group: int,
        index: NDArray[np.int64],
        part: PricedCandidates,
        fresh: Bound,
        limit: float,
        best: float,
    ) -> tuple[list[Live], float]:
        """Return menus of those of a batch that may beat ``best``, and the best step known then."""
        live: list[Live] = []
        close = np.flatnonzero(fresh.step_seconds <= best * (1 + _MARGIN))
        for i in close[np.argsort(fresh.step_seconds[close], kind="stable")].tolist():
            lower = float(self.bounds[group][index[i]])
            if fresh.step_seconds[i] > best * (1 + _MARGIN):
                break
            if lower > best * (1 + _MARGIN):
                # By what was proven of it under the user's own rules, which the fresh bound does not know.
                continue
            rest = float(fresh.stage_sum[i]), float(fresh.tail[i])
            place = Live(group, int(index[i]), lower, np.inf, *rest, Alternatives((), part.schedule(i)))
            look = self._by_case if part.by_cases(i) else self._alone
            found = look(place, part, i, fresh, limit, best)
            live.extend(each for each in found if not each.alternatives.empty)
            best = min([best, *(each.incumbent_seconds for each in found)])
        return live, best

    def _alone(
        self, place: Live, part: PricedCandidates, i: int, lower: Bound, limit: float, best: float
    ) -> list[Live]:
        """Return the candidate with its menu and a layout found at once, or asked for where rules matter."""
        if not part.parts(i):
            return [self._greedy(place, self._menu(part, i, limit, best, lower))]
        live = self._asked(place, lambda most: self._menu(part, i, limit, most, lower), limit, best)
        self._raise_bound(live, live.bound_seconds)
        return [live]

    def _by_case(
        self, place: Live, part: PricedCandidates, i: int, lower: Bound, limit: float, best: float
    ) -> list[Live]:
        """Return the candidate once for each way to recompute its stages alike that may be the fastest."""
        del lower
        key = place.group, place.position
        if key not in self.cases:
            self.cases[key] = Cases.of(part, i)
        cases, found = self.cases[key], []
        for case in cases.within(limit, best * (1 + _MARGIN), remember=True):
            if case.step_seconds > best * (1 + _MARGIN):
                break
            bounds = (case.step_seconds, np.inf, case.stage_sum, case.tail)
            here, menu_within = (
                Live(*key, *bounds, place.alternatives),
                partial(cases.alternatives, case, self.scale, _MARGIN),
            )
            if cases.across:
                live = self._asked(here, menu_within, limit, best)
            else:
                live = self._greedy(here, menu_within(best))
            cases.bounds[case.number] = max(live.bound_seconds, cases.bounds[case.number])
            best = min(best, live.incumbent_seconds)
            found.append(live)
        self._raise_bound(place, float(cases.bounds.min()))
        return found

    def _raise_bound(self, live: Live, seconds: float) -> None:
        bounds = self.bounds[live.group]
        bounds[live.position] = max(bounds[live.position], seconds)

    def _greedy(self, place: Live, alternatives: Alternatives) -> Live:
        """Return the candidate with ``alternatives`` and the step of a layout found at once."""
        return replace(place, alternatives=alternatives, incumbent_seconds=self._incumbent(alternatives))

    def _asked(
        self, place: Live, menu_within: Callable[[float], Alternatives], limit: float, best: float
    ) -> Live:
        """Return a candidate whose stages the user's own rules are about, with its fastest layout.

        What is found at once may break the rules, and a bound does not know them: the solver is asked for
        ever longer steps, so that menus are short. A proven answer bounds the candidate at this limit and all
        tighter ones.
        """
        guesses = [guess for share in _GUESSES if (guess := place.bound_seconds * share) < best]
        for guess in (*guesses, best):
            live = self._greedy(place, menu_within(guess))
            if live.incumbent_seconds <= guess:
                return live
            # This menu is complete for steps of up to the guess only: a slower layout of it proves nothing.
            live, least = self._solved_alone(replace(live, incumbent_seconds=np.inf), limit, guess)
            # As a bound it is exact in ticks: it excludes what is a tick above the best.
            proven = least * self.scale.tick_seconds * (1 + _MARGIN) * (1 - _HALF_A_TICK)
            if proven > place.bound_seconds:
                place, live = (replace(each, bound_seconds=proven) for each in (place, live))
            if live.incumbent_seconds < np.inf:
                return live
        return live

    def _solved_alone(self, live: Live, limit: float, best: float) -> tuple[Live, int]:
        """Return ``live`` with its fastest layout, if within ``best``, and the least ticks of all."""
        here = [] if live.alternatives.empty else [replace(live, bound_seconds=0.0)]
        narrow = self._narrow(here, best, limit)
        if not narrow.live:
            return live, narrow.ceiling + 1
        solution = self._solved(narrow, round(limit / self.scale.tick_bytes), ENDLESS)
        if solution is None:
            return live, narrow.ceiling + 1
        fastest = solution.step_ticks * self.scale.tick_seconds
        return replace(live, incumbent_seconds=fastest), solution.bound_ticks

    def _incumbent(self, alternatives: Alternatives) -> float:
        """Return the step of a layout that fits, found by filling the quickest stage next [s]."""
        chosen = primal_heuristic(alternatives, self.groups[0].layers)
        return np.inf if chosen is None else step_ticks(alternatives, chosen) * self.scale.tick_seconds


def _found(live: Live, solution: Solution) -> Found:
    return Found(
        group=live.group,
        position=live.position,
        chosen=solution.chosen,
        step_ticks=solution.step_ticks,
        memory_ticks=solution.memory_ticks,
        bound_ticks=solution.bound_ticks,
    )
