"""From an oracle case to a job and a layout: the case's own knobs as policies, data only."""

from __future__ import annotations

from typing import Any, Final, cast

from autoplan.catalog import kernels_for, load_entry, stack
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.job import Cluster, Job, Workload
from autoplan.schema.layout import Layout
from autoplan.schema.model import Biases, MixtureOfExperts, ModelSpec
from autoplan.schema.stage_layers import even_stages
from benchmarks.memory.cases import Config, Dims
from benchmarks.policies import (
    PURE_BF16,
    PURE_FP32,
    with_block,
    with_memory,
    with_overlap,
    with_rules,
)

__all__ = ["job_of", "layout_of"]

#: The node does not matter to bytes that a framework allocates; some node has to be named.
_NODE: Final = "dgx-h100"

#: Whose policies a case starts from. ``impl: compact`` is in torchtitan's shape.
_STACKS: Final = {"compact": "fsdp2", "hf": "fsdp2", "megatron": "megatron-core"}

_ZERO: Final = {"none": 0, "ddp": 0, "fsdp_zero2": 2, "fsdp_zero3": 3}

#: Bytes of a logit that are kept; alive in the loss's forward: in 16 bits, cast, and the log-softmax
#: (2 + 4 + 4); in its backward: the log-softmax, its gradient and that of its input (4 + 4 + 4).
_LOSS: Final = {"fp32": (4, 10, 12), "bf16": (2, 4, 6)}

#: The same where each rank works on its share of the logits: one more fp32 copy in either direction.
_SPLIT_LOSS: Final = (4, 14, 16)

#: Bytes of a logit in bf16 that the caller holds beside them.
_HELD_LOGITS: Final = 2


def job_of(config: Config) -> Job:
    """Return the job of a case."""
    node = cast("NodeSpec", load_entry("node", _NODE))
    cluster = Cluster(
        device=cast("DeviceSpec", load_entry("device", node.device)),
        node=node,
        devices=config.tp * config.dp * config.pp,
    )
    return Job(
        name="case",
        model=_model(config.dims),
        cluster=cluster,
        stack=_stack(config),
        kernels=kernels_for(cluster.device.name),
        workload=Workload(
            sequence_length=config.seq,
            global_batch_size=config.mbs * config.dp * config.n_microbatches,
        ),
        precision="fp32" if _pure_fp32(config) else "bf16",
    )


def layout_of(config: Config) -> Layout:
    """Return the layout of a case; every second layer checkpointed is half of a stage's layers."""
    stages = even_stages(config.dims.L, config.pp)
    full = {"full": stages, "every2": tuple(n // 2 for n in stages)}.get(config.ac, (0,) * config.pp)
    partly = config.ac == "sac_mm" or (config.dims.attn_ac and config.ac == "none")
    return Layout(
        tp=config.tp,
        pp=config.pp,
        dp=config.dp,
        microbatch=config.mbs,
        layers=stages,
        recomputed=(("selective", stages),) if partly else (("full", full),),
        zero=1 if config.dist_optim else _ZERO[config.dp_mode],
        sequence_parallel=config.sp and config.tp > 1,
    )


def _model(dims: Dims) -> ModelSpec:
    gpt = dims.family == "gpt"
    return ModelSpec(
        moe=_experts(dims),
        name="case",
        source="memory oracle",
        layers=dims.L,
        hidden_size=dims.h,
        heads=dims.heads,
        kv_heads=dims.kv,
        head_dim=dims.hd,
        ffn_size=dims.f,
        vocabulary=dims.vocab,
        positions="learned" if gpt else "rope",
        max_positions=dims.max_pos or None,
        activation="gelu" if gpt else "swiglu",
        norm="layernorm" if gpt else "rmsnorm",
        bias=Biases(qkv=gpt or dims.qkv_bias, attention_output=gpt, mlp=gpt, norm=gpt),
        tied_embeddings=dims.tied,
    )


def _experts(dims: Dims) -> MixtureOfExperts | None:
    if not dims.experts:
        return None
    return MixtureOfExperts(experts=dims.experts, top_k=dims.topk, expert_ffn_size=dims.f)


def _stack(config: Config) -> StackSpec:
    found = stack("ddp" if config.dp_mode == "ddp" else _STACKS[config.impl])
    return _with_rules(_with_block(_with_formats(found, config), config))


def _pure_fp32(config: Config) -> bool:
    return config.param_dtype == "fp32" and not config.dp_mode.startswith("fsdp")


def _with_formats(found: StackSpec, config: Config) -> StackSpec:
    """Set the number formats: mixed FSDP and Megatron as shipped, everything else in one."""
    mixed = config.dp_mode.startswith("fsdp") and config.mp and config.param_dtype == "fp32"
    if not mixed and config.optim != "megatron":
        pure = PURE_FP32 if config.param_dtype == "fp32" else PURE_BF16
        found = with_memory(found, **pure)
        # The oracle's loop reduces DDP's gradients after every microbatch.
        found = with_overlap(found, gradient_bytes=pure["gradient_bytes"], reduced_each_microbatch_from=0)
    # torch's foreach Adam has one more copy of the parameters alive while it steps.
    temporary = found.memory.parameter_bytes if config.adam == "foreach" else 0
    return with_memory(
        found,
        optimizer_temporary_bytes=temporary,
        # Its loop over tensors has about two copies of the largest.
        optimizer_temporary_tensors=2 if config.adam == "forloop" else 0,
        output_layer_gathered_twice=config.impl == "hf",
        autocast_bytes=0,
        # Without a dimension of its own a tensor is cut along its first: between experts.
        experts_sharded_on_dim0=config.expert_shard_dim is None,
        **_buckets(config),
    )


def _buckets(config: Config) -> dict[str, Any]:
    """DDP's flat buckets are the gradients, which persist, or a second copy of them."""
    if config.dp_mode != "ddp":
        return {}
    if config.bucket_view:
        return {"gradients_persist": True, "gradient_copy_bytes": 0}
    size = 2 if config.param_dtype == "bf16" else 4
    return {"gradients_persist": False, "gradient_copy_bytes": size}


def _with_block(found: StackSpec, config: Config) -> StackSpec:
    """Set what the case says of its kernels; the Megatron cases keep the shipped loss."""
    dims = config.dims
    changed = with_block(
        found,
        attention=dims.attn,
        fused_activation=dims.act_fn == "fused",
        packed_qkv_saved=dims.qkv_fused,
        dropout=dims.dropout > 0,
        selective="matmul-outputs" if config.ac == "sac_mm" else "attention",
        # PyTorch's default, which torchtitan turns off.
        checkpoint_early_stop=found.block.checkpoint_early_stop or found.name == "fsdp2",
        # The oracle's Megatron modules leave them where they are.
        norm_gradients_reduced=config.impl != "megatron",
    )
    if config.impl == "megatron":
        return changed
    kept, forward, backward = _SPLIT_LOSS if config.loss_parallel else _LOSS[config.loss]
    held = _HELD_LOGITS if config.hold_logits else 0
    return with_block(
        changed,
        logits_bytes=kept + held,
        logits_forward_bytes=forward,
        logits_backward_bytes=backward + held,
        split_loss_bytes=0,
        # HF's norms are unfused: each keeps an fp32 copy of its input.
        norm_copy_bytes=4 if config.impl == "hf" else 0,
        vocabulary_parallel_loss=config.loss_parallel,
    )


def _with_rules(found: StackSpec) -> StackSpec:
    """The oracle pads no vocabulary."""
    return with_rules(found, make_vocab_size_divisible_by=1)
