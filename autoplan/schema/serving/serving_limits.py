"""Hard limits of serving, and what a front of serving plans trades."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Bytes, Frozen, Joules, Seconds, Share

ServingObjective = Literal[
    "throughput",
    "throughput_per_device",
    "time_to_first_token",
    "time_per_output_token",
    "request_latency",
    "devices",
    "cost",
    "energy",
]

Duration = Annotated[Seconds, Field(gt=0)]


class Percentiles(Frozen):
    """Limits on percentiles of a duration."""

    mean: Duration | None = Field(default=None, description="limit on the mean")
    p50: Duration | None = Field(default=None, description="limit that half of the requests hold")
    p90: Duration | None = Field(default=None, description="limit that 90 % of the requests hold")
    p99: Duration | None = Field(default=None, description="limit that 99 % of the requests hold")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        percentiles = [(name, getattr(self, name)) for name in ("p50", "p90", "p99") if getattr(self, name)]
        if not percentiles and self.mean is None:
            raise ValueError("name at least one of mean, p50, p90 and p99")
        for (lower, short), (upper, long) in pairwise(percentiles):
            if short > long:
                raise ValueError(
                    f"{lower} and {upper} contradict each other: {upper} is at least as long as {lower},"
                    f" so its limit makes that of {lower} idle"
                )
        return self


TimeLimit = Duration | Percentiles


class TimeLimits(Frozen):
    """Limits on what requests see; a bare duration is a limit on the mean."""

    time_to_first_token: TimeLimit | None = Field(
        default=None, description="longest wait for the first token of an answer"
    )
    time_per_output_token: TimeLimit | None = Field(
        default=None, description="longest gap between two tokens of an answer, averaged over the answer"
    )
    request_latency: TimeLimit | None = Field(
        default=None, description="longest time from a request to the end of its answer"
    )
    goodput: Annotated[Share, Field(gt=0)] | None = Field(
        default=None, description="share of requests that must hold every limit"
    )


class ClassLimits(TimeLimits):
    """Limits of the requests of one class."""

    @model_validator(mode="after")
    def _can_bind(self) -> Self:
        first, whole = _strictest(self.time_to_first_token), _strictest(self.request_latency)
        timed = (self.time_to_first_token, self.time_per_output_token, self.request_latency)
        if first is not None and whole is not None and first[1] > whole[1] and first[0] == whole[0]:
            raise ValueError(
                "time_to_first_token and request_latency contradict each other: an answer ends after its"
                " first token, so a limit on the first token that is longer than that on the whole is idle"
            )
        if self.goodput is not None and all(limit is None for limit in timed):
            raise ValueError(
                "goodput needs a limit on a time of the same class: without one every request holds"
            )
        return self


def _strictest(limit: TimeLimit | None) -> tuple[str, float] | None:
    """Return the statistic that a limit is on, the highest where there are several, and its bound [s]."""
    if limit is None:
        return None
    if not isinstance(limit, Percentiles):
        return "mean", limit
    return next(
        (name, bound) for name in ("p99", "p90", "p50", "mean") if (bound := getattr(limit, name)) is not None
    )


class ServingLimits(TimeLimits):
    """Hard limits of serving plans; a bare duration is a limit on the mean."""

    throughput: Annotated[float, Field(ge=1e-6, le=1e15, strict=False)] | None = Field(
        default=None, description="least output tokens a second of all devices together"
    )
    memory_headroom: Share = Field(
        default=0.0, le=0.99, description="share of a device's memory to leave free, beside what engines do"
    )
    peak_memory: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None, description="most memory of a device to use"
    )
    devices: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="most devices to use"
    )
    cost: Annotated[float, Field(ge=1e-6, le=1e15, strict=False)] | None = Field(
        default=None, description="most that a million output tokens may cost, in the currency of the price"
    )
    energy: Annotated[Joules, Field(gt=0)] | None = Field(
        default=None, description="most energy of a million output tokens, by the devices' power limits"
    )
