"""Predictions of serving as values: an engine's capacity, engines under a load, pools, and 90 % intervals.

Notation (this file only)::

    M  memory of a device                                                            [byte]
    O  tokens of an answer                                                           [1]
    low, high  ends of an interval of a time, both positive                          [s]
    rates are of a second, times mean values over requests                           [s]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, Literal

#: What keeps an engine from starting.
Shortage = Literal["loading the weights", "no room for the cache", "longest request", "CUDA graphs"]


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Weights of one device by part [byte]."""

    attention: float
    mlp: float
    experts: float
    embeddings: float
    #: Norms, routers, biases and the tables of rotary positions.
    other: float
    #: What drafts: a draft model, or a layer.
    draft: float = 0.0

    @property
    def total(self) -> float:
        """All weights [byte]."""
        return self.attention + self.mlp + self.experts + self.embeddings + self.other + self.draft


@dataclass(frozen=True, slots=True)
class DeviceMemoryUse:
    """Memory of a device of one stage by what takes it [byte].

    The parts add up to ``device``: ``free`` is what is left, and negative where the parts are too many.
    """

    stage: int
    layers: int
    device: float
    weights: WeightBytes
    #: Peak of a profile run: sampler and forward pass.
    activation: float
    #: Context, modules and communicators.
    overhead: float
    #: CUDA graphs, within the engine's share or outside of it.
    graphs: float
    #: What a rule of the engine leaves to activations and graphs.
    reserve: float
    cache: float
    #: Cache that the engine's budget leaves; negative where it leaves none.
    room: float

    @property
    def taken(self) -> float:
        """All parts [byte]."""
        used = self.weights.total + self.activation + self.overhead + self.graphs
        return used + self.reserve + self.cache

    @property
    def free(self) -> float:
        """What is left of the device [byte]: M less all parts."""
        return self.device - self.taken


@dataclass(frozen=True, slots=True)
class CachePool:
    """What the cache of one group of devices holds; with stages, of the stage that holds the least."""

    bytes_per_device: float
    #: Blocks, each of ``block_tokens`` tokens for one group of layers.
    blocks: int
    block_tokens: int
    #: Tokens of requests without end, as the engine reports.
    tokens: int
    #: Bytes that a token takes on one device in layers without a window and in all others.
    bytes_per_token: float
    #: Most tokens of one request that is admitted.
    largest_context: int


@dataclass(frozen=True, slots=True)
class CapacityPrediction:
    """Capacity of one engine under a layout."""

    stages: tuple[DeviceMemoryUse, ...]
    pool: CachePool
    #: Requests of so many tokens that all engines hold at once.
    requests: tuple[tuple[int, int], ...]
    #: Most requests of a step, and most tokens.
    max_num_seqs: int
    max_num_batched_tokens: int
    #: Share of memory that the engine may use.
    utilization: float
    shortage: Shortage | None
    #: Groups of devices with a separate cache, over all engines.
    caches: int

    @property
    def fits(self) -> bool:
        """Whether the engine starts and admits the longest request."""
        return self.shortage is None

    @property
    def fullest(self) -> DeviceMemoryUse:
        """The stage that leaves the least room for its cache."""
        return min(self.stages, key=lambda stage: stage.room)

    @property
    def total_tokens(self) -> int:
        """Tokens that the caches of all engines hold."""
        return self.pool.tokens * self.caches

    @property
    def longest_requests(self) -> int:
        """Requests of the longest length that all engines hold at once."""
        return self.requests[-1][1]


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 90 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ServedIntervals:
    """Intervals of the figures of a plan, None for one that it has not; ``reasons`` say what they rest on."""

    time_to_first_token: Interval | None
    time_per_output_token: Interval | None
    request_latency: Interval | None
    output_tokens_per_second: Interval | None
    reasons: tuple[str, ...]


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


#: What keeps the pools from more requests a second.
PoolLimit = Literal["prefill", "decode", "transfer", "front end"]


@dataclass(frozen=True, slots=True)
class CacheTransfer:
    """How the keys and values of one prompt go from a prefill engine to a decode engine."""

    #: Bytes of the whole prompt, and those that the busiest device of either engine sends or gets [byte].
    bytes: float
    bytes_per_link: float
    #: Time in which the transfer occupies links, and the part of it after prefill [s].
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True)
class PooledPrediction:
    """Engines that prefill and engines that decode, under the load of a job; means over all requests."""

    prefill: ServedPrediction
    decode: ServedPrediction
    transfer: CacheTransfer
    #: Load of all engines together.
    load: EngineLoad
    #: Wait for links that other prompts occupy [s].
    link_wait_seconds: float
    #: Requests a second that each part could serve at most.
    most_prefilled: float
    most_decoded: float
    most_transferred: float
    time_to_first_token: float
    time_per_output_token: float
    request_latency: float
    requests_per_second: float
    output_tokens_per_second: float
    saturated: bool
    simulation: SimulatedPrediction | None = None
    #: What single classes of requests get; empty where there is one.
    classes: tuple[ServedClass, ...] = ()
    #: The closed form of the same load, where the times above are those of a simulation that contradicts it.
    closed_form: ServedMeans | None = None
    #: Requests a second that front ends could serve at most; a batch does not pass them.
    most_fronted: float = inf

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.prefill.devices + self.decode.devices

    @property
    def limit(self) -> PoolLimit:
        """The part that serves the fewest requests a second."""
        most: dict[PoolLimit, float] = {
            "prefill": self.most_prefilled,
            "decode": self.most_decoded,
            "transfer": self.most_transferred,
            "front end": self.most_fronted,
        }
        return min(most, key=lambda part: most[part])

    @property
    def most_requests_per_second(self) -> float:
        """Most requests a second: rates are matched, so that the slowest part decides."""
        return min(self.most_prefilled, self.most_decoded, self.most_transferred, self.most_fronted)

    @property
    def starts(self) -> bool:
        """Whether the engines of both pools start."""
        return self.prefill.starts and self.decode.starts

    @property
    def fits(self) -> bool:
        """Whether the engines start and keep up with the load."""
        return self.starts and self.time_to_first_token < float("inf")
