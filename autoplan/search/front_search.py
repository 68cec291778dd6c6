"""Search for the Pareto front of a job with its certificate, or for the reasons why no layout is feasible.

``candidate_space.conflicting_rules`` explains rules on degrees. Where every candidate satisfies those and has
layouts that fit, ``user_rule_conflict`` returns a minimal unsatisfiable subset of the rules about stages. A
search that was stopped before it had a layout returns that of the primal heuristic for few candidates: those
of the usual choices at one pipeline depth, or a block of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, divisors
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.predict import facts_of, predict, predict_all
from autoplan.costs.stage.stage_times import Stages
from autoplan.deadline import (
    ENDLESS,
    GRACE_SECONDS,
    Deadline,
    DeadlineOver,
    Grace,
    check_deadline,
    current_deadline,
)
from autoplan.errors import UnsupportedError
from autoplan.results.front import Certificate, Front, Rejection
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.results.plan import Plan
from autoplan.rules.layout_rules import rules_for
from autoplan.rules.user_constraints import UserRule, even_only, unsearched, user_rules_of
from autoplan.schema.job import Job
from autoplan.schema.recompute import listed_modes
from autoplan.schema.resolved_job import hashes
from autoplan.search.alternatives.stage_alternatives import Scale
from autoplan.search.cp.constraint_model import SolverStoppedError, solver_parameters, solver_version
from autoplan.search.front_sweep import FrontPoint, FrontSweep
from autoplan.search.infeasibility import fitting_candidates, reasons_of
from autoplan.search.space.candidate_space import NO_SPACE, Space, space_of
from autoplan.search.space.choices import candidate_blocks, usual_candidates, with_rank_orders
from autoplan.search.space.priced_candidates import PricedCandidates, all_priced, open_conjuncts, priced

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
    the fastest alone, and an empty front without reasons. When ``deadline`` ends, or the one in force, the
    plans so far are returned. Raises UnsupportedError before the first plan; with ``may_be_empty`` the
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
        sentences: tuple[str, ...] = ()
        if not self.fastest_only:
            try:
                sentences = reasons()
            except (DeadlineOver, SolverStoppedError):
                sentences = (f"{stop_reason()} before it was found which limit excludes the last layouts",)
        certificate = infeasible_certificate(self.job, self.space)
        front = Front(self.job, (), certificate, self.rejected, sentences, facts=facts_of(self.job))
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


def user_rule_conflict(
    job: Job, groups: Sequence[PricedCandidates], possible: Callable[[Sequence[PricedCandidates]], bool]
) -> list[str]:
    """Return a minimal unsatisfiable subset of the user's rules, as sentences.

    Empty where the problem is infeasible without these rules, too. ``possible`` returns whether groups have a
    layout within the limits.
    """
    subset = user_rules_of(job)
    if not any(group.rules for group in groups) or not possible(_under(job, groups, [])):
        return []
    for rule in list(subset):
        others = [other for other in subset if other is not rule]
        if not possible(_under(job, groups, others)):
            subset = others
    return [rule.located for rule in subset]


def _under(job: Job, groups: Sequence[PricedCandidates], rules: Sequence[UserRule]) -> list[PricedCandidates]:
    return [replace(group, rules=open_conjuncts(job, group.candidates, rules)) for group in groups]


#: Bytes of parameters and gradients of a parameter, the least that every stage holds of its layers.
_UNSHARDED_BYTES: Final = 6.0


def first_plan(job: Job) -> Plan | None:
    """Return a plan of ``job`` that keeps all its limits and rules, soon; None where none is found."""
    with Grace(GRACE_SECONDS).in_force(), suppress(DeadlineOver, SolverStoppedError):
        for depth in _depths(job):
            plan = _fastest(job, usual_candidates(job, depth))
            if plan is not None:
                return plan
        for depth in _depths(job):
            for block in candidate_blocks(job, depth):
                plan = _fastest(job, with_rank_orders(job, block))
                if plan is not None:
                    return plan
    return None


def _depths(job: Job) -> list[int]:
    """Return the pipeline depths: first those on which parameters and gradients may fit, the least first."""
    limit, tp = memory_limit_bytes(job), min(job.cluster.devices, job.cluster.node.devices)
    stage = _UNSHARDED_BYTES * facts_of(job).parameters / tp
    depths = [p for p in divisors(job.cluster.devices) if p <= job.model.layers]
    return sorted(depths, key=lambda p: (stage / p > limit / 2, p))


def _fastest(job: Job, candidates: Candidates) -> Plan | None:
    """Return a fast plan of ``candidates``; None where none is found that keeps all rules and limits."""
    remaining = candidates
    for rule in rules_for(job):
        check_deadline()
        remaining = remaining.take(np.broadcast_to(rule.keeps(remaining), len(remaining)))
    space = Space((remaining,), 0, 0, ()) if len(remaining) else NO_SPACE
    fits, _ = fitting_candidates(job, space, even=even_only(job))
    if not fits:
        return None
    machine, most, limit = machine_of(job), step_limit(job), memory_limit_bytes(job)
    groups = [priced(job, group, machine) for group in fits]
    ceiling = most[0] if most else longest_seconds(groups)
    scale = Scale.of(ceiling, limit)
    point = FrontSweep(groups, scale, ceiling).first(scale.memory_limit_ticks(limit))
    if point is None:
        return None
    layout = point.layout(groups)
    return Plan(layout, predict(job, layout), facts_of(job))


def fastest_seconds(groups: Sequence[PricedCandidates], limit: float, ceiling: float) -> float | None:
    """Return the step of the fastest layout within ``limit`` bytes and ``ceiling`` seconds, if any [s]."""
    scale = Scale.of(ceiling, limit)
    point = FrontSweep(groups, scale, ceiling).fastest(scale.memory_limit_ticks(limit))
    return None if point is None else point.step_ticks * scale.tick_seconds


def longest_seconds(groups: Sequence[PricedCandidates]) -> float:
    """Return an upper bound on the step of every layout [s].

    The slowest stage has at most all layers with full recompute, every fixed part and every end of step.
    """
    longest = 0.0
    for group in groups:
        layers = float(group.layers)
        parts = (_longest_parts(kind, layers, listed_modes(group.modes)) for kind in group.kinds)
        stages, end_of_step = zip(*parts, strict=True)
        step = (group.m + group.pp)[:, None] * 2 * np.maximum.reduce(stages) + np.maximum.reduce(end_of_step)
        longest = max(longest, float(step.max()))
    return longest


def _longest_parts(s: Stages, layers: float, modes: Sequence[str]) -> tuple[Array, Array]:
    """Return upper bounds on a stage's time and its end of step, with all layers of one type [s]."""
    recompute = (s.recompute[mode] for mode in reversed(modes))
    per_layer = sum(recompute, s.forward.layer + s.backward.layer)
    stage = s.forward.fixed + s.backward.fixed + layers * per_layer
    end_of_step = s.reduce.fixed + s.gather.fixed + s.norms.fixed + s.optimizer.fixed
    return stage, end_of_step + layers * (s.reduce.layer + s.gather.layer + s.norms.layer + s.optimizer.layer)


def stop_reason(deadline: Deadline | None = None) -> str:
    """Return what stopped the search, in words; ``deadline`` is the one in force where left out."""
    return (deadline or current_deadline()).reason or "the solver reached its work limit"


def _common(job: Job, space: Space) -> dict[str, Any]:
    """Return the fields that every certificate has."""
    from autoplan.version import __version__

    job_hash, cost_model_hash = hashes(job)
    return {
        "layouts_total": space.total,
        "layouts_covered": space.covered,
        "candidates": space.size,
        "solver": solver_version(),
        "solver_parameters": tuple(solver_parameters().items()),
        "job_hash": job_hash,
        "cost_model_hash": cost_model_hash,
        "autoplan_version": __version__,
        "unsearched": unsearched(job),
    }


def sweep_certificate(
    job: Job, space: Space, sweep: FrontSweep, points: Sequence[FrontPoint], thinning: float, fastest: float
) -> Certificate:
    """Return the certificate of ``points``: the fastest layout, then the points of the front.

    ``fastest`` is the step of the first plan as priced in floating point [s]. Ticks are rounded up stage by
    stage, so the rounding is subtracted from a bound in ticks to give one in seconds.
    """
    gaps = [1.0 - f.bound_ticks / f.step_ticks for f in points]
    rounding = sweep.groups[points[0].group].rounding(points[0].position) * sweep.scale.tick_seconds
    bound = max(0.0, min(fastest, points[0].bound_ticks * sweep.scale.tick_seconds - rounding))
    distance = 1.0 - bound / fastest
    proven = not sweep.stopped and all(f.bound_ticks == f.step_ticks for f in points)
    return Certificate(
        status="optimal" if proven else "feasible",
        best_bound_step_seconds=bound,
        gap=max(*gaps, distance if points[0] is points[1] else 0.0),
        fastest_gap=_of_the_fastest(job, distance),
        thinning=thinning,
        candidates_solved=len(sweep.solved),
        solves=sweep.solver.solves,
        stopped=None if proven else stop_reason(),
        **_common(job, space),
    )


def infeasible_certificate(job: Job, space: Space) -> Certificate:
    """Return the certificate of an empty front: no layout of ``space`` keeps all limits."""
    return Certificate(
        status="infeasible",
        best_bound_step_seconds=None,
        gap=None,
        thinning=0.0,
        candidates_solved=0,
        solves=0,
        stopped=None,
        **_common(job, space),
    )


def stopped_certificate(
    job: Job, space: Space, bound_seconds: float, step_seconds: float, reason: str
) -> Certificate:
    """Return the certificate of a single layout that was found after ``reason`` stopped the search.

    Nothing but the bound is proven. ``space`` counts no layouts where the search was stopped before they were
    counted.
    """
    gap = 1.0 - bound_seconds / step_seconds
    return Certificate(
        status="feasible",
        best_bound_step_seconds=bound_seconds,
        gap=gap,
        fastest_gap=_of_the_fastest(job, gap),
        thinning=0.0,
        candidates_solved=0,
        solves=0,
        stopped=reason,
        **_common(job, space),
    )


def _of_the_fastest(job: Job, distance: float) -> float:
    """Return the distance of the fastest plan from the bound; 0 where the least memory alone is asked for."""
    return distance if "step_time" in inner_objectives(job.objectives) else 0.0
