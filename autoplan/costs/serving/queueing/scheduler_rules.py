"""Rules of the scheduler of an inference engine, its sizes, and the blocks of its cache.

Notation (this file only)::

    n  tokens of a request                 b  tokens of a block                      [1]
    G  groups of layers without a window   W  blocks of those with one               [1]
    w  keys of a sliding window            T  tokens of a step                       [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from autoplan.costs.serving.engine_capacity import predict_capacity, stage_contents
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.kv_cache import CacheShape
from autoplan.schema.serving.request_lengths import SharedPrefix
from autoplan.schema.serving.serving_spec import ServingJob


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What the prefix cache has of the prompts of one class of requests."""

    #: Tokens at the start of its requests that the cache holds once.
    shared_tokens: int = 0
    #: Share of prompt tokens found in the prefix cache, besides the shared ones.
    hit_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockPool:
    """The blocks of one cache, and what a request takes of them."""

    blocks: int
    block_tokens: int
    #: Groups of layers without a window: each has a block for every ``block_tokens`` of a request.
    groups: int = 1
    #: Groups with a window, and the most blocks that a request has in one of them.
    window_groups: int = 0
    window_blocks: int = 0
    #: Tokens at the start of all requests that the cache holds once.
    shared_tokens: int = 0
    #: Blocks of prefixes that only some classes of requests share, which hold them all the time.
    prefix_blocks: int = 0

    def window_part(self, tokens: int) -> int:
        """Return the blocks of a request in groups with a window [1].

        >>> BlockPool(100, 16, 1, window_groups=1, window_blocks=9).window_part(1600)
        9
        """
        if not self.window_groups:
            return 0
        return self.window_groups * min(-(-tokens // self.block_tokens), self.window_blocks)

    def request_blocks(self, tokens: int) -> int:
        """Return the blocks of a request of n tokens [1]: G ceil(n / b) + W.

        >>> BlockPool(100, 16).request_blocks(17)
        2

        Leaves out: blocks of the shared tokens, which are counted once for all requests.
        Source: vLLM 0.33.0, v1/core/single_type_kv_cache_manager.py.
        """
        unshared = max(0, tokens - self.shared_tokens)
        return self.groups * -(-unshared // self.block_tokens) + self.window_part(unshared)

    @property
    def own_blocks(self) -> int:
        """Blocks for tokens that requests do not share."""
        return self.blocks - self.groups * (self.shared_tokens // self.block_tokens) - self.prefix_blocks


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """How one engine, or one of its attention data-parallel ranks, fills its iterations."""

    max_num_seqs: int
    max_num_batched_tokens: int
    pool: BlockPool
    #: mixed: chunks of prefill share an iteration with decodes; first: prefill has separate iterations.
    prefill: Literal["mixed", "first"] = "mixed"
    #: preempt: a request is admitted while its prompt fits; reserve: where input and output fit; estimate:
    #: where its output and a share of what running requests have left fit.
    admission: Literal["preempt", "reserve", "estimate"] = "preempt"
    #: Whether a prompt may be divided over iterations.
    chunked: bool = True
    #: Whether an iteration is composed while the one before it runs: what arrives or ends meanwhile counts
    #: one iteration later.
    asynchronous: bool = False
    #: Share of prompt tokens found in the prefix cache, besides the shared ones.
    hit_rate: float = 0.0
    #: Tokens that a decode takes of an iteration, more than one with drafts, and the mean of those that it
    #: gets by it.
    decode_tokens: int = 1
    growth: float = 1.0
    #: Whether prompts come with their keys and values: all tokens but the last are in the cache.
    prefilled: bool = False
    #: What the cache has of each class of requests, by number; empty: the same of all. With it the pool has
    #: no ``shared_tokens``, but the blocks of every prefix.
    prefixes: tuple[CachedPrefix, ...] = ()

    def prefix(self, kind: int = 0) -> CachedPrefix:
        """Return what the cache has of prompts of the class ``kind``.

        >>> rules = SchedulerRules(8, 64, BlockPool(9, 16), prefixes=(CachedPrefix(), CachedPrefix(32)))
        >>> rules.prefix(1).shared_tokens, rules.cached_tokens(100, 0), rules.cached_tokens(100, 1)
        (32, 0, 32)
        """
        if self.prefixes:
            return self.prefixes[kind]
        return CachedPrefix(self.pool.shared_tokens, self.hit_rate)

    def cached_tokens(self, input_tokens: int, kind: int = 0) -> int:
        """Return the tokens of a prompt that are not recomputed [1]: full blocks, not the last token.

        >>> SchedulerRules(8, 64, BlockPool(9, 16), hit_rate=0.5).cached_tokens(100)
        48
        >>> SchedulerRules(8, 64, BlockPool(9, 16), prefilled=True).cached_tokens(100)
        99
        """
        if self.prefilled:
            return input_tokens - 1
        prefix = self.prefix(kind)
        shared = min(prefix.shared_tokens, input_tokens)
        hit = max(shared, int(input_tokens * prefix.hit_rate))
        block = self.pool.block_tokens
        return min(hit // block * block, (input_tokens - 1) // block * block)

    def class_shared(self, input_tokens: int, kind: int = 0) -> int:
        """Return the tokens of a prompt that the cache holds once for its class [1]: no more than it has.

        What all classes share is taken off by the pool.

        >>> rules = SchedulerRules(8, 64, BlockPool(9, 16), prefixes=(CachedPrefix(), CachedPrefix(32)))
        >>> rules.class_shared(100, 0), rules.class_shared(100, 1), rules.class_shared(8, 1)
        (0, 32, 8)
        """
        return min(self.prefixes[kind].shared_tokens, input_tokens) if self.prefixes else 0

    def scaled_tokens(self, tokens: int) -> int:
        """Return tokens of a prompt in units of what a decode adds in an iteration [1].

        >>> SchedulerRules(8, 64, BlockPool(9, 16), growth=2.5).scaled_tokens(100)
        40
        """
        return tokens if self.growth == 1.0 else ceil(tokens / self.growth)

    def in_iterations(self) -> SchedulerRules:
        """Return the rules with a cache in units of what a decode adds in an iteration.

        Blocks become so much smaller, and there are as many tokens in all.

        >>> pool = SchedulerRules(8, 64, BlockPool(1000, 16), growth=2.0).in_iterations().pool
        >>> pool.blocks, pool.block_tokens
        (1000, 8)
        """
        pool, growth = self.pool, self.growth
        if growth == 1.0:
            return self
        block = max(1, round(pool.block_tokens / growth))
        scale = pool.block_tokens / (block * growth)
        scaled = replace(
            pool,
            blocks=int(pool.blocks * scale),
            block_tokens=block,
            window_blocks=ceil(pool.window_blocks * scale),
            shared_tokens=int(pool.shared_tokens / growth),
            prefix_blocks=ceil(pool.prefix_blocks * scale),
        )
        prefixes = tuple(
            replace(prefix, shared_tokens=int(prefix.shared_tokens / growth)) for prefix in self.prefixes
        )
        return replace(self, pool=scaled, prefixes=prefixes)


def scheduler_rules(scope: EngineScope) -> SchedulerRules:
    """Return the rules of one engine of ``layout``, or of one of its attention data-parallel ranks.

    >>> rules = scheduler_rules(h100_scope())
    >>> rules.pool.own_blocks == predict_capacity(h100_scope()).pool.blocks, rules.max_num_batched_tokens
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
