"""Event simulation of an engine's scheduler and its clients.

Notation (this file only)::

    k  iterations of decodes to an arrival    t  time of the first of them           [1] or [s]
    s  growth of an iteration to the next                                            [s]

One iteration at a time while prompts are computed; stretches of decodes alone jump to the next end of a
request, arrival or shortage of blocks, so that the work grows with requests and not with tokens.

Source of the rules: vLLM 0.33.0, v1/core/sched/scheduler.py (schedule) and async_scheduler.py; SGLang 0.5.23,
srt/managers/schedule_policy.py (PrefillAdder) and scheduler.py; TensorRT-LLM, GUARANTEED_NO_EVICT of
_torch/pyexecutor/scheduler.py.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf, sqrt

from autoplan.costs.core.serving.iteration import Chunk, Iteration
from autoplan.costs.serving.queueing.decoding_set import (
    DecodingSet,
    ReservedShare,
    check_admissible,
    in_iterations,
    shared_by_class,
)
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.costs.serving.queueing.simulated_run import SimulatedRun

__all__ = ["SimulatedEngine", "simulate"]

#: Most tokens that a request is thought to have left (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION), and iterations
#: after which admission by such an estimate is reconsidered.
_MOST_LEFT, _ESTIMATE_STEPS = 4096, 16


def simulate(load: RequestLoad, rules: SchedulerRules, iteration: Iteration) -> SimulatedRun:
    """Return the run of ``load`` on one engine from its first to its last token.

    Deterministic. Raises UnsupportedError for a request that is never admitted.

    >>> from autoplan.costs.serving.queueing.scheduler_rules import BlockPool
    >>> rules = SchedulerRules(4, 8, BlockPool(9, 4))
    >>> run = simulate(RequestLoad((6, 6), (3, 1), (0.0, 0.0)), rules, AffineIteration(1.0))
    >>> run.first, run.last  # 6 and 2 tokens, then a decode and 4 tokens, then a decode
    ([1.0, 2.0], [3.0, 2.0])
    """
    check_admissible(load, rules)
    return SimulatedEngine(load, rules, in_iterations(iteration, rules)).run()


class SimulatedEngine:
    """The state of a simulation."""

    def __init__(self, load: RequestLoad, rules: SchedulerRules, iteration: Iteration) -> None:
        self.load, self.rules, self.iteration = load, rules.in_iterations(), iteration
        #: The same with the cache in tokens.
        self.token_rules = rules
        self.decoding = DecodingSet(self.rules.pool)
        size = len(load)
        self.run_ = SimulatedRun(load, [0.0] * size, [-1.0] * size, [-1.0] * size, [-1.0] * size)
        self.counts = self.run_.counts
        self.counts.least_free = self.decoding.free
        #: Time now, and when the last iteration began.
        self.now = self.before = 0.0
        self.incoming: deque[tuple[float, int]] = deque()
        self.waiting: deque[int] = deque()
        #: Requests that were admitted, the youngest last; some have ended.
        self.admitted: list[int] = []
        self.left = list(load.outputs)
        #: Class of each request, and its tokens that the cache holds once for the class.
        self.kinds = load.kinds or (0,) * size
        self.shared = shared_by_class(load, self.rules)
        #: Tokens of the prompt that a request computes: with what it had generated when it was preempted.
        self.prompt = list(load.inputs)
        #: The one prompt that is computed in part, its tokens so far; -1: none.
        self.partial, self.partial_done = -1, 0
        self.active: set[int] = set()
        #: Blocks and places that ended requests give back after the next iteration.
        self.returned_blocks = self.returned_seqs = 0
        self.window_allocated: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        self.reserve = ReservedShare()
        self.stall, self.blocked = 0.0, ""
        self.stalled = self.sent = self.done = 0

    def run(self) -> SimulatedRun:
        """Return the run of all requests."""
        self._send_first()
        total = len(self.load)
        while self.done < total:
            self._ingest()
            if not self.active and not self.waiting:
                self._wait()
                continue
            self._step()
        self.run_.free = self.decoding.free + self.returned_blocks
        self.counts.seconds = self.now
        return self.run_

    def _send_first(self) -> None:
        clients = self.load.clients
        if clients:
            self.sent = min(clients, len(self.load))
            self.incoming.extend((0.0, request) for request in range(self.sent))
        else:
            self.incoming.extend((time, request) for request, time in enumerate(self.load.arrivals))

    def _ingest(self) -> None:
        """Queue requests that the scheduler has seen; those that came while it ran wait an iteration."""
        seen = self.before if self.rules.asynchronous else self.now
        while self.incoming and self.incoming[0][0] <= seen:
            time, request = self.incoming.popleft()
            self.run_.queued[request] = time
            self.waiting.append(request)

    def _wait(self) -> None:
        """Go to the next arrival: nothing runs."""
        self._give_back()
        self.now = self.before = max(self.now, self.incoming[0][0])

    def _give_back(self) -> None:
        self.decoding.free += self.returned_blocks
        self.returned_blocks = self.returned_seqs = 0

    def _step(self) -> None:
        rules = self.rules
        if rules.prefill == "first":
            chunks = self._compose(rules.max_num_batched_tokens)
            if chunks:
                self._iterate(chunks, decodes=False)
                return
            if self.decoding.count:
                self._make_room()
                self._decode_stretch()
                return
        else:
            preempted = self._make_room() if self.decoding.count else False
            budget = rules.max_num_batched_tokens - rules.decode_tokens * self.decoding.count
            chunks = [] if preempted and self.partial < 0 else self._compose(budget, new=not preempted)
            if chunks:
                self._iterate(chunks, decodes=True)
                return
            if self.decoding.count:
                self._decode_stretch()
                return
        # Nothing runs, and what waits needs what ended requests have not returned yet.
        self._give_back()
        self.before = self.now

    # What goes into an iteration.

    def _compose(self, budget: int, *, new: bool = True) -> list[tuple[int, Chunk]]:
        """Return the chunks of the next iteration with their requests: the begun prompt, then waiting."""
        chunks: list[tuple[int, Chunk]] = []
        self.blocked = ""
        if self.partial >= 0:
            took = self._continue(budget)
            chunks.append(took)
            budget -= took[1].new_tokens
        while new and self.waiting:
            if budget <= 0 or self.partial >= 0:
                self.blocked = "tokens"
                break
            request = self.waiting[0]
            if len(self.active) + self.returned_seqs >= self.rules.max_num_seqs:
                self.blocked = "seqs"
                break
            if not self._admits(request, budget):
                break
            self.waiting.popleft()
            chunks.append(self._admit(request, budget))
            budget -= chunks[-1][1].new_tokens
        return chunks

    def _continue(self, budget: int) -> tuple[int, Chunk]:
        request, done = self.partial, self.partial_done
        size = min(self.prompt[request] - done, max(1, budget))
        self.partial_done += size
        if self.partial_done == self.prompt[request]:
            self.partial = -1
        return request, Chunk(size, done)

    def _blocks(self, request: int, tokens: int) -> int:
        return self.rules.pool.request_blocks(tokens - self.shared[request])

    def _cached(self, request: int) -> int:
        return self.token_rules.cached_tokens(self.prompt[request], self.kinds[request])

    def _admits(self, request: int, budget: int) -> bool:
        """Return whether blocks, and tokens of a prompt that is not divided, are free for a request."""
        rules, tokens = self.rules, self.prompt[request]
        decoding, pool = self.decoding, rules.pool
        if not rules.chunked and tokens - self._cached(request) > budget:
            self.blocked = "tokens"
            return False
        tokens = rules.scaled_tokens(tokens)
        if rules.admission == "reserve":
            fits = self._blocks(request, tokens + self.left[request] - 1) <= decoding.free
        elif rules.admission == "estimate":
            block = pool.block_tokens * pool.groups
            free = decoding.free - self.reserve.share * decoding.remaining / block
            fits = self._blocks(request, tokens + min(self.left[request], _MOST_LEFT)) <= free or (
                not self.active and self._blocks(request, tokens) <= decoding.free
            )
        else:
            # The complete prompt has to fit, and what decodes needs its blocks first.
            fits = self._blocks(request, tokens) <= decoding.free - decoding.needed() * (
                rules.prefill == "mixed"
            )
        if not fits:
            self.blocked = "blocks"
        return fits

    def _admit(self, request: int, budget: int) -> tuple[int, Chunk]:
        rules, tokens, pool = self.rules, self.prompt[request], self.rules.pool
        allocated = rules.scaled_tokens(tokens)
        if rules.admission == "reserve":
            allocated += self.left[request] - 1
            self.reserved[request] = allocated
        self.decoding.free -= self._blocks(request, allocated)
        unshared = max(0, allocated - self.shared[request] - pool.shared_tokens)
        self.window_allocated[request] = pool.window_part(unshared)
        self.active.add(request)
        self.admitted.append(request)
        if self.run_.scheduled[request] < 0:
            self.run_.scheduled[request] = max(
                self.before if rules.asynchronous else self.now, self.run_.queued[request]
            )
        cached = self._cached(request)
        size = min(tokens - cached, budget)
        if cached + size < tokens:
            self.partial, self.partial_done = request, cached + size
        return request, Chunk(size, cached)

    def _make_room(self) -> bool:
        """Preempt the youngest until the next decodes have their blocks; return whether any was."""
        decoding, preempted = self.decoding, False
        if self.rules.admission == "reserve":
            return False
        while decoding.needed() > decoding.free:
            preempted = True
            if self.returned_blocks:
                self._give_back()
                continue
            self._preempt()
        return preempted

    def _preempt(self) -> None:
        while (youngest := self.admitted.pop()) not in self.active:
            pass
        self.active.remove(youngest)
        self.counts.preempted += 1
        decoding = self.decoding
        if youngest == self.partial:
            decoding.free += self._blocks(youngest, self.rules.scaled_tokens(self.prompt[youngest]))
            self.partial = -1
        else:
            tokens, left = decoding.remove(youngest)
            decoding.free += self._allocated_blocks(youngest, tokens)
            self.left[youngest], self.prompt[youngest] = left, round(tokens * self.rules.growth) + 1
            self.counts.recomputed += self.prompt[youngest]
        self.waiting.appendleft(youngest)
        self.reserve.rise()

    def _allocated_blocks(self, request: int, tokens: int) -> int:
        """Return the blocks that a request has."""
        pool, tokens = self.rules.pool, self.reserved.pop(request, tokens)
        unshared = max(0, tokens - self.shared[request] - pool.shared_tokens)
        return pool.groups * -(-unshared // pool.block_tokens) + self.window_allocated.pop(request)

    # Time.

    def _iterate(self, chunks: list[tuple[int, Chunk]], *, decodes: bool) -> None:
        """Run one iteration with chunks of prefill, with the decodes or alone."""
        decoding = self.decoding
        count = decoding.count if decodes else 0
        context = decoding.context if decodes else 0
        seconds = self.iteration.seconds(count, context, [chunk for _, chunk in chunks])
        self._pass(seconds, 1, last=seconds)
        self.counts.prefilled += sum(chunk.new_tokens for _, chunk in chunks)
        self._give_back()
        if count:
            self._advance(1)
            self._gaps(seconds, 1)
            self._finish_decoded()
        elif decoding.count:
            self.stall, self.stalled = self.stall + seconds, decoding.count
        for request, chunk in chunks:
            if chunk.past_tokens + chunk.new_tokens == self.prompt[request]:
                self._first_token(request)

    def _decode_stretch(self) -> None:
        """Run decodes alone up to the next end, arrival or shortage of blocks."""
        decoding = self.decoding
        steps = decoding.steps_to_next_end()
        if self.rules.admission != "reserve":
            steps = max(1, min(steps, decoding.steps_that_fit(steps)))
        if self.waiting and (self.returned_blocks or self.returned_seqs):
            steps = 1
        elif self.waiting and self.rules.admission == "estimate":
            steps = min(steps, _ESTIMATE_STEPS)
        elif not self.waiting and self._next_arrival() < inf:
            steps = min(steps, self._steps_to_arrival(steps))
        count, context = decoding.count, decoding.context
        seconds = self.iteration.decode_run(count, context, steps)
        several = steps > 1 and self.rules.asynchronous
        last = self.iteration.seconds(count, context + count * (steps - 1)) if several else seconds
        self._pass(seconds, steps, last=last)
        self._give_back()
        self._advance(steps)
        self._gaps(seconds, steps)
        self._finish_decoded()

    def _next_arrival(self) -> float:
        """Return when the next request may come [s]; infinite where none does."""
        return self.incoming[0][0] if self.incoming else inf

    def _steps_to_arrival(self, most: int) -> int:
        """Return the iterations until the next arrival is seen [1], at most ``most``.

        Iterations become longer as contexts grow, on a straight line between the first and the one in which
        the arrival would fall if none did: t k + s k**2 / 2 is the time of k of them.
        """
        count, context = self.decoding.count, self.decoding.context
        gap = self._next_arrival() - self.now
        if gap <= 0 or most == 1:
            return 1
        price = self.iteration.seconds
        first = price(count, context)
        if first <= 0:
            return most
        far = min(float(most), gap / first)
        growth = max(0.0, price(count, context + count * far) - first) / max(far, 1.0)
        steps = 2.0 * gap / (first + sqrt(first * first + 2.0 * growth * gap))
        return max(1, min(most, ceil(steps)))

    def _pass(self, seconds: float, steps: int, *, last: float) -> None:
        counts = self.counts
        if self.blocked and self.waiting:
            counts.wait(self.blocked, seconds)
        counts.steps += steps
        self.now += seconds
        self.before = self.now - last
        self.reserve.fall(steps)

    def _advance(self, steps: int) -> None:
        decoding = self.decoding
        free = decoding.free
        decoding.advance(steps)
        if self.rules.admission == "reserve":
            decoding.free = free
        self.counts.least_free = min(self.counts.least_free, decoding.free)
        self.counts.decoded += steps * decoding.count

    def _gaps(self, seconds: float, steps: int) -> None:
        """Record the gaps between tokens; where prefill went first, decodes waited for it, too."""
        gaps, count = self.run_.gaps, self.decoding.count
        each = seconds / steps
        waited = min(self.stalled, count)
        if waited:
            gaps.append((each + self.stall, waited))
        if count * steps > waited:
            gaps.append((each, count * steps - waited))
        self.stall, self.stalled = 0.0, 0

    # Ends.

    def _first_token(self, request: int) -> None:
        if self.run_.first[request] < 0:
            self.run_.first[request] = self.now
        left = self.left[request] - 1
        tokens = self.rules.scaled_tokens(self.prompt[request])
        if not left:
            self._end(request, tokens)
            return
        self.decoding.add(request, tokens, left, self.shared[request])

    def _finish_decoded(self) -> None:
        for request in self.decoding.ended():
            tokens, _ = self.decoding.remove(request)
            self._end(request, tokens)

    def _end(self, request: int, tokens: int) -> None:
        self.run_.last[request] = self.now
        self.active.remove(request)
        self.done += 1
        blocks = self._allocated_blocks(request, tokens)
        if self.rules.asynchronous:
            self.returned_blocks += blocks
            self.returned_seqs += 1
        else:
            self.decoding.free += blocks
        if self.load.clients and self.sent < len(self.load):
            self.incoming.append((self.now + self.load.client_seconds, self.sent))
            self.sent += 1
