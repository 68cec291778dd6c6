"""The prediction of engines under a load as a value.

Notation (this file only)::

    rates are of a second, times mean values over requests                           [s]

How fast engines answer, as values: latencies, throughput, and what saturates.

Notation (this file only)::

    O  tokens of an answer                                                           [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from autoplan.costs.core.serving.capacity import CapacityPrediction

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


#: What most of an iteration's time goes to.
StepBound = Literal["compute", "memory bandwidth"]


#: Relative difference of a closed form from the simulation of the same load up to which the closed form
#: counts: of throughput and time per token, and of the time to the first token.
CLOSED_FORM_GAP: Final = 0.10
FIRST_TOKEN_GAP: Final = 0.30


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of one engine: clients of a closed loop, requests a second, or as much as it can."""

    kind: Literal["closed loop", "open loop", "maximum"]
    #: Clients or requests a second; of a maximum, no number.
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftGain:
    """What drafts give and cost at the mean batch of an engine."""

    drafts: int
    #: Share of drafts that the model accepts, as the job says.
    acceptance: float
    tokens_per_step: float
    #: A step with drafts, the part of it in which they are made, and a step without any [s].
    step_seconds: float
    draft_seconds: float
    plain_step_seconds: float
    #: Largest batch at which a token takes less time with drafts than without; None: every batch that an
    #: engine may have; 0: no batch.
    gains_up_to: int | None

    @property
    def speedup(self) -> float:
        """Tokens a second of a request over those without drafts at the same batch [1].

        >>> DraftGain(1, 0.5, 1.5, 12e-3, 2e-3, 10e-3, None).speedup  # 1.5 tokens in 12 ms, one in 10 ms
        1.25
        """
        return self.tokens_per_step * self.plain_step_seconds / self.step_seconds


@dataclass(frozen=True, slots=True)
class ServedClass:
    """What requests of one class see, in mean values."""

    name: str
    #: Part of the requests of these engines.
    share: float
    #: Tokens of an answer [1].
    output_tokens: float
    #: Infinite where requests come faster than they are answered.
    time_to_first_token: float
    time_per_output_token: float

    @property
    def request_latency(self) -> float:
        """Mean time from a request to the end of its answer [s]: TTFT + (O - 1) TPOT.

        >>> ServedClass("chat", 1.0, 11.0, 0.5, 0.02).request_latency
        0.7
        """
        return self.time_to_first_token + (self.output_tokens - 1) * self.time_per_output_token


@dataclass(frozen=True, slots=True)
class SimulatedPrediction:
    """A simulation of the same load, with its seed, and how far the closed form is from it."""

    statistics: LatencyStatistics
    seed: int
    #: Larger of the relative differences of throughput and TPOT from the closed form, and that of TTFT.
    gap: float
    first_token_gap: float

    @property
    def contradicts(self) -> bool:
        """Whether the closed form differs by more than is stated of it.

        >>> SimulatedPrediction(None, 0, gap=0.2, first_token_gap=0.1).contradicts
        True
        """
        return self.gap > CLOSED_FORM_GAP or self.first_token_gap > FIRST_TOKEN_GAP


@dataclass(frozen=True, slots=True)
class ServedMeans:
    """Mean times [s] and output tokens a second of a closed form."""

    time_to_first_token: float
    time_per_output_token: float
    request_latency: float
    output_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class ServedPrediction:
    """Engines that are alike, under a load that is shared out evenly; means over all requests."""

    engines: int
    devices: int
    load: EngineLoad
    #: The steady state of one attention data-parallel rank of an engine, and the ranks of all engines.
    point: OperatingPoint
    groups: int
    capacity: CapacityPrediction
    #: Requests of mean length that run at once in all engines.
    max_concurrency: int
    bound: StepBound
    #: Why the engines cannot serve: they do not start, or a prompt does not fit into a step.
    shortage: str | None = None
    simulation: SimulatedPrediction | None = None
    #: What drafts give; None if none exist.
    drafts: DraftGain | None = None
    #: What requests of each class see; empty for a single class.
    classes: tuple[ServedClass, ...] = ()
    #: The closed form of the same load, where ``point`` has the means of a simulation that contradicts it.
    closed_form: ServedMeans | None = None

    @property
    def time_to_first_token(self) -> float:
        """Mean time to the first token [s]; infinite where requests come faster than they are answered."""
        return self.point.time_to_first_token

    @property
    def time_per_output_token(self) -> float:
        """Mean time between the tokens of an answer [s]."""
        return self.point.time_per_output_token

    @property
    def request_latency(self) -> float:
        """Mean time from a request to the end of its answer [s]."""
        return self.point.request_latency

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens a second of all engines."""
        return self.point.output_tokens_per_second * self.groups

    @property
    def output_tokens_per_second_per_device(self) -> float:
        """Output tokens a second over the devices of all engines."""
        return self.output_tokens_per_second / self.devices

    @property
    def requests_per_second(self) -> float:
        """Requests a second of all engines."""
        return self.point.requests_per_second * self.groups

    @property
    def peak_memory_bytes_per_device(self) -> float:
        """Memory that the fullest device uses [byte]."""
        return max(stage.taken for stage in self.capacity.stages)

    @property
    def saturated(self) -> bool:
        """Whether requests wait for room."""
        return self.point.saturated

    @property
    def starts(self) -> bool:
        """Whether the engines start, admit the longest request, and their steps take the prompts."""
        return self.shortage is None

    @property
    def fits(self) -> bool:
        """Whether the engines start and keep up with the load."""
        return self.starts and self.point.time_to_first_token < float("inf")
