"""Requests that decode together, and the blocks that they grow by.

All get a token in each iteration, so a request's progress is the difference of two counters: an
iteration costs the same for any number of requests.

Notation (this file only)::

    k  iterations with decodes so far          n  tokens of a request in the cache   [1]
    b  tokens of a block                       f  free blocks                        [1]
    a  mean tokens that a decode adds in an iteration                                [1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from autoplan.costs.core.iteration import Chunk, Iteration
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import BlockPool, SchedulerRules
from autoplan.errors import UnsupportedError

#: Share of the tokens that decodes have left which is reserved for them: at first, at least, and in how many
#: iterations it falls (SGLang 0.5.23, srt/environ.py: SGLANG_INIT_NEW_TOKEN_RATIO and others).
_FIRST_SHARE, _LEAST_SHARE, _DECAY_STEPS = 0.7, 0.098, 600


@dataclass(slots=True)
class ReservedShare:
    """Share of the tokens that decodes have left for which an engine reserves blocks by an estimate [1]."""

    share: float = _FIRST_SHARE

    def fall(self, steps: int) -> None:
        """Lower the share by that of some iterations without a preemption.

        >>> reserved = ReservedShare()
        >>> reserved.fall(300)
        >>> round(reserved.share, 3)  # halfway from 0.7 to 0.098
        0.399
        """
        self.share = max(_LEAST_SHARE, self.share - steps * (_FIRST_SHARE - _LEAST_SHARE) / _DECAY_STEPS)

    def rise(self) -> None:
        """Raise the share after a preemption.

        >>> reserved = ReservedShare(0.2)
        >>> reserved.rise()
        >>> reserved.share
        0.7
        """
        self.share = max(self.share, _FIRST_SHARE)


class DecodingSet:
    """Requests that decode, the blocks that are free, and when each request ends."""

    __slots__ = (
        "_ends",
        "_period",
        "_phases",
        "_started",
        "context",
        "count",
        "free",
        "pool",
        "remaining",
        "steps",
    )

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.free = pool.own_blocks
        self.count = 0
        #: Tokens in the cache of all, and tokens that they have yet to get.
        self.context = 0
        self.remaining = 0
        self.steps = 0
        self._period = pool.block_tokens
        #: Requests by the iteration, modulo a block, in which they need a new block.
        self._phases = [0] * pool.block_tokens
        #: Tokens in the cache, counter, tokens to get and tokens that its class shares, as a request began.
        self._started: dict[int, tuple[int, int, int, int]] = {}
        self._ends: list[tuple[int, int]] = []

    def __contains__(self, request: int) -> bool:
        """Whether the request decodes."""
        return request in self._started

    def add(self, request: int, tokens: int, left: int, shared: int = 0) -> None:
        """Let a request decode that has ``tokens`` in the cache and ``left`` tokens to get.

        ``shared``: tokens of it that its class shares, whose blocks are counted once.
        """
        self._started[request] = (tokens, self.steps, left, shared)
        heappush(self._ends, (self.steps + left, request))
        self._phases[self._phase(tokens - shared, self.steps)] += 1
        self.count += 1
        self.context += tokens
        self.remaining += left

    def remove(self, request: int) -> tuple[int, int]:
        """Take a request out; return its tokens in the cache and the tokens that it has yet to get."""
        tokens, began, left, shared = self._started.pop(request)
        done = self.steps - began
        self._phases[self._phase(tokens - shared, began)] -= 1
        self.count -= 1
        self.context -= tokens + done
        self.remaining -= left - done
        return tokens + done, left - done

    def _phase(self, tokens: int, began: int) -> int:
        return (tokens - self.pool.shared_tokens - began) % self._period

    def needed(self) -> int:
        """Return the blocks that the next iteration needs [1]."""
        return self.pool.groups * self._phases[-self.steps % self._period]

    def steps_that_fit(self, most: int) -> int:
        """Return the iterations, up to ``most``, whose blocks are free [1].

        In b iterations each request takes one block of each group.

        >>> decoding = DecodingSet(BlockPool(3, 4))
        >>> decoding.free = 1  # a request of 6 tokens has two blocks, and two tokens are left in them
        >>> decoding.add(0, 6, 20)
        >>> decoding.steps_that_fit(20)
        6
        """
        cycle = self.pool.groups * self.count
        fit = self.free // cycle * self._period if cycle else most
        if fit >= most:
            return most
        free, step = self.free - fit // self._period * cycle, self.steps + fit
        while fit < most:
            free -= self.pool.groups * self._phases[-step % self._period]
            if free < 0:
                break
            fit, step = fit + 1, step + 1
        return fit

    def advance(self, steps: int) -> None:
        """Give each request ``steps`` tokens; their blocks have to be free.

        >>> decoding = DecodingSet(BlockPool(9, 4))
        >>> decoding.add(0, 6, 20)
        >>> decoding.advance(3)
        >>> decoding.free, decoding.context, decoding.remaining  # 9 tokens take a third block
        (8, 9, 17)
        """
        cycles, rest = divmod(steps, self._period)
        taken = cycles * self.count
        for step in range(self.steps, self.steps + rest):
            taken += self._phases[-step % self._period]
        self.free -= self.pool.groups * taken
        self.steps += steps
        self.context += steps * self.count
        self.remaining -= steps * self.count

    def steps_to_next_end(self) -> int:
        """Return the iterations until a request ends [1]; at least one has to decode."""
        while True:
            end, request = self._ends[0]
            started = self._started.get(request)
            if started is not None and started[1] + started[2] == end:
                return end - self.steps
            heappop(self._ends)

    def ended(self) -> list[int]:
        """Return the requests that have no more tokens to get, in the order of their ends."""
        # A request that was taken out and came back may stand in it twice.
        done: dict[int, None] = {}
        while self._ends and self._ends[0][0] <= self.steps:
            end, request = heappop(self._ends)
            started = self._started.get(request)
            if started is not None and started[1] + started[2] == end:
                done[request] = None
        return list(done)


@dataclass(frozen=True, slots=True)
class GrowingContexts:
    """An ``Iteration`` whose contexts are counted in units of a tokens."""

    unscaled: Iteration
    growth: float

    def seconds(self, decodes: int, context_tokens: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of one iteration [s].

        >>> GrowingContexts(AffineIteration(1.0, per_context=0.5), 3.0).seconds(1, 10)
        16.0
        """
        return self.unscaled.seconds(decodes, context_tokens * self.growth, chunks)

    def decode_run(self, decodes: int, context_tokens: float, steps: int) -> float:
        """Return the time of ``steps`` iterations of decodes alone [s]: Simpson's rule.

        >>> GrowingContexts(AffineIteration(1.0, per_context=0.5), 2.0).decode_run(1, 10, 3)  # 11, 12, 13
        36.0
        """
        grown = decodes * (steps - 1)
        ends = self.seconds(decodes, context_tokens) + self.seconds(decodes, context_tokens + grown)
        return steps * (ends + 4 * self.seconds(decodes, context_tokens + grown / 2)) / 6


def shared_by_class(load: RequestLoad, rules: SchedulerRules) -> list[int]:
    """Return the tokens of each prompt that the cache holds once for its class [1], as ``rules`` count them.

    >>> shared_by_class(RequestLoad((8,), (2,), (0.0,)), SchedulerRules(4, 8, BlockPool(3, 4)))
    [0]
    """
    kinds = load.kinds or (0,) * len(load)
    prompts = zip(load.inputs, kinds, strict=True)
    return [rules.class_shared(rules.scaled_tokens(tokens), kind) for tokens, kind in prompts]


def check_admissible(load: RequestLoad, rules: SchedulerRules) -> None:
    """Raise UnsupportedError for a request that never fits.

    >>> check_admissible(RequestLoad((8,), (2,), (0.0,)), SchedulerRules(4, 8, BlockPool(3, 4)))
    """
    in_iterations = rules.in_iterations()
    pool = in_iterations.pool
    kinds = load.kinds or (0,) * len(load)
    requests = zip(load.inputs, load.outputs, kinds, shared_by_class(load, in_iterations), strict=True)
    for tokens, output, kind, shared in requests:
        blocks = pool.request_blocks(in_iterations.scaled_tokens(tokens) + output - 1 - shared)
        if blocks > pool.own_blocks:
            raise UnsupportedError(
                f"a request of {tokens + output:,} tokens takes {blocks:,} blocks of the cache, which has"
                f" {pool.own_blocks:,}"
            )
        if not rules.chunked and tokens - rules.cached_tokens(tokens, kind) > rules.max_num_batched_tokens:
            raise UnsupportedError(
                f"a prompt of {tokens:,} tokens exceeds max_num_batched_tokens"
                f" {rules.max_num_batched_tokens:,}, and this engine does not divide prompts"
            )


def in_iterations(iteration: Iteration, rules: SchedulerRules) -> Iteration:
    """Return the iterations of ``simulate``, in whose units contexts grow by one.

    >>> in_iterations(AffineIteration(1.0), SchedulerRules(4, 8, BlockPool(9, 4))).seconds(1, 1)
    1.0

    Source: ``GrowingContexts``.
    """
    return iteration if rules.growth == 1.0 else GrowingContexts(iteration, rules.growth)
