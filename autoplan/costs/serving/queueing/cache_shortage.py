"""Closed loops at the edge of the cache: requests that do not fit for a while wait.

Notation (this file only)::

    N  clients      d  requests that would decode if the cache had no end            [1]
    L  requests that the cache holds on average                                      [1]
    s  standard deviation of what d requests need, in requests                       [1]
    W  requests that wait for blocks, on average                                     [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, erf, exp, floor, inf, pi, sqrt
from typing import Final

from autoplan.costs.core.serving.iteration import Iteration
from autoplan.costs.serving.queueing.event_simulation import simulate
from autoplan.costs.serving.queueing.length_moments import LengthMoments
from autoplan.costs.serving.queueing.request_load import CLIENT_SECONDS, RequestLoad
from autoplan.costs.serving.queueing.run_statistics import run_statistics
from autoplan.costs.serving.queueing.scheduler_rules import SchedulerRules

#: Rounds of the clients that a loop of alike requests runs, and those that do not count.
_ROUNDS: Final = 12
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
    clients: float,
    running: float,
    lengths: LengthMoments,
    rules: SchedulerRules,
    iteration: Iteration,
    client_seconds: float = CLIENT_SECONDS,
) -> AlikeRun:
    """Return the run of a closed loop of requests that are all alike and do not all fit at once.

    Which of them the scheduler preempts, and when they resume, is a cycle of its rules that means do not
    describe, so some rounds of the clients are simulated, of at most twice the clients that run.

    >>> rules = SchedulerRules(8, 64, BlockPool(6, 4))
    >>> lengths = length_moments(RequestLoad((8,), (5,)), rules)  # two of 3 blocks fit
    >>> run = alike_at_the_edge(3, 2, lengths, rules, AffineIteration(1.0))
    >>> run.time_to_first_token > 1.0
    True
    """
    simulated = max(1, min(ceil(clients - 1e-9), 2 * floor(running) + 2))
    requests = simulated * _ROUNDS
    load = RequestLoad(
        (round(lengths.input),) * requests,
        (round(lengths.output),) * requests,
        clients=simulated,
        client_seconds=client_seconds,
    )
    run = simulate(load, rules, iteration)
    seen = run_statistics(run, warm=_WARM * simulated, drain=simulated)
    each = seen.time_per_output_token.mean if seen.time_per_output_token else 0.0
    return AlikeRun(simulated, seen.time_to_first_token.mean, each, seen.requests_per_second)
