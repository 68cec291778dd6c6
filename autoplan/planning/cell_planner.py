"""One job of a sweep, planned to an answer that travels between processes."""

from __future__ import annotations

import dataclasses
import time

from autoplan.errors import AutoplanError
from autoplan.planning.caching.planner_identity import planner_name
from autoplan.planning.plan_and_evaluate import plan
from autoplan.results.front import Front
from autoplan.results.sweep import CellAnswer
from autoplan.schema.job import Job

__all__ = ["plan_cell", "refusal"]


def plan_cell(job: Job) -> CellAnswer:
    """Return the answer to ``job``: its best plan, or why there is none."""
    started = time.perf_counter()
    try:
        answer = _answer(plan(job))
    except AutoplanError as error:
        answer = refusal(error)
    seconds = time.perf_counter() - started
    return dataclasses.replace(answer, planning_seconds=seconds, planner=planner_name())


def refusal(error: AutoplanError) -> CellAnswer:
    """Return the answer to a job that cannot be planned."""
    problems = getattr(error, "problems", None) or getattr(error, "reasons", None)
    said = [str(getattr(each, "message", each)) for each in problems] if problems else [str(error)]
    return CellAnswer("invalid", tuple(said))


def _answer(front: Front) -> CellAnswer:
    job, status = front.job, front.certificate.status
    if not front.plans:
        return CellAnswer(
            "infeasible",
            tuple(front.reasons),
            devices_used=job.cluster.devices,
            stack_used=job.stack.name,
            certificate=status,
        )
    best = front.plans[0]
    predicted = best.predicted
    return CellAnswer(
        "planned",
        devices_used=best.layout.devices,
        stack_used=job.stack.name,
        layout=best.layout_string,
        layers=sum(best.layout.layers),
        step_seconds=predicted.step_seconds,
        step_seconds_low=predicted.step_seconds_low,
        step_seconds_high=predicted.step_seconds_high,
        tokens_per_second=predicted.tokens_per_second,
        tokens_per_second_per_device=predicted.tokens_per_second_per_device,
        model_flops_utilization=predicted.model_flops_utilization,
        peak_memory_bytes_per_device=predicted.peak_memory_bytes_per_device,
        peak_memory_bytes_high=predicted.peak_memory_bytes_high,
        memory_limit_bytes=predicted.memory_limit_bytes,
        fits=predicted.fits,
        plans=len(front.plans),
        certificate=status,
    )
