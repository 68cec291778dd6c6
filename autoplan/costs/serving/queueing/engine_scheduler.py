"""Scheduler of an engine: which requests its iterations have, and the blocks of the cache that they hold.

Notation (this file only)::

    n  tokens of a request in the cache    o  tokens that it has yet to get          [1]
    b  tokens of a block                   f  free blocks                            [1]

Contexts are counted in units of what a decode adds in an iteration.

Source of the rules: vLLM 0.33.0, v1/core/sched/scheduler.py (schedule) and async_scheduler.py; SGLang 0.5.23,
srt/managers/schedule_policy.py (PrefillAdder) and scheduler.py; TensorRT-LLM, GUARANTEED_NO_EVICT of
_torch/pyexecutor/scheduler.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from autoplan.costs.core.iteration import Chunk
from autoplan.costs.serving.queueing.decoding_set import DecodingSet, ReservedShare, shared_by_class
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.run_statistics import StepCounts
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules

#: Most tokens that a request is thought to have left (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION), and iterations
#: after which admission by such an estimate is reconsidered.
_MOST_LEFT, _ESTIMATE_STEPS = 4096, 16


class RunningRequests:
    """Requests that an engine has admitted, and the blocks of the cache that they hold."""

    def __init__(self, load: RequestLoad, rules: SchedulerRules, counts: StepCounts) -> None:
        self.rules, self.counts = rules, counts
        self.pool = rules.pool
        self.decoding = DecodingSet(rules.pool)
        counts.least_free = self.decoding.free
        self.active: set[int] = set()
        #: Tokens of each request that the cache holds once for its class.
        self._shared = shared_by_class(load, rules)
        self._window: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
        #: Blocks and places that ended requests give back after the next iteration.
        self.returned_blocks = self.returned_seqs = 0

    def needed(self, request: int, tokens: int) -> int:
        """Return the blocks of a request of n tokens [1], without those that its class shares.

        >>> RunningRequests(RequestLoad((6,), (9,)), rules, StepCounts()).needed(0, 9)
        3
        """
        return self.pool.request_blocks(tokens - self._shared[request])

    def add(self, request: int, tokens: int, *, reserved: bool = False) -> None:
        """Admit a request with the blocks of n tokens; ``reserved``: with no more than these to its end.

        >>> running = RunningRequests(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> running.decoding.free
        7
        """
        if reserved:
            self._reserved[request] = tokens
        self._window[request] = self.pool.window_part(self._unshared(request, tokens))
        self.decoding.free -= self.needed(request, tokens)
        self.active.add(request)

    def remove_partial(self, request: int, tokens: int) -> None:
        """Take out a request whose prompt of n tokens is computed in part, and free its blocks.

        >>> running = RunningRequests(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> running.remove_partial(0, 6)
        >>> running.decoding.free, len(running.active)
        (9, 0)
        """
        self.active.remove(request)
        self.decoding.free += self.needed(request, tokens)

    def remove(self, request: int) -> tuple[int, int]:
        """Take out a request that decodes, and free its blocks; return n and o.

        >>> running = RunningRequests(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> running.begin_decoding(0, 6, 8)
        True
        >>> running.decode(3)
        >>> running.remove(0), running.decoding.free
        ((9, 5), 9)
        """
        self.active.remove(request)
        tokens, left = self.decoding.remove(request)
        self.decoding.free += self._released(request, tokens)
        return tokens, left

    def begin_decoding(self, request: int, tokens: int, left: int) -> bool:
        """Let a request of n tokens decode; return whether it has any of o to get, else it ends.

        >>> running = RunningRequests(RequestLoad((6,), (1,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> running.begin_decoding(0, 6, 0), running.decoding.free
        (False, 9)
        """
        if not left:
            self._end(request, tokens)
            return False
        self.decoding.add(request, tokens, left, self._shared[request])
        return True

    def decode(self, steps: int) -> None:
        """Give each request that decodes ``steps`` tokens, and the blocks that they need.

        >>> running = RunningRequests(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> _ = running.begin_decoding(0, 6, 8)
        >>> running.decode(3)
        >>> running.counts.decoded, running.counts.least_free  # 9 tokens have three blocks of nine
        (3, 6)
        """
        decoding, counts = self.decoding, self.counts
        free = decoding.free
        decoding.advance(steps)
        if self.rules.admission == "reserve":
            decoding.free = free
        counts.least_free = min(counts.least_free, decoding.free)
        counts.decoded += steps * decoding.count

    def ended(self) -> list[int]:
        """Return the requests that have all their tokens, in order; they end.

        >>> running = RunningRequests(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> _ = running.begin_decoding(0, 6, 8)
        >>> running.decode(8)
        >>> running.ended(), running.ended()
        ([0], [])
        """
        ended = self.decoding.ended()
        for request in ended:
            self._end(request, self.decoding.remove(request)[0])
        return ended

    def give_back(self) -> None:
        """Free the blocks and places of requests that had ended before the last iteration.

        >>> rules = SchedulerRules(4, 8, BlockPool(9, 4), asynchronous=True)
        >>> running = RunningRequests(RequestLoad((6,), (1,)), rules, StepCounts())
        >>> running.add(0, 6)
        >>> _ = running.begin_decoding(0, 6, 0)
        >>> before = running.decoding.free
        >>> running.give_back()
        >>> before, running.decoding.free
        (7, 9)
        """
        self.decoding.free += self.returned_blocks
        self.returned_blocks = self.returned_seqs = 0

    def _end(self, request: int, tokens: int) -> None:
        self.active.remove(request)
        blocks = self._released(request, tokens)
        if self.rules.asynchronous:
            self.returned_blocks += blocks
            self.returned_seqs += 1
        else:
            self.decoding.free += blocks

    def _released(self, request: int, tokens: int) -> int:
        """Return the blocks that a request of n tokens no longer holds [1]."""
        pool = self.pool
        unshared = self._unshared(request, self._reserved.pop(request, tokens))
        return pool.groups * -(-unshared // pool.block_tokens) + self._window.pop(request)

    def _unshared(self, request: int, tokens: int) -> int:
        return max(0, tokens - self._shared[request] - self.pool.shared_tokens)


class Scheduler:
    """Requests that wait for an engine, and which of them its next iteration computes."""

    def __init__(self, load: RequestLoad, rules: SchedulerRules, counts: StepCounts) -> None:
        self.rules, self.counts = rules.in_iterations(), counts
        self.running = RunningRequests(load, self.rules, counts)
        self.decoding, self.active = self.running.decoding, self.running.active
        self.waiting: deque[int] = deque()
        #: The rules with the cache in tokens; of a request that was preempted, nothing is prefilled.
        self._token_rules, self._preempted_rules = rules, replace(rules, prefilled=False)
        self._preempted: set[int] = set()
        self._kinds = load.kinds or (0,) * len(load)
        #: Requests that were admitted, the youngest last; some have ended.
        self._admitted: list[int] = []
        self._left = list(load.outputs)
        #: Tokens of the prompt that a request computes: with what it had generated when it was preempted.
        self.prompt = list(load.inputs)
        #: The one prompt that is computed in part, its tokens so far; -1: none.
        self._partial, self._partial_done = -1, 0
        self._reserve = ReservedShare()
        #: What the first request that waits is short of: blocks, seqs or tokens.
        self._blocked = ""

    def chunks(self) -> list[tuple[int, Chunk]]:
        """Return the chunks of prefill of the next iteration with their requests; decodes get their blocks.

        >>> scheduler = Scheduler(RequestLoad((6, 6), (3, 1)), rules, StepCounts())
        >>> scheduler.waiting.extend((0, 1))
        >>> [(request, chunk.new_tokens) for request, chunk in scheduler.chunks()]
        [(0, 6), (1, 2)]
        """
        rules, decoding = self.rules, self.decoding
        if rules.prefill == "first":
            chunks = self._compose(rules.max_num_batched_tokens)
            if not chunks and decoding.count:
                self._make_room()
            return chunks
        preempted = self._make_room() if decoding.count else False
        if preempted and self._partial < 0:
            return []
        budget = rules.max_num_batched_tokens - rules.decode_tokens * decoding.count
        return self._compose(budget, new=not preempted)

    def decode_steps(self) -> int:
        """Return the iterations of decodes alone until one ends, blocks run short or a request may enter [1].

        >>> scheduler = Scheduler(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> scheduler.waiting.append(0)
        >>> _ = scheduler.chunks()
        >>> scheduler.prefilled(0), scheduler.decode_steps()  # the prompt gave the first token of nine
        (True, 8)
        """
        decoding, admission = self.decoding, self.rules.admission
        steps = decoding.steps_to_next_end()
        if admission != "reserve":
            steps = max(1, min(steps, decoding.steps_that_fit(steps)))
        if self.waiting and (self.running.returned_blocks or self.running.returned_seqs):
            return 1
        return min(steps, _ESTIMATE_STEPS) if self.waiting and admission == "estimate" else steps

    def passed(self, seconds: float, steps: int) -> None:
        """Count iterations that took ``seconds`` together, and what requests waited for meanwhile.

        >>> rules = SchedulerRules(0, 8, BlockPool(9, 4))
        >>> scheduler = Scheduler(RequestLoad((6,), (9,)), rules, StepCounts())
        >>> scheduler.waiting.append(0)
        >>> _ = scheduler.chunks()
        >>> scheduler.passed(0.5, 1)
        >>> scheduler.counts.waited_seqs
        0.5
        """
        counts = self.counts
        if self._blocked and self.waiting:
            counts.wait(self._blocked, seconds)
        counts.steps += steps
        self._reserve.fall(steps)
        self.running.give_back()

    def prefilled(self, request: int) -> bool:
        """Let a request decode, whose prompt gave its first token; return whether it has more to get.

        >>> scheduler = Scheduler(RequestLoad((6,), (1,)), rules, StepCounts())
        >>> scheduler.waiting.append(0)
        >>> _ = scheduler.chunks()
        >>> scheduler.prefilled(0)
        False
        """
        tokens = self.rules.scaled_tokens(self.prompt[request])
        return self.running.begin_decoding(request, tokens, self._left[request] - 1)

    def _compose(self, budget: int, *, new: bool = True) -> list[tuple[int, Chunk]]:
        """Return the chunks of the next iteration with their requests: the begun prompt, then waiting."""
        chunks: list[tuple[int, Chunk]] = []
        self._blocked = ""
        if self._partial >= 0:
            took = self._continue(budget)
            chunks.append(took)
            budget -= took[1].new_tokens
        while new and self.waiting:
            if budget <= 0 or self._partial >= 0:
                self._blocked = "tokens"
                break
            request = self.waiting[0]
            if len(self.active) + self.running.returned_seqs >= self.rules.max_num_seqs:
                self._blocked = "seqs"
                break
            if not self._admits(request, budget):
                break
            self.waiting.popleft()
            chunks.append(self._admit(request, budget))
            budget -= chunks[-1][1].new_tokens
        return chunks

    def _continue(self, budget: int) -> tuple[int, Chunk]:
        request, done = self._partial, self._partial_done
        size = min(self.prompt[request] - done, max(1, budget))
        self._partial_done += size
        if self._partial_done == self.prompt[request]:
            self._partial = -1
        return request, Chunk(size, done)

    def _cached(self, request: int, rules: SchedulerRules) -> int:
        return rules.cached_tokens(self.prompt[request], self._kinds[request])

    def _admits(self, request: int, budget: int) -> bool:
        """Return whether blocks, and tokens of a prompt that is not divided, are free for a request."""
        rules, tokens = self.rules, self.prompt[request]
        decoding, pool, needed = self.decoding, rules.pool, self.running.needed
        if not rules.chunked and tokens - self._cached(request, self._token_rules) > budget:
            self._blocked = "tokens"
            return False
        tokens = rules.scaled_tokens(tokens)
        if rules.admission == "reserve":
            fits = needed(request, tokens + self._left[request] - 1) <= decoding.free
        elif rules.admission == "estimate":
            block = pool.block_tokens * pool.groups
            free = decoding.free - self._reserve.share * decoding.remaining / block
            fits = needed(request, tokens + min(self._left[request], _MOST_LEFT)) <= free or (
                not self.active and needed(request, tokens) <= decoding.free
            )
        else:
            # The complete prompt has to fit, and what decodes needs its blocks first.
            fits = needed(request, tokens) <= decoding.free - decoding.needed() * (rules.prefill == "mixed")
        if not fits:
            self._blocked = "blocks"
        return fits

    def _admit(self, request: int, budget: int) -> tuple[int, Chunk]:
        rules, tokens = self.rules, self.prompt[request]
        allocated, reserved = rules.scaled_tokens(tokens), rules.admission == "reserve"
        if reserved:
            allocated += self._left[request] - 1
        self.running.add(request, allocated, reserved=reserved)
        self._admitted.append(request)
        again = request in self._preempted
        cached = self._cached(request, self._preempted_rules if again else self._token_rules)
        size = min(tokens - cached, budget)
        if cached + size < tokens:
            self._partial, self._partial_done = request, cached + size
        return request, Chunk(size, cached)

    def _make_room(self) -> bool:
        """Preempt the youngest until the next decodes have their blocks; return whether any was."""
        decoding, preempted = self.decoding, False
        if self.rules.admission == "reserve":
            return False
        while decoding.needed() > decoding.free:
            preempted = True
            if self.running.returned_blocks:
                self.running.give_back()
                continue
            self._preempt()
        return preempted

    def _preempt(self) -> None:
        while (youngest := self._admitted.pop()) not in self.active:
            pass
        self._preempted.add(youngest)
        self.counts.preempted += 1
        if youngest == self._partial:
            self.running.remove_partial(youngest, self.rules.scaled_tokens(self.prompt[youngest]))
            self._partial = -1
        else:
            tokens, left = self.running.remove(youngest)
            self._left[youngest], self.prompt[youngest] = left, round(tokens * self.rules.growth) + 1
            self.counts.recomputed += self.prompt[youngest]
        self.waiting.appendleft(youngest)
        self._reserve.rise()
