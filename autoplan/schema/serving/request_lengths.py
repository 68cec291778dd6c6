"""What is asked of a server: lengths of requests, how they come, what they share, and recorded requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from autoplan.schema.base import FROM_FILE, TO_FILE, Frozen, Seconds, Share
from autoplan.schema.serving.serving_choices import ClassLimits

#: Largest distance of a length from the mean that a bare number is, as a share of it. A guess: InferenceX
#: draws from 80 to 100 % of a number, SGLang's bench_serving from 0 to 100 %, and people differ more.
LENGTH_SPREAD: Final = 0.2

#: Keys of the lengths of requests.
_LENGTHS: Final = ("input_tokens", "output_tokens")

Tokens = Annotated[int, Field(ge=1, le=100_000_000)]


def _in_order(ends: tuple[int, int]) -> tuple[int, int]:
    first, last = ends
    if first > last:
        raise ValueError(f"a range goes from the shorter to the longer length: [{last}, {first}]")
    return ends


class FixedLength(Frozen):
    """The same number of tokens in every request."""

    fixed: Tokens = Field(description="tokens of every request")


class RangeLength(Frozen):
    """Lengths as SGLang's bench_serving draws them: evenly from a share of a number to the number."""

    nominal: Tokens = Field(description="longest length (--random-input-len, --random-output-len)")
    range_ratio: Share = Field(
        default=0.0, description="shortest length as a share of the longest (--random-range-ratio)"
    )


class UniformLength(Frozen):
    """Whole numbers drawn evenly from a range."""

    uniform: Annotated[tuple[Tokens, Tokens], AfterValidator(_in_order)] = Field(
        description="shortest and longest length, both included"
    )


class LogNormal(Frozen):
    """A log-normal distribution by two of its quantiles."""

    median: Tokens = Field(description="length that half of the requests exceed")
    p99: Tokens = Field(description="length that one request in 100 exceeds")

    @model_validator(mode="after")
    def _has_a_tail(self) -> Self:
        if self.p99 < self.median:
            raise ValueError(f"p99 {self.p99} is less than the median {self.median}")
        return self


class LogNormalLength(Frozen):
    """Lengths with a long tail."""

    lognormal: LogNormal = Field(description="median and 99 % quantile")


class TraceLength(Frozen):
    """Lengths of recorded requests."""

    trace: str = Field(min_length=1, description="file of recorded requests, as workload.trace")


class RecordedRequests(Frozen):
    """Requests of a file, or a part of them by time."""

    file: str = Field(
        min_length=1,
        description="CSV with input_tokens, output_tokens and, if it has it, arrival_s; or a published trace:"
        " Azure's of 2023 and 2024, BurstGPT, Mooncake, recognised by their columns",
    )
    start: Seconds = Field(default=0.0, description="from when on, since its first request")
    duration: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None, description="for how long; default: to its end"
    )


Length = Tokens | FixedLength | UniformLength | RangeLength | LogNormalLength | TraceLength


class GammaArrivals(Frozen):
    """Arrivals whose gaps are drawn from a gamma distribution."""

    gamma: float = Field(
        ge=0.01,
        le=1_000,
        strict=False,
        description="variance of a gap over the square of its mean: 1 is poisson, more is bursty",
    )


_RATE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*/\s*(s|min|h)\s*")
_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _rate(value: object, info: ValidationInfo) -> float:
    """Return the requests a second of a text such as 12/s; Python callers may give base units."""
    if isinstance(value, float) and not (info.context or {}).get(FROM_FILE):
        return value
    match = _RATE.fullmatch(value) if isinstance(value, str) and len(value) <= 40 else None
    if match is None:
        raise ValueError("write a rate with its unit, for example 12/s or 300/min")
    return float(match[1]) / _SECONDS[match[2]]


def _rate_text(value: float, info: SerializationInfo) -> float | str:
    """Return a rate with its unit where it goes to a file: whole requests a minute, else a second."""
    if not (info.context or {}).get(TO_FILE):
        return value
    each_minute = value * 60
    return f"{round(each_minute)}/min" if abs(each_minute - round(each_minute)) < 1e-9 else f"{value:.12f}/s"


Rate = Annotated[
    float,
    BeforeValidator(_rate),
    PlainSerializer(_rate_text),
    Field(gt=0, le=1e7),
    WithJsonSchema({"type": "string", "examples": ["12/s"], "description": "with its unit: 12/s"}),
]


class SharedPrefix(Frozen):
    """Tokens at the start of requests that the prefix cache has already."""

    shared_tokens: int = Field(default=0, ge=0, le=100_000_000, description="tokens that requests begin with")
    hit_rate: Share = Field(default=0.0, description="share of prompt tokens found in the prefix cache")


class RequestLengths(Frozen):
    """Input and output of requests."""

    input_tokens: Length = Field(
        description="tokens of a prompt: a mean (lengths within 20 % of it), {fixed: N}, a distribution or a"
        " trace"
    )
    output_tokens: Length = Field(
        description="tokens of an answer: a mean (lengths within 20 % of it), {fixed: N}, a distribution or a"
        " trace"
    )

    def spread(self, longest_request: int | None) -> float:
        """Return the largest distance of lengths from a mean that is a bare number, as a share of it [1].

        Less than ``LENGTH_SPREAD`` where no longer request is admitted.
        """
        lengths = self.input_tokens, self.output_tokens
        means = sum(length for length in lengths if isinstance(length, int))
        if longest_request is None or not means:
            return LENGTH_SPREAD
        room = longest_request - sum(longest_tokens(length, 0.0) for length in lengths)
        return min(LENGTH_SPREAD, max(0.0, room / means))


class RequestClass(RequestLengths):
    """One type of request, with its limits."""

    name: str = Field(pattern="^[a-z0-9][a-z0-9_-]*$", max_length=60, description="name of the class")
    weight: Annotated[Share, Field(gt=0)] | None = Field(
        default=None, description="share of the requests that are of this class"
    )
    request_rate: Rate | None = Field(
        default=None, description="requests a second of this class, instead of its weight"
    )
    prefix: SharedPrefix | None = Field(
        default=None, description="what its requests share, instead of workload.prefix"
    )
    limits: ClassLimits | None = Field(default=None, description="limits of this class alone")

    @property
    def share(self) -> float:
        """Part of all requests that are of this class [1]."""
        return self.weight or 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.weight is None) == (self.request_rate is None):
            raise ValueError("a class has either a weight or a request_rate")
        if self.prefix is not None and _exceeds(self.prefix, self.input_tokens):
            raise ValueError(
                f"prefix.shared_tokens {self.prefix.shared_tokens} is more than the longest prompt has"
            )
        return self


def _exceeds(prefix: SharedPrefix, length: Length) -> bool:
    """Whether a prefix is longer than any prompt, as far as the length says."""
    ends = isinstance(length, int | FixedLength | RangeLength | UniformLength)
    return ends and prefix.shared_tokens > longest_tokens(length, 0.0)


class ServingWorkload(RequestLengths):
    """Requests that a job serves, and how they come."""

    input_tokens: Length = Field(
        default_factory=int,
        description="tokens of a prompt: a mean (lengths within 20 % of it), {fixed: N}, a distribution or a"
        " trace; with classes each has its own",
    )
    output_tokens: Length = Field(
        default_factory=int,
        description="tokens of an answer: a mean (lengths within 20 % of it), {fixed: N}, a distribution or a"
        " trace; with classes each has its own",
    )
    concurrency: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="clients of a closed loop, each with one request at a time"
    )
    request_rate: Rate | None = Field(default=None, description="requests a second of an open loop")
    arrivals: Literal["poisson", "constant"] | GammaArrivals | None = Field(
        default=None, description="gaps between the requests of an open loop; default: poisson"
    )
    trace: Annotated[str, Field(min_length=1)] | RecordedRequests | None = Field(
        default=None,
        description="file of recorded requests, or a part of it: lengths that are left out are theirs, and so"
        " is when they come where neither concurrency nor request_rate says it",
    )
    longest_request: Tokens | None = Field(
        default=None,
        description="input and output that must be admitted (max_model_len); default: what the lengths need",
    )
    prefix: SharedPrefix = Field(default_factory=SharedPrefix, description="what requests share")
    classes: Annotated[tuple[RequestClass, ...], Field(max_length=20)] = Field(
        default=(), description="several types of requests, each with a weight or a rate, instead of one"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wrong = [sentence for sentence, broken in self._rules_of_classes().items() if broken]
        if not wrong:
            self._complete()
            wrong = [sentence for sentence, broken in self._rules().items() if broken]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def recorded(self) -> RecordedRequests | None:
        """The file of recorded requests and the part of it that counts; None where no file is named."""
        return RecordedRequests(file=self.trace) if isinstance(self.trace, str) else self.trace

    def _complete(self) -> None:
        """Turn rates of classes into weights and a rate of all, and fill in lengths that are left out.

        They are those of the first class, or recorded.
        """
        changes: dict[str, object] = {}
        if self.recorded is not None:
            length = TraceLength(trace=self.recorded.file)
            changes = {name: length for name in _LENGTHS if name not in self.model_fields_set}
        if self.classes:
            changes = self._of_classes()
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _of_classes(self) -> dict[str, object]:
        """Return weights instead of rates, the rate of all, and the lengths of the first class."""
        changes: dict[str, object] = {}
        rates = [requests.request_rate for requests in self.classes]
        if rates[0] is not None:
            total = sum(rate or 0.0 for rate in rates)
            changes["request_rate"] = total
            changes["classes"] = tuple(
                requests.model_copy(
                    update={"weight": (requests.request_rate or 0.0) / total, "request_rate": None}
                )
                for requests in self.classes
            )
        for name in _LENGTHS:
            if name not in self.model_fields_set:
                changes[name] = getattr(self.classes[0], name)
        return changes

    @property
    def alike(self) -> bool:
        """Whether all requests have the same lengths."""
        spread = self.spread(self.longest_request)
        ends = [evenly_drawn(length, spread) for length in (self.input_tokens, self.output_tokens)]
        return not self.classes and all(end is not None and end[0] == end[1] for end in ends)

    @property
    def longest_tokens(self) -> int:
        """Input and output tokens of the longest request that must be admitted."""
        if self.longest_request is not None:
            return self.longest_request
        kinds = (self, *self.classes)
        return max(longest_tokens(x.input_tokens) + longest_tokens(x.output_tokens) for x in kinds)

    def _rules_of_classes(self) -> dict[str, bool]:
        names = [requests.name for requests in self.classes]
        rates = [requests.request_rate is not None for requests in self.classes]
        shares = sum(requests.share for requests in self.classes)
        has_load = self.concurrency is not None or self.request_rate is not None
        return {
            "two classes have the same name": len(set(names)) != len(names),
            "some classes have a weight and others a request_rate: give all of them the same key": (
                any(rates) and not all(rates)
            ),
            "classes with a request_rate say how many requests come: leave concurrency and request_rate of"
            " workload out": any(rates) and has_load,
            f"the weights of classes add up to {shares * 100:g} %, not 100 %": (
                bool(self.classes) and not any(rates) and abs(shares - 1) > 1e-6
            ),
            "input_tokens and output_tokens are missing: give both, classes with both, or a trace": (
                not self.classes and self.trace is None and not self.model_fields_set >= {*_LENGTHS}
            ),
            "a trace is one class of requests: leave classes out, or give them its lengths": (
                bool(self.classes) and self.trace is not None
            ),
        }

    def _rules(self) -> dict[str, bool]:
        shortest = shortest_tokens(self.input_tokens) + shortest_tokens(self.output_tokens)
        longest = self.longest_request
        return {
            "concurrency and request_rate contradict each other: a loop is closed or open": (
                self.concurrency is not None and self.request_rate is not None
            ),
            "arrivals needs request_rate": self.arrivals is not None and self.request_rate is None,
            f"longest_request {longest} is less than input and output, which have {shortest} at least": (
                longest is not None and longest < shortest
            ),
            f"prefix.shared_tokens {self.prefix.shared_tokens} is more than the longest prompt has": (
                not self.classes and _exceeds(self.prefix, self.input_tokens)
            ),
        }


def evenly_drawn(length: Length, spread: float = LENGTH_SPREAD) -> tuple[int, int] | None:
    """Return the shortest and the longest of lengths that are drawn evenly; None of others.

    >>> evenly_drawn(1024), evenly_drawn(FixedLength(fixed=7)), evenly_drawn(RangeLength(nominal=100))
    ((820, 1228), (7, 7), (1, 100))
    """
    if isinstance(length, int):
        most = int(length * spread + 1e-9)
        return length - most, length + most
    if isinstance(length, FixedLength):
        return length.fixed, length.fixed
    if isinstance(length, RangeLength):
        return max(1, int(length.nominal * length.range_ratio)), length.nominal
    return length.uniform if isinstance(length, UniformLength) else None


def shortest_tokens(length: Length) -> int:
    """Return the least tokens that a length has; 1 where a distribution or a trace does not say.

    Of a mean the number itself: a longest request may keep lengths from spreading.
    """
    ends = evenly_drawn(length, 0.0)
    return 1 if ends is None else ends[0]


def longest_tokens(length: Length, spread: float = LENGTH_SPREAD) -> int:
    """Return the most tokens that a length is planned for; of a log-normal one its 99 % quantile.

    A trace says nothing before it is read: 1.
    """
    ends = evenly_drawn(length, spread)
    if ends is not None:
        return ends[1]
    return length.lognormal.p99 if isinstance(length, LogNormalLength) else 1


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests of a trace in the order of their arrival."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: Seconds since the first; empty where the trace does not say.
    arrivals: tuple[float, ...]
    #: What the trace is, where it is a published one.
    title: str = ""
    #: Recorded requests that are left out: without a prompt or an answer, or longer than is admitted.
    failed: int = 0
    refused: int = 0
    #: Part of the prompts' tokens that repeats blocks of earlier prompts, where the trace tells.
    repeated_share: float | None = None
    #: Tokens that all prompts begin with, as far as the trace tells.
    shared_tokens: int = 0

    @property
    def longest(self) -> int:
        """Input and output tokens of the longest request."""
        return max(a + b for a, b in zip(self.inputs, self.outputs, strict=True))

    @property
    def rate(self) -> float:
        """Requests a second as they were recorded; 0 where the trace does not say, or all came at once."""
        last = self.arrivals[-1] if self.arrivals else 0.0
        return (len(self.arrivals) - 1) / last if last > 0 else 0.0

    @property
    def seconds(self) -> float:
        """Time from the first request to the last [s]; 0 where the trace does not say."""
        return self.arrivals[-1] if self.arrivals else 0.0

    def within(self, longest: int) -> Self:
        """Return the requests of at most ``longest`` input and output tokens: engines refuse the others.

        >>> RequestTrace((8, 2), (1, 1), (0.0, 3.0)).within(5)
        RequestTrace(inputs=(2,), outputs=(1,), arrivals=(0.0,), title='', failed=0, refused=1, \
repeated_share=None, shared_tokens=0)
        """
        kept = [
            at
            for at, tokens in enumerate(zip(self.inputs, self.outputs, strict=True))
            if sum(tokens) <= longest
        ]
        if len(kept) == len(self.inputs):
            return self
        times = [self.arrivals[at] for at in kept] if self.arrivals else []
        return replace(
            self,
            inputs=tuple(self.inputs[at] for at in kept),
            outputs=tuple(self.outputs[at] for at in kept),
            arrivals=tuple(time - times[0] for time in times),
            refused=self.refused + len(self.inputs) - len(kept),
        )
