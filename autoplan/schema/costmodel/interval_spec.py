"""The file of 90 % intervals of serving predictions: how far measured runs lie from what was predicted.

How sure the predictions of a stack are.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Frozen, PositiveBandwidth, SourcedFactor, SourcedShare

#: Loads that measured runs had; all: whatever the load.
SpreadLoad = Literal["closed loop", "open loop", "offline", "all at once", "static", "disaggregated", "all"]
#: Models whose errors differ: with experts, and all others.
SpreadModel = Literal["dense", "experts"]
ServedMetric = Literal[
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "output_tokens_per_second",
    "request_latency_seconds",
]

_MOST: Final = 10.0
Logarithm = Annotated[float, Field(ge=-_MOST, le=_MOST, strict=False)]


class SpreadSpec(Frozen):
    """Quantiles of measured over predicted, of one load and figure."""

    load: SpreadLoad = Field(description="how requests came")
    metric: ServedMetric = Field(description="the figure")
    model: SpreadModel | None = Field(
        default=None, description="models with experts, or others; left out: both"
    )
    low: Logarithm = Field(description="5 % quantile of the logarithm of measured over predicted")
    high: Logarithm = Field(description="95 % quantile of it")
    runs: int = Field(ge=1, le=1_000_000_000, description="measured runs")


class IntervalSpec(Frozen):
    """Spreads of serving predictions, and what makes them wider."""

    schema_version: Literal[1] = Field(alias="schema", description="version of this file format")
    kind: Literal["intervals"] = Field(description="says that this file describes intervals")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="the file's name")
    title: str = Field(min_length=2, description="what was predicted")
    note: str | None = Field(default=None, description="what a reader should know about the entry")
    sources: dict[str, str] = Field(description="the sources of the numbers below")
    source: str = Field(description="key of the source of the spreads")
    spreads: Annotated[tuple[SpreadSpec, ...], Field(min_length=1)] = Field(
        description="spreads by load and figure; those of all loads stand for a load without its own"
    )
    unmeasured_device: SourcedFactor = Field(
        description="widths where no kernels of engines were measured on the device, over those elsewhere"
    )
    assumed_version: SourcedFactor = Field(
        description="widths where the job names no version of its engine, over those of a named one"
    )

    other_publication: SourcedFactor = Field(
        description="widths of runs whose publication a fit has not seen, over those of runs that it has: the"
        " spreads have it in them, since a plan is for a machine that nobody published"
    )
    other_model: SourcedFactor = Field(description="widths for a model of which no run was measured")
    other_device: SourcedFactor = Field(description="widths for a device on which no run was measured")
    models: tuple[str, ...] = Field(description="models of which runs were measured: LAYERSxHIDDEN")
    devices: tuple[str, ...] = Field(description="devices on which runs were measured")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        keys = [(spread.load, spread.metric, spread.model) for spread in self.spreads]
        unseen = self.other_publication, self.other_model, self.other_device
        factors = self.unmeasured_device, self.assumed_version, *unseen
        named = {self.source, *(factor.source for factor in factors)}
        wrong = [f"sources lacks {name!r}" for name in sorted(named - set(self.sources))]
        if len(set(keys)) != len(keys):
            wrong.append("spreads has a load, figure and model twice")
        wrong += [f"{s.load}, {s.metric}: low is above high" for s in self.spreads if s.low > s.high]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class UncertaintySpec(Frozen):
    """Half-widths of the 90 % interval of a prediction, as shares of it."""

    time: SourcedShare = Field(description="of a step time that measured tables price altogether")
    time_modelled: SourcedShare = Field(
        description="what is added, as independent errors add, to one that they price none of"
    )
    slower: SourcedFactor | None = Field(
        default=None, description="width above a step time over the width below it; left out: 1"
    )
    slower_with_experts: SourcedFactor | None = Field(
        default=None, description="the same of models with experts; left out: as of others"
    )
    slow_host: SourcedFactor | None = Field(
        default=None,
        description="host time of a launch where hosts and programs are slow, over ``host_launch``: the"
        " interval reaches further up by what a step takes longer there; left out: 1",
    )
    order: SourcedShare | None = Field(
        default=None,
        description="difference of two step times of a job below which their order is often wrong;"
        " left out: not known",
    )
    slowest_host_copy: PositiveBandwidth | None = Field(
        default=None,
        description="rate of a ring over PCIe on the slowest hosts, to which the interval reaches; left out:"
        " no host differs",
    )
    slowest_send: PositiveBandwidth | None = Field(
        default=None,
        description="rate of one rank's sends between the nodes of a pipeline on the slowest networks: the"
        " interval reaches to it; left out: as collectives",
    )
    fragmentation: SourcedShare = Field(
        description="by which fragmentation may exceed its value: a layout fits where it does with that"
    )
    memory_lower: SourcedShare = Field(
        description="by which runs report less peak memory of a device than is predicted"
    )
    memory_higher: SourcedShare = Field(
        description="by which they report more, as far as the device has it: caches of the allocator among it"
    )
