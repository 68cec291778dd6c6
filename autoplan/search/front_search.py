"""Search for the Pareto front of a job, or for the reasons why no layout is feasible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.predict import facts_of, predict_all
from autoplan.deadline import ENDLESS, Deadline, DeadlineOver, current_deadline
from autoplan.errors import UnsupportedError
from autoplan.results import Front, Plan, Rejection
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.rules.user_constraints import even_only
from autoplan.schema.job import Job
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.certificate import (
    infeasible_certificate,
    stop_reason,
    stopped_certificate,
    sweep_certificate,
)
from autoplan.search.cp.constraint_model import SolverStoppedError
from autoplan.search.fastest_layout import fastest_seconds, longest_seconds
from autoplan.search.first_layout import first_plan
from autoplan.search.front_point import FrontPoint
from autoplan.search.front_sweep import FrontSweep
from autoplan.search.infeasibility import fitting_candidates, reasons_of
from autoplan.search.rule_conflicts import user_rule_conflict
from autoplan.search.space.candidate_space import NO_SPACE, Space, space_of
from autoplan.search.space.priced_candidates import PricedCandidates, all_priced

__all__ = ["THINNING", "Progress", "search"]

Progress: TypeAlias = Callable[[int, float], None]

#: Least relative difference in an objective between plans of a front.
THINNING = 0.01

_CONFLICT = "no layout within the limits satisfies these rules of the job together"


def search(
    job: Job,
    *,
    thinning: float = THINNING,
    progress: Progress | None = None,
    deadline: Deadline = ENDLESS,
    fastest_only: bool = False,
    may_be_empty: bool = False,
    others: Sequence[tuple[float, float]] = (),
) -> Front:
    """Return the Pareto front of ``job`` over step time and peak memory, thinned to ``thinning``.

    ``progress`` is called after each plan with the number of plans and the plan's share of the memory limit.
    With ``thinning`` 0 every Pareto-optimal layout is returned, to the solver's ticks; with ``fastest_only``
    the fastest alone, and no reasons where there is none. When ``deadline`` ends, or the one in force, the
    plans so far are returned. Raises UnsupportedError where there is none yet; with ``may_be_empty`` the
    front is empty then, and its certificate says that the search was stopped.

    ``others`` are steps [s] and memory [byte] of plans of other programs for the same question: where they
    dominate all layouts smaller than a plan, the front ends with that plan, and says so.
    """
    if deadline is ENDLESS:
        deadline = current_deadline()
    if may_be_empty and deadline.over:
        return _unsolved(job, 0.0, stop_reason(deadline))
    most_devices = job.limits.devices
    if most_devices is not None and job.cluster.devices > most_devices:
        reason = f"limits.devices allows {most_devices}, and this asks for {job.cluster.devices}"
        return Front(job, (), infeasible_certificate(job, NO_SPACE), (), (reason,), facts=facts_of(job))
    current, front = _Search(job, thinning, fastest_only=fastest_only, others=others), None
    with deadline.in_force(), suppress(DeadlineOver, SolverStoppedError):
        front = current.front(progress)
    return front or current.first_known(stop_reason(deadline), may_be_empty=may_be_empty)


@dataclass(slots=True)
class _Search:
    """One search of a front: what is known of it so far."""

    job: Job
    thinning: float
    fastest_only: bool
    others: Sequence[tuple[float, float]] = ()
    space: Space = NO_SPACE
    rejected: tuple[Rejection, ...] = ()
    fitting: Sequence[PricedCandidates] = ()
    sweep: FrontSweep | None = None

    def front(self, progress: Progress | None) -> Front | None:
        """Return the front; None where the search was stopped before a layout was found."""
        job = self.job
        self.space = space_of(job)
        self.rejected = self.space.rejected
        fits, short_of_bytes = fitting_candidates(job, self.space, even=even_only(job))
        self.rejected = (*self.space.rejected, *short_of_bytes)
        if not fits:
            return self._infeasible(lambda: reasons_of(job, self.space, None))
        machine, most, limit = machine_of(job), step_limit(job), memory_limit_bytes(job)
        self.fitting = all_priced(job, fits, machine)
        ceiling = most[0] if most else longest_seconds(self.fitting)
        objectives = inner_objectives(job.objectives)
        others = self.others if len(objectives) > 1 else ()
        self.sweep = FrontSweep(self.fitting, Scale.of(ceiling, limit), ceiling, others)
        one = self.fastest_only or objectives == {"step_time"}
        points = _swept(self.sweep, limit, self.thinning, progress, one=one)
        if points:
            return self._of_points(self.sweep, points)
        if self.sweep.stopped:
            return None
        return self._infeasible(lambda: _reasons(job, self.space, self.fitting, ceiling))

    def _infeasible(self, reasons: Callable[[], tuple[str, ...]]) -> Front:
        """Return the proven empty front with its ``reasons``, as far as the deadline lets them be found."""
        said: tuple[str, ...] = ()
        if not self.fastest_only:
            try:
                said = reasons()
            except (DeadlineOver, SolverStoppedError):
                said = (f"{stop_reason()} before it was found which limit excludes the last layouts",)
        certificate = infeasible_certificate(self.job, self.space)
        front = Front(self.job, (), certificate, self.rejected, said, facts=facts_of(self.job))
        return _with_remainder(front)

    def _of_points(self, sweep: FrontSweep, points: list[FrontPoint]) -> Front:
        job, facts, first = self.job, facts_of(self.job), points[0]
        points = _selected(job, sweep, points)
        layouts = [point.layout(self.fitting) for point in points]
        plans = tuple(Plan(*pair, facts) for pair in zip(layouts, predict_all(job, layouts), strict=True))
        fastest = plans[0].predicted.step_seconds
        certificate = sweep_certificate(job, self.space, sweep, [first, *points], self.thinning, fastest)
        plans = _undominated(plans)
        return _with_remainder(
            Front(job, plans, certificate, self.rejected, facts=facts, cut_by_others=sweep.cut)
        )

    def first_known(self, reason: str, *, may_be_empty: bool) -> Front:
        """Return a front of one layout that is found soon; see ``search`` where none is."""
        plan = first_plan(self.job)
        bound = self.sweep.bound_seconds if self.sweep is not None else 0.0
        if plan is None and may_be_empty:
            return _unsolved(self.job, bound, reason)
        if plan is None:
            raise UnsupportedError(f"{reason} before any layout was found: narrow the job's `search`")
        step = plan.predicted.step_seconds
        certificate = stopped_certificate(self.job, self.space, min(bound, step), step, reason)
        return _with_remainder(Front(self.job, (plan,), certificate, self.rejected, facts=plan.facts))


def _unsolved(job: Job, bound: float, reason: str) -> Front:
    """Return the front of a job of which nothing is known but that no step is shorter than ``bound`` [s]."""
    certificate = stopped_certificate(job, NO_SPACE, bound, float("inf"), reason)
    return Front(job, (), certificate, (), facts=facts_of(job))


def _swept(
    sweep: FrontSweep, limit: float, thinning: float, progress: Progress | None, *, one: bool
) -> list[FrontPoint]:
    """Return the points of the sweep, only the first where ``one`` is set."""
    points = []
    for point in sweep.front(sweep.scale.memory_limit_ticks(limit), thinning):
        points.append(point)
        if progress is not None:
            progress(len(points), point.memory_ticks * sweep.scale.tick_bytes / limit)
        if one:
            break
    return points


def _reasons(job: Job, space: Space, fitting: Sequence[PricedCandidates], ceiling: float) -> tuple[str, ...]:
    """Return the reasons why none of ``fitting`` satisfies all rules within ``ceiling`` seconds."""
    limit = memory_limit_bytes(job)
    fastest = fastest_seconds(fitting, limit, longest_seconds(fitting))
    # Where a longer step does not help, the conflict is independent of the step limit.
    within = ceiling if fastest is not None else longest_seconds(fitting)
    conflict = user_rule_conflict(job, fitting, lambda g: fastest_seconds(g, limit, within) is not None)
    return (f"{_CONFLICT}: {'; '.join(conflict)}",) if conflict else reasons_of(job, space, fastest)


def _with_remainder(front: Front) -> Front:
    """Return ``front`` with a rejection of covered layouts not on it, so that the counts sum to the space."""
    counted = sum(rejection.layouts for rejection in front.rejected)
    remainder = front.certificate.layouts_total - counted - len(front.plans)
    if not remainder or not front.certificate.layouts_total:
        return front
    reason = "exceed a limit, or are dominated by a plan of the front within the thinning"
    if not front.plans:
        unmet = "the limits" if not front.job.rules else "the limits and the job's own rules together"
        reason = f"fit into memory with some recompute, but none of them satisfies {unmet}"
    return replace(front, rejected=(*front.rejected, Rejection(reason, remainder, "not on the front")))


def _undominated(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return ``plans`` without those that the next, smaller one dominates at equal step time.

    The solver compares ticks that are rounded up, so plans of equal time may differ in ticks.
    """
    steps = [*(p.predicted.step_seconds for p in plans), float("inf")]
    return tuple(
        p for p, following in zip(plans, steps[1:], strict=True) if p.predicted.step_seconds < following
    )


def _selected(job: Job, sweep: FrontSweep, points: list[FrontPoint]) -> list[FrontPoint]:
    """Return the points that the job's objectives select: one end of the front, or all of it."""
    objectives = inner_objectives(job.objectives)
    if objectives == {"peak_memory"} and not sweep.stopped:
        # The bounds hold for the sweep's last memory limit; the next one is looser.
        sweep.reset_bounds()
        return [points[-1], *sweep.front(points[-1].memory_ticks - 1, 0.0)][-1:]
    return points[-1:] if objectives == {"peak_memory"} else points
