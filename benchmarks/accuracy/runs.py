"""The schema of a measured run, as ``benchmarks/README.md`` describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import RoutingSpec

__all__ = ["Experts", "Hardware", "Lora", "Measured", "Model", "PeakKind", "Run", "RunLayout", "Tuning"]

#: ``cached`` is reserved memory after batches whose lengths vary, with blocks of other lengths.
PeakKind = Literal["allocated", "reserved", "cached", "device", "unstated"]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Wide = Annotated[int, Field(ge=1, le=1_000_000_000)]
Positive = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    # What a later version of the schema adds is no reason to refuse a run.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class Hardware(_Part):
    """The devices of a run; the bandwidth between nodes where the source tells it."""

    gpu: str
    gpus: Count
    gpus_per_node: Count
    internode_gbit_per_gpu: Positive | None = None
    note: str | None = None
    #: The node of the catalogue.
    node: str | None = None


class Experts(_Part):
    """The experts of a layer; None is what the source does not tell."""

    experts: Count | None = None
    top_k: Count | None = None
    expert_ffn: Wide | None = None
    shared_expert_ffn: Wide | None = None
    first_dense_layers: Annotated[int, Field(ge=0, le=10_000)] | None = None


class Model(_Part):
    """The architecture; None is what the source does not tell."""

    name: str
    layers: Count | None = None
    hidden: Wide | None = None
    ffn: Wide | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    vocab: Wide | None = None
    sequence_length: Wide | None = None
    #: The expected longest of the lengths to which ranks pad a microbatch: the others wait for that rank.
    longest_of_ranks: Wide | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    attention: str | None = None
    moe: Experts | None = None


class RunLayout(_Part):
    """The layout of a run; None is what the source does not tell."""

    tp: Count
    pp: Count
    dp: Count
    cp: Count = 1
    ep: Count = 1
    etp: Count | None = None
    vpp: Count = 1
    sequence_parallel: bool | None = None
    micro_batch: Count | None = None
    global_batch: Wide | None = None
    zero: int | str | None = None
    recompute: str | None = None
    precision: str
    kernel: str | None = None
    overlap: str | None = None
    compile: bool | None = None
    #: Ranks of the data axis that share state; None is all of them.
    zero_group: Count | None = None
    #: Tensor-parallel collectives in chunks that overlap with their products (torchtitan).
    async_tp: bool | None = None
    #: What has a scale of its own in products in 8 bits.
    fp8_scales: Literal["tensor", "row"] | None = None


class Tuning(_Part):
    """What a job says of a fine-tune beside its layout, in its own words; a part left out is as usual."""

    adapters: dict[str, Any] | None = None
    optimizer: str | None = None
    software: dict[str, Any] = Field(default_factory=dict)
    offload: Literal["none", "optimizer", "activations", "both"] = "none"

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


class Lora(_Part):
    """Low-rank adapters, as rows tell them that have no ``tuning``."""

    rank: Count
    targets: str | tuple[str, ...] = "all"


class Measured(_Part):
    """What was measured; a run out of memory has no times."""

    step_time_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    peak_memory_gib: Positive | None = None
    peak_memory_kind: PeakKind | None = None
    oom: bool = False


class Run(_Part):
    """One row: a fixed layout of a model on devices, and how it went."""

    id: str
    group: str
    source: str = "unstated"
    task: str = "pretrain"
    stack: str
    #: The catalogue's stack that prices it, where the release or the recipe decides which.
    cost_model: str | None = None
    #: The catalogue's kernels that price it, where the release of its libraries has some of its own.
    kernels: str | None = None
    hardware: Hardware
    model: Model
    layout: RunLayout
    #: Settings of the software in the words of a job.
    software: SoftwareSpec = SoftwareSpec()
    #: How unevenly tokens spread over experts, in the words of a job; most benchmarks route them evenly.
    routing: RoutingSpec = RoutingSpec(load_variation=0.0)
    tuning: Tuning | None = None
    lora: Lora | None = None
    measured: Measured
    notes: str | None = None
    complete: bool = True

    @property
    def priced_length(self) -> int | None:
        """Tokens of a sequence on the rank for which the others wait, None where no length is known."""
        return self.model.longest_of_ranks or self.model.sequence_length

    @property
    def tokens_per_step_per_device(self) -> float | None:
        """Tokens of a step over devices, None where the batch is unknown."""
        batch, length = self.layout.global_batch, self.model.sequence_length
        return None if batch is None or length is None else batch * length / self.hardware.gpus

    @property
    def step_seconds(self) -> float | None:
        """Measured seconds of a step, from the throughput where only that is told."""
        tokens, rate = self.tokens_per_step_per_device, self.measured.tokens_per_s_per_gpu
        derived = tokens / rate if tokens is not None and rate is not None else None
        return self.measured.step_time_s or derived

    @property
    def tokens_per_second_per_device(self) -> float | None:
        """Measured throughput, from the step time where only that is told."""
        tokens, seconds = self.tokens_per_step_per_device, self.measured.step_time_s
        derived = tokens / seconds if tokens is not None and seconds is not None else None
        return self.measured.tokens_per_s_per_gpu or derived
