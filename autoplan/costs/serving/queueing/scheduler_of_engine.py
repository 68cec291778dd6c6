"""The scheduler of an engine under a layout: its rules, sizes and blocks.

Notation (this file only)::

    w  keys of a sliding window    T  tokens of a step    b  tokens of a block       [1]
    G  groups of layers without a window                                             [1]
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from autoplan.costs.serving.engine_capacity import predict_capacity, stage_contents
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import CacheShape
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, CachedPrefix, SchedulerRules
from autoplan.schema.serving.request_lengths import SharedPrefix
from autoplan.schema.serving.serving_spec import ServingJob


def scheduler_rules(scope: EngineScope) -> SchedulerRules:
    """Return the rules of one engine of ``layout``, or of one of its attention data-parallel ranks.

    >>> scope = h100_scope()
    >>> rules = scheduler_rules(scope)
    >>> rules.pool.own_blocks == predict_capacity(scope).pool.blocks, rules.max_num_batched_tokens
    (True, 8192)

    Leaves out: that attention data-parallel ranks get prompts at different times.
    Source: the engine's file.
    """
    return scope.once(_rules)


def _rules(scope: EngineScope) -> SchedulerRules:
    job, facts, capacity = scope.job, scope.facts.scheduler, predict_capacity(scope)
    rooms = [max(0.0, stage.room) for stage in capacity.stages]
    shapes = stage_contents(scope).shapes
    least = min(range(scope.layout.pp), key=lambda stage: shapes[stage].tokens(rooms[stage]))
    prefix = job.workload.prefix
    pool = _pool(shapes[least], rooms[least], capacity.max_num_batched_tokens, prefix.shared_tokens)
    prefixes = _prefixes_of_classes(job)
    return SchedulerRules(
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        pool=pool if not prefixes else _pool_of_prefixes(job, pool),
        prefill=facts.prefill,
        admission=facts.admission,
        chunked=facts.chunked,
        asynchronous=facts.asynchronous,
        hit_rate=prefix.hit_rate,
        prefixes=prefixes,
    )


def _pool(shape: CacheShape, room: float, tokens: int, shared: int) -> BlockPool:
    """Return the blocks of ``room`` bytes; a window keeps w - 1 + T tokens while a prompt is computed."""
    block = shape.block_tokens * shape.shared
    if shape.window_share is not None:  # Windows have a separate pool, as large as it has to be.
        return BlockPool(shape.blocks(room), block, shared_tokens=shared)
    window_blocks = ceil((shape.window - 1 + tokens) / shape.block_tokens) + 1 if shape.window_layers else 0
    if shape.state_groups:  # A state is one block, as a window of one block would be.
        window_blocks = 1
    return BlockPool(
        blocks=shape.blocks(room),
        block_tokens=block,
        groups=max(1, shape.full_groups),
        window_groups=shape.window_groups or shape.state_groups,
        window_blocks=window_blocks,
        shared_tokens=shared,
    )


def _prefixes_of_classes(job: ServingJob) -> tuple[CachedPrefix, ...]:
    """Return what the prefix cache has of each class of ``job``; empty where no class names one.

    A class without a prefix has that of the workload.
    """
    classes, common = job.workload.classes, job.workload.prefix
    if all(request_class.prefix is None for request_class in classes):
        return ()
    return tuple(_cached(request_class.prefix or common) for request_class in classes)


def _cached(prefix: SharedPrefix) -> CachedPrefix:
    return CachedPrefix(prefix.shared_tokens, prefix.hit_rate)


def _pool_of_prefixes(job: ServingJob, pool: BlockPool) -> BlockPool:
    """Return ``pool`` with the blocks of every prefix taken off: G floor(n / b) of n shared tokens.

    The prefix of the workload is the same text in all classes that name none, so that it is
    stored once.
    """
    class_prefixes = [request_class.prefix for request_class in job.workload.classes]
    prefixes = [prefix for prefix in class_prefixes if prefix is not None]
    if None in class_prefixes:
        prefixes.append(job.workload.prefix)
    blocks = sum(prefix.shared_tokens // pool.block_tokens for prefix in prefixes)
    return replace(pool, shared_tokens=0, prefix_blocks=pool.groups * blocks)
