"""One job of a sweep, planned to an answer that travels between processes."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from autoplan.errors import AutoplanError
from autoplan.kinds import kind_of
from autoplan.planning.caching import planner_name
from autoplan.results.front import Front
from autoplan.results.merged_front import at_batch
from autoplan.results.sweep import AnyCellAnswer, CellAnswer, ServingCellAnswer, answer_type
from autoplan.schema.grid_spec import JobKind
from autoplan.schema.job import Job

if TYPE_CHECKING:
    from autoplan.results.serving.serving_front import ServingFront
    from autoplan.schema.serving.serving_spec import ServingJob


def plan_cell(job: Job | ServingJob) -> AnyCellAnswer:
    """Return the answer to ``job``: its best plan, or the reasons against any."""
    started, kind = time.perf_counter(), kind_of(job)
    try:
        answer: AnyCellAnswer = kind.cell_answer(kind.plan(job))
    except AutoplanError as error:
        answer = refusal(error, kind.name)
    seconds = time.perf_counter() - started
    return dataclasses.replace(answer, planning_seconds=seconds, planner=planner_name())


def refusal(error: AutoplanError, kind: JobKind = "training") -> AnyCellAnswer:
    """Return the answer to a job of ``kind`` that cannot be planned."""
    problems = getattr(error, "problems", None) or getattr(error, "reasons", None)
    sentences = [str(getattr(each, "message", each)) for each in problems] if problems else [str(error)]
    return answer_type(kind)("invalid", tuple(sentences))


def training_answer(front: Front) -> CellAnswer:
    """Return what a cell says of the front of a training job."""
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
    predicted, run = best.predicted, at_batch(job, best)
    return CellAnswer(
        "planned",
        devices_used=best.layout.devices,
        stack_used=run.stack.name,
        program_used=None if run.program is None else run.program.name,
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


def serving_answer(front: ServingFront) -> ServingCellAnswer:
    """Return what a cell says of the front of a serving job: its best plan by the first objective."""
    from autoplan.results.serving.plan_values import serving_plan_values

    job, status = front.job, front.certificate.status
    engine = f"{job.engine.name} {job.engine.version}"
    if not front.plans:
        return ServingCellAnswer(
            "infeasible",
            tuple(front.reasons),
            devices_used=job.cluster.devices,
            engine_used=engine,
            certificate=status,
        )
    best = front.best
    predicted = serving_plan_values(job, best)["predicted"]
    figures = {
        f.name: predicted[f.name] for f in dataclasses.fields(ServingCellAnswer) if f.name in predicted
    }
    return ServingCellAnswer(
        "planned",
        devices_used=best.devices,
        engine_used=engine,
        layout=best.layout_string,
        engines=best.engines,
        plans=len(front.plans),
        certificate=status,
        **figures,
    )
