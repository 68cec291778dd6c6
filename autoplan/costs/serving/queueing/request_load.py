"""Requests that a server gets: lengths drawn from a distribution, and when they come.

Notation (this file only)::

    r  requests of a second                                                          [1]
    v  variance of a gap over the square of its mean                                 [1]
    m  median    q  99 % quantile    z  quantile of the standard normal: 2.326       [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from autoplan.schema.serving.request_lengths import (
    LENGTH_SPREAD,
    GammaArrivals,
    Length,
    LogNormalLength,
    RequestLengths,
    RequestTrace,
    ServingWorkload,
    evenly_drawn,
)

#: Time of a client between the end of an answer and its next request [s]: more than none, so that the
#: iteration after the answer has begun.
CLIENT_SECONDS = 1e-3
#: Rounds of each client in a simulation, and the fewest: two until the loop is steady, and one as it ends.
_ROUNDS, _FEWEST_ROUNDS = 6, 4
_Z99 = 2.3263478740408408
#: Longest length that is drawn from a distribution without end, over its 99 % quantile.
_TAIL = 4.0


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Requests of one engine in the order in which they are sent."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: When each is sent [s], in order; empty for a closed loop.
    arrivals: tuple[float, ...] = ()
    #: Clients of a closed loop, each with one request at a time; 0: an open loop.
    clients: int = 0
    client_seconds: float = CLIENT_SECONDS
    #: Time that the front end spends on a request and meanwhile on no other: one over the requests a second
    #: that it holds [s].
    front_end_busy: float = 0.0
    #: Class of each request by number; empty: all are of one class.
    kinds: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.inputs)

    @property
    def mean_input(self) -> float:
        """Mean tokens of a prompt."""
        return sum(self.inputs) / len(self.inputs)

    @property
    def mean_output(self) -> float:
        """Mean tokens of an answer."""
        return sum(self.outputs) / len(self.outputs)


def arrival_variability(workload: ServingWorkload) -> float:
    """Return v, the variance of a gap between requests over the square of its mean [1].

    >>> arrival_variability(ServingWorkload(input_tokens=8, output_tokens=4, request_rate=2.0))
    1.0
    """
    if isinstance(workload.arrivals, GammaArrivals):
        return workload.arrivals.gamma
    return 0.0 if workload.arrivals == "constant" else 1.0


def requests_of_rounds(clients: int, fewest: int, most: int) -> int:
    """Return the requests of a closed loop's simulation, as many for each client where ``most`` allows that.

    Clients that are in step end together, so that a part of a round would count answers without their time.

    >>> [requests_of_rounds(clients, 400, 4000) for clients in (64, 700, 100_000)]
    [448, 3500, 4000]
    """
    rounds = min(max(_ROUNDS, ceil(fewest / clients)), most // clients)
    return rounds * clients if rounds >= _FEWEST_ROUNDS else most


def drawn_lengths(
    length: Length,
    requests: int,
    rng: Generator,
    recorded: tuple[int, ...] = (),
    spread: float = LENGTH_SPREAD,
) -> NDArray[np.int64]:
    """Return ``requests`` integers of tokens [1].

    A number is a mean, with lengths up to ``spread`` of it shorter or longer. A log-normal length is
    exp(ln m + z' (ln q - ln m) / z), at most four times its 99 % quantile. A trace is repeated from its
    start.

    >>> from autoplan.schema.serving.request_lengths import TraceLength
    >>> drawn_lengths(FixedLength(fixed=7), 2, np.random.default_rng(0)).tolist()
    [7, 7]
    >>> drawn_lengths(TraceLength(trace="x.csv"), 3, np.random.default_rng(0), (5, 6)).tolist()
    [5, 6, 5]
    """
    ends = evenly_drawn(length, spread)
    if ends is not None:
        return rng.permutation(_evenly(*ends, requests))
    if isinstance(length, LogNormalLength):
        shape = length.lognormal
        spread = (log(shape.p99) - log(shape.median)) / _Z99
        drawn = np.exp(rng.normal(log(shape.median), spread, requests))
        return np.clip(np.rint(drawn), 1, _TAIL * shape.p99).astype(np.int64)
    return np.resize(np.array(recorded, dtype=np.int64), requests)


def _evenly(first: int, last: int, requests: int) -> NDArray[np.int64]:
    """Return integers at even distances from the first to the last: their mean is that of the range."""
    parts = (np.arange(requests) + 0.5) / requests
    return np.asarray(first + np.floor(parts * (last - first + 1)), dtype=np.int64)


def drawn_load(
    workload: ServingWorkload, requests: int, seed: int = 0, trace: RequestTrace | None = None
) -> RequestLoad:
    """Return ``requests`` requests of ``workload`` for all engines together.

    Gaps of an open loop have the mean 1/r and the variance v / r**2: 0 of constant, 1 of Poisson arrivals. A
    trace with arrivals keeps its gaps, scaled to the rate of the workload; without concurrency or rate all
    requests come at once.

    >>> load = drawn_load(ServingWorkload(input_tokens=8, output_tokens=4, request_rate=2.0,
    ...                                   arrivals="constant"), 3)
    >>> load.arrivals
    (0.0, 0.5, 1.0)
    """
    rng = np.random.default_rng(seed)
    inputs, outputs, kinds = _lengths(workload, requests, rng, trace)
    load = RequestLoad(tuple(inputs.tolist()), tuple(outputs.tolist()), kinds=kinds)
    if workload.concurrency is not None:
        return replace(load, clients=workload.concurrency)
    recorded = trace is not None and trace.rate > 0 and workload.arrivals is None
    if workload.request_rate is not None and trace is not None and recorded:
        faster = trace.rate / workload.request_rate
        repeated = _repeated(trace.arrivals, requests)
        return replace(load, arrivals=tuple(time * faster for time in repeated))
    if workload.request_rate is not None:
        times = _arrivals(workload, workload.request_rate, requests, rng)
        return replace(load, arrivals=tuple(times.tolist()))
    return replace(load, arrivals=(0.0,) * requests)


def _lengths(
    workload: ServingWorkload, requests: int, rng: Generator, trace: RequestTrace | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
    if not workload.classes:
        return *_of_kind(workload, workload.longest_request, (requests, rng, trace)), ()
    chosen = _kinds([request_class.share for request_class in workload.classes], requests, rng)
    inputs, outputs = np.empty(requests, dtype=np.int64), np.empty(requests, dtype=np.int64)
    for number, kind in enumerate(workload.classes):
        here = chosen == number
        drawn = (int(here.sum()), rng, trace)
        inputs[here], outputs[here] = _of_kind(kind, workload.longest_request, drawn)
    return inputs, outputs, tuple(chosen.tolist())


def _kinds(weights: list[float], requests: int, rng: Generator) -> NDArray[np.int64]:
    """Return the class of each request, in random order: each as often as its weight says.

    Counts that are drawn as well would make the mean of a rare class a matter of luck. What whole numbers
    leave over goes to the largest remainders. A class that is too rare for that has a request all the same,
    of the class with the most: without one it would have no figures.
    """
    exact = np.array(weights) / sum(weights) * requests
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: requests - int(counts.sum())]] += 1
    for rare in np.flatnonzero(counts == 0)[: max(0, requests - len(counts))]:
        counts[rare] += 1
        counts[int(np.argmax(counts))] -= 1
    return rng.permutation(np.repeat(np.arange(len(weights)), counts))


def _of_kind(
    kind: RequestLengths,
    longest: int | None,
    drawn: tuple[int, Generator, RequestTrace | None],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    requests, rng, trace = drawn
    recorded, spread = trace or RequestTrace((1,), (1,), ()), kind.spread(longest)
    inputs = drawn_lengths(kind.input_tokens, requests, rng, recorded.inputs, spread)
    return inputs, drawn_lengths(kind.output_tokens, requests, rng, recorded.outputs, spread)


def _arrivals(workload: ServingWorkload, rate: float, requests: int, rng: Generator) -> NDArray[np.float64]:
    mean = 1.0 / rate
    if workload.arrivals == "constant":
        gaps = np.full(requests, mean)
    elif isinstance(workload.arrivals, GammaArrivals):
        shape = 1.0 / workload.arrivals.gamma
        gaps = rng.gamma(shape, mean / shape, requests)
    else:
        gaps = rng.exponential(mean, requests)
    times: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(gaps)[:-1]))
    return times


def _repeated(arrivals: tuple[float, ...], requests: int) -> tuple[float, ...]:
    """Return so many arrivals: those recorded, repeated a mean gap after the last."""
    period = arrivals[-1] + arrivals[-1] / max(1, len(arrivals) - 1)
    return tuple(arrivals[i % len(arrivals)] + period * (i // len(arrivals)) for i in range(requests))


def shared_out(load: RequestLoad, engines: int, number: int = 0) -> RequestLoad:
    """Return what engine ``number`` of ``engines`` gets where requests go to them in turn.

    >>> load = RequestLoad((1, 2, 3, 4, 5), (1, 1, 1, 1, 1), clients=5)
    >>> shared_out(load, 2).inputs, shared_out(load, 2).clients, shared_out(load, 2, 1).clients
    ((1, 3, 5), 3, 2)
    """
    clients = len(range(number, load.clients, engines))
    return replace(
        load,
        inputs=load.inputs[number::engines],
        outputs=load.outputs[number::engines],
        arrivals=load.arrivals[number::engines],
        clients=clients,
        kinds=load.kinds[number::engines],
    )
