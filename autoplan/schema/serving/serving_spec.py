"""Schema of serving jobs, the job with all names resolved, and the part of it that some classes are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from autoplan.deadline import DEFAULT_SECONDS
from autoplan.schema.adapters import PriceSpec, distinct
from autoplan.schema.base import Frozen, Seconds
from autoplan.schema.job import Cluster, HardwareName, JobFile, RuleEntry, RuleSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_stack import Engine
from autoplan.schema.serving.request_lengths import Rate, ServingWorkload
from autoplan.schema.serving.serving_choices import (
    FormatChoices,
    ServingLimits,
    ServingObjective,
    ServingSearchSpec,
    SpeculationSpec,
)

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class ScalingSpec(Frozen):
    """Loads of a table: the fewest devices that hold the limits at each."""

    request_rate: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="requests a second of open loops, from the least to the most"
    )
    concurrency: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...], Field(min_length=1, max_length=64)]
        | None
    ) = Field(default=None, description="clients of closed loops, from the fewest to the most")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.request_rate is None) == (self.concurrency is None):
            raise ValueError("give either request_rate or concurrency, as a list")
        loads = list(self.request_rate or self.concurrency or ())
        if loads != sorted(set(loads)):
            raise ValueError("loads go from the least to the most, each once")
        return self


class ServingSpec(Frozen):
    """A serving job as its file says it."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["serving"] = Field(description="what the job does: it answers requests")
    model: str = Field(
        min_length=1, description="a name in specs/models, a path to such a file, or a config.json"
    )
    hardware: HardwareName = Field(min_length=1, description="a name in hardware/ or a path to such a file")
    devices: (
        Count
        | Annotated[tuple[Count, ...], Field(min_length=1, max_length=64), AfterValidator(distinct)]
        | None
    ) = Field(
        default=None,
        description="devices to use, or a list to plan for each; left out: with a load the fewest that hold"
        " the limits, else all",
    )
    stack: str = Field(
        min_length=1,
        description="the engine: a name in costmodels/engines, with @VERSION or in its newest known version",
    )
    workload: ServingWorkload = Field(description="the requests")
    scaling: ScalingSpec | None = Field(
        default=None, description="several loads instead of one: the fewest devices for each"
    )
    precision: FormatChoices = Field(
        default_factory=FormatChoices, description="formats of weights and of the cache that may be chosen"
    )
    speculation: SpeculationSpec | None = Field(
        default=None, description="speculative decoding; none by default"
    )
    search: ServingSearchSpec = Field(default_factory=ServingSearchSpec, description="what may be chosen")
    limits: ServingLimits = Field(default_factory=ServingLimits, description="hard limits")
    rules: Annotated[tuple[RuleEntry, ...], Field(max_length=50)] = Field(
        default=(), description="relations of tp, pp, ep and devices that every engine must satisfy"
    )
    objectives: Annotated[tuple[ServingObjective, ...], Field(min_length=1), AfterValidator(distinct)] = (
        Field(default=("throughput_per_device", "time_per_output_token"), description="what the front trades")
    )
    price: PriceSpec | None = Field(default=None, description="what a device costs an hour, and when")
    deadline: Seconds = Field(
        default=DEFAULT_SECONDS,
        description="how long a search may take; then it answers with the best plans so far and their gap",
    )

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        workload = self.workload
        loaded = workload.concurrency is not None or workload.request_rate is not None
        if self.scaling is not None and loaded:
            raise ValueError("scaling has the loads: leave concurrency and request_rate of workload out")
        return self

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.price is None and ("cost" in self.objectives or self.limits.cost is not None):
            raise ValueError("cost needs a price, such as price: {per_device_hour: 2.5, date: 2026-11-01}")
        return self


@dataclass(frozen=True, slots=True)
class ServingJob:
    """A serving job with all names resolved."""

    kind: ClassVar[Literal["serving"]] = "serving"
    name: str
    model: ModelSpec
    cluster: Cluster
    engine: Engine
    workload: ServingWorkload
    precision: FormatChoices = field(default_factory=FormatChoices)
    speculation: SpeculationSpec | None = None
    #: The model that drafts, where it is one of its own.
    draft: ModelSpec | None = None
    search: ServingSearchSpec = field(default_factory=ServingSearchSpec)
    limits: ServingLimits = field(default_factory=ServingLimits)
    rules: tuple[RuleSpec, ...] = ()
    objectives: tuple[ServingObjective, ...] = ("throughput_per_device", "time_per_output_token")
    price: PriceSpec | None = None
    #: The jobs to plan for, where there are several numbers of devices; this is the first.
    choices: tuple[ServingJob, ...] = ()
    deadline: float = field(default=DEFAULT_SECONDS, compare=False)
    #: Whether the job leaves its devices out and has a load: the fewest that hold its limits are asked for.
    devices_open: bool = False
    #: The jobs of a table, from the least load to the most, each for the fewest devices; this has the most.
    loads: tuple[ServingJob, ...] = ()
    #: What it was read from, where it was; not compared.
    source: JobFile | None = field(default=None, compare=False)

    @property
    def longest_request(self) -> int:
        """Input and output tokens of the longest request that must be admitted."""
        return self.workload.longest_tokens


def share_of_classes(job: ServingJob, names: Iterable[str]) -> float:
    """Return the part of all requests that are of the classes ``names`` [1]; of no names, all of them."""
    chosen = set(names)
    return (
        sum(requests.share for requests in job.workload.classes if requests.name in chosen) if chosen else 1.0
    )


def job_of_classes(job: ServingJob, names: tuple[str, ...]) -> ServingJob:
    """Return the job of engines that get the classes ``names`` alone, at the rate of these.

    Such engines admit the longest request of their classes, unless the job says how long it is. Without
    names, or with all of them, it is the job itself.
    """
    workload = job.workload
    chosen = tuple(requests for requests in workload.classes if requests.name in names)
    if not names or len(chosen) == len(workload.classes):
        return job
    share = share_of_classes(job, names)
    rate = workload.request_rate
    changes = {
        "classes": tuple(
            requests.model_copy(update={"weight": requests.share / share}) for requests in chosen
        ),
        "request_rate": None if rate is None else rate * share,
        "input_tokens": chosen[0].input_tokens,
        "output_tokens": chosen[0].output_tokens,
    }
    return replace(job, workload=workload.model_copy(update=changes), choices=(), loads=())


def class_sets(job: ServingJob) -> tuple[tuple[str, ...], ...]:
    """Return the sets of classes, fewer than all, that engines may be for: each alone, and all but one.

    None where requests do not come at a rate: then each engine gets requests of all classes.
    """
    names = tuple(requests.name for requests in job.workload.classes)
    if len(names) < 2 or job.workload.request_rate is None or not job.search.routes_classes:
        return ()
    alone = [(name,) for name in names]
    others = [tuple(other for other in names if other != name) for name in names]
    return tuple(dict.fromkeys([*alone, *others]))
