"""Choices of a serving job: layouts, formats, speculation, hard limits, and what its front trades."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from autoplan.schema.adapters import distinct
from autoplan.schema.base import Bytes, Frozen, Joules, Seconds, Share
from autoplan.schema.serving.engine_layout import KvFormat, WeightFormat
from autoplan.units import parse_quantity

#: Parts of a model that a checkpoint may leave in 16 bits.
UnquantizedPart = Literal["attention", "dense_mlp", "shared_experts", "experts"]

Degree = Annotated[int, Field(ge=1, le=1_000_000)]
Degrees = (
    Literal["any"] | Degree | Annotated[tuple[Degree, ...], Field(min_length=1), AfterValidator(distinct)]
)


def allowed_values(choice: str | int | tuple[int, ...], values: Iterable[int]) -> tuple[int, ...]:
    """Return what a key of ``search`` allows: its one or several numbers, or all ``values``.

    >>> allowed_values("any", [1, 2]), allowed_values(4, [1, 2])
    ((1, 2), (4,))
    """
    if isinstance(choice, str):
        return tuple(values)
    return choice if isinstance(choice, tuple) else (choice,)


def _listed(value: object) -> object:
    """Return a single choice as the list that it is short for; a list of a saved answer as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _switched(value: object) -> object:
    """Return one switch as the list that it is short for; a list of a saved answer as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, bool) else value


WeightFormats = Annotated[
    tuple[WeightFormat, ...],
    BeforeValidator(_listed, json_schema_input_type=WeightFormat | tuple[WeightFormat, ...]),
    Field(min_length=1),
    AfterValidator(distinct),
]
KvFormats = Annotated[
    tuple[KvFormat, ...],
    BeforeValidator(_listed, json_schema_input_type=KvFormat | tuple[KvFormat, ...]),
    Field(min_length=1),
    AfterValidator(distinct),
]
Drafts = Annotated[int, Field(ge=0, le=64)]
DraftCounts = Annotated[
    tuple[Drafts, ...],
    BeforeValidator(_listed, json_schema_input_type=Drafts | tuple[Drafts, ...]),
    Field(min_length=1),
    AfterValidator(distinct),
]


class FormatChoices(Frozen):
    """Formats that may be chosen."""

    weights: WeightFormats = Field(default=("bf16",), description="formats of matrices allowed")
    kv_cache: KvFormats = Field(default=("auto",), description="formats of keys and values allowed")
    unquantized: tuple[UnquantizedPart, ...] = Field(
        default=(), description="parts that a quantized checkpoint leaves in 16 bits"
    )


def _accepted(value: object) -> object:
    """Return a bare number as it is, which fields of one number write, and a text as a share."""
    return parse_quantity(value, "share") if isinstance(value, str) else value


Acceptance = Annotated[
    float,
    BeforeValidator(_accepted, json_schema_input_type=Annotated[float, Field(ge=0, le=1)] | str),
    Field(ge=0, le=1, strict=False),
]


class SpeculationSpec(Frozen):
    """Drafts of tokens that the model verifies, several in one step."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"] = Field(
        description="where drafts come from"
    )
    tokens: DraftCounts = Field(description="drafts of a step allowed; 0: none, so that it may be left off")
    acceptance: Acceptance = Field(
        description="share of drafts that the model accepts, as measured: 0.75 or 75 %"
    )
    draft_model: str | None = Field(
        default=None, min_length=1, description="model that drafts, a name or a path as for `model`"
    )

    @model_validator(mode="after")
    def _has_a_draft_model(self) -> Self:
        if (self.method == "draft_model") != (self.draft_model is not None):
            raise ValueError(
                "method: draft_model and the key draft_model belong together: give both or neither"
            )
        return self


Switches = Annotated[
    tuple[bool, ...],
    BeforeValidator(_switched, json_schema_input_type=bool | tuple[bool, ...]),
    Field(min_length=1, max_length=2),
    AfterValidator(distinct),
]


class PoolSearchSpec(Frozen):
    """Layouts of the engines of one pool."""

    tensor_parallel: Degrees = Field(default="any", description="tensor-parallel degrees allowed")
    pipeline_parallel: Degrees = Field(default="any", description="pipeline depths allowed")
    expert_parallel: Degrees = Field(default="any", description="expert-parallel degrees allowed")
    attention_data_parallel: Degrees = Field(
        default="any", description="groups of devices allowed with attention, cache and requests of their own"
    )
    replicas: Degrees = Field(default="any", description="numbers of engines allowed")
    max_num_seqs: Degrees = Field(
        default="any", description="most requests of a step allowed; any: also the engine's default"
    )
    max_num_batched_tokens: Degrees = Field(
        default="any", description="most tokens of a step allowed; any: also the engine's default"
    )
    cache_tokens: Annotated[int, Field(ge=1, le=10_000_000_000)] | None = Field(
        default=None,
        description="most tokens that a cache keeps (SGLang max_total_tokens); default: what memory holds",
    )

    @property
    def said(self) -> dict[str, object]:
        """The keys that narrow the search, with their values."""
        values = {name: getattr(self, name) for name in PoolSearchSpec.model_fields}
        return {name: value for name, value in values.items() if value not in {"any", None}}


class ServingSearchSpec(PoolSearchSpec):
    """The search space; each key narrows it, and an omitted key does not."""

    decode_context_parallel: Degrees = Field(
        default=1, description="ranks of a tensor-parallel group allowed to share the tokens of a cache"
    )
    gpu_memory_utilization: Annotated[Share, Field(gt=0)] | None = Field(
        default=None,
        description="share of memory that the engine may use (vLLM gpu_memory_utilization, SGLang"
        " mem_fraction_static, TensorRT-LLM free_gpu_memory_fraction); default: the engine's",
    )
    flashinfer_sampler: bool = Field(
        default=False,
        description="whether FlashInfer samples, which takes less memory than sorting: vLLM up to 0.11 where"
        " it is installed, as in its image, later with VLLM_USE_FLASHINFER_SAMPLER=1",
    )
    enforce_eager: bool = Field(
        default=False,
        description="whether no step runs as a captured CUDA graph (vLLM enforce_eager, SGLang"
        " disable_cuda_graph)",
    )
    block_tokens: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        default=None, description="tokens of a block of the cache; default: the engine's"
    )
    class_routing: Switches = Field(
        default=(False, True),
        description="whether classes of requests may have engines of their own, where requests come at a"
        " rate; false: each engine gets requests of all classes",
    )
    mixed_formats: bool = Field(
        default=False, description="whether engines of one plan may have unlike formats of weights or cache"
    )
    disaggregated: Switches = Field(
        default=(False,),
        description="whether prefill and decode may run on engines of their own",
    )
    prefill: PoolSearchSpec = Field(
        default_factory=PoolSearchSpec, description="engines of the prefill pool, where disaggregated"
    )
    decode: PoolSearchSpec = Field(
        default_factory=PoolSearchSpec, description="engines of the decode pool, where disaggregated"
    )

    @property
    def routes_classes(self) -> bool:
        """Whether classes of requests may have engines of their own."""
        return True in self.class_routing

    @property
    def mixes_classes(self) -> bool:
        """Whether an engine may get requests of all classes."""
        return False in self.class_routing


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
