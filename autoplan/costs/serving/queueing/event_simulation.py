"""Event simulation of an engine and its clients: the scheduler's decisions, and when each iteration runs.

Notation (this file only)::

    k  iterations of decodes to an arrival    t  time of the first of them           [1] or [s]
    s  growth of an iteration to the next                                            [s]
    n  tokens of a request in the cache       o  tokens that it has yet to get       [1]
    b  tokens of a block                      f  free blocks                         [1]

One iteration at a time while prompts are computed; stretches of decodes alone jump to the next end of a
request, arrival or shortage of blocks, so that the work grows with requests and not with tokens. Contexts are
counted in units of what a decode adds in an iteration.

Source of the rules: vLLM 0.33.0, v1/core/sched/scheduler.py (schedule) and async_scheduler.py; SGLang 0.5.23,
srt/managers/schedule_policy.py (PrefillAdder) and scheduler.py; TensorRT-LLM, GUARANTEED_NO_EVICT of
_torch/pyexecutor/scheduler.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import ceil, inf, sqrt

from autoplan.costs.core.iteration import Chunk, Iteration
from autoplan.costs.serving.queueing.decoding_set import (
    DecodingSet,
    ReservedShare,
    check_admissible,
    in_iterations,
    shared_by_class,
)
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.run_statistics import SimulatedRun, StepCounts
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


def simulate(load: RequestLoad, rules: SchedulerRules, iteration: Iteration) -> SimulatedRun:
    """Return the run of ``load`` on one engine from its first to its last token.

    Deterministic. Raises UnsupportedError for a request that is never admitted.

    >>> run = simulate(RequestLoad((6, 6), (3, 1), (0.0, 0.0)), rules, AffineIteration(1.0))
    >>> run.first, run.last  # 6 and 2 tokens, then a decode and 4 tokens, then a decode
    ([1.0, 2.0], [3.0, 2.0])
    """
    check_admissible(load, rules)
    engine = SimulatedEngine(load, rules, in_iterations(iteration, rules), _Clients(load))
    requests = len(load)
    while engine.done < requests:
        engine.advance()
    return engine.finished_run()


class Arrivals:
    """Requests that are on their way to an engine, in order of the time at which they arrive."""

    def __init__(self) -> None:
        self.incoming: deque[tuple[float, int]] = deque()
        #: When requests were sent that a front end kept [s].
        self.sent_at: dict[int, float] = {}

    def next_time(self) -> float:
        """Return when the next request may arrive [s]; infinite where none does."""
        return self.incoming[0][0] if self.incoming else inf

    def ended(self, request: int, time: float) -> None:
        """Take note that ``request`` has its last token."""


class _Clients(Arrivals):
    """Requests that are sent at their times, or as clients have the answers to those before them."""

    def __init__(self, load: RequestLoad) -> None:
        super().__init__()
        self.load = load
        times = (0.0,) * min(load.clients, len(load)) if load.clients else load.arrivals
        #: When the front end has done with the requests that it got.
        self.front_end_free = 0.0
        self.sent = 0
        for time in times:
            self._send(time)

    def ended(self, request: int, time: float) -> None:
        """Send the client's next request."""
        del request
        if self.load.clients and self.sent < len(self.load):
            self._send(time + self.load.client_seconds)

    def _send(self, time: float) -> None:
        """Send the next request through the front end, which takes one after the other."""
        busy = self.load.front_end_busy
        self.front_end_free = arrival = max(self.front_end_free, time) + busy
        self.incoming.append((arrival, self.sent))
        if busy:
            self.sent_at[self.sent] = time
        self.sent += 1


class SimulatedEngine:
    """The time of an engine, and the times at which requests get their tokens."""

    def __init__(
        self, load: RequestLoad, rules: SchedulerRules, iteration: Iteration, arrivals: Arrivals
    ) -> None:
        self.load, self.iteration, self.arrivals = load, iteration, arrivals
        size = len(load)
        self.run = SimulatedRun(load, [0.0] * size, [-1.0] * size, [-1.0] * size, [-1.0] * size)
        self.counts = self.run.counts
        self.scheduler = Scheduler(load, rules, self.counts)
        self.asynchronous = rules.asynchronous
        #: Whether decodes and prefill share iterations.
        self.mixed = rules.prefill == "mixed"
        #: Time now, and when the last iteration began.
        self.now = self.before = 0.0
        #: Time for which decodes waited since their last tokens, and how many did.
        self.stall, self.stalled = 0.0, 0
        self.done = 0

    def finished_run(self) -> SimulatedRun:
        """Return the run, once all requests have ended."""
        running = self.scheduler.running
        self.run.free = running.decoding.free + running.returned_blocks
        self.counts.seconds = self.now
        return self.run

    def advance(self) -> None:
        """Run one iteration, or a stretch of decodes; where nothing runs, go to the next arrival."""
        scheduler = self.scheduler
        self._ingest()
        if not scheduler.active and not scheduler.waiting:
            scheduler.running.give_back()
            self.now = self.before = max(self.now, self.arrivals.incoming[0][0])
            return
        chunks = scheduler.chunks()
        if chunks:
            self._iterate(chunks)
        elif scheduler.decoding.count:
            self._decode_stretch()
        else:
            # Nothing runs, and what waits needs what ended requests have not returned yet.
            scheduler.running.give_back()
            self.before = self.now

    def _ingest(self) -> None:
        """Queue requests that the scheduler has seen; those that came while it ran wait an iteration."""
        incoming, seen = self.arrivals.incoming, self.before if self.asynchronous else self.now
        while incoming and incoming[0][0] <= seen:
            time, request = incoming.popleft()
            self.run.queued[request] = self.arrivals.sent_at.get(request, time)
            self.scheduler.waiting.append(request)

    def _iterate(self, chunks: list[tuple[int, Chunk]]) -> None:
        """Run one iteration with chunks of prefill, with the decodes or alone."""
        self._note_scheduled(chunks)
        scheduler, decoding = self.scheduler, self.scheduler.decoding
        count = decoding.count if self.mixed else 0
        context = decoding.context if self.mixed else 0
        seconds = self.iteration.seconds(count, context, [chunk for _, chunk in chunks])
        scheduler.passed(seconds, 1)
        self.now += seconds
        self.before = self.now - seconds
        self.counts.prefilled += sum(chunk.new_tokens for _, chunk in chunks)
        if count:
            self._give_tokens(seconds, 1)
        elif decoding.count:
            self.stall, self.stalled = self.stall + seconds, decoding.count
        for request, chunk in chunks:
            if chunk.past_tokens + chunk.new_tokens == scheduler.prompt[request]:
                self._first_token(request)

    def _note_scheduled(self, chunks: list[tuple[int, Chunk]]) -> None:
        """Record when the requests of ``chunks`` were first scheduled."""
        run, begun = self.run, self.before if self.asynchronous else self.now
        for request, _ in chunks:
            if run.scheduled[request] < 0:
                run.scheduled[request] = max(begun, run.queued[request])

    def _decode_stretch(self) -> None:
        """Run decodes alone up to the next end, arrival or shortage of blocks."""
        scheduler, decoding = self.scheduler, self.scheduler.decoding
        count, context = decoding.count, decoding.context
        steps, first = scheduler.decode_steps(), 0.0
        awaited = not scheduler.waiting and self.arrivals.next_time() < inf
        if awaited or steps == 1:
            first = self.iteration.seconds(count, context)
        if awaited:
            steps = min(steps, self._steps_to_arrival(steps, first))
        seconds = first if steps == 1 else self.iteration.decode_run(count, context, steps)
        several = steps > 1 and self.asynchronous
        last = self.iteration.seconds(count, context + count * (steps - 1)) if several else seconds
        scheduler.passed(seconds, steps)
        self.now += seconds
        self.before = self.now - last
        self._give_tokens(seconds, steps)

    def _steps_to_arrival(self, most: int, first: float) -> int:
        """Return the iterations until the next arrival is seen [1], at most ``most``; the next one takes t.

        Iterations become longer as contexts grow, on a straight line between the first and the one in which
        the arrival would fall if none did: t k + s k**2 / 2 is the time of k of them.
        """
        decoding = self.scheduler.decoding
        count, context = decoding.count, decoding.context
        gap = self.arrivals.next_time() - self.now
        if gap <= first or most == 1:
            return 1
        if first <= 0:
            return most
        far = min(float(most), gap / first)
        later = self.iteration.seconds(count, context + count * far)
        growth = max(0.0, later - first) / max(far, 1.0)
        steps = 2.0 * gap / (first + sqrt(first * first + 2.0 * growth * gap))
        return max(1, min(most, ceil(steps)))

    def _give_tokens(self, seconds: float, steps: int) -> None:
        """Give the decodes their tokens of ``steps`` iterations, and record the gaps between them.

        Where prefill went first, decodes waited for it, too.
        """
        running, gaps = self.scheduler.running, self.run.gaps
        running.decode(steps)
        each, count = seconds / steps, running.decoding.count
        waited = min(self.stalled, count)
        if waited:
            gaps.append((each + self.stall, waited))
        if count * steps > waited:
            gaps.append((each, count * steps - waited))
        self.stall, self.stalled = 0.0, 0
        for request in running.ended():
            self._end(request)

    def _first_token(self, request: int) -> None:
        if self.run.first[request] < 0:
            self.run.first[request] = self.now
        if not self.scheduler.prefilled(request):
            self._end(request)

    def _end(self, request: int) -> None:
        self.run.last[request] = self.now
        self.done += 1
        self.arrivals.ended(request, self.now)
