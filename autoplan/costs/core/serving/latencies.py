"""How fast engines answer, as values: latencies, throughput, and what saturates.

Notation (this file only)::

    O  tokens of an answer                                                           [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

__all__ = ["ClassStatistics", "Distribution", "LatencyStatistics", "OperatingPoint", "SaturationCause"]

#: What keeps more requests from running: blocks of the cache, or the most requests or tokens of a step.
SaturationCause = Literal["kv cache", "max_num_seqs", "max_num_batched_tokens"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and quantiles of a duration over requests [s]."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class ClassStatistics:
    """What the requests of one class saw in a simulated run."""

    name: str
    requests: int
    time_to_first_token: Distribution
    #: None where every answer has one token.
    time_per_output_token: Distribution | None
    request_latency: Distribution
    #: Share of the requests of the class that hold every limit on them.
    goodput: float


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """What requests of a simulated run saw."""

    requests: int
    seconds: float
    time_to_first_token: Distribution
    #: None where every answer has one token.
    time_per_output_token: Distribution | None
    inter_token: Distribution | None
    request_latency: Distribution
    output_tokens_per_second: float
    requests_per_second: float
    #: Share of the requests that hold every limit, and how many a second do.
    goodput: float
    good_requests_per_second: float
    preempted: int
    #: What requests waited for most of the time; None where they did not wait for room.
    saturation: SaturationCause | None
    #: The same by class of requests; empty for a single class.
    classes: tuple[ClassStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The steady state of one engine (or group of data-parallel attention) under a load, in mean values."""

    #: Requests that decode at once, on average.
    decodes: float
    #: Requests in the engine and before it.
    requests: float
    #: Mean time of an iteration, and of one with decodes alone [s].
    step_seconds: float
    decode_step_seconds: float
    #: Infinite for an open loop that the engine cannot keep up with.
    time_to_first_token: float
    time_per_output_token: float
    requests_per_second: float
    output_tokens_per_second: float
    #: Tokens of prompts that are computed for each token of a prompt: more than 1 with preemption.
    recomputed: float
    #: Whether requests wait for room, and what decides.
    saturated: bool
    cause: SaturationCause

    @classmethod
    def idle(cls) -> OperatingPoint:
        """Return the state of an engine that cannot serve.

        >>> OperatingPoint.idle().requests_per_second
        0.0
        """
        return cls(0.0, 0.0, inf, inf, inf, inf, 0.0, 0.0, 1.0, saturated=True, cause="kv cache")

    @property
    def request_latency(self) -> float:
        """Mean time from a request to the end of its answer [s]: TTFT + (O - 1) TPOT.

        >>> OperatingPoint(1, 1, 2.0, 2.0, 2.0, 2.0, 0.25, 2.75, 1.0, False, "kv cache").request_latency
        22.0
        """
        output = self.output_tokens_per_second / self.requests_per_second
        return self.time_to_first_token + (output - 1) * self.time_per_output_token
