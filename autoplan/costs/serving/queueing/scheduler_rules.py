"""Rules of the scheduler of an inference engine, and the blocks of its cache.

Notation (this file only)::

    n  tokens of a request                 b  tokens of a block                      [1]
    G  groups of layers without a window   W  blocks of those with one               [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal


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
