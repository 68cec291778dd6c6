"""Memory of one replica of a model: states, and the activations of one sequence."""

from __future__ import annotations

import math
from dataclasses import replace

from autoplan.costs.core.prediction import StageMemory
from autoplan.costs.predict import facts_of, predict
from autoplan.planning.plan_and_evaluate import read_layout
from autoplan.results.guiding.training_guide import MemoryNeeds, RecomputeNeed
from autoplan.schema.job import Job
from autoplan.schema.layout import RECOMPUTE

__all__ = ["memory_needs"]


def memory_needs(job: Job) -> MemoryNeeds:
    """Return the memory of one replica of the model, with one sequence at a time, on one device [byte].

    It is what ``evaluate`` says of a layout on one device, whether it fits or not.
    """
    facts = facts_of(job)
    alone = replace(job, cluster=replace(job.cluster, devices=1), choices=(), rules=())
    stages = {mode: _stage(alone, mode) for mode in RECOMPUTE}
    first = stages["none"]
    weights, gradients, optimizer = (_most(first, x) for x in ("parameters", "gradients", "optimizer"))
    return MemoryNeeds(
        parameters=facts.parameters,
        parameter_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        framework_bytes=first.framework,
        sequences=tuple(
            RecomputeNeed(
                mode, _most(stage, "activations"), _most(stage, "logits"), _most(stage, "transient")
            )
            for mode, stage in stages.items()
        ),
        limit_bytes=facts.memory_limit_bytes,
        least_devices=math.ceil((weights + gradients + optimizer) / facts.memory_limit_bytes),
    )


def _most(stage: StageMemory, category: str) -> float:
    """Return the most bytes of a category at any event: not all of them are there at the peak."""
    return max(float(getattr(event, category)) for event in stage.events)


def _stage(job: Job, mode: str) -> StageMemory:
    (stage,) = predict(job, read_layout(job, f"recompute={mode}")).memory.stages
    return stage
