"""Cost model files of software: what a framework keeps in memory, overlaps and can run.

One ``stack`` file holds one framework's policies. They are data: the formulas in ``autoplan/costs`` read
them and never ask for a framework's name. Bytes of a parameter, switches and counts restate what the
framework's source does; numbers about the world carry their source and, where it is known, their range.

Numbers with the range in which they were seen.

What a stack keeps and fuses otherwise at one precision.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from autoplan.schema.adapters import Base, ZeroStage, distinct
from autoplan.schema.base import (
    Bytes,
    Frozen,
    LeftOutAtDefault,
    PositiveBandwidth,
    PositiveBytes,
    PositiveShare,
    Sourced,
    SourcedBytes,
    SourcedFactor,
    SourcedSeconds,
    SourcedShare,
)
from autoplan.schema.costmodel.block_policy import BlockPolicy
from autoplan.schema.costmodel.interval_spec import UncertaintySpec
from autoplan.schema.costmodel.kernel_spec import CostModel, Name
from autoplan.schema.layout import ORDERS, Order, Schedule
from autoplan.schema.precision import Optimizer, Precision
from autoplan.schema.recompute import USUAL_MODES, RecomputeMode


class PrecisionPolicy(Frozen):
    """What is different at one precision; what is left out stays as `memory` and `block` say."""

    parameter_bytes: int | None = Field(default=None, ge=0, le=8, description="see memory.parameter_bytes")
    gathered_bytes: int | None = Field(default=None, ge=1, le=8, description="see memory.gathered_bytes")
    gradient_bytes: int | None = Field(default=None, ge=1, le=8, description="see memory.gradient_bytes")
    gradient_copy_bytes: int | None = Field(
        default=None, ge=0, le=8, description="see memory.gradient_copy_bytes"
    )
    master_bytes: int | None = Field(default=None, ge=0, le=8, description="see memory.master_bytes")
    accumulation_traffic: int | None = Field(
        default=None, ge=0, le=64, description="see memory.accumulation_traffic"
    )
    host_sync_passes: int | None = Field(default=None, ge=0, le=4, description="see memory.host_sync_passes")
    reduced_bytes: int | None = Field(default=None, ge=1, le=4, description="see overlap.gradient_bytes")
    fused_kernels: bool = Field(
        default=False, description="norms, rotation, activation and casts are fused, see block.fused_norms"
    )

    def memory_changes(self) -> dict[str, int]:
        """Return the fields of the memory policy that differ."""
        return self.model_dump(exclude_none=True, exclude={"reduced_bytes", "fused_kernels"})

    def block_changes(self) -> dict[str, bool]:
        """Return the fields of the block policy that differ."""
        fused = ("fused_norms", "fused_rope", "fused_activation", "fused_casts")
        return dict.fromkeys(fused, True) if self.fused_kernels else {}

    def overlap_changes(self) -> dict[str, int]:
        """Return the fields of the overlap policy that differ."""
        return {} if self.reduced_bytes is None else {"gradient_bytes": self.reduced_bytes}


class RangedBytes(SourcedBytes):
    """A sourced size with the range in which it was seen."""

    low: Bytes = Field(description="least that was seen")
    high: Bytes = Field(description="most that was seen")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _refuse_outside(self.low, self.value, self.high)
        return self


class RangedFactor(SourcedFactor):
    """A sourced ratio with the range in which it was seen."""

    low: float = Field(ge=0, le=1e6, strict=False, description="least that was seen")
    high: float = Field(ge=0, le=1e6, strict=False, description="most that was seen")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _refuse_outside(self.low, self.value, self.high)
        return self


def _refuse_outside(low: float, value: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError("the value is outside of its own range: low <= value <= high is needed")


class MemoryPolicy(Frozen):
    """What a rank keeps and for how long; bytes are a parameter's."""

    parameter_bytes: int = Field(ge=0, le=8, description="working copy that stays between steps")
    gathered_bytes: int = Field(ge=1, le=8, description="copy gathered for use where parameters are sharded")
    experts_sharded_on_dim0: bool = Field(
        default=False,
        description="expert weights are sharded between experts: ranks beyond their number get none",
    )
    parameters_sharded_from: Literal[2, 3] = Field(
        description="ZeRO stage from which parameters are sharded; 2: gathered in forward, kept to backward"
    )
    autocast_bytes: int = Field(
        default=0,
        ge=0,
        le=4,
        description="16-bit copy of a trained parameter that autocast makes and backward still needs",
    )
    fp8_copy_bytes: int = Field(default=2, ge=0, le=4, description="8-bit copies of a parameter under fp8")
    gradient_bytes: int = Field(ge=1, le=8, description="gradient that stays until the optimizer step")
    gradient_copy_bytes: int = Field(
        default=0, ge=0, le=8, description="second copy that always exists, such as flat buckets"
    )
    accumulation_traffic: int = Field(
        ge=0,
        le=64,
        description="bytes moved to add one microbatch's gradient of a parameter to the one that is kept",
    )
    host_sync_passes: int = Field(
        default=0,
        ge=0,
        le=4,
        description="passes of a step over gradients in which the host synchronises at each tensor (overflow"
        " check, gradient norm), without ZeRO",
    )
    update_launches: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="kernels that the optimizer launches for each tensor; 0: for lists of tensors",
    )
    update_passes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="reads and writes of a tensor by the kernels of Adam beside those of one fused kernel",
    )
    host_sync_passes_zero: int = Field(default=0, ge=0, le=4, description="the same with ZeRO")
    gradients_persist: bool = Field(
        description="gradient buffers stay allocated between steps, also with one microbatch"
    )
    gradient_shards_persist: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="under ZeRO-3 shards of gradients are buffers that stay allocated between steps",
    )
    offloaded_gradients: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False, description="sharded gradients accumulate in host memory beside an offloaded optimizer"
    )
    optimizer_in_backward: bool = Field(
        default=False, description="a parameter is updated when its gradient is there, which is then freed"
    )
    offload_parameters: bool = Field(
        default=False,
        description="shards of parameters, gradients and states are in host memory, which updates them",
    )
    embedding_gradient_full_vocabulary: bool = Field(
        default=False,
        description="the gradient of a tp-sharded embedding is a view of a full-vocabulary one (DTensor)",
    )
    master_bytes: int = Field(ge=0, le=8, description="fp32 copy that the optimizer updates")
    state_bytes: int = Field(ge=1, le=8, description="one moment of the optimizer")
    unsharded_layers: int = Field(
        ge=1, le=8, description="layers that are unsharded at once under ZeRO-3, prefetched ones included"
    )
    weights_held: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="under ZeRO-3 products save the gathered weight, which stays until their backward",
    )
    max_live_parameters: int | None = Field(
        default=None,
        ge=1,
        le=10**15,
        description="most parameters unsharded at once (DeepSpeed's stage3_max_live_parameters); left out:"
        " whole layers",
    )
    reduction: Literal["layer", "bucket"] = Field(
        default="bucket",
        description="sharded gradients are reduced a layer at a time, or in buckets of overlap.bucket",
    )
    embedding_in_root: bool = Field(
        default=False,
        description="embedding, final norm and output layer are one sharded unit, which stays gathered from"
        " forward to the end of backward",
    )
    output_layer_gathered_twice: bool = Field(
        default=False, description="the unsharded output layer exists twice while the loss is computed"
    )
    optimizer_temporary_bytes: int = Field(
        ge=0, le=16, description="temporary of the optimizer step, a parameter"
    )
    optimizer_temporary_tensors: int = Field(
        default=0, ge=0, le=8, description="temporaries of the optimizer step, of the largest tensor's size"
    )
    allocator_fragmentation: RangedFactor = Field(
        description="reserved over allocated bytes of the caching allocator, of transient memory"
    )
    cuda_context: RangedBytes = Field(
        description="CUDA context with loaded kernels and workspaces of one device"
    )
    communicator: RangedBytes = Field(description="buffers of one communicator of one device")


class OverlapPolicy(Frozen):
    """Which communication hides behind compute."""

    gradient_reduce: bool = Field(description="gradient reduction runs during backward")
    parameter_gather: bool = Field(description="parameters are gathered during forward")
    interference: SourcedShare = Field(
        description="share of compute that concurrent communication takes, at the rate of a node's fabric"
    )
    no_prefetch: bool = Field(
        default=False,
        description="a layer waits for its all-gather and its reduction: neither overlaps with compute",
    )
    p2p: bool = Field(description="pipeline send/receive overlaps with compute of the next microbatch")
    interleaved_p2p: bool = Field(
        default=False,
        description="send/receive of interleaved schedules overlaps with compute of another chunk",
    )
    scatter_gather_tensors_in_pipeline: bool = Field(
        default=False,
        description="each tensor-parallel rank sends its share to the next stage, which all-gathers them",
    )
    p2p_blocking_sides: int = Field(
        default=1, ge=1, le=2, description="who waits for a transfer: the receiver (1), the sender too (2)"
    )
    all_gather_into_list: bool = Field(
        default=False, description="an all-gather ends with one copy for each rank, launched by the host"
    )
    collectives_per_layer: int = Field(
        default=1, ge=1, le=64, description="collectives in which a layer is all-gathered or reduced"
    )
    hook_launches: SourcedFactor | None = Field(
        default=None,
        description="host time of hooks that gather and release a tensor under ZeRO-3, in kernel launches,"
        " a tensor of a layer and pass; left out: none",
    )
    tp_comm: bool = Field(
        default=False,
        description="all-gathers and reduce-scatters of sequence parallelism overlap with GEMMs, in chunks",
    )
    tp_dgrad_reduce: bool = Field(
        default=False,
        description="a column-parallel GEMM reduces its input gradient (dgrad) while it computes wgrad",
    )
    gradient_bytes: int = Field(ge=1, le=4, description="bytes of a gradient on the wire")
    reduced_each_microbatch_from: int = Field(
        ge=0,
        le=4,
        description="lowest ZeRO stage that reduces gradients behind each microbatch, not once a step:"
        " 0 DDP without no_sync, 2 as DeepSpeed, 3 where ZeRO-2 accumulates whole gradients, 4 where ZeRO-3"
        " does, too (FSDP's no_sync, FSDP2's set_requires_gradient_sync(False))",
    )
    reduced_once_in_pipelines: bool = Field(
        default=False,
        description="pipelines accumulate whole gradients and reduce them once a step at every ZeRO stage",
    )
    all_reduce_under_zero: bool = Field(
        default=False,
        description="ZeRO-1 and 2 all-reduce gradients instead of reduce-scatter; each rank keeps its shard",
    )
    bucket: PositiveBytes = Field(description="size of a gradient bucket; the last one is exposed")


class StackRules(Frozen):
    """What the stack can run."""

    zero_stages: tuple[ZeroStage, ...] = Field(min_length=1, description="ZeRO stages that it has")
    zero_stages_with_pipeline: tuple[ZeroStage, ...] = Field(description="those that it runs with pp > 1")
    default_zero: int = Field(ge=0, le=3, description="the stage taken when a layout names none")
    tensor_parallel: bool = Field(description="whether it splits tensors")
    pipeline_parallel: bool = Field(description="whether it has pipelines")
    sequence_parallel: bool = Field(description="whether it splits sequences as well as tensors")
    schedules: tuple[Schedule, ...] = Field(description="pipeline schedules that it has")
    uneven_stages: bool = Field(description="whether stages may hold unequal numbers of layers")
    uneven_chunks: bool = Field(
        default=False,
        description="whether the model's first and last virtual stage may hold fewer layers",
    )
    make_vocab_size_divisible_by: int = Field(
        ge=1, le=1_000_000, description="the vocabulary is padded to a multiple of this times tp"
    )
    recompute: Annotated[tuple[RecomputeMode, ...], LeftOutAtDefault()] = Field(
        default=USUAL_MODES, description="recompute modes of layers that it has; none is that of no recompute"
    )
    recompute_several_layers: bool = Field(
        default=False, description="whether a recompute unit may have several layers (recompute_num_layers)"
    )


class HybridPolicy(Sourced):
    """How a stack shares state within groups of the data axis and copies it across them."""

    zero_stages: tuple[ZeroStage, ...] = Field(min_length=1, description="ZeRO stages with which it does")


class PlacementPolicy(Sourced):
    """In which orders a stack can number ranks: which axis runs inside a node, and which across."""

    orders: Annotated[tuple[Order, ...], Field(min_length=1), AfterValidator(distinct)] = Field(
        description="orders that it has, the innermost axis first"
    )
    without_cp_ep: tuple[Order, ...] = Field(
        default=(), description="those of them that it runs with cp = 1 and ep = 1 only"
    )

    @model_validator(mode="after")
    def _plain_ones_are_there(self) -> Self:
        if missing := [order for order in self.without_cp_ep if order not in self.orders]:
            raise ValueError(f"without_cp_ep: {', '.join(missing)} is not among the orders")
        return self


class ContextPolicy(Sourced):
    """How ranks that share a sequence let its tokens attend to each other."""

    comm_type: Literal["ring", "all-gather", "all-to-all"] = Field(
        description="keys and values go round; all of them are gathered; or each rank gets all tokens of"
        " some heads"
    )
    merge_bytes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="bytes moved to add an element of a step's output to those before it",
    )
    gradient_bytes: int = Field(
        default=2,
        ge=2,
        le=4,
        description="bytes of an element of the gradients of keys and values, as they are added up and sent",
    )


class ExpertPolicy(Frozen):
    """How a stack runs the experts of a layer; what it keeps of them for backward."""

    expert_parallel: bool = Field(description="whether experts of a layer may be on several ranks")
    expert_tensor_parallel: Literal["tp", "any"] = Field(
        description="how the matrices of an expert are split: as other tensors, or by a degree of their own"
    )
    needs_sequence_parallel: bool = Field(
        description="whether layers with experts run with tp > 1 only where sequences are split, too"
    )
    dispatch: Literal["all-to-all", "hierarchical"] = Field(
        default="all-to-all",
        description="what is sent: a copy of a token for each of its experts, or one copy to each node and"
        " from there one to each rank (DeepEP, HybridEP)",
    )
    dispatch_overlap: bool = Field(
        default=False,
        description="whether one microbatch computes while tokens of another are dispatched and combined",
    )
    fused_mlp: bool = Field(
        default=False,
        description="whether the grouped GEMMs themselves activate and cast what lies between them",
    )
    eager_bias: bool = Field(
        default=False,
        description="whether biases behind the down-projections of experts, and a clamp before their"
        " activation, are eager kernels (Megatron-Core's TEGroupedMLP)",
    )
    saved_tensors_per_routed_token: int = Field(
        ge=1,
        le=8,
        description="tensors of hidden size saved for each expert of a token: the expert's input; its output,"
        " where it is weighted; what is added up",
    )
    permute_fusion: bool = Field(
        description="one kernel sorts tokens by expert and one adds their results up; otherwise an"
        " index_select and a scatter_add (Megatron's moe_permute_fusion)"
    )
    routing_kernels: int = Field(
        ge=0, le=500, description="kernels that routing, dispatch and combine add to a layer's forward"
    )
    grouped_gemm: bool = Field(
        description="GEMMs of a rank's experts run together, in one kernel or on several streams"
    )
    kernels_per_expert: int = Field(ge=0, le=50, description="kernels of forward for each expert on a rank")
    host_waits: int = Field(
        default=0,
        ge=0,
        le=100,
        description="times in a layer's forward that the host waits for counts of tokens, without expert"
        " parallelism",
    )
    host_waits_exchanging: int = Field(
        default=0, ge=0, le=100, description="the same where experts are on several ranks, which tell counts"
    )
    host_waits_per_expert: int = Field(
        default=0, ge=0, le=10, description="times that it waits for each expert on a rank in addition"
    )
    quantized: bool = Field(
        default=False,
        description="whether weights of grouped experts have the format of a frozen base, too; those of a"
        " loop always do",
    )
    dequantized_again: bool = Field(
        default=False,
        description="whether backward makes 16-bit copies of quantised stacks again, which forward frees",
    )
    load_variation: SourcedShare = Field(
        description="standard deviation of the experts' loads over their mean, where the job tells none"
    )


class FineTuningPolicy(Frozen):
    """What a stack has of fine-tunes on few devices, and how it keeps a frozen base in 4 or 8 bits."""

    bases: tuple[Base, ...] = Field(default=(), description="formats in which adapters' frozen base may be")
    unquantized_bytes: int = Field(
        default=2,
        ge=2,
        le=4,
        description="a parameter outside of that format: embedding, output layer, norms and biases",
    )
    inputs_saved: bool = Field(
        default=False,
        description="GEMMs of a 4-bit base keep their inputs for backward (bitsandbytes before #1270,"
        " July 2024); those of int8 always do",
    )
    frozen_inputs_held: bool = Field(
        default=False,
        description="hooks of frozen sharded layers hold each one's input and its gradient to the end of"
        " backward (FSDP1 with reentrant checkpoints)",
    )
    expert_adapters: Literal["merged", "split"] | None = Field(
        default=None,
        description="adapters of stacked experts: merged into a copy of the stack in each forward (PEFT), or"
        " grouped products of routed tokens (Unsloth); left out: it has none",
    )
    mlp_in_place: bool = Field(
        default=False,
        description="an MLP with adapters is one autograd function, which computes the input of its last"
        " product again and writes inner gradients where its inner tensors were (Unsloth's LoRA_MLP)",
    )
    dequantization_traffic: SourcedFactor | None = Field(
        default=None,
        description="memory traffic of kernels that make a 16-bit weight of a quantised one, over what they"
        " read and write; left out: 1",
    )
    dora: bool = Field(default=False, description="whether adapters may have magnitudes (DoRA)")
    paged_optimizers: bool = Field(
        default=False, description="whether optimizer states may be in pages that move to the host"
    )
    optimizer_in_backward: bool = Field(
        default=False, description="whether parameters may be updated during backward"
    )
    offload_parameters: bool = Field(
        default=False,
        description="whether shards of parameters, gradients and states may be in host memory",
    )
    host_optimizer_bandwidth: PositiveBandwidth | None = Field(
        default=None,
        description="memory traffic of the host's optimizer step on them, a device's share of it",
    )
    reference_gathered_whole: bool = Field(
        default=False,
        description="whether a sharded reference of preference training is one unit, all of which is gathered"
        " at once",
    )


class OffloadPolicy(Frozen):
    """How a stack updates parameters whose optimizer state is in host memory."""

    cpu_optimizer_bandwidth: PositiveBandwidth = Field(
        description="memory traffic of the host's optimizer step, a device's share of it"
    )
    optimizers: tuple[Optimizer, ...] | None = Field(
        default=None, description="optimizers that the host has; left out: all of the job's"
    )


class ActivationOffloadPolicy(Sourced):
    """How a stack keeps in host memory what layers keep for backward."""

    recompute: Annotated[tuple[RecomputeMode, ...], LeftOutAtDefault()] = Field(
        min_length=1,
        description="recompute of all layers with which it does: full moves kept inputs, none all tensors",
    )
    pipelines: bool = Field(description="whether it does in pipelines")
    partial: bool = Field(description="whether some layers may keep theirs on the device")
    overlapped: bool = Field(
        description="copies run concurrently with compute, one layer behind and one ahead"
    )
    resident_layers: int = Field(
        ge=0,
        le=64,
        description="layers, or recompute units, whose tensors are still on the device when forward ends",
    )
    link_share: PositiveShare = Field(description="share of the host link's bandwidth that its copies reach")


class StackSpec(CostModel):
    """One software stack: memory policy, block policy, overlap, rules and how sure they are."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    kind: Literal["stack"] = Field(description="this file holds a software stack")
    name: Name = Field(description="name of the entry, the same as its file's")
    title: str = Field(description="name in words")
    description: str = Field(description="which releases it stands for, and what is special about it")
    launched_by: str | None = Field(
        default=None, description="target of `autoplan emit` that starts it; left out: no target runs it"
    )
    files_of: tuple[str, ...] = Field(
        default=(), description="targets whose files are read as jobs with this stack; not inherited"
    )
    memory: MemoryPolicy = Field(description="what a rank keeps")
    by_precision: dict[Precision, PrecisionPolicy] = Field(
        default_factory=dict, description="what a rank keeps otherwise at a precision"
    )
    block: BlockPolicy = Field(description="what a block keeps and how it is computed")
    overlap: OverlapPolicy = Field(description="what communication hides behind compute")
    experts: ExpertPolicy | None = Field(
        default=None, description="how it runs mixtures of experts; left out: it has none"
    )
    rules: StackRules = Field(description="what it can run")
    context_parallel: ContextPolicy | None = Field(
        default=None, description="how it splits sequences over ranks; left out: it cannot"
    )
    placement: PlacementPolicy | None = Field(
        default=None, description="in which orders it numbers ranks; left out: tp-cp-dp-pp"
    )
    hybrid_sharding: HybridPolicy | None = Field(
        default=None, description="how it shares state within part of the data axis; left out: it cannot"
    )
    optimizer_offload: OffloadPolicy | None = Field(
        default=None, description="how optimizer state lives in host memory; left out: it cannot"
    )
    activation_offload: ActivationOffloadPolicy | None = Field(
        default=None, description="how activations live in host memory; left out: they cannot"
    )
    fine_tuning: FineTuningPolicy | None = Field(
        default=None, description="what it has of fine-tunes on few devices; left out: none of it"
    )
    host_launch: SourcedSeconds = Field(description="host time to launch one kernel")
    uncertainty: UncertaintySpec = Field(description="how sure its predictions are")

    @property
    def orders(self) -> tuple[Order, ...]:
        """The orders in which it can number ranks."""
        return self.placement.orders if self.placement else ORDERS[:1]

    @model_validator(mode="after")
    def _splits_fused_attention_only(self) -> Self:
        if self.context_parallel is not None and self.block.attention == "eager":
            raise ValueError("context_parallel: needs fused attention, and block.attention is eager")
        return self


class StackFile(StackSpec):
    """What a stack's file may say: a whole stack, or what differs from the one that it extends."""

    extends: str | None = Field(
        default=None,
        min_length=1,
        description="the stack whose knobs hold where this file says nothing: a name in costmodels/stacks, or"
        " a path to such a file, relative to this one; an empty value takes a knob back",
    )
