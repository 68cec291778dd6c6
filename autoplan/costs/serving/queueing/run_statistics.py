"""Percentiles and rates of a simulated run.

Notation (this file only)::

    p50, p90, p99  quantiles of a duration over requests                             [s]

The outcome of a simulation: when each request got its tokens, and what the iterations did.

Notation (this file only)::

    a gap is the time between two tokens of an answer                                [s]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    Distribution,
    LatencyStatistics,
    SaturationCause,
)
from autoplan.costs.serving.queueing.request_load import RequestLoad

#: Whether a request with this time to its first token, per output token and in all [s], of a class by its
#: number, holds every limit.
Good = Callable[[float, float, float, int], bool]
#: Share of the time that requests wait for room above which an engine is saturated.
_SATURATED = 0.5


def distribution(values: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> Distribution:
    """Return mean and quantiles of ``values``, each counted ``weights`` times.

    >>> distribution(np.array([1.0, 3.0]), np.array([3, 1]))
    Distribution(mean=1.5, p50=1.0, p90=3.0, p99=3.0)
    """
    if weights is None:
        p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99)).tolist()
        return Distribution(float(values.mean()), p50, p90, p99)
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    places = np.searchsorted(total, np.array([0.5, 0.9, 0.99]) * total[-1])
    p50, p90, p99 = values[order][np.minimum(places, len(order) - 1)].tolist()
    return Distribution(float((values * weights).sum() / total[-1]), p50, p90, p99)


def run_statistics(
    run: SimulatedRun,
    *,
    warm: int = 0,
    drain: int = 0,
    good: Good | None = None,
    front_seconds: float = 0.0,
    names: Sequence[str] = (),
) -> LatencyStatistics:
    """Return what the requests of ``run`` saw, without the first ``warm`` and the last ``drain`` of them.

    Rates are those between the ends of the first and the last answer that count: of the run without
    ``warm`` and ``drain``. The gaps between tokens are those of the entire run. ``front_seconds``: time of a
    request before the scheduler sees it, which its first token and its end come later by. ``names``: those
    of the classes of requests, by number.

    >>> from autoplan.costs.serving.queueing.event_simulation import simulate
    >>> load = RequestLoad((5, 5), (3, 3), (0.0, 0.0))
    >>> run = simulate(load, SchedulerRules(2, 64, BlockPool(9, 16)), AffineIteration(1.0))
    >>> seen = run_statistics(run)
    >>> seen.time_to_first_token.p99, seen.output_tokens_per_second  # 6 tokens in 3 s
    (1.0, 2.0)
    """
    chosen = slice(warm, len(run.load) - drain)
    queued, first, last = (np.array(x)[chosen] for x in (run.queued, run.first, run.last))
    outputs = np.array(run.load.outputs)[chosen]
    several = outputs > 1
    ttft, latency = first - queued + front_seconds, last - queued + front_seconds
    tpot = (last - first) / np.maximum(outputs - 1, 1)
    kinds = np.array(run.load.kinds or (0,) * len(run.load))[chosen]
    holds = np.ones(len(kinds), dtype=np.bool_)
    if good is not None:
        holds = np.fromiter(starmap(good, zip(ttft, tpot, latency, kinds, strict=True)), np.bool_, len(kinds))
    share = float(holds.mean())
    requests, tokens, seconds = _rates(run, warm, drain)
    gaps = np.array(run.gaps).reshape(-1, 2)
    return LatencyStatistics(
        requests=len(queued),
        seconds=run.counts.seconds,
        time_to_first_token=distribution(ttft),
        time_per_output_token=distribution(tpot[several]) if several.any() else None,
        inter_token=distribution(gaps[:, 0], gaps[:, 1].astype(np.int64)) if len(gaps) else None,
        request_latency=distribution(latency),
        output_tokens_per_second=tokens / seconds,
        requests_per_second=requests / seconds,
        goodput=share,
        good_requests_per_second=share * requests / seconds,
        preempted=run.counts.preempted,
        saturation=_saturation(run),
        classes=tuple(
            _of_class(name, (ttft, tpot, latency), holds, several, kinds == number)
            for number, name in enumerate(names)
            if (kinds == number).any()
        ),
    )


def _of_class(
    name: str,
    times: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    holds: NDArray[np.bool_],
    several: NDArray[np.bool_],
    members: NDArray[np.bool_],
) -> ClassStatistics:
    """Return what the requests ``members`` of a class saw; ``several``: those with more than one token."""
    ttft, tpot, latency = times
    return ClassStatistics(
        name=name,
        requests=int(members.sum()),
        time_to_first_token=distribution(ttft[members]),
        time_per_output_token=distribution(tpot[members & several]) if (members & several).any() else None,
        request_latency=distribution(latency[members]),
        goodput=float(holds[members].mean()),
    )


def _rates(run: SimulatedRun, warm: int, drain: int) -> tuple[int, float, float]:
    """Return the requests that end in the time that counts, their tokens, and that time [s]."""
    last, outputs = np.array(run.last), np.array(run.load.outputs)
    order = np.argsort(last, kind="stable")
    end = len(last) - drain
    if warm == 0 or last[order[end - 1]] <= last[order[warm - 1]]:
        # Those that count may all end in one iteration, which has no length: then all of the run counts.
        return end, float(outputs[order[:end]].sum()), float(last[order[end - 1]] - min(run.queued))
    counted = order[warm:end]
    return len(counted), float(outputs[counted].sum()), float(last[order[end - 1]] - last[order[warm - 1]])


def _saturation(run: SimulatedRun) -> SaturationCause | None:
    counts = run.counts
    waited: dict[SaturationCause, float] = {
        "kv cache": counts.waited_blocks,
        "max_num_seqs": counts.waited_seqs,
        "max_num_batched_tokens": counts.waited_tokens,
    }
    most = max(waited, key=lambda cause: waited[cause])
    return most if waited[most] > _SATURATED * counts.seconds else None


class ClosedForm(Protocol):
    """Mean latencies and throughput of a load in closed form."""

    @property
    def time_to_first_token(self) -> float:
        """Mean time to the first token [s]."""

    @property
    def time_per_output_token(self) -> float:
        """Mean time between tokens [s]."""

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens a second."""


def closed_form_gaps(point: ClosedForm, run: LatencyStatistics, kind: str) -> tuple[float, float]:
    """Return how far a closed form is from a run under a load: throughput and TPOT, and TTFT [1].

    The throughput of an open loop is its rate, but for the draw of arrivals.

    >>> times = Distribution(0.5, 0.5, 0.5, 0.5)
    >>> run = SimpleNamespace(output_tokens_per_second=2.0, time_per_output_token=times,
    ...                       time_to_first_token=times)
    >>> point = SimpleNamespace(output_tokens_per_second=2.2, time_per_output_token=0.5,
    ...                         time_to_first_token=1.0)
    >>> [round(gap, 6) for gap in closed_form_gaps(point, run, "closed loop")]
    [0.1, 1.0]
    """
    bounded = kind != "maximum" and point.time_to_first_token < inf
    pairs = []
    if kind != "open loop" or not bounded:
        pairs.append((point.output_tokens_per_second, run.output_tokens_per_second))
    if run.time_per_output_token is not None:
        pairs.append((point.time_per_output_token, run.time_per_output_token.mean))
    first = [(point.time_to_first_token, run.time_to_first_token.mean)] if bounded else []
    return _largest(pairs), _largest(first)


def _largest(pairs: list[tuple[float, float]]) -> float:
    return max((abs(closed / value - 1) for closed, value in pairs if value > 0), default=0.0)


@dataclass(slots=True)
class StepCounts:
    """What the iterations of a run did, in sums."""

    steps: int = 0
    seconds: float = 0.0
    decoded: int = 0
    prefilled: int = 0
    preempted: int = 0
    recomputed: int = 0
    #: Least free blocks.
    least_free: int = 0
    #: Time in which requests waited for a block, for one of the most requests, for tokens of a step.
    waited_blocks: float = 0.0
    waited_seqs: float = 0.0
    waited_tokens: float = 0.0

    def wait(self, cause: str, seconds: float) -> None:
        """Add to the time in which requests waited for ``cause``: blocks, seqs or tokens [s].

        >>> counts = StepCounts()
        >>> counts.wait("blocks", 0.5)
        >>> counts.waited_blocks
        0.5
        """
        name = f"waited_{cause}"
        setattr(self, name, getattr(self, name) + seconds)


@dataclass(slots=True)
class SimulatedRun:
    """When each request was sent, admitted, and got its first and last token [s]."""

    load: RequestLoad
    queued: list[float]
    scheduled: list[float]
    first: list[float]
    last: list[float]
    #: Gaps between two tokens [s], each with how many had it.
    gaps: list[tuple[float, int]] = field(default_factory=list)
    counts: StepCounts = field(default_factory=StepCounts)
    #: Blocks that are free at the end.
    free: int = 0
