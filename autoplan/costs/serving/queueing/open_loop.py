"""Steady states of an open loop, whose requests arrive at a rate, in closed form.

Notation (this file only)::

    r  requests of a second                   X  most requests of a second           [1]
    D  requests that decode                   O  tokens of an answer                 [1]
    t  time of an iteration                   w  time of a prompt in an iteration    [s]
    v  variance of a gap between requests over the square of its mean                [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, sqrt

from autoplan.costs.core.served_prediction import OperatingPoint
from autoplan.costs.serving.queueing.request_load import (
    EngineQueue,
    LengthMoments,
    RunningLimit,
    running_limit,
)
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules
from autoplan.costs.serving.queueing.steady_state import balanced, maximum, steady_point
from autoplan.costs.serving.queueing.step_mixture import StepMixture, step_mixture


def open_loop(rate: float, queue: EngineQueue, *, variability: float = 1.0) -> OperatingPoint:
    """Return the steady state of r requests a second: D such that D / ((O - 1) t) is r.

    t is that of D + 1 decodes, as a request sees the D others that there are on average, and itself.
    TTFT is the rest of the iteration that runs, E[t^2] / 2 E[t], another one where iterations are composed
    ahead, the iterations of its prompt, and the wait for prompts before it. Stable where r is less than
    the maximum; above it the wait grows without end.

    >>> rules = SchedulerRules(64, 64, BlockPool(999, 4))
    >>> lengths = length_moments(RequestLoad((8, 8), (11, 11), (0.0, 0.0)), rules)
    >>> point = open_loop(0.5, EngineQueue(lengths, rules, AffineIteration(1.0)))
    >>> round(point.decodes, 2), round(point.time_to_first_token, 1)  # 0.5 x 10 s; half a step and its prompt
    (5.0, 1.5)

    Leaves out: that cache or max_num_seqs run short now and then below the maximum.
    Source: Kleinrock 1975, Queueing Systems 1, section 5.7, for the rest of a period and the wait.
    """
    top, lengths = maximum(queue, at_once=False), queue.lengths
    if rate >= top.requests_per_second:
        return replace(top, requests=inf, time_to_first_token=inf, saturated=True)
    if lengths.output <= 1:
        return _prompts_alone(rate, queue, variability)
    limit, steps = running_limit(lengths, queue.rules), lengths.output - 1

    def mixture_seen(decodes: float) -> StepMixture:
        return step_mixture(1.0 + decodes, decodes / steps, queue, with_prompt=False)

    decodes = balanced(lambda d: d / steps / mixture_seen(d).mean - rate, limit.decodes)
    _, mixture = steady_point(decodes, queue)
    admitted = _first_token(rate, decodes, mixture, queue, variability)
    ttft = admitted + _wait_for_room(rate, decodes, limit, lengths, variability)
    return OperatingPoint(
        decodes=decodes,
        requests=decodes + rate * ttft,
        step_seconds=mixture.mean,
        decode_step_seconds=mixture.decode,
        time_to_first_token=ttft,
        time_per_output_token=mixture_seen(decodes).mean + _behind(rate, mixture, admitted) / steps,
        requests_per_second=rate,
        output_tokens_per_second=rate * lengths.output,
        recomputed=1.0,
        saturated=False,
        cause=top.cause,
    )


def _wait_for_room(
    rate: float, decodes: float, limit: RunningLimit, lengths: LengthMoments, variability: float
) -> float:
    """Return the mean time that a request waits for a place or for blocks [s]: a queue with c servers.

    Of c requests that may run D run on average, r = D / c, so that
    W = r**(sqrt(2 (c + 1)) - 1) / (1 - r) S / c (v + v_S) / 2 with the time S = D / rate that each runs. The
    tokens of a step are shared by all that run, and their wait is part of the time of its prompt.

    Source: Sakasegawa 1977, doi:10.1007/BF02532775, for M/M/c; Kimura 1994 for variabilities.
    """
    if limit.cause == "max_num_batched_tokens" or rate <= 0:
        return 0.0
    places = max(1.0, limit.decodes)
    busy = min(0.999, decodes / limit.decodes)
    served = decodes / rate
    spread = (variability + lengths.spread**2) / 2.0
    return float(busy ** (sqrt(2.0 * (places + 1.0)) - 1.0) / (1.0 - busy) * served / places * spread)


@dataclass(frozen=True, slots=True)
class _Burst:
    """Spread of iterations where a longer one gets more arrivals."""

    #: Variance of an iteration [s^2].
    variance: float
    #: Correlation of an iteration with the next [1].
    next: float


def _burst(mixture: StepMixture, rules: SchedulerRules) -> _Burst:
    """Return how far iterations spread: more requests come during a long one, so that the next is long, too.

    With w seconds a prompt, A prompts that come in an iteration of t seconds make the next one of
    base + w A seconds. So iterations j apart correlate with rho^j, rho = r w, and their variance is
    w^2 r E[t] / (1 - rho^2).
    """
    spread = max(0.0, mixture.second_moment - mixture.mean**2)
    if rules.prefill == "first":
        # Prompts that come during prefill are computed before the next decode: nothing is carried over.
        return _Burst(spread, 0.0)
    rho = _prompt_share(mixture)
    return _Burst(spread / (1 - rho**2), rho)


def _prompt_share(mixture: StepMixture) -> float:
    """Return the part of the time that prompts take [1]: rho = r w."""
    return min(0.99, max(0.0, 1.0 - mixture.decode / mixture.mean))


def _behind(rate: float, mixture: StepMixture, first: float) -> float:
    """Return the time by which an answer exceeds its iterations at their mean time [s].

    Prompts that come while a request waits for its first token are computed after it, with its decodes, and
    what comes meanwhile after them: r TTFT w / (1 - rho), rho = r w.
    """
    rho = _prompt_share(mixture)
    return rho * first / (1.0 - rho) if rate > 0 else 0.0


def _first_token(
    rate: float, decodes: float, mixture: StepMixture, queue: EngineQueue, variability: float
) -> float:
    """Return the mean time to a first token [s]."""
    lengths, rules, burst = queue.lengths, queue.rules, _burst(mixture, queue.rules)
    # With few decodes an engine is idle now and then, and the iteration of a prompt starts at once.
    busy = 1.0 - exp(-decodes)
    spread = burst.variance / mixture.mean
    if rules.prefill == "first":
        begun = mixture.decode / 2
        # Prompts are served one after the other before any decode; those that came together are in it.
        share = _prompt_share(mixture)
        each = share / rate if rate > 0 else 0.0
        wait = share / (1.0 - share) * each * (variability + 1.0) / 4.0
        return busy * begun + busy * mixture.decode * rules.asynchronous + mixture.prompt + wait
    rest = busy * (mixture.mean + spread) / 2.0
    # The next iteration is long only as far as it correlates with this one.
    ahead = busy * (mixture.mean + burst.next * spread) * rules.asynchronous
    # Prompts that came in the same iteration, of which a long one gets more.
    w = max(0.0, mixture.mean - mixture.decode) / max(rate * mixture.mean, 1e-12)
    crowd = w * rate * spread * variability
    capacity = max(1.0, rules.max_num_batched_tokens - rules.decode_tokens * decodes)
    # The budget for prompts is a server whose load is the share of it that prompts use.
    load = min(0.999, rate * mixture.mean * lengths.computed / capacity)
    service = mixture.mean * lengths.computed / capacity
    wait = load / (1.0 - load) * service * (variability + 1.0) / 2.0
    return rest + ahead + mixture.prompt + crowd + wait


def _prompts_alone(rate: float, queue: EngineQueue, variability: float) -> OperatingPoint:
    """Return the steady state of requests with one token each: a server of prompts."""
    top = maximum(queue, at_once=False)
    # Nothing decodes, so an iteration without prompts takes no time, and there is no rate to read off it.
    mixture = step_mixture(0.0, 0.0, queue)
    service = 1.0 / top.requests_per_second
    load = rate * service
    wait = load / (1.0 - load) * service * (variability + 1.0) / 2.0
    ttft = mixture.prompt + wait
    return OperatingPoint(
        decodes=0.0,
        requests=rate * ttft,
        step_seconds=mixture.prompt,
        decode_step_seconds=mixture.decode,
        time_to_first_token=ttft,
        time_per_output_token=0.0,
        requests_per_second=rate,
        output_tokens_per_second=rate,
        recomputed=1.0,
        saturated=False,
        cause=top.cause,
    )
