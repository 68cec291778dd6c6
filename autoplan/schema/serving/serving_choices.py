"""What may be chosen for a serving job: layouts of engines, formats, speculation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from autoplan.schema.base import Frozen, Share
from autoplan.schema.job_choices import distinct
from autoplan.schema.serving.weight_formats import KvFormat, WeightFormat
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
