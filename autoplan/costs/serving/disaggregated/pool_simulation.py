"""Event simulation of engines that prefill, engines that decode, the links between them, and their clients.

Notation (this file only)::

    x  prefill engines, y  decode engines, or their attention data-parallel ranks    [1]
    t  when an iteration of a prefill engine starts, or a request may end on a decode
       engine: the earliest goes first                                               [s]
    g  common divisor of the engines of both pools: one g-th of each is simulated    [1]

Engines are those of ``event_simulation``. Requests go to the engines of a pool in turn. A transfer occupies
the links of both engines; one that is sent in chunks has begun while the prompt was computed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from math import ceil, gcd, inf
from typing import Final

from autoplan.costs.core.served_prediction import CacheTransfer, PooledPrediction, SimulatedPrediction
from autoplan.costs.serving.classes import fewest_simulated
from autoplan.costs.serving.disaggregated.paired_pools import EnginePair
from autoplan.costs.serving.disaggregated.role_engines import DecodeEngine, PrefillEngine
from autoplan.costs.serving.queueing.decoding_set import check_admissible, in_iterations
from autoplan.costs.serving.queueing.event_simulation import Arrivals, SimulatedEngine
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS, RequestLoad, drawn_load, shared_out
from autoplan.costs.serving.queueing.run_statistics import (
    Good,
    SimulatedRun,
    StepCounts,
    closed_form_gaps,
    run_statistics,
)
from autoplan.costs.serving.served_layouts import PricedEngine, front_end_seconds
from autoplan.schema.serving.request_lengths import RequestTrace
from autoplan.schema.serving.serving_spec import ServingJob

#: Time that the transfer of a prompt of so many tokens occupies links, and the part after prefill [s].
Sends = Callable[[int], tuple[float, float]]


def proportional_sends(transfer: CacheTransfer, mean: float) -> Sends:
    """Return the transfers of prompts of any tokens, from the ``transfer`` of a prompt of ``mean`` tokens.

    >>> proportional_sends(CacheTransfer(1e9, 1e9, 0.5, 0.25), 100.0)(200)
    (1.0, 0.5)
    """
    return lambda tokens: (transfer.seconds * tokens / mean, transfer.exposed_seconds * tokens / mean)


class _PooledArrivals(Arrivals):
    """Requests that reach an engine of a pool while it runs, and those that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[int] = []
        #: When the next request may come at the earliest [s].
        self.horizon = inf

    def next_time(self) -> float:
        return min(super().next_time(), self.horizon)

    def ended(self, request: int, time: float) -> None:
        del time
        self.answered.append(request)

    def accept(self, time: float, request: int) -> None:
        """Schedule the arrival of a request."""
        if self.incoming and self.incoming[-1][0] > time:
            arrivals = list(self.incoming)
            insort(arrivals, (time, request))
            self.incoming.clear()
            self.incoming.extend(arrivals)
        else:
            self.incoming.append((time, request))


class _RoleEngine(SimulatedEngine):
    """An engine of a pool: requests arrive while it runs, and it reports which have ended."""

    def __init__(self, load: RequestLoad, engine: PricedEngine) -> None:
        self.pooled = _PooledArrivals()
        super().__init__(load, engine.rules, in_iterations(engine.iteration, engine.rules), self.pooled)
        #: When the link is free [s].
        self.link = 0.0
        #: When a request that decodes may end at the earliest [s]; None: not known since the last iteration.
        self._next_end: float | None = None

    @property
    def event(self) -> float:
        """Time of the next event [s]."""
        if self.scheduler.active or self.scheduler.waiting:
            return self.now
        return max(self.now, self.pooled.incoming[0][0]) if self.pooled.incoming else inf

    @property
    def next_end(self) -> float:
        """Earliest time at which a request may end [s]: iterations of decodes only become longer."""
        scheduler = self.scheduler
        if scheduler.waiting:
            return self.now
        if self._next_end is None:
            decoding = scheduler.decoding
            steps = decoding.steps_to_next_end() if decoding.count else 0
            step = self.iteration.seconds(decoding.count, decoding.context) if steps else 0.0
            self._next_end = self.now + steps * step if steps else inf
        incoming = self.pooled.incoming
        return min(self._next_end, max(self.now, incoming[0][0])) if incoming else self._next_end

    def answered(self) -> list[int]:
        """Run one iteration, or a stretch of decodes; return the requests that ended by it."""
        self._next_end = None
        self.advance()
        answered, self.pooled.answered = self.pooled.answered, []
        return answered


def simulate_pools(
    load: RequestLoad,
    prefill: tuple[PrefillEngine, int],
    decode: tuple[DecodeEngine, int],
    sends: Sends,
    steps: tuple[int, ...] | None = None,
) -> SimulatedRun:
    """Return the run of ``load`` on so many attention data-parallel ranks that prefill, and that decode.

    ``steps``: iterations of each answer, where they are not its tokens. Deterministic. Raises
    UnsupportedError for a request that is never admitted.

    >>> rules = SchedulerRules(8, 64, BlockPool(99, 4))
    >>> first = SimpleNamespace(engine=SimpleNamespace(rules=rules, iteration=AffineIteration(2.0)))
    >>> ready = SimpleNamespace(rules=replace(rules, prefilled=True), iteration=AffineIteration(1.0))
    >>> other = SimpleNamespace(engine=ready, first=True)
    >>> load = RequestLoad((8,), (3,), (0.0,))
    >>> run = simulate_pools(load, (first, 1), (other, 1), lambda tokens: (0.5, 0.5))
    >>> run.first, run.last  # 2 s of prefill, half a second of transfer, and three decodes
    ([3.5], [5.5])

    Source: the rules of autoplan/costs/serving/queueing/event_simulation.py.
    """
    return _Pools(load, prefill, decode, sends, steps or load.outputs).run()


class _Pools:
    """The state of a simulation of both pools."""

    def __init__(
        self,
        load: RequestLoad,
        prefill: tuple[PrefillEngine, int],
        decode: tuple[DecodeEngine, int],
        sends: Sends,
        steps: tuple[int, ...],
    ) -> None:
        self.load, self.sends, self.first = load, sends, decode[0].first
        self.rules = prefill[0].engine.rules
        prompts = replace(load, outputs=(1,) * len(load), clients=0)
        answers = replace(load, outputs=steps, clients=0)
        if not self.first:
            inputs = tuple(tokens + 1 for tokens in load.inputs)
            answers = replace(answers, inputs=inputs, outputs=tuple(max(1, n - 1) for n in steps))
        check_admissible(prompts, prefill[0].engine.rules)
        check_admissible(answers, decode[0].engine.rules)
        self.prefill = [_RoleEngine(prompts, prefill[0].engine) for _ in range(prefill[1])]
        self.decode = [_RoleEngine(answers, decode[0].engine) for _ in range(decode[1])]
        self.sent = self.handed = self.done = 0
        #: When the front end has done with the requests that it got [s].
        self.front_end_free = 0.0
        #: The engine of each pool that a request went to.
        self.prefilled_by, self.decoded_by = [0] * len(load), [0] * len(load)

    def run(self) -> SimulatedRun:
        load = self.load
        for request in range(min(load.clients, len(load)) if load.clients else len(load)):
            self._send(load.arrivals[request] if load.arrivals and not load.clients else 0.0)
        while self.done < len(load):
            sender = min(self.prefill, key=lambda engine: engine.event)
            receiver = min(self.decode, key=lambda engine: engine.next_end)
            if sender.event <= receiver.next_end:
                for request in sender.answered():
                    self._hand_over(sender, request)
            else:
                self._decode(receiver, sender.event)
        return self._joined()

    def _send(self, time: float) -> None:
        """Schedule the arrival of the next request, which the front end takes after those before it."""
        number = self.sent % len(self.prefill)
        self.prefilled_by[self.sent] = number
        pooled, arrival = self.prefill[number].pooled, time
        if self.load.front_end_busy:
            self.front_end_free = arrival = max(self.front_end_free, time) + self.load.front_end_busy
            pooled.sent_at[self.sent] = time
        pooled.accept(arrival, self.sent)
        self.sent += 1

    def _hand_over(self, sender: _RoleEngine, request: int) -> None:
        """Send the keys and values of a prompt to the decode engine whose turn it is."""
        number = self.handed % len(self.decode)
        self.handed += 1
        self.decoded_by[request] = number
        receiver = self.decode[number]
        tokens, rules = self.load.inputs[request], self.rules
        kind = self.load.kinds[request] if self.load.kinds else 0
        # What requests share is in the decode engine already.
        shared = min(rules.prefix(kind).shared_tokens, tokens - 1)
        seconds, exposed = self.sends(tokens - shared)
        start = max(sender.now + exposed - seconds, sender.link, receiver.link)
        sender.link = receiver.link = start + seconds
        receiver.pooled.accept(start + seconds, request)

    def _decode(self, engine: _RoleEngine, prefill_event: float) -> None:
        """Run a decode engine up to the earliest end on another one, or time when a request may arrive."""
        others = min((e.next_end for e in self.decode if e is not engine), default=inf)
        engine.pooled.horizon = min(prefill_event, others) if self.load.clients else prefill_event
        for _ in engine.answered():
            self.done += 1
            if self.load.clients and self.sent < len(self.load):
                self._send(engine.now + self.load.client_seconds)

    def _joined(self) -> SimulatedRun:
        """Return the run of both pools together, as requests saw it."""
        size = range(len(self.load))
        prefill = [self.prefill[self.prefilled_by[request]].run for request in size]
        decode = [self.decode[self.decoded_by[request]].run for request in size]
        begun = [(run.first if self.first else run.scheduled)[r] for r, run in enumerate(decode)]
        gaps = [gap for engine in self.decode for gap in engine.run.gaps]
        if not self.first:
            gaps += [(decode[r].first[r] - begun[r], 1) for r in size if self.load.outputs[r] > 1]
        last = [run.last[r] if self.load.outputs[r] > 1 else begun[r] for r, run in enumerate(decode)]
        return SimulatedRun(
            self.load,
            queued=[run.queued[request] for request, run in enumerate(prefill)],
            scheduled=[run.scheduled[request] for request, run in enumerate(prefill)],
            first=begun,
            last=last,
            gaps=gaps,
            counts=self._counts(),
        )

    def _counts(self) -> StepCounts:
        """Return the sums of all engines; waits are those of the mean engine."""
        first, second = ([e.run.counts for e in engines] for engines in (self.prefill, self.decode))
        return StepCounts(
            steps=sum(c.steps for c in (*first, *second)),
            seconds=max(e.now for e in (*self.prefill, *self.decode)),
            decoded=sum(c.decoded for c in second),
            prefilled=sum(c.prefilled for c in first),
            preempted=sum(c.preempted for c in second),
            recomputed=sum(c.recomputed for c in second),
            least_free=min(c.least_free for c in second),
            waited_blocks=sum(c.waited_blocks for c in second) / len(second),
            waited_seqs=sum(c.waited_seqs for c in second) / len(second),
            waited_tokens=sum(c.waited_tokens for c in first) / len(first),
        )


#: Requests of a simulation: at least, and at most; rounds of each client.
_FEWEST: Final = 400
_MOST: Final = 4000
#: Those of a simulation whose pools are always full, of which a quarter to a half counts.
_FEWEST_AT_ONCE: Final = 1000
_MOST_AT_ONCE: Final = 20_000
_ROUNDS: Final = 8
_SEED: Final = 0


def simulated_pools(
    job: ServingJob,
    pair: EnginePair,
    prediction: PooledPrediction,
    trace: RequestTrace | None = None,
    good: Good | None = None,
) -> SimulatedPrediction | None:
    """Return the simulation of the pools of ``prediction``; None where they cannot serve.

    >>> pair = h100_pair("prefill=(tp=1,x=1)/decode=(tp=1,x=1)")
    >>> pools = pooled(serving_job, pair, EngineLoad("closed loop", 8.0))
    >>> simulated_pools(serving_job, pair, pools).gap < 0.05
    True

    Source: autoplan/costs/serving/disaggregated/pool_simulation.py.
    """
    if pair.shortage is not None:
        return None
    parts = gcd(pair.senders, pair.receivers)
    load, workload = prediction.load, job.workload
    requests, warm, drain = _counted(prediction, pair, parts, max(_FEWEST, fewest_simulated(workload)))
    if load.kind == "closed loop":
        clients = max(1, round(load.amount / parts))
        workload = workload.model_copy(update={"concurrency": clients * parts})
    drawn = shared_out(drawn_load(workload, requests * parts, _SEED, trace), parts)
    front = busy = 0.0
    if load.kind != "maximum":
        front = front_end_seconds(job, drawn.mean_input, pools=True)
        busy = pair.front_end_busy(job, drawn.mean_input, parts)
    drawn = replace(drawn, client_seconds=CLIENT_SECONDS + front, front_end_busy=busy)
    drafting = pair.decode.engine.drafting
    steps = drafting.accepted.drawn(drawn.outputs, _SEED) if drafting.accepted.drafts else drawn.outputs
    run = simulate_pools(
        drawn,
        (pair.prefill, pair.senders // parts),
        (pair.decode, pair.receivers // parts),
        proportional_sends(
            prediction.transfer, max(1.0, drawn.mean_input - pair.prefill.engine.lengths.shared)
        ),
        steps,
    )
    together = sum(drawn.outputs) - sum(steps)
    run = replace(run, load=drawn, gaps=[*run.gaps, (0.0, together)] if together > 0 else run.gaps)
    names = [request_class.name for request_class in job.workload.classes]
    statistics = run_statistics(run, warm=warm, drain=drain, good=good, front_seconds=front, names=names)
    totals = replace(
        statistics,
        output_tokens_per_second=statistics.output_tokens_per_second * parts,
        requests_per_second=statistics.requests_per_second * parts,
        good_requests_per_second=statistics.good_requests_per_second * parts,
    )
    return SimulatedPrediction(totals, _SEED, *closed_form_gaps(prediction, totals, load.kind))


def _counted(prediction: PooledPrediction, pair: EnginePair, parts: int, fewest: int) -> tuple[int, int, int]:
    """Return the requests of a simulation of one of ``parts``, and those that do not count at its ends."""
    load, running = prediction.load, ceil(prediction.decode.point.decodes * pair.receivers / parts)
    if load.kind == "closed loop":
        clients = max(1, round(load.amount / parts))
        requests = min(_MOST, max(fewest, _ROUNDS * clients))
        return requests, min(3 * clients, requests // 2), min(clients, requests // 4)
    requests = min(_MOST, max(fewest, 10 * running))
    if load.kind == "open loop":
        ends = requests // 5 if prediction.time_to_first_token < inf else 0
        return requests, ends, ends
    # A pool that is nearly as fast as the other fills slowly: the first half does not count. As many again
    # as are answered at once empty the pools at the end, and as many have to count.
    requests = max(_FEWEST_AT_ONCE, requests, min(_MOST_AT_ONCE, 6 * running))
    return requests, requests // 2, min(running, requests // 4)
