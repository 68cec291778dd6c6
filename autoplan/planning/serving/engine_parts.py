"""Where the time of a plan's engines goes, and what their requests wait for."""

from __future__ import annotations

from autoplan.costs.core.serving.iteration import Chunk
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_parts import decode_step, iteration_parts
from autoplan.costs.serving.served_layouts import PricedEngine, ServingCosts, priced_engine, unit_parts
from autoplan.results.serving.serving_explanation import EngineParts
from autoplan.results.serving.serving_front import EngineGroup, ServingPlan
from autoplan.schema.serving.class_jobs import job_of_classes
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["engine_parts", "engines_of"]


def engines_of(job: ServingJob, plan: ServingPlan, costs: ServingCosts) -> list[PricedEngine]:
    """Return the priced engine of each group of ``plan``."""
    jobs = [job_of_classes(job, group.classes) for group in plan.groups]
    return [
        priced_engine(group.layout, unit_parts(EngineScope(own, group.layout), costs))
        for own, group in zip(jobs, plan.groups, strict=True)
    ]


def engine_parts(job: ServingJob, plan: ServingPlan, costs: ServingCosts) -> tuple[EngineParts, ...]:
    """Return the parts of an iteration of each group of engines that starts, at its operating point."""
    engines = engines_of(job, plan, costs)
    return tuple(
        _parts(job, group, engine, costs)
        for group, engine in zip(plan.groups, engines, strict=True)
        if group.predicted.starts
    )


def _parts(job: ServingJob, group: EngineGroup, engine: PricedEngine, costs: ServingCosts) -> EngineParts:
    point, groups = group.predicted.point, group.layout.adp
    decodes = 1 if group.role == "prefill" else max(1, round(point.decodes))
    context = decodes * engine.lengths.read
    prompt = max(1, round(engine.lengths.computed))
    room = max(1, engine.rules.max_num_batched_tokens - decodes)
    chunk = Chunk(min(prompt, room) if engine.rules.chunked else prompt)
    prices = (costs.kernels, costs.measured)
    first_alone = engine.rules.prefill == "first" or group.role == "prefill"
    concurrent = (0, 0.0) if first_alone else (decodes * groups, context * groups)
    scope = EngineScope(job, group.layout)
    decode = decode_step(scope, prices, decodes * groups, context * groups)
    # Where prompts come with their keys and values, no step has a chunk of one.
    chunks = [] if group.role == "decode" else [chunk] * groups
    mixed = iteration_parts(scope, prices, (*concurrent, chunks))
    first = group.predicted.time_to_first_token
    share = None
    if group.role != "decode" and group.predicted.load.kind != "maximum" and 0 < first < float("inf"):
        own = mixed.seconds * -(-prompt // chunk.new_tokens) + decode.seconds / 2
        share = max(0.0, 1 - own / first)
    waits = point.cause if point.saturated and group.predicted.load.kind != "maximum" else None
    return EngineParts(group.layout, decode, mixed, share, waits, group.classes)
