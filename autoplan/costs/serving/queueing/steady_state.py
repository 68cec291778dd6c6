"""Steady states in closed form: the maximum of an engine, and a closed loop of clients.

Notation (this file only)::

    N  clients       C  requests that run      D  requests that decode               [1]
    I  tokens of a prompt                      O  tokens of an answer                [1]
    X  requests of a second                                                          [1]
    t  mean time of an iteration                                                     [s]
    T  max_num_batched_tokens                                                        [1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, erf, exp, floor, inf, pi, sqrt
from typing import Final

from autoplan.costs.core.served_prediction import OperatingPoint, SaturationCause
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.request_load import (
    CLIENT_SECONDS,
    EngineQueue,
    LengthMoments,
    RequestLoad,
    RunningLimit,
    running_limit,
)
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.step_mixture import StepMixture, prefill_ends, step_mixture

#: Rounds of the clients that a loop of alike requests runs, and those that do not count.
_SHORTAGE_ROUNDS: Final = 12
_WARM: Final = 4


@dataclass(frozen=True, slots=True)
class CacheShortage:
    """A cache that holds L requests on average, and requests whose needs vary."""

    limit: float
    #: Standard deviation of what one request needs, over its mean.
    spread: float
    others: float

    def score(self, wanted: float) -> float:
        """Return (L - d) / s, the standard score of the cache [1].

        >>> CacheShortage(limit=110.0, spread=0.5, others=1.0).score(100.0)  # s = 5
        2.0
        """
        deviation = self.spread * sqrt(max(0.0, wanted * self.others))
        if deviation <= 0.0:
            return inf if wanted <= self.limit else -inf
        return (self.limit - wanted) / deviation

    def waiting(self, wanted: float) -> float:
        """Return the requests that wait for blocks [1]: W = E[(need - L)+] = s (f(z) - z (1 - F(z))).

        The needs of many requests are normally distributed; z = (L - d) / s.

        >>> half = CacheShortage(limit=100.0, spread=0.5, others=1.0)
        >>> round(half.waiting(100.0), 3)  # s = 5, times f(0) = 0.3989
        1.995
        >>> round(half.waiting(200.0), 3), round(half.waiting(50.0), 3)
        (100.0, 0.0)

        Source: the normal loss function, Zipkin 2000, Foundations of Inventory Management, section C.2.4.
        """
        z = self.score(wanted)
        if z == inf:
            return 0.0
        if z == -inf:
            return wanted - self.limit
        deviation = (self.limit - wanted) / z if z else self.spread * sqrt(wanted * self.others)
        return deviation * (exp(-z * z / 2) / sqrt(2 * pi) - z * self.short(wanted))

    def short(self, wanted: float) -> float:
        """Return the share of the time in which the cache is short [1]: 1 - F(z).

        >>> CacheShortage(limit=100.0, spread=0.5, others=1.0).short(100.0)
        0.5
        """
        return (1.0 - erf(self.score(wanted) / sqrt(2.0))) / 2.0


@dataclass(frozen=True, slots=True)
class AlikeRun:
    """Means of a run of clients whose requests are all alike [s] or [1/s]."""

    clients: int
    time_to_first_token: float
    time_per_output_token: float
    requests_per_second: float


def alike_at_the_edge(
    clients: float, running: float, queue: EngineQueue, client_seconds: float = CLIENT_SECONDS
) -> AlikeRun:
    """Return the run of a closed loop of requests that are all alike and do not all fit at once.

    Which of them the scheduler preempts, and when they resume, is a cycle of its rules that means do not
    describe, so some rounds of the clients are simulated, of at most twice the clients that run.

    >>> rules = SchedulerRules(8, 64, BlockPool(6, 4))
    >>> lengths = length_moments(RequestLoad((8,), (5,)), rules)  # two of 3 blocks fit
    >>> run = alike_at_the_edge(3, 2, EngineQueue(lengths, rules, AffineIteration(1.0)))
    >>> run.time_to_first_token > 1.0
    True
    """
    simulated = max(1, min(ceil(clients - 1e-9), 2 * floor(running) + 2))
    requests, lengths = simulated * _SHORTAGE_ROUNDS, queue.lengths
    load = RequestLoad(
        (round(lengths.input),) * requests,
        (round(lengths.output),) * requests,
        clients=simulated,
        client_seconds=client_seconds,
    )
    run = simulate(load, queue.rules, queue.iteration)
    seen = run_statistics(run, warm=_WARM * simulated, drain=simulated)
    each = seen.time_per_output_token.mean if seen.time_per_output_token else 0.0
    return AlikeRun(simulated, seen.time_to_first_token.mean, each, seen.requests_per_second)


_ROUNDS = 40
_EXACT = 1e-9
#: Where the bracket of the root begins, as a share of the most decodes.
_LEAST = 1e-3
#: Relative tolerance of the root.
_CLOSE = 1e-3


def steady_point(decodes: float, queue: EngineQueue, *, recomputed: float = 0.0) -> tuple[float, StepMixture]:
    """Return requests a second [1/s] with D decodes, X = D / ((O - 1) t), and the mixture of iterations.

    Each preempted request recomputes its prompt and what it had generated.

    >>> rules = SchedulerRules(8, 64, BlockPool(999, 4))
    >>> lengths = length_moments(RequestLoad((8, 8), (11, 11), (0.0, 0.0)), rules)
    >>> rate, _ = steady_point(5.0, EngineQueue(lengths, rules, AffineIteration(2.0)))
    >>> rate  # 5 / (10 x 2 s)
    0.25
    """
    prompts = decodes / max(queue.lengths.output - 1, _EXACT)
    repeats = 1.0 + recomputed / queue.lengths.computed
    mixture = step_mixture(decodes, prompts * repeats, queue)
    return prompts / mixture.mean, mixture


def balanced(excess: Callable[[float], float], most: float) -> float:
    """Return the number of decodes, at most ``most``, at which ``excess`` is zero; it increases with them.

    Illinois method (regula falsi): a secant between the ends, where the end that stays counts half.

    >>> round(balanced(lambda d: d * d - 2.0, 4.0), 3)
    1.414
    """
    low, high = most * _LEAST, most
    below, above = excess(low), excess(high)
    if above <= 0:
        return most
    while below >= 0 and low > most * _EXACT**2:
        low, high, above = low * _LEAST, low, below
        below = excess(low)
    if below >= 0:
        return low
    for _ in range(_ROUNDS):
        middle = high - above * (high - low) / (above - below)
        excess_seconds = excess(middle)
        if (
            abs(middle - (high if excess_seconds * above > 0 else low)) < _CLOSE * middle
            or excess_seconds == 0
        ):
            return middle
        if excess_seconds > 0:
            high, above, below = middle, excess_seconds, below / 2
        else:
            low, below, above = middle, excess_seconds, above / 2
    return (low + high) / 2


def maximum(queue: EngineQueue, *, at_once: bool = True) -> OperatingPoint:
    """Return the steady state with requests always waiting: tokens/s = O X at the most that run.

    ``at_once``: requests that are alike and came together stay together, in groups of as many prompts as an
    iteration takes.

    >>> rules = SchedulerRules(8, 64, BlockPool(999, 4))
    >>> lengths = length_moments(RequestLoad((8, 8), (11, 11), (0.0, 0.0)), rules)
    >>> point = maximum(EngineQueue(lengths, rules, AffineIteration(2.0)))  # 8 places, 11 steps an answer
    >>> round(point.output_tokens_per_second, 6), point.cause
    (4.0, 'max_num_seqs')
    """
    if queue.lengths.output <= 1:
        return _prefill_only(queue, inf)
    limit = running_limit(queue.lengths, queue.rules)
    if queue.lengths.fixed and at_once:
        running = _running_together(queue)
        if running and not _short_of_tokens(running, limit):
            return _lockstep(running, inf, queue, limit.cause)
    return _saturated(limit, queue, inf)


def _short_of_tokens(running: float, limit: RunningLimit) -> bool:
    return limit.cause == "max_num_batched_tokens" and running > limit.decodes


def _running_together(queue: EngineQueue) -> int:
    """Return the alike requests that run in lockstep; 0 where preemption breaks the lockstep."""
    rules = queue.rules
    fitting = floor(rules.pool.own_blocks / queue.lengths.total_blocks + _EXACT)
    if rules.admission == "reserve":
        return max(1, min(fitting, rules.max_num_seqs))
    return rules.max_num_seqs if fitting >= rules.max_num_seqs else 0


def _saturated(
    limit: RunningLimit, queue: EngineQueue, clients: float, client_seconds: float = 0.0
) -> OperatingPoint:
    rate, mixture = steady_point(limit.decodes, queue, recomputed=limit.recomputed)
    return _point(limit, queue.lengths, mixture, rate, clients, client_seconds=client_seconds)


def _point(
    limit: RunningLimit,
    lengths: LengthMoments,
    mixture: StepMixture,
    rate: float,
    clients: float,
    ttft: float | None = None,
    client_seconds: float = 0.0,
) -> OperatingPoint:
    """Return a steady state as a value; without ``ttft`` it is saturated, with TTFT by Little's law."""
    # Preempted requests are between two tokens as well.
    tpot = mixture.mean * (1.0 + limit.preempted / limit.decodes)
    answered = (lengths.output - 1) * tpot
    return OperatingPoint(
        decodes=limit.decodes,
        requests=clients if clients < inf else rate * (answered + mixture.prompt),
        step_seconds=mixture.mean,
        decode_step_seconds=mixture.decode,
        time_to_first_token=(
            max(mixture.prompt, clients / rate - answered - client_seconds) if ttft is None else ttft
        ),
        time_per_output_token=tpot,
        requests_per_second=rate,
        output_tokens_per_second=rate * lengths.output,
        recomputed=1.0 + limit.recomputed / lengths.computed,
        saturated=ttft is None,
        cause=limit.cause,
    )


def _prefill_only(queue: EngineQueue, clients: float) -> OperatingPoint:
    """Return the steady state of requests with one token each: iterations of prompts alone."""
    lengths, rules = queue.lengths, queue.rules
    room = rules.max_num_batched_tokens / lengths.computed
    limit: SaturationCause = "max_num_batched_tokens"
    prompts = min(room, float(rules.max_num_seqs), clients, rules.pool.own_blocks / lengths.prompt_blocks)
    mixture = step_mixture(0.0, prompts, queue, together=1.0)
    time = mixture.mean if rules.prefill == "mixed" else mixture.prompt
    rate = prompts / time
    waits = clients / rate if clients < inf else inf
    return OperatingPoint(
        0.0, clients, time, mixture.decode, max(time, waits), 0.0, rate, rate, 1.0, clients > prompts, limit
    )


def closed_loop(clients: float, queue: EngineQueue, *, client_seconds: float = 0.0) -> OperatingPoint:
    """Return the steady state of N clients with a request each: N = X (TTFT + (O - 1) TPOT).

    A request waits for the iterations that have begun, one or, where iterations are composed ahead, two, and
    then for those of its prompt. It sees the other N - 1 clients as they are on average. Clients that do not
    run wait: TTFT follows from Little's law.

    >>> rules = SchedulerRules(8, 64, BlockPool(999, 4))
    >>> lengths = length_moments(RequestLoad((8, 8), (11, 11), (0.0, 0.0)), rules)
    >>> point = closed_loop(1, EngineQueue(lengths, rules, AffineIteration(2.0)))  # a prompt, and 10 decodes
    >>> point.time_to_first_token, point.time_per_output_token, round(1 / point.requests_per_second, 6)
    (2.0, 2.0, 22.0)

    Source: Reiser and Lavenberg 1980, doi:10.1145/322186.322195, for what a request sees of the others.
    """
    lengths, rules = queue.lengths, queue.rules
    if lengths.output <= 1:
        return _prefill_only(queue, clients)
    limit = running_limit(lengths, rules)
    if lengths.fixed:
        running: float = _running_together(queue)
        if clients <= running or clients * lengths.total_blocks <= rules.pool.own_blocks:
            running = min(clients, rules.max_num_seqs)
        if running and not _short_of_tokens(running, limit):
            return _lockstep(running, clients, queue, limit.cause, client_seconds)
        if not running:
            return _alike_at_the_edge(clients, limit, queue, client_seconds)
    loop = _ClosedLoop(clients, queue, client_seconds)
    if limit.cause == "kv cache":
        return _short_of_blocks(loop, limit)
    if limit.decodes <= clients and loop.state(limit.decodes).clients <= clients:
        return _saturated(limit, queue, clients, client_seconds)
    decodes = balanced(lambda d: loop.state(d).clients - clients, min(limit.decodes, clients))
    state = loop.state(decodes)
    limited = RunningLimit(decodes, limit.cause)
    return _point(limited, lengths, state.mixture, state.rate, clients, state.ttft)


def _short_of_blocks(loop: _ClosedLoop, limit: RunningLimit) -> OperatingPoint:
    """Return the steady state of clients whose requests the cache does not always hold.

    Of d requests that would decode W wait, so that N = X (TTFT + (O - 1) TPOT) + W with d - W decoding; the
    first token comes later by W / X. Preempted requests are those of a full cache, as often as it is full.
    """
    lengths, clients = loop.queue.lengths, loop.total
    spread = lengths.context_deviation / max(lengths.context, 1.0)
    shortage = CacheShortage(limit.decodes, spread, 1.0 - 1.0 / max(1.0, clients))

    def running(wanted: float) -> RunningLimit:
        share = shortage.short(wanted)
        decodes = wanted - shortage.waiting(wanted)
        return RunningLimit(decodes, limit.cause, share * limit.recomputed, share * limit.preempted)

    def state(wanted: float) -> _LoopState:
        now = running(wanted)
        return loop.state(now.decodes, now.recomputed)

    wanted = balanced(lambda d: state(d).clients + shortage.waiting(d) - clients, clients)
    seen, now, waiting = state(wanted), running(wanted), shortage.waiting(wanted)
    point = _point(now, lengths, seen.mixture, seen.rate, clients, seen.ttft + waiting / seen.rate)
    return replace(point, saturated=wanted > limit.decodes)


def _alike_at_the_edge(
    clients: float, limit: RunningLimit, queue: EngineQueue, client_seconds: float
) -> OperatingPoint:
    """Return the steady state of alike requests that do not all fit in the cache, by simulation."""
    run = alike_at_the_edge(clients, limit.decodes, queue, client_seconds)
    rate, steps = run.requests_per_second, queue.lengths.output - 1
    tpot = run.time_per_output_token
    decodes = min(limit.decodes, rate * steps * tpot)
    step = steady_point(decodes, queue)[1]
    return OperatingPoint(
        decodes=decodes,
        requests=clients,
        step_seconds=step.mean,
        decode_step_seconds=step.decode,
        # Clients beyond those that were simulated wait: Little's law.
        time_to_first_token=run.time_to_first_token + max(0.0, clients - run.clients) / rate,
        time_per_output_token=tpot,
        requests_per_second=rate,
        output_tokens_per_second=rate * queue.lengths.output,
        recomputed=1.0,
        saturated=True,
        cause=limit.cause,
    )


@dataclass(frozen=True, slots=True)
class _LoopState:
    """Latency with D requests decoding, and the number of clients at which that many decode."""

    clients: float
    rate: float
    ttft: float
    mixture: StepMixture


@dataclass(frozen=True, slots=True)
class _ClosedLoop:
    """A closed loop, whose number of decodes is the unknown."""

    total: float
    queue: EngineQueue
    client_seconds: float

    def state(self, decodes: float, recomputed: float = 0.0) -> _LoopState:
        """Return what a request sees; each recomputes so many tokens because it was preempted."""
        lengths = self.queue.lengths
        steps, others = lengths.output - 1, 1.0 - 1.0 / max(1.0, self.total)
        prompts = decodes / steps * others * (1.0 + recomputed / lengths.computed)
        # A request sees its decode, those of the others, and their prompts.
        mixture = step_mixture(1.0 + decodes * others, prompts, self.queue)
        rate = decodes / steps / mixture.mean
        busy = 1.0 - (1.0 - min(1.0, decodes / self.total)) ** max(0.0, self.total - 1.0)
        waited = busy * self._iterations_begun(mixture, prompts)
        ttft = max(0.0, waited - busy * self.client_seconds) + mixture.prompt
        return _LoopState(rate * (ttft + self.client_seconds + steps * mixture.mean), rate, ttft, mixture)

    def _iterations_begun(self, mixture: StepMixture, prompts: float) -> float:
        """Return the time of the iterations that began before the scheduler sees a request [s].

        Where prefill goes first, answers end with decodes alone, and the prompts that came with the ends of
        the decode before are computed first; else a decode runs.
        """
        ahead = float(self.queue.rules.asynchronous)
        if self.queue.rules.prefill == "mixed":
            return (1.0 + ahead) * mixture.mean
        prefill = mixture.mean - mixture.decode
        return prefill + exp(-prompts) * mixture.decode + ahead * mixture.decode


def _lockstep(
    running: float,
    clients: float,
    queue: EngineQueue,
    cause: SaturationCause,
    client_seconds: float = 0.0,
) -> OperatingPoint:
    """Return the steady state of requests that are alike: they stay in the groups they began in.

    A group is as many prompts as an iteration takes, and its requests end together. From one request of a
    place to the next there are O - 1 iterations and those of the prompt and of waiting; g = C I / T of them
    have prompts, one after the other. The groups before it decide what a request waits for. Where prefill
    goes first, all groups decode together, and so they end together. What does not run waits: Little's law.
    """
    alone, lengths, rules = clients <= running, queue.lengths, queue.rules
    steps, waited = lengths.output - 1, float(rules.asynchronous) + alone
    delay = client_seconds if alone else 0.0
    if rules.prefill == "first" or running * lengths.computed <= rules.max_num_batched_tokens:
        first, begun, decode = _one_group(running, queue)
        cycle = first + steps * decode + delay
        ttft, tpot, step = begun, (steps * decode + first - begun) / steps, decode
        decodes = running * steps * decode / cycle
    else:
        pieces = ceil(lengths.computed / rules.max_num_batched_tokens)
        count = steps + waited + pieces
        decodes = running * steps / count
        groups = ceil(
            running * lengths.computed / (rules.max_num_batched_tokens - rules.decode_tokens * decodes)
            - _EXACT
        )
        mixture = step_mixture(decodes, running / count, queue, together=min(1.0, groups / count))
        full = mixture.decode + (mixture.mean - mixture.decode) / min(1.0, groups / count)
        cycle = max(count * mixture.mean, groups * full)
        before = [min(i, waited) for i in range(groups)]
        waits = sum(n * full + (waited - n) * mixture.decode for n in before) / groups
        ttft, step, decode = max(0.0, waits - delay) + pieces * full, mixture.mean, mixture.decode
        tpot = max(decode, (cycle - waits - pieces * full) / steps)
    rate = running / cycle
    late = ttft if alone else max(ttft, clients / rate - steps * tpot - client_seconds)
    return OperatingPoint(
        decodes=decodes,
        requests=clients if clients < inf else running,
        step_seconds=step,
        decode_step_seconds=decode,
        time_to_first_token=late,
        time_per_output_token=tpot,
        requests_per_second=rate,
        output_tokens_per_second=rate * lengths.output,
        recomputed=1.0,
        saturated=not alone,
        cause=cause,
    )


def _one_group(running: float, queue: EngineQueue) -> tuple[float, float, float]:
    """Return the time of all prompts, the mean time to a first token, and that of a decode [s].

    Prompts fill iterations of T tokens one after the other, of which the last of an iteration may be divided.
    """
    decode = step_mixture(running, 0.0, queue).decode
    if queue.rules.prefill == "mixed":
        first = step_mixture(0.0, running, queue, together=1.0).mean
        return first, first, decode
    ends = prefill_ends(running, queue)
    return ends[-1], sum(ends) / len(ends), decode
