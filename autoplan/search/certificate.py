"""Certificates: what is proven of a front, and by what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoplan.deadline import Deadline, current_deadline
from autoplan.results import Certificate
from autoplan.results.merged_front import inner_objectives
from autoplan.rules.search_menus import unsearched
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import hashes
from autoplan.search.cp.cp_sat import solver_parameters, solver_version
from autoplan.search.front_point import FrontPoint
from autoplan.search.front_sweep import FrontSweep
from autoplan.search.space.candidate_space import Space

__all__ = ["infeasible_certificate", "stop_reason", "stopped_certificate", "sweep_certificate"]


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
