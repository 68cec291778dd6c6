"""One job of a sweep, planned to an answer that travels between processes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    run = at_batch(job, best)
    return CellAnswer(
        "planned",
        devices_used=best.layout.devices,
        stack_used=run.stack.name,
        program_used=None if run.program is None else run.program.name,
        layout=best.layout_string,
        layers=sum(best.layout.layers),
        plans=len(front.plans),
        certificate=status,
        **_figures(
            CellAnswer, {x.name: getattr(best.predicted, x.name) for x in dataclasses.fields(best.predicted)}
        ),
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
    return ServingCellAnswer(
        "planned",
        devices_used=best.devices,
        engine_used=engine,
        layout=best.layout_string,
        engines=best.engines,
        plans=len(front.plans),
        certificate=status,
        **_figures(ServingCellAnswer, serving_plan_values(job, best)["predicted"]),
    )


def _figures(answer: type[AnyCellAnswer], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a prediction that ``answer`` has fields for."""
    return {x.name: predicted[x.name] for x in dataclasses.fields(answer) if x.name in predicted}
