"""Arguments of a layout: degrees, pipeline stages, recompute, sharding and offload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from autoplan.launch.frameworks.megatron.pipeline_layout import layout_text
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Layout
from autoplan.schema.stage_layers import chunks_of, counts_embedding_and_loss

__all__ = ["RESIDENT_LAYERS", "layout_arguments", "pipeline_arguments", "recompute_arguments"]

#: Layers whose activations are not offloaded: TransformerConfig wants fewer offloaded layers than all of
#: them, and the stack's model keeps two.
RESIDENT_LAYERS: Final = 2
#: Numbers of layers with full recompute that are proposed where those of a layout differ.
_BLOCKS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}


def layout_arguments(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of ``layout``; raises InexpressibleError for the first part that has none."""
    yield ("--tensor-model-parallel-size", str(layout.tp))
    if layout.sequence_parallel:
        yield ("--sequence-parallel",)
    elif layout.tp > 1 and job.model.moe is not None:
        part = "tensor parallelism of a model with experts needs sequence parallelism (sp=on)"
        raise InexpressibleError(part, [replace(layout, sequence_parallel=True)])
    yield ("--pipeline-model-parallel-size", str(layout.pp))
    yield from pipeline_arguments(layout)
    yield ("--context-parallel-size", str(layout.cp))
    yield from _context(job, layout)
    yield from _expert_degrees(job, layout)
    yield from _order(layout)
    yield ("--micro-batch-size", str(layout.microbatch))
    yield ("--global-batch-size", str(job.workload.global_batch_size))
    yield from recompute_arguments(layout)
    yield from _sharding(layout)
    yield from _offload(job, layout)


def pipeline_arguments(layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of the schedule and of the layers of stages and virtual stages."""
    if layout.schedule in {"gpipe", "zero-bubble"}:
        part = f"it has no {layout.schedule} schedule (schedule={layout.schedule})"
        raise InexpressibleError(part, [replace(layout, schedule="1f1b")])
    stages, vpp, layers = layout.layers, layout.vpp, sum(layout.layers)
    if len(set(stages)) == 1 and stages[0] % vpp == 0:
        if vpp > 1:
            yield ("--num-virtual-stages-per-pipeline-rank", str(vpp))
        return
    if layout.even and counts_embedding_and_loss(layers, layout.pp, vpp) and layout.pp > 1:
        yield from _counted(layers, vpp)
        return
    ends = _uneven_ends(stages, vpp)
    if ends:
        yield from ends
        if vpp > 1:
            yield ("--num-virtual-stages-per-pipeline-rank", str(vpp))
    else:
        _refuse_empty_middle(layout)
        yield ("--pipeline-model-parallel-layout", layout_text(stages, vpp))


def _counted(layers: int, vpp: int) -> Iterator[tuple[str, ...]]:
    """Yield the arguments where embedding and loss, or the loss, count as layers of virtual stages."""
    if -layers % vpp == 2:
        yield ("--account-for-embedding-in-pipeline-split",)
    yield ("--account-for-loss-in-pipeline-split",)
    yield ("--num-virtual-stages-per-pipeline-rank", str(vpp))


def _uneven_ends(stages: tuple[int, ...], vpp: int) -> tuple[tuple[str, str], ...]:
    """Return the arguments of first and last stages unlike the others; empty if these do not suffice."""
    if len(stages) < 2 or any(n % vpp for n in stages):
        return ()
    first = ("--decoder-first-pipeline-num-layers", str(stages[0]))
    last = ("--decoder-last-pipeline-num-layers", str(stages[-1]))
    if len(set(stages[1:])) == 1:
        return (first,)
    if len(set(stages[:-1])) == 1:
        return (last,)
    return (first, last) if len(set(stages[1:-1])) == 1 else ()


def _refuse_empty_middle(layout: Layout) -> None:
    """Raise InexpressibleError for virtual stages that the layout string cannot hold."""
    chunks = chunks_of(layout.layers, layout.vpp)
    if any(n < 0 for stage in chunks for n in stage):
        raise InexpressibleError(f"stages {layout.layers} do not have {layout.vpp} virtual stages each")


def _context(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    policy = job.stack.context_parallel
    if layout.cp == 1 or policy is None:
        return
    names = {"ring": "p2p", "all-to-all": "a2a", "all-gather": "all_gather"}
    yield ("--cp-comm-type", names[policy.comm_type])


def _expert_degrees(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    if job.model.moe is None:
        return
    yield ("--expert-model-parallel-size", str(layout.ep))
    if layout.etp != layout.tp:
        yield ("--expert-tensor-parallel-size", str(layout.etp))


def _order(layout: Layout) -> Iterator[tuple[str, ...]]:
    if layout.order == ORDERS[0]:
        return
    if layout.order != "tp-cp-pp-dp":
        nearest = [replace(layout, order=order) for order in ORDERS[:2]]
        raise InexpressibleError(f"it does not number ranks in the order {layout.order}", nearest)
    if layout.cp > 1 or layout.ep > 1:
        part = f"the rank order {layout.order} with context or expert parallelism"
        raise InexpressibleError(part, [replace(layout, order=ORDERS[0])])
    yield ("--use-tp-pp-dp-mapping",)


def recompute_arguments(layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of recompute: of all layers, or full recompute of the first of each stage."""
    unit = layout.recompute_num_layers
    if layout.mode == "selective":
        yield ("--recompute-granularity", "selective")
        yield ("--recompute-modules", "core_attn")
    elif layout.mode == "full":
        yield from _full("uniform", unit)
    elif layout.mode is None:
        count = _blocks(layout)
        if count is None or unit > 1:
            part = f"recompute that differs by layer or stage (recompute={layout.recompute})"
            raise InexpressibleError(part, _alike_recompute(layout))
        yield from _full("block", count)


def _full(method: str, count: int) -> Iterator[tuple[str, ...]]:
    yield ("--recompute-granularity", "full")
    yield ("--recompute-method", method)
    yield ("--recompute-num-layers", str(count))


def _blocks(layout: Layout) -> int | None:
    """Return the layers of each virtual stage with full recompute; None where stages differ in them."""
    if any(layout.selective):
        return None
    chunks = chunks_of(layout.layers, layout.vpp)
    for count in range(1, max(map(max, chunks)) + 1):
        if all(sum(min(count, n) for n in stage) == f for stage, f in zip(chunks, layout.full, strict=True)):
            return count
    return None


def _alike_recompute(layout: Layout) -> list[Layout]:
    """Return layouts with recompute that blocks express, the one that recomputes least first."""
    none, single = (0,) * layout.pp, replace(layout, recompute_num_layers=1, full=(0,) * layout.pp)
    chunks = chunks_of(layout.layers, layout.vpp)
    blocks = [
        replace(single, selective=none, full=tuple(sum(min(count, n) for n in stage) for stage in chunks))
        for count in _BLOCKS
        if count <= max(map(max, chunks))
    ]
    return [*(layout.with_uniform_recompute(mode) for mode in ("none", "selective")), *blocks]


def _sharding(layout: Layout) -> Iterator[tuple[str, ...]]:
    if layout.zero == 0:
        return
    if layout.zero > 1:
        yield ("--use-megatron-fsdp",)
        yield ("--data-parallel-sharding-strategy", _SHARDING[layout.zero])
        # Megatron-FSDP takes no other format of checkpoints.
        yield ("--ckpt-format", "fsdp_dtensor")
    yield ("--use-distributed-optimizer",)
    if layout.dp_shard:
        yield ("--num-distributed-optimizer-instances", str(layout.dp * layout.cp // layout.dp_shard))


def _offload(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    if layout.optimizer_offload:
        yield ("--optimizer-cpu-offload",)
        yield ("--optimizer-offload-fraction", "1.0")
    if not layout.activation_offload:
        return
    without = replace(layout, activation_offload=False)
    if layout.pp > 1 or layout.mode != "none":
        part = "offload of activations with pipelines or recompute"
        raise InexpressibleError(part, [without])
    layers, every = job.model.layers, layout.offload_every
    count = layers - RESIDENT_LAYERS if every == 1 else layers // every
    if not 0 < count < layers:
        raise InexpressibleError(f"offload of activations of {count} of {layers} layers", [without])
    yield ("--cpu-offloading-num-layers", str(count))
