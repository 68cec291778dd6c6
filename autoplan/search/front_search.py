"""From a job to its front, or to the reasons why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import machine_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.predict import predict_all
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
from autoplan.search.bounds.memory_bound import least_memory
from autoplan.search.cp.cp_sat import solver_parameters, solver_version
from autoplan.search.front_sweep import Found, FrontSweep
from autoplan.search.infeasibility import reasons_of, short_of_memory
from autoplan.search.rule_conflicts import user_rule_conflict
from autoplan.search.space.candidate_space import Space, space_of
from autoplan.search.space.choices import recompute_modes
from autoplan.search.space.priced_candidates import PricedCandidates, priced

__all__ = ["THINNING", "Progress", "least_needed", "search"]

Progress: TypeAlias = Callable[[int, float], None]

#: Plans on a front differ by at least this share in an objective.
THINNING = 0.01

_CLASH = "of the degrees that keep every other rule, none has a layout within the limits that keeps"


def search(
    job: Job,
    *,
    thinning: float = THINNING,
    progress: Progress | None = None,
    deadline: Deadline = ENDLESS,
    fastest_only: bool = False,
) -> Front:
    """Return the Pareto front of ``job`` over step time and peak memory, thinned to ``thinning``.

    ``progress`` is told after each plan how many there are, and its share of the memory limit. With
    ``thinning`` 0 every Pareto-optimal layout is returned, down to the solver's ticks; with ``fastest_only``
    the first alone, and no reasons where there is none. When ``deadline`` ends, the best so far is. Raises
    UnsupportedError where there is none yet.
    """
    most_devices = job.limits.devices
    if most_devices is not None and job.cluster.devices > most_devices:
        reason = f"limits.devices allows {most_devices}, and this asks for {job.cluster.devices}"
        return Front(job, (), _infeasible(job, Space((), 0, 0, ())), (), (reason,))
    space = space_of(job)
    machine, modes = machine_of(job), recompute_modes(job)
    even = even_only(job)
    groups = [g for c in space.groups for g in priced(job, c, machine, modes, even=even)]
    fitting, lost = short_of_memory(job, groups)
    rejected = (*space.rejected, *lost)
    if not fitting:
        return _nothing(job, space, rejected, reasons_of(job, groups, None))
    limit = memory_limit_bytes(job)
    most = step_limit(job)
    ceiling = most[0] if most else _longest_seconds(fitting)
    scale = Scale.of(ceiling, limit)
    sweep = FrontSweep(fitting, scale, ceiling, deadline)
    one = fastest_only or inner_objectives(job.objectives) == {"step_time"}
    found = _walked(sweep, limit, thinning, progress, one=one)
    if sweep.stopped and not found:
        raise UnsupportedError(f"{_stopped(sweep)} before any layout was found: narrow the job's `search`")
    if not found and fastest_only:
        return _nothing(job, space, rejected, ())
    if not found:
        return _nothing(job, space, rejected, _reasons(job, groups, fitting, ceiling))
    first, found = found[0], _wanted(job, sweep, found)
    layouts = [_layout(fitting, f) for f in found]
    plans = [Plan(*pair) for pair in zip(layouts, predict_all(job, layouts), strict=True)]
    certificate = _certificate(job, space, sweep, [first, *found], thinning, plans[0].predicted.step_seconds)
    return _accounted(Front(job, _undominated(plans), certificate, rejected))


def _walked(
    sweep: FrontSweep, limit: float, thinning: float, progress: Progress | None, *, one: bool
) -> list[Found]:
    """Return the plans that ``sweep`` finds, only the first where ``one`` is asked for."""
    found = []
    for plan in sweep.front(sweep.scale.memory_limit_ticks(limit), thinning):
        found.append(plan)
        if progress is not None:
            progress(len(found), plan.memory_ticks * sweep.scale.tick_bytes / limit)
        if one:
            break
    return found


def _reasons(
    job: Job, groups: Sequence[PricedCandidates], fitting: Sequence[PricedCandidates], ceiling: float
) -> tuple[str, ...]:
    """Return why none of ``fitting`` keeps all wishes within ``ceiling`` seconds."""
    limit = memory_limit_bytes(job)
    fastest = _fastest_seconds(fitting, limit)
    # Where even a longer step would not do, the clash is one without the limit on it.
    within = ceiling if fastest is not None else _longest_seconds(fitting)
    conflict = user_rule_conflict(job, fitting, lambda g: _fastest_seconds(g, limit, within) is not None)
    return (f"{_CLASH}: {'; '.join(conflict)}",) if conflict else reasons_of(job, groups, fastest)


def least_needed(job: Job) -> float | None:
    """Return the least bytes by which a layout of ``job`` is judged to fit; None where none keeps the rules.

    Nothing is solved: it takes as long as pricing does.
    """
    machine, modes = machine_of(job), recompute_modes(job)
    even = even_only(job)
    groups = [g for c in space_of(job).groups for g in priced(job, c, machine, modes, even=even)]
    return min((float(least_memory(group).min()) for group in groups), default=None)


def _accounted(front: Front) -> Front:
    """Return ``front`` with what is covered but not on it among the rejected: all add up to the space."""
    fell = sum(rejection.layouts for rejection in front.rejected)
    left = front.certificate.layouts_total - fell - len(front.plans)
    if not left:
        return front
    reason = "covered, but above a limit as they stand, or no better than a plan of the front"
    if not front.plans:
        kept = "the limits" if not front.job.rules else "the limits and the job's own rules together"
        reason = f"covered, and fit with some recompute, but none of them keeps {kept}"
    return replace(front, rejected=(*front.rejected, Rejection(reason, left, "not on the front")))


def _nothing(job: Job, space: Space, rejected: tuple[Rejection, ...], reasons: tuple[str, ...]) -> Front:
    return _accounted(Front(job, (), _infeasible(job, space), rejected, reasons))


def _undominated(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return ``plans`` without those that the next, smaller one equals in time.

    The solver compares ticks that are rounded up, so that plans of one time may seem apart.
    """
    steps = [*(p.predicted.step_seconds for p in plans), float("inf")]
    return tuple(
        p for p, following in zip(plans, steps[1:], strict=True) if p.predicted.step_seconds < following
    )


def _wanted(job: Job, sweep: FrontSweep, found: list[Found]) -> list[Found]:
    """Return what the job's objectives ask for: one end of the front, or all of it."""
    wanted = inner_objectives(job.objectives)
    if wanted == {"peak_memory"} and not sweep.stopped:
        # The walk has asked for less memory than this, and found nothing.
        sweep.forget()
        return [found[-1], *sweep.front(found[-1].memory_ticks - 1, 0.0)][-1:]
    return found[-1:] if wanted == {"peak_memory"} else found


def _fastest_seconds(
    groups: Sequence[PricedCandidates], limit: float, within: float | None = None
) -> float | None:
    """Return the step of the fastest layout within the memory and ``within`` seconds, or any [s]."""
    ceiling = within or _longest_seconds(groups)
    scale = Scale.of(ceiling, limit)
    found = FrontSweep(groups, scale, ceiling).fastest(scale.memory_limit_ticks(limit))
    return None if found is None else found.step_ticks * scale.tick_seconds


def _longest_seconds(groups: Sequence[PricedCandidates]) -> float:
    """Return more seconds than the step of any layout takes.

    The slowest stage takes at most all layers, recomputed whole, with every fixed part and tail.
    """
    longest = 0.0
    for group in groups:
        layers = float(group.layers)
        stages, once = zip(*(_longest_parts(kind, layers) for kind in group.kinds), strict=True)
        step = (group.m + group.pp)[:, None] * 2 * np.maximum.reduce(stages) + np.maximum.reduce(once)
        longest = max(longest, float(step.max()))
    return longest


def _longest_parts(s: Stages, layers: float) -> tuple[Array, Array]:
    """Return a stage's time with all layers of one kind, recomputed whole and selectively, and its tail."""
    each = s.forward.layer + s.backward.layer + s.full + s.selective
    stage = s.forward.fixed + s.backward.fixed + layers * each
    once = s.reduce.fixed + s.gather.fixed + s.norms.fixed + s.optimizer.fixed
    return stage, once + layers * (s.reduce.layer + s.gather.layer + s.norms.layer + s.optimizer.layer)


def _layout(groups: Sequence[PricedCandidates], found: Found) -> Layout:
    layers, selective, full = zip(*((o.layers, o.selective, o.full) for o in found.chosen), strict=True)
    return groups[found.group].layout(found.position, layers, selective, full)


def _stopped(sweep: FrontSweep) -> str:
    return sweep.deadline.reason or "the solver's allowance of work ran out"


def _common(job: Job, space: Space) -> dict[str, Any]:
    """Return what every certificate says."""
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
    job: Job, space: Space, sweep: FrontSweep, found: list[Found], thinning: float, fastest: float
) -> Certificate:
    """Return what is proven of ``found``: the fastest layout, and then the plans that are wanted.

    ``fastest`` is the step of the first plan as priced in floating point [s]. Ticks are rounded up stage by
    stage, so a bound in ticks is as much below in seconds.
    """
    off = [1.0 - f.bound_ticks / f.step_ticks for f in found]
    rounding = sweep.groups[found[0].group].rounding(found[0].position) * sweep.scale.tick_seconds
    bound = max(0.0, min(fastest, found[0].bound_ticks * sweep.scale.tick_seconds - rounding))
    proven = not sweep.stopped and all(f.bound_ticks == f.step_ticks for f in found)
    return Certificate(
        status="optimal" if proven else "feasible",
        best_bound_step_seconds=bound,
        gap=max(*off, 1.0 - bound / fastest if found[0] is found[1] else 0.0),
        thinning=thinning,
        candidates_solved=len(sweep.solved),
        solves=sweep.solves,
        stopped=None if proven else _stopped(sweep),
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
