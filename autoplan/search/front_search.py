"""Search for the Pareto front of a job, or for the reasons why no layout is feasible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.predict import facts_of, predict_all
from autoplan.costs.stage.stage_times import Stages
from autoplan.deadline import ENDLESS, Deadline
from autoplan.errors import UnsupportedError
from autoplan.results import Certificate, Front, Plan, Rejection
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.rules.user_constraints import even_only
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.resolved_job import hashes
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.cp.cp_sat import solver_parameters, solver_version
from autoplan.search.front_point import FrontPoint
from autoplan.search.front_sweep import FrontSweep
from autoplan.search.infeasibility import fitting_candidates, reasons_of
from autoplan.search.rule_conflicts import user_rule_conflict
from autoplan.search.space.candidate_space import Space, space_of
from autoplan.search.space.priced_candidates import PricedCandidates, priced

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
) -> Front:
    """Return the Pareto front of ``job`` over step time and peak memory, thinned to ``thinning``.

    ``progress`` is called after each plan with the number of plans and the plan's share of the memory limit.
    With ``thinning`` 0 every Pareto-optimal layout is returned, to the solver's ticks; with ``fastest_only``
    the fastest alone, and no reasons where there is none. When ``deadline`` ends, the plans so far are
    returned. Raises UnsupportedError where there is none yet.
    """
    most_devices = job.limits.devices
    if most_devices is not None and job.cluster.devices > most_devices:
        reason = f"limits.devices allows {most_devices}, and this asks for {job.cluster.devices}"
        return Front(job, facts_of(job), (), _infeasible(job, Space((), 0, 0, ())), (), (reason,))
    space = space_of(job)
    fits, short_of_bytes = fitting_candidates(job, space, even=even_only(job))
    rejected = (*space.rejected, *short_of_bytes)
    if not fits:
        return _infeasible_front(job, space, rejected, reasons_of(job, space, None))
    machine = machine_of(job)
    fitting = [priced(job, group, machine) for group in fits]
    limit = memory_limit_bytes(job)
    most = step_limit(job)
    ceiling = most[0] if most else _longest_seconds(fitting)
    scale = Scale.of(ceiling, limit)
    sweep = FrontSweep(fitting, scale, ceiling, deadline)
    one = fastest_only or inner_objectives(job.objectives) == {"step_time"}
    points = _swept(sweep, limit, thinning, progress, one=one)
    if sweep.stopped and not points:
        reason = _stop_reason(sweep)
        raise UnsupportedError(f"{reason} before any layout was found: narrow the job's `search`")
    if not points and fastest_only:
        return _infeasible_front(job, space, rejected, ())
    if not points:
        return _infeasible_front(job, space, rejected, _reasons(job, space, fitting, ceiling))
    first, points = points[0], _selected(job, sweep, points)
    layouts = [_layout(fitting, f) for f in points]
    facts = facts_of(job)
    plans = [Plan(*pair, facts) for pair in zip(layouts, predict_all(job, layouts), strict=True)]
    certificate = _certificate(job, space, sweep, [first, *points], thinning, plans[0].predicted.step_seconds)
    return _with_remainder(Front(job, facts, _undominated(plans), certificate, rejected))


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
    fastest = _fastest_seconds(fitting, limit)
    # Where a longer step does not help, the conflict is independent of the step limit.
    within = ceiling if fastest is not None else _longest_seconds(fitting)
    conflict = user_rule_conflict(job, fitting, lambda g: _fastest_seconds(g, limit, within) is not None)
    return (f"{_CONFLICT}: {'; '.join(conflict)}",) if conflict else reasons_of(job, space, fastest)


def _with_remainder(front: Front) -> Front:
    """Return ``front`` with a rejection of covered layouts not on it, so that the counts sum to the space."""
    counted = sum(rejection.layouts for rejection in front.rejected)
    remainder = front.certificate.layouts_total - counted - len(front.plans)
    if not remainder:
        return front
    reason = "exceed a limit, or are dominated by a plan of the front within the thinning"
    if not front.plans:
        unmet = "the limits" if not front.job.rules else "the limits and the job's own rules together"
        reason = f"fit into memory with some recompute, but none of them satisfies {unmet}"
    return replace(front, rejected=(*front.rejected, Rejection(reason, remainder, "not on the front")))


def _infeasible_front(
    job: Job, space: Space, rejected: tuple[Rejection, ...], reasons: tuple[str, ...]
) -> Front:
    return _with_remainder(Front(job, facts_of(job), (), _infeasible(job, space), rejected, reasons))


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


def _fastest_seconds(
    groups: Sequence[PricedCandidates], limit: float, within: float | None = None
) -> float | None:
    """Return the step of the fastest layout within the memory limit and ``within`` seconds, if any [s]."""
    ceiling = within or _longest_seconds(groups)
    scale = Scale.of(ceiling, limit)
    point = FrontSweep(groups, scale, ceiling).fastest(scale.memory_limit_ticks(limit))
    return None if point is None else point.step_ticks * scale.tick_seconds


def _longest_seconds(groups: Sequence[PricedCandidates]) -> float:
    """Return an upper bound on the step of every layout [s].

    The slowest stage has at most all layers with full recompute, every fixed part and every end of step.
    """
    longest = 0.0
    for group in groups:
        layers = float(group.layers)
        stages, end_of_step = zip(*(_longest_parts(kind, layers) for kind in group.kinds), strict=True)
        step = (group.m + group.pp)[:, None] * 2 * np.maximum.reduce(stages) + np.maximum.reduce(end_of_step)
        longest = max(longest, float(step.max()))
    return longest


def _longest_parts(s: Stages, layers: float) -> tuple[Array, Array]:
    """Return upper bounds on a stage's time and its end of step, with all layers of one type [s]."""
    per_layer = s.forward.layer + s.backward.layer + s.full + s.selective
    stage = s.forward.fixed + s.backward.fixed + layers * per_layer
    end_of_step = s.reduce.fixed + s.gather.fixed + s.norms.fixed + s.optimizer.fixed
    return stage, end_of_step + layers * (s.reduce.layer + s.gather.layer + s.norms.layer + s.optimizer.layer)


def _layout(groups: Sequence[PricedCandidates], point: FrontPoint) -> Layout:
    layers, selective, full = zip(*((o.layers, o.selective, o.full) for o in point.chosen), strict=True)
    return groups[point.group].layout(point.position, layers, selective, full)


def _stop_reason(sweep: FrontSweep) -> str:
    return sweep.deadline.reason or "the solver reached its work limit"


def _common(job: Job, space: Space) -> dict[str, Any]:
    """Return the fields that every certificate has."""
    from autoplan import __version__

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
    }


def _certificate(
    job: Job, space: Space, sweep: FrontSweep, points: list[FrontPoint], thinning: float, fastest: float
) -> Certificate:
    """Return the certificate of ``points``: the fastest layout, then the points of the front.

    ``fastest`` is the step of the first plan as priced in floating point [s]. Ticks are rounded up stage by
    stage, so the rounding is subtracted from a bound in ticks to give one in seconds.
    """
    gaps = [1.0 - f.bound_ticks / f.step_ticks for f in points]
    rounding = sweep.groups[points[0].group].rounding(points[0].position) * sweep.scale.tick_seconds
    bound = max(0.0, min(fastest, points[0].bound_ticks * sweep.scale.tick_seconds - rounding))
    proven = not sweep.stopped and all(f.bound_ticks == f.step_ticks for f in points)
    return Certificate(
        status="optimal" if proven else "feasible",
        best_bound_step_seconds=bound,
        gap=max(*gaps, 1.0 - bound / fastest if points[0] is points[1] else 0.0),
        thinning=thinning,
        candidates_solved=len(sweep.solved),
        solves=sweep.solves,
        stopped=None if proven else _stop_reason(sweep),
        **_common(job, space),
    )


def _infeasible(job: Job, space: Space) -> Certificate:
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
