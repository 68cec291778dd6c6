"""The scheduler of an engine under a layout: its rules, sizes and blocks.

Notation (this file only)::

    w  keys of a sliding window    T  tokens of a step    b  tokens of a block       [1]
"""

from __future__ import annotations

from math import ceil

from autoplan.costs.core.serving.capacity import CapacityPrediction
from autoplan.costs.serving.engine_capacity import StageContents, stage_contents
from autoplan.costs.serving.kv_cache import CacheShape
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["scheduler_rules"]


def scheduler_rules(
    job: ServingJob,
    layout: EngineLayout,
    capacity: CapacityPrediction,
    contents: StageContents | None = None,
) -> SchedulerRules:
    """Return the rules of one engine of ``layout``, or of one of its groups of data-parallel attention.

    >>> from autoplan.catalog import load_serving_job
    >>> from autoplan.costs.serving.engine_capacity import predict_capacity
    >>> job, layout = load_serving_job("llama3.1-8b-1x-h100"), EngineLayout()
    >>> rules = scheduler_rules(job, layout, predict_capacity(job, layout))
    >>> rules.pool.own_blocks == predict_capacity(job, layout).pool.blocks, rules.max_num_batched_tokens
    (True, 8192)

    Leaves out: that groups of attention get prompts at unlike times.
    Source: the engine's file.
    """
    facts = job.engine.facts.scheduler
    rooms = [max(0.0, stage.room) for stage in capacity.stages]
    shapes = (contents or stage_contents(job, layout)).shapes
    least = min(range(layout.pp), key=lambda stage: shapes[stage].tokens(rooms[stage]))
    prefix = job.workload.prefix
    return SchedulerRules(
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        pool=_pool(shapes[least], rooms[least], capacity.max_num_batched_tokens, prefix.shared_tokens),
        prefill=facts.prefill,
        admission=facts.admission,
        chunked=facts.chunked,
        asynchronous=facts.asynchronous,
        hit_rate=prefix.hit_rate,
    )


def _pool(shape: CacheShape, room: float, tokens: int, shared: int) -> BlockPool:
    """Return the blocks of ``room`` bytes; a window keeps w - 1 + T tokens while a prompt is computed."""
    block = shape.block_tokens * shape.shared
    if shape.window_share is not None:  # Windows have a pool of their own, which is as large as it has to be.
        return BlockPool(shape.blocks(room), block, shared_tokens=shared)
    held = ceil((shape.window - 1 + tokens) / shape.block_tokens) + 1 if shape.window_layers else 0
    return BlockPool(
        blocks=shape.blocks(room),
        block_tokens=block,
        groups=max(1, shape.full_groups),
        window_groups=shape.window_groups,
        window_blocks=held,
        shared_tokens=shared,
    )
