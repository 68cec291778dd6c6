"""The 90 % intervals of serving plans."""

from __future__ import annotations

from dataclasses import replace

from autoplan.catalog import engine_kernels_origin, serving_intervals
from autoplan.costs.serving.served_intervals import Distance, served_intervals, simulation_gaps, unmet_parts
from autoplan.results.serving.serving_front import PoolComparison, ServingFront, ServingPlan
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["front_with_intervals", "plan_with_intervals"]


def plan_with_intervals(job: ServingJob, plan: ServingPlan) -> ServingPlan:
    """Return ``plan`` with the intervals of its figures; without, where it cannot serve."""
    if not plan.fits:
        return plan
    figures = (
        plan.time_to_first_token,
        plan.time_per_output_token,
        plan.request_latency,
        plan.output_tokens_per_second,
    )
    measured, taken_from = engine_kernels_origin(job.cluster.device.name)
    spec = serving_intervals()
    intervals = served_intervals(
        spec,
        plan.groups[0].predicted.load.kind,
        figures,
        measured=measured,
        engine=job.engine,
        pools=plan.pooled is not None,
        distance=Distance(
            taken_from,
            unmet_parts(spec, (job.model.layers, job.model.hidden_size), job.cluster.device.name),
            simulation_gaps(plan.simulations),
            linear=job.model.linear_attention is not None,
        ),
    )
    return replace(plan, intervals=intervals)


def front_with_intervals(front: ServingFront) -> ServingFront:
    """Return ``front`` with the intervals of its plans, and of those of its changes and answers."""
    job = front.job
    return replace(
        front,
        plans=tuple(plan_with_intervals(job, plan) for plan in front.plans),
        changes=tuple(
            replace(change, plan=plan_with_intervals(job, change.plan)) for change in front.changes
        ),
        answers=tuple(front_with_intervals(answer) for answer in front.answers),
        comparison=None if front.comparison is None else _compared(job, front.comparison),
        mixing=front.mixing and replace(front.mixing, plan=plan_with_intervals(job, front.mixing.plan)),
    )


def _compared(job: ServingJob, comparison: PoolComparison) -> PoolComparison:
    pools, both = (
        None if plan is None else plan_with_intervals(job, plan)
        for plan in (comparison.pools, comparison.both)
    )
    return replace(comparison, pools=pools, both=both)
