"""From an oracle case to a job and a layout: the case's own knobs as policies, data only."""

from __future__ import annotations

from typing import Final, cast

from autoplan.catalog import kernels_for, load_entry, stack
from autoplan.schema.costmodel import StackSpec
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.job import Cluster, Job, Workload
from autoplan.schema.layout import Layout, even_stages
from autoplan.schema.model import Biases, ModelSpec
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

#: Bytes of a logit that are kept, and that are alive at the loss's worst moment: in fp32 the
#: log-softmax, its gradient and that of its input (4 + 4 + 4); half of it in bf16.
_LOSS: Final = {"fp32": (4, 12), "bf16": (2, 6)}

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
    none = (0,) * config.pp
    full = {"full": stages, "every2": tuple(n // 2 for n in stages)}.get(config.ac, none)
    partly = config.ac == "sac_mm" or (config.dims.attn_ac and config.ac == "none")
    return Layout(
        tp=config.tp,
        pp=config.pp,
        dp=config.dp,
        microbatch=config.mbs,
        layers=stages,
        selective=stages if partly else none,
        full=full,
        zero=1 if config.dist_optim else _ZERO[config.dp_mode],
        sequence_parallel=config.sp and config.tp > 1,
    )


def _model(dims: Dims) -> ModelSpec:
    gpt = dims.family == "gpt"
    return ModelSpec(
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
        found = with_overlap(found, gradient_bytes=pure["gradient_bytes"])
    # torch's foreach Adam has one more copy of the parameters alive while it steps.
    temporary = found.memory.parameter_bytes if config.adam == "foreach" else 0
    return with_memory(found, optimizer_temporary_bytes=temporary)


def _with_block(found: StackSpec, config: Config) -> StackSpec:
    """Set what the case says of its kernels; the Megatron cases keep the shipped loss."""
    dims = config.dims
    changed = with_block(
        found,
        attention=dims.attn,
        fused_activation=dims.act_fn == "fused",
        packed_qkv_kept=dims.qkv_fused,
        dropout=dims.dropout > 0,
        selective="matmul-outputs" if config.ac == "sac_mm" else "attention",
    )
    if config.impl == "megatron":
        return changed
    kept, peak = _LOSS[config.loss]
    held = _HELD_LOGITS if config.hold_logits else 0
    return with_block(
        changed,
        logits_bytes=kept + held,
        logits_peak_bytes=peak + held,
        vocabulary_parallel_loss=config.loss_parallel,
    )


def _with_rules(found: StackSpec) -> StackSpec:
    """The oracle pads no vocabulary."""
    return with_rules(found, vocabulary_multiple=1)
