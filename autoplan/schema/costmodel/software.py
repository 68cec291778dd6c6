"""The ``software:`` section of a job: what its run does differently from its stack's defaults.

Each key is a choice that users make with a flag or a library; it changes the stack's fields that model it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from autoplan.schema.base import Bytes, Frozen, SourcedFactor, SourcedSeconds
from autoplan.schema.costmodel.block_policy import AttentionKernels
from autoplan.schema.costmodel.stack import StackSpec

#: Launch of a captured kernel: 2.5 us for a layer of some twenty (costmodels/stacks/megatron-core-graphs).
_GRAPH_LAUNCH_SECONDS = 1e-7
#: pytorch/pytorch aten/src/ATen/native/cuda/TensorFactories.cu, empty_cuda: a kernel fills each new tensor,
#: one more launch for each that writes one. Products write about as many bytes as the eager kernels between
#: them (7.5 and 8 hidden sizes a token and layer of a GPT): a read and a write become a read and three.
#: NVIDIA/Megatron-LM pull requests 7093 and 7217: without it large steps are 15 % faster, small ones 40 %.
_FILLED = 2.0


class SoftwareSpec(Frozen):
    """Choices of a run's software; what is left out is as the stack has it."""

    loss: Literal["whole", "shifted", "fused", "chunked", "tiled"] | None = Field(
        default=None,
        description="whole: logits in fp32 and separate kernels; shifted: the same, on a copy of all but the"
        " last token (transformers before 4.50); fused: one kernel for the loss and its"
        " gradient, on 16-bit logits; chunked: also the output layer, a chunk of tokens at a time (Liger,"
        " Unsloth, torchtune); tiled: a tile of logits at a time, which backward computes again (TRL)",
    )
    loss_chunks: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None,
        description="chunks of tokens of a chunked loss; default: vocabulary / hidden size, as Liger has",
    )
    attention: AttentionKernels | None = Field(
        default=None,
        description="attention kernels: scores in memory, or a generation of FlashAttention (flash1-triton:"
        " the first one in Triton, as llm-foundry had it), what PyTorch from 2.11 on takes (sdpa), or the"
        " device's best; masked: SDPA of PyTorch with a mask in memory, which padded batches of transformers"
        " have, and whose memory-efficient kernel skips no keys",
    )
    fused_kernels: bool | None = Field(
        default=None, description="one kernel each for norms, RoPE and the activation (Liger, Apex, Unsloth)"
    )
    gelu: Literal["kernel", "formula"] | None = Field(
        default=None,
        description="GELU of a model without gates: one kernel, or its formula with tanh, an operation each"
        " (gelu_new of transformers' GPT-2, minGPT)",
    )
    dropout: bool | None = Field(
        default=None,
        description="a model without gates drops out inputs of residuals and results of the softmax",
    )
    host_waits: Annotated[int, Field(ge=0, le=10_000_000)] | None = Field(
        default=None,
        description="times in a microbatch that the program, outside of layers, waits for a number from the"
        " device: .item(), .tolist(), a condition on a tensor, also of a loop over tokens",
    )
    compile: bool | None = Field(
        default=None, description="torch.compile: norms, RoPE, activation and casts are fused"
    )
    cuda_graphs: bool | None = Field(default=None, description="layers or steps are captured and replayed")
    deterministic: bool | None = Field(
        default=None,
        description="torch.use_deterministic_algorithms(True), which fills each new tensor before it is"
        " written (Megatron's --deterministic-mode); not where fill_uninitialized_memory is off",
    )
    optimizer_kernels: Literal["loop", "foreach", "fused"] | None = Field(
        default=None,
        description="kernels of the update: some for each tensor, for lists of them (which take a temporary"
        " as large as a moment), or one",
    )
    pure_bf16: bool | None = Field(
        default=None, description="parameters, gradients and optimizer states in bf16, nothing in fp32"
    )
    tf32: bool | None = Field(
        default=None,
        description="under precision: fp32 products run on tensor cores, in tf32, which PyTorch has off from"
        ' 1.12 on (allow_tf32, set_float32_matmul_precision("high"))',
    )
    frozen_weights: Literal["bf16", "fp32"] | None = Field(
        default=None,
        description="format of the frozen weights below adapters that are not quantised: fp32 where a model"
        " is loaded without a dtype (transformers before 5.0) and autocast casts its weights at each use",
    )
    fused_adapters: bool | None = Field(
        default=None,
        description="an MLP with adapters is one function that overwrites in backward what it saved:"
        " axolotl's lora_mlp_kernel",
    )
    optimizer_in_backward: bool | None = Field(
        default=None,
        description="each parameter is updated as soon as its gradient is there, which is then freed"
        " (torchtune's optimizer_in_bwd); a step has one microbatch",
    )
    offload_parameters: bool | None = Field(
        default=None,
        description="shards of parameters, gradients and optimizer states are in host memory, where the"
        " optimizer runs (FSDP's CPU offload, DeepSpeed's ZeRO-3 offload)",
    )
    weights_held: bool | None = Field(
        default=None,
        description="under ZeRO-3 autograd keeps gathered weights from forward to backward: DeepSpeed around"
        " a model that was built outside of zero.Init, whose F.linear saves a view of the weight",
    )
    fp8_weights: bool | None = Field(
        default=None, description="weights are kept and gathered in fp8 alone (--fp8-param-gather)"
    )
    gradients: Literal["bf16", "fp32"] | None = Field(
        default=None, description="format in which gradients are kept and reduced"
    )
    gradient_sync: Literal["microbatch", "step"] | None = Field(
        default=None,
        description="when gradients of sharded parameters are reduced: behind each microbatch (accelerate's"
        " sync_each_batch), or once a step, until when they accumulate whole (no_sync)",
    )
    overlap_grad_reduce: bool | None = Field(
        default=None,
        description="gradients are reduced beside backward (Megatron's --overlap-grad-reduce)",
    )
    overlap_param_gather: bool | None = Field(
        default=None,
        description="parameters of a distributed optimizer are gathered beside forward"
        " (--overlap-param-gather)",
    )
    tp_comm_overlap: bool | None = Field(
        default=None,
        description="all-gathers and reduce-scatters of sequence parallelism run beside GEMMs, in chunks"
        " (--tp-comm-overlap)",
    )
    bucket: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None, description="size of a gradient bucket", examples=["25 MiB"]
    )
    permute_fusion: bool | None = Field(
        default=None,
        description="one kernel each sorts tokens by expert and adds their results up (--moe-permute-fusion)",
    )
    experts: Literal["grouped", "fused", "loop"] | None = Field(
        default=None,
        description="products of a rank's experts: grouped in one kernel (grouped_mm, the default of"
        " transformers from 5.0 on, of torchtitan and of Megatron), fused with the activation and the casts"
        " between them (Transformer Engine's operation fuser), or a loop over experts, each of which the"
        " host waits for (transformers before 5.0, experts_implementation: eager)",
    )
    quantized_experts: bool | None = Field(
        default=None,
        description="weights of grouped experts have the format of a frozen base (adapters.base), too:"
        " axolotl's quantize_moe_experts; bitsandbytes leaves those of transformers 5.0 on in 16 bits",
    )
    dispatcher: Literal["all-to-all", "flex"] | None = Field(
        default=None,
        description="what is sent to experts: a copy of a token for each, or one to each node and from there"
        " one to each rank (--moe-token-dispatcher-type flex: DeepEP, HybridEP)",
    )
    dispatch_overlap: bool | None = Field(
        default=None,
        description="one microbatch computes while tokens of another are dispatched and combined"
        " (--overlap-moe-expert-parallel-comm)",
    )
    recompute_early_stop: bool | None = Field(
        default=None, description="recompute of a layer stops before its last product (PyTorch >= 2.1)"
    )


_LOSS: dict[str, dict[str, Any]] = {
    "whole": {
        "loss_chunks": 1,
        "loss_chunks_saved": False,
        "logits_bytes": 4,
        "logits_forward_bytes": 10,
        "logits_backward_bytes": 12,
        "loss_forward_traffic": 16,
        "loss_backward_traffic": 14,
        "loss_recomputed": False,
    },
    # huggingface/transformers 4.48 loss/loss_utils.py, ForCausalLMLoss: logits.float(), whose copy without
    # the last token is contiguous; backward has its gradient, and one of full length.
    "shifted": {
        "loss_chunks": 1,
        "loss_chunks_saved": False,
        "logits_bytes": 4,
        "logits_forward_bytes": 14,
        "logits_backward_bytes": 16,
        "loss_forward_traffic": 24,
        "loss_backward_traffic": 22,
        "loss_recomputed": False,
    },
    # One kernel reads the logits twice (maximum and sum, then the gradient) and writes its gradient in place.
    "fused": {
        "loss_chunks": 1,
        "loss_chunks_saved": False,
        "logits_bytes": 2,
        "logits_forward_bytes": 2,
        "logits_backward_bytes": 2,
        "loss_forward_traffic": 6,
        "loss_backward_traffic": 0,
        "loss_recomputed": False,
    },
    # The same for each chunk, whose logits are as large as the hidden states (Liger's rule for their number).
    "chunked": {
        "loss_chunks": 0,
        "loss_chunks_saved": False,
        "logits_bytes": 0,
        "logits_forward_bytes": 2,
        "logits_backward_bytes": 2,
        "loss_forward_traffic": 6,
        "loss_backward_traffic": 0,
        "loss_recomputed": False,
    },
    # trl 1.16.0 trl/kernels/chunked_logprob.py: tiles in 16 bits, computed again in backward; the gradient of
    # the hidden states adds up in fp32.
    "tiled": {
        "loss_chunks": 0,
        "loss_chunks_saved": False,
        "logits_bytes": 0,
        "logits_forward_bytes": 2,
        "logits_backward_bytes": 6,
        "loss_forward_traffic": 4,
        "loss_backward_traffic": 6,
        "loss_recomputed": True,
    },
}

#: The compiler saves the logits as they are, and makes fp32 ones of them in the kernels of the loss.
_COMPILED_LOSS = {"logits_bytes": 2, "logits_forward_bytes": 2, "logits_backward_bytes": 4}

_FUSED = {"fused_norms": True, "fused_rope": True, "fused_activation": True}

#: Kernels of a compiled layer's forward, as costmodels/stacks/fsdp2-compile and nanogpt have them.
_COMPILED_KERNELS = 14

_PURE_BF16 = {
    "parameter_bytes": 2,
    "gathered_bytes": 2,
    "gradient_bytes": 2,
    "autocast_bytes": 0,
    "master_bytes": 0,
    "state_bytes": 2,
}

#: Bytes in which frozen weights are held and gathered, and of the casts that autocast makes of fp32 ones.
_FROZEN: dict[str, dict[str, Any]] = {
    "bf16": {"gathered_bytes": 2},
    "fp32": {"gathered_bytes": 4, "autocast_bytes": 2},
}

#: Lowest ZeRO stage that reduces behind each microbatch: those that shard gradients, or none.
_REDUCED_FROM = {"microbatch": 2, "step": 4}

#: huggingface/transformers 5.23, models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeExperts: for each expert a
#: comparison and torch.where that the host waits for, an index, two products, the activation in three
#: kernels, weights, and index_add; integrations/moe.py, grouped_mm_experts_forward, waits for nothing.
_EXPERTS: dict[str, dict[str, Any]] = {
    "loop": {
        "grouped_gemm": False,
        "saved_tensors_per_routed_token": 3,
        "kernels_per_expert": 12,
        "host_waits": 1,
        "host_waits_exchanging": 1,
        "host_waits_per_expert": 2,
    },
    "grouped": {
        "grouped_gemm": True,
        "kernels_per_expert": 0,
        "host_waits": 0,
        "host_waits_exchanging": 1,
        "host_waits_per_expert": 0,
    },
    # NVIDIA-NeMo/Megatron-Bridge v0.5.0, cutedsl_fused_grouped_mlp: use_transformer_engine_op_fuser.
    "fused": {"grouped_gemm": True, "fused_mlp": True},
}

_DISPATCH = {"all-to-all": "all-to-all", "flex": "hierarchical"}

#: Switches of overlap by the choice that makes them.
_OVERLAPS = {
    "overlap_grad_reduce": "gradient_reduce",
    "overlap_param_gather": "parameter_gather",
    "tp_comm_overlap": "tp_comm",
}

#: Launches for each tensor of the update: AdamW as a loop has a dozen, for lists of tensors one or none.
_UPDATE_LAUNCHES = {"loop": 12, "foreach": 1, "fused": 0}
#: Reads and writes of Adam's eight kernels (mul, lerp, mul, addcmul, sqrt, div, add, addcdiv: 20) beside
#: those of one (parameter and moments both ways, the gradient: 7), counted in PyTorch 2.13,
#: torch/optim/adam.py, _single_tensor_adam and _multi_tensor_adam.
_UPDATE_PASSES = {"loop": 13, "foreach": 13, "fused": 0}


def with_software(stack: StackSpec, software: SoftwareSpec) -> StackSpec:
    """Return ``stack`` with the choices of ``software`` in the fields that model them.

    >>> with_software(stack("ddp"), SoftwareSpec(loss="fused", gradients="bf16")).block.logits_bytes
    2
    """
    changes = {
        "memory": _memory_changes(stack, software),
        "block": _block_changes(stack, software),
        "overlap": _overlap_changes(stack, software),
        "experts": _expert_changes(stack, software),
        "fine_tuning": _fine_tuning_changes(stack, software),
    }
    parts = {
        section: getattr(stack, section).model_copy(update=fields)
        for section, fields in changes.items()
        if fields
    }
    if software.deterministic:
        parts |= _filling(stack.model_copy(update=parts))
    if software.cuda_graphs:
        launch = {"value": _GRAPH_LAUNCH_SECONDS, "kind": "derived", "note": "captured in CUDA graphs"}
        parts["host_launch"] = stack.host_launch.model_copy(update=launch)
    return stack.model_copy(update=parts) if parts else stack


def _filling(stack: StackSpec) -> dict[str, Any]:
    """Return the sections of ``stack`` with tensors that are filled before they are written."""

    def more(number: SourcedFactor | SourcedSeconds) -> Any:  # noqa: ANN401 -- a number of its kind
        told = {"value": _FILLED * number.value, "kind": "derived", "note": "new tensors are filled first"}
        return number.model_copy(update=told)

    block = stack.block
    traffic = {name: more(getattr(block, name)) for name in ("norm_traffic", "elementwise_traffic")}
    return {"block": block.model_copy(update=traffic), "host_launch": more(stack.host_launch)}


def _memory_changes(stack: StackSpec, software: SoftwareSpec) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if software.pure_bf16:
        # Buffers of gradients have the format of the gradients.
        copied = min(stack.memory.gradient_copy_bytes, _PURE_BF16["gradient_bytes"])
        changes = {**_PURE_BF16, "gradient_copy_bytes": copied}
    for name in ("optimizer_in_backward", "offload_parameters", "weights_held"):
        if (chosen := getattr(software, name)) is not None:
            changes[name] = chosen
    if software.frozen_weights is not None:
        changes |= _FROZEN[software.frozen_weights]
    if software.fp8_weights:
        changes |= {"parameter_bytes": 1, "gathered_bytes": 1, "fp8_copy_bytes": 0}
    if software.gradients is not None:
        width = 2 if software.gradients == "bf16" else 4
        changes |= {"gradient_bytes": width, "accumulation_traffic": _accumulation_traffic(stack, width)}
    if software.optimizer_kernels is not None:
        changes["update_launches"] = _UPDATE_LAUNCHES[software.optimizer_kernels]
        changes["update_passes"] = _UPDATE_PASSES[software.optimizer_kernels]
        # Lists of tensors take the root of the second moments of all of them at once (PyTorch,
        # torch/optim/adam.py, _multi_tensor_adam; torch/optim/optimizer.py, _foreach_doc).
        listed = software.optimizer_kernels == "foreach"
        changes["optimizer_temporary_bytes"] = listed * changes.get("state_bytes", stack.memory.state_bytes)
    return changes


def _accumulation_traffic(stack: StackSpec, width: int) -> int:
    """Return the bytes that add a gradient to a sum of ``width`` bytes, in the way of ``stack``.

    The sum is read and written by the product itself, or by a kernel that also reads the product's 2 bytes.

    >>> [_accumulation_traffic(stack(name), 2) for name in ("megatron-core", "megatron-lm")]
    [4, 6]
    """
    memory = stack.memory
    if width == memory.gradient_bytes:
        return memory.accumulation_traffic
    in_product = memory.accumulation_traffic == 2 * memory.gradient_bytes
    return 2 * width if in_product else 2 + 2 * width


def _fine_tuning_changes(stack: StackSpec, software: SoftwareSpec) -> dict[str, Any]:
    """Return what a stack that has fine-tunes on few devices does with adapters."""
    if software.fused_adapters is None or stack.fine_tuning is None:
        return {}
    return {"mlp_in_place": software.fused_adapters}


def _block_changes(stack: StackSpec, software: SoftwareSpec) -> dict[str, Any]:
    changes: dict[str, Any] = dict(_COMPILED_LOSS) if software.compile and stack.block.compiled_loss else {}
    changes |= dict(_LOSS[software.loss]) if software.loss else {}
    for name in ("loss_chunks", "attention", "tf32", "dropout", "host_waits"):
        if (chosen := getattr(software, name)) is not None:
            changes[name] = chosen
    if software.gelu is not None:
        # What compiles or fuses kernels has one of them.
        fused = bool(software.compile or software.fused_kernels)
        changes["formula_gelu"] = software.gelu == "formula" and not fused
    choices = (
        (software.compile, (*_FUSED, "fused_casts")),
        (software.fused_kernels, tuple(_FUSED)),
    )
    # What either fuses is fused.
    for switch in (False, True):
        for told, fields in choices:
            if told is switch:
                changes |= dict.fromkeys(fields, switch)
    if changes.get("fused_norms"):
        changes["norm_copy_bytes"] = 0
    if software.compile:
        changes["kernels"] = min(stack.block.kernels, _COMPILED_KERNELS)
    if software.recompute_early_stop is not None:
        changes["checkpoint_early_stop"] = software.recompute_early_stop
    return changes


def _expert_changes(stack: StackSpec, software: SoftwareSpec) -> dict[str, Any]:
    if stack.experts is None:
        return {}
    changes: dict[str, Any] = dict(_EXPERTS[software.experts]) if software.experts else {}
    for name in ("permute_fusion", "dispatch_overlap"):
        if (chosen := getattr(software, name)) is not None:
            changes[name] = chosen
    if software.quantized_experts is not None:
        changes["quantized"] = software.quantized_experts
    if software.dispatcher is not None:
        changes["dispatch"] = _DISPATCH[software.dispatcher]
    return changes


def _overlap_changes(stack: StackSpec, software: SoftwareSpec) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if software.pure_bf16:
        changes["gradient_bytes"] = 2
    if software.gradients is not None:
        changes["gradient_bytes"] = 2 if software.gradients == "bf16" else 4
    if software.gradient_sync is not None:
        changes["reduced_each_microbatch_from"] = _REDUCED_FROM[software.gradient_sync]
    for name, field in _OVERLAPS.items():
        if (chosen := getattr(software, name)) is not None:
            changes[field] = chosen
    if software.bucket is not None:
        told = {"value": software.bucket, "kind": "derived", "note": "software.bucket of the job"}
        changes["bucket"] = stack.overlap.bucket.model_copy(update=told)
    return changes
