"""What FSDP2 has over accelerate's mesh of data, tensor and context parallelism, and what it has not."""

from __future__ import annotations

from dataclasses import replace

from autoplan.launch.frameworks.missing_parts import refuse_experts, refuse_order, refuse_pipeline
from autoplan.launch.target import InexpressibleError
from autoplan.schema.layout import Layout


def refuse_for_replicas(layout: Layout, stages: str) -> None:
    """Raise InexpressibleError for the first part that DistributedDataParallel does not have.

    ``stages`` says where pipeline stages are chosen instead.
    """
    refuse_pipeline(layout, stages)
    refuse_experts(layout)
    refuse_order(layout)
    if layout.optimizer_offload:
        part = f"offload without FSDP or DeepSpeed (zero=0, offload={layout.offload})"
        resident = replace(layout, optimizer_offload=False, activation_offload=False)
        raise InexpressibleError(part, [resident])
    refuse_partial_recompute(layout)


def refuse_for_fsdp(layout: Layout, stages: str) -> None:
    """Raise InexpressibleError for the first part that FSDP2 and its mesh do not have."""
    refuse_pipeline(layout, stages)
    refuse_experts(layout)
    refuse_order(layout)
    if layout.sequence_parallel:
        part = "sequence parallelism with tensor parallelism (sp=on)"
        raise InexpressibleError(part, [replace(layout, sequence_parallel=False)])
    if layout.dp * layout.cp == 1:
        one = replace(layout, tp=1, dp=layout.tp, expert_tensor=0)
        nearest = [replace(one, zero=0 if layout.tp == 1 else max(2, layout.zero), optimizer_offload=False)]
        raise InexpressibleError("FSDP with nothing to shard over (dp=1, cp=1)", nearest)
    if layout.zero < 2:
        part = f"ZeRO-{layout.zero} with FSDP2, which shards gradients at least"
        replicas = replace(layout, zero=0, dp_shard=0, optimizer_offload=False)
        raise InexpressibleError(part, [*(replace(layout, zero=zero) for zero in (2, 3)), replicas])
    _refuse_hybrid(layout)
    _refuse_offload(layout)
    refuse_partial_recompute(layout)


def _refuse_hybrid(layout: Layout) -> None:
    if layout.dp_shard and (layout.dp_shard % layout.cp or layout.dp % (layout.dp_shard // layout.cp)):
        part = f"hybrid sharding inside of context-parallel groups (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=0)])
    if layout.dp_shard == layout.cp:
        part = f"sharding over context-parallel ranks alone (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=0)])


def _refuse_offload(layout: Layout) -> None:
    if layout.optimizer_offload:
        part = "offload of optimizer states alone: FSDP2 offloads parameters with them"
        raise InexpressibleError(part, [replace(layout, optimizer_offload=False)])


def refuse_partial_recompute(layout: Layout) -> None:
    """Raise InexpressibleError for recompute that is not of none or all of every layer, or is offloaded."""
    if layout.activation_offload and (layout.mode != "full" or layout.offload_every > 1):
        part = "offload of activations other than the inputs of all recomputed layers"
        full = replace(layout, offload_every=1).with_uniform_recompute("full")
        raise InexpressibleError(part, [full, replace(layout, activation_offload=False)])
    if layout.mode not in {"none", "full"}:
        part = f"recompute that is selective or of some layers (recompute={layout.recompute})"
        raise InexpressibleError(part, [layout.with_uniform_recompute(mode) for mode in ("none", "full")])
    if layout.recompute_num_layers > 1:
        part = f"units of {layout.recompute_num_layers} recomputed layers"
        raise InexpressibleError(part, [replace(layout, recompute_num_layers=1)])


def mesh_sizes(layout: Layout) -> tuple[int, int]:
    """Return the ranks that replicate and those that shard; context-parallel ranks shard as well."""
    shard = layout.dp_shard // layout.cp or layout.dp
    return layout.dp // shard, shard
