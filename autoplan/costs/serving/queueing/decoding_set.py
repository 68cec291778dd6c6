"""Requests that decode together, and the blocks that they grow by.

All get a token in each iteration, so a request's progress is the difference of two counters: nothing is
touched a request and iteration.

Notation (this file only)::

    k  iterations with decodes so far          n  tokens of a request in the cache   [1]
    b  tokens of a block                       f  free blocks                        [1]
"""

from __future__ import annotations

from heapq import heappop, heappush

from autoplan.costs.serving.queueing.scheduler_rules import BlockPool

__all__ = ["DecodingSet"]


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
        #: Tokens in the cache and counter at which each request began to decode.
        self._started: dict[int, tuple[int, int, int]] = {}
        self._ends: list[tuple[int, int]] = []

    def __contains__(self, request: int) -> bool:
        """Whether the request decodes."""
        return request in self._started

    def add(self, request: int, tokens: int, left: int) -> None:
        """Let a request decode that has ``tokens`` in the cache and ``left`` tokens to get."""
        self._started[request] = (tokens, self.steps, left)
        heappush(self._ends, (self.steps + left, request))
        self._phases[self._phase(tokens, self.steps)] += 1
        self.count += 1
        self.context += tokens
        self.remaining += left

    def remove(self, request: int) -> tuple[int, int]:
        """Take a request out; return its tokens in the cache and the tokens that it has yet to get."""
        tokens, began, left = self._started.pop(request)
        done = self.steps - began
        self._phases[self._phase(tokens, began)] -= 1
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
            known = self._started.get(request)
            if known is not None and known[1] + known[2] == end:
                return end - self.steps
            heappop(self._ends)

    def ended(self) -> list[int]:
        """Return the requests that have no more tokens to get, in the order of their ends."""
        # A request that was taken out and came back may stand there twice.
        done: dict[int, None] = {}
        while self._ends and self._ends[0][0] <= self.steps:
            end, request = heappop(self._ends)
            known = self._started.get(request)
            if known is not None and known[1] + known[2] == end:
                done[request] = None
        return list(done)
