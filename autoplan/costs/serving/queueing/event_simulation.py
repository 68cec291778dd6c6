"""Event simulation of an engine and its clients: when each iteration runs, and what it gives to requests.

Notation (this file only)::

    k  iterations of decodes to an arrival    t  time of the first of them           [1] or [s]
    s  growth of an iteration to the next                                            [s]

One iteration at a time while prompts are computed; stretches of decodes alone jump to the next end of a
request, arrival or shortage of blocks, so that the work grows with requests and not with tokens.

Source of the rules: those of ``engine_scheduler``.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf, sqrt

from autoplan.costs.core.iteration import Chunk, Iteration
from autoplan.costs.serving.queueing.decoding_set import check_admissible, in_iterations
from autoplan.costs.serving.queueing.engine_scheduler import Scheduler
from autoplan.costs.serving.queueing.request_load import RequestLoad
from autoplan.costs.serving.queueing.run_statistics import SimulatedRun
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules


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
