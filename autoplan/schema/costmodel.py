"""Cost model files: what kernels of a device reach, and what a software stack keeps and overlaps.

Facts of a device are in ``hardware/``; how far reality falls short of them is here. ``kernels`` files
hold one device family's measured curves, ``stack`` files one framework's memory policy, overlap and
rules. The formulas that read them are in ``autoplan/costs``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Frozen, Sourced, SourcedBytes, SourcedSeconds, SourcedShare
from autoplan.schema.hardware import sourced_numbers

__all__ = [
    "AttentionCurve",
    "BlockPolicy",
    "CollectiveTable",
    "GemmCurve",
    "KernelSpec",
    "MemoryPolicy",
    "OverlapPolicy",
    "StackRules",
    "StackSpec",
    "StreamCurve",
    "UncertaintySpec",
]

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


class SourcedSize(Sourced):
    """A sourced extent in elements, such as the width at which a curve reaches half of its ceiling."""

    value: float = Field(ge=0, strict=False, description="a number of elements, rows or tokens")


class SourcedFactor(Sourced):
    """A sourced ratio that may exceed one."""

    value: float = Field(ge=0, strict=False, description="a ratio without a unit")


class GemmCurve(Frozen):
    """Matrix products: the share of peak reached grows with each extent and saturates.

    flops / (peak ceiling m/(m+half_m) n/(n+half_n) k/(k+half_k)), plus ``launch``.
    """

    ceiling: SourcedShare = Field(description="share of peak that large products reach")
    sustained_share: SourcedShare = Field(
        description="clock of hours of training over that of a short sweep, where power limits it"
    )
    half_m: SourcedSize = Field(description="rows at which the rate falls to half of the ceiling")
    half_n: SourcedSize = Field(description="columns at which the rate falls to half of the ceiling")
    half_k: SourcedSize = Field(description="inner width at which the rate falls to half")
    launch: SourcedSeconds = Field(description="time that a product takes however small it is")


class AttentionCurve(Frozen):
    """Fused attention: the share of peak reached grows with sequence and rows and saturates."""

    forward_ceiling: SourcedShare = Field(description="share of peak that long forward passes reach")
    backward_ceiling: SourcedShare = Field(description="share of peak that long backward passes reach")
    flash2_share: SourcedShare = Field(
        description="rate of FlashAttention-2 over that of the kernels measured, which may be newer"
    )
    half_sequence: SourcedSize = Field(description="sequence at which the rate falls to half")
    half_rows: SourcedSize = Field(description="heads x tokens at which the rate falls to half")
    launch: SourcedSeconds = Field(description="time that a call takes however small it is")


class StreamCurve(Frozen):
    """Operations that only read and write memory."""

    bandwidth_share: SourcedShare = Field(description="share of the memory bandwidth that is reached")
    launch: SourcedSeconds = Field(description="time that an operation takes however small it is")


class CollectiveTable(Frozen):
    """Measured times of one collective over one number of ranks inside a node."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"] = Field(
        description="the collective; bytes count the full tensor, as nccl-tests prints them"
    )
    ranks: int = Field(ge=2, description="devices that take part")
    bytes: tuple[int, ...] = Field(min_length=2, description="size of the full tensor, ascending")
    microseconds: tuple[float, ...] = Field(min_length=2, description="measured time of each size")

    @model_validator(mode="after")
    def _aligned(self) -> CollectiveTable:
        if len(self.bytes) != len(self.microseconds):
            raise ValueError("bytes and microseconds hold different numbers of entries")
        if list(self.bytes) != sorted(set(self.bytes)) or min(self.microseconds) <= 0:
            raise ValueError("bytes must ascend and times must be positive")
        return self


class Collectives(Frozen):
    """What collectives reach, in tables where measured and as shares of the links elsewhere."""

    fabric_share: SourcedShare = Field(description="share of a fabric's bandwidth that a ring reaches")
    network_share: SourcedShare = Field(description="share of a network's bandwidth that a ring reaches")
    launch: SourcedSeconds = Field(description="time that a collective takes however small it is")
    source: str | None = Field(default=None, description="key of the source of the tables")
    fabrics: tuple[str, ...] = Field(
        default=(), description="nodes on whose fabric the tables were measured; others use the shares"
    )
    tables: tuple[CollectiveTable, ...] = Field(default=(), description="measured times inside a node")


class _CostModel(Frozen):
    """What both kinds of cost model file have: sourced numbers, and the sources in full."""

    sources: dict[str, str] = Field(description="source of each number, by key")

    @model_validator(mode="after")
    def _sources_are_listed(self) -> Self:
        for where, number in sourced_numbers(self):
            if number.source not in self.sources:
                known = ", ".join(sorted(self.sources)) or "none"
                raise ValueError(f"{where} names the source {number.source!r}: `sources` has {known}")
        return self


class KernelSpec(_CostModel):
    """What kernels reach on one family of devices."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["kernels"] = Field(description="this file holds kernel curves")
    name: Name = Field(description="name of the entry, the same as its file's")
    devices: tuple[str, ...] = Field(description="devices that the curves hold for; empty: any device")
    valid_for: str = Field(description="range of shapes and formats inside which the curves were measured")
    gemm: GemmCurve = Field(description="matrix products")
    attention: AttentionCurve = Field(description="fused attention")
    stream: StreamCurve = Field(description="memory-bound operations")
    collectives: Collectives = Field(description="collective operations")


class MemoryPolicy(Frozen):
    """What a rank keeps and for how long; bytes are a parameter's."""

    parameter_bytes: int = Field(ge=0, le=8, description="working copy that stays between steps")
    gathered_bytes: int = Field(ge=1, le=8, description="copy gathered for use where parameters are sharded")
    parameters_sharded_from: Literal[2, 3] = Field(
        description="ZeRO stage from which parameters are sharded; 2: gathered in forward, kept to backward"
    )
    gradient_bytes: int = Field(ge=1, le=8, description="gradient that stays until the optimizer step")
    accumulation_traffic: int = Field(
        ge=0,
        le=64,
        description="bytes moved to add one microbatch's gradient of a parameter to the one that is kept",
    )
    gradients_persist: bool = Field(
        description="gradient buffers stay allocated between steps, also with one microbatch"
    )
    master_bytes: int = Field(ge=0, le=8, description="fp32 copy that the optimizer updates")
    state_bytes: int = Field(ge=1, le=8, description="one moment of the optimizer")
    prefetched_layers: int = Field(
        ge=1, le=8, description="layers whose gathered parameters are alive at once under ZeRO-3"
    )
    optimizer_temporary_bytes: int = Field(
        ge=0, le=16, description="temporary of the optimizer step, a parameter"
    )
    reserved_share: SourcedFactor = Field(description="allocator's reserved bytes over allocated bytes")
    framework: SourcedBytes = Field(description="context, communicators and workspaces of one device")


class BlockPolicy(Frozen):
    """Which tensors of a block are kept for backward, and how it is computed."""

    attention: Literal["flash", "flash2", "eager"] = Field(
        description="the device's best fused attention, FlashAttention-2, or scores in memory"
    )
    attention_share: SourcedShare = Field(
        description="rate of the stack's attention kernels over those measured on the device"
    )
    kernels: int = Field(ge=1, le=500, description="kernels of a layer's forward, all counted")
    fused_activation: bool = Field(description="one kernel for the gated activation (6f, not 8f bytes)")
    packed_qkv_kept: bool = Field(description="the packed qkv output stays alive beside rotated q and k")
    dropout: bool = Field(description="dropout masks are kept in GPT-style blocks")
    gathered_inputs_kept: bool = Field(
        description="inputs gathered under sequence parallelism are kept whole, not per shard"
    )
    selective: Literal["attention", "matmul-outputs"] = Field(
        description="what selective recompute drops: core attention, or all but matmul outputs"
    )
    logits_bytes: int = Field(ge=2, le=8, description="kept for backward, a logit")
    logits_peak_bytes: int = Field(ge=2, le=16, description="alive at once in the loss, a logit")
    vocabulary_parallel_loss: bool = Field(description="the loss works on each rank's share of logits")
    elementwise_traffic: SourcedFactor = Field(
        description="memory traffic of norms and activations over that of fused kernels"
    )


class OverlapPolicy(Frozen):
    """Which communication hides behind compute."""

    gradient_reduce: bool = Field(description="gradient reduction runs during backward")
    parameter_gather: bool = Field(description="parameters are gathered during forward")
    interference: SourcedShare = Field(
        description="share of communication hidden beside compute that slows the compute"
    )
    pipeline: bool = Field(description="stage boundaries are sent while the next microbatch computes")
    gradient_bytes: int = Field(ge=1, le=4, description="bytes of a gradient on the wire")
    bucket: SourcedBytes = Field(description="size of a gradient bucket; the last one is exposed")


class StackRules(Frozen):
    """What the stack can run."""

    zero_stages: tuple[int, ...] = Field(min_length=1, description="ZeRO stages that it has")
    zero_stages_with_pipeline: tuple[int, ...] = Field(description="those that it runs with pp > 1")
    default_zero: int = Field(ge=0, le=3, description="the stage taken when a layout names none")
    tensor_parallel: bool = Field(description="whether it splits tensors")
    pipeline_parallel: bool = Field(description="whether it has pipelines")
    sequence_parallel: bool = Field(description="whether it splits sequences beside tensors")
    schedules: tuple[Literal["1f1b", "gpipe", "interleaved"], ...] = Field(
        description="pipeline schedules that it has"
    )
    uneven_stages: bool = Field(description="whether stages may hold unequal numbers of layers")
    vocabulary_multiple: int = Field(
        ge=1, description="the vocabulary is padded to a multiple of this times tp"
    )
    accumulates_locally: bool = Field(
        description="ZeRO-2 reduces gradients once a step, not once a microbatch"
    )


class UncertaintySpec(Frozen):
    """Half-widths of the 90 % interval of a prediction, as shares of it."""

    time: SourcedShare = Field(description="of step time on a device whose kernels were measured")
    time_elsewhere: SourcedShare = Field(description="of step time on any other device")
    memory: SourcedShare = Field(description="of peak memory")


class StackSpec(_CostModel):
    """One software stack: memory policy, block policy, overlap, rules and how sure they are."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["stack"] = Field(description="this file holds a software stack")
    name: Name = Field(description="name of the entry, the same as its file's")
    title: str = Field(description="name in words")
    description: str = Field(description="which releases it stands for, and what is special about it")
    memory: MemoryPolicy = Field(description="what a rank keeps")
    block: BlockPolicy = Field(description="what a block keeps and how it is computed")
    overlap: OverlapPolicy = Field(description="what communication hides behind compute")
    rules: StackRules = Field(description="what it can run")
    host_launch: SourcedSeconds = Field(description="host time to launch one kernel")
    uncertainty: UncertaintySpec = Field(description="how sure its predictions are")
