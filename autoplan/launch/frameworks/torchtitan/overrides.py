"""Overrides of a torchtitan configuration that a plan becomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from autoplan.launch.frameworks.missing_parts import (
    microbatches,
    refuse_order,
    refuse_software,
    with_data_ranks,
)
from autoplan.launch.frameworks.torchtitan.config_functions import function_of
from autoplan.launch.frameworks.torchtitan.stage_modules import even_split, module_names
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.layout import RECOMPUTE, Layout
from autoplan.schema.stage_layers import chunks_of

__all__ = ["layout_overrides", "model_words", "training_overrides"]

#: Schedules by ours; its zero-bubble ones have two virtual stages or more, and are none of ours.
_SCHEDULES: Final = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_PRECISIONS: Final = {"bf16": "bfloat16", "fp32": "float32"}
#: When parameters are resharded, by ZeRO stage.
_RESHARD: Final = {2: "never", 3: "always"}
_SECTION: Final = "--parallelism."
#: Most layers that embedding or head are tried as.
_MOST_COUNTED: Final = 4


def layout_overrides(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the overrides of degrees, stages, sharding and batches; raises InexpressibleError.

    All degrees are given, since those that are left out are those of the configuration function.
    """
    refuse_order(layout)
    _refuse_expert_degrees(job, layout)
    _refuse_offload(layout)
    yield (f"{_SECTION}tensor_parallel_degree", str(layout.tp))
    if layout.tp > 1:
        no = "" if layout.sequence_parallel else "no-"
        yield (f"{_SECTION}{no}enable_sequence_parallel",)
    yield (f"{_SECTION}pipeline_parallel_degree", str(layout.pp))
    yield from _pipeline(job, layout)
    yield (f"{_SECTION}context_parallel_degree", str(layout.cp))
    yield (f"{_SECTION}expert_parallel_degree", str(layout.ep))
    yield from _sharding(layout)
    yield from _batches(job, layout)


def _pipeline(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    if layout.schedule not in _SCHEDULES:
        part = f"its zero-bubble schedules have several virtual stages (schedule={layout.schedule})"
        raise InexpressibleError(part, [replace(layout, schedule="1f1b")])
    if layout.pp == 1:
        return
    yield (f"{_SECTION}pipeline_parallel_schedule", _SCHEDULES[layout.schedule])
    chunks = chunks_of(layout.layers, layout.vpp)
    split = tuple(chunks[stage][v] for v in range(layout.vpp) for stage in range(layout.pp))
    if min(split) < 0 or 0 in split[1:-1]:
        even = replace(layout, vpp=1, schedule="1f1b")
        raise InexpressibleError(f"stages {layout.layers} in {layout.vpp} virtual stages each", [even])
    # Who reads the overrides knows the layers of a model alone where it has a configuration function.
    equal = len(set(split)) == 1 and layout.vpp <= 2
    counted = _even(split, layout.vpp) if equal or function_of(job.model.name) else []
    yield from counted or _by_name(split)


def _even(split: tuple[int, ...], vpp: int) -> list[tuple[str, ...]]:
    """Return the overrides of a split that torchtitan makes itself; none where it does not."""
    layers, stages = sum(split), len(split)
    for counted in range(_MOST_COUNTED**2):
        first, last = divmod(counted, _MOST_COUNTED)
        each = -(-(layers + first + last) // stages)
        if even_split(layers, stages, first, last) != split:
            continue
        overrides: list[tuple[str, ...]] = [
            (f"{_SECTION}pipeline_parallel_first_stage_less_layers", str(first)),
            (f"{_SECTION}pipeline_parallel_last_stage_less_layers", str(last)),
        ]
        # Two virtual stages are what an interleaved schedule has by default.
        if vpp <= 2:
            return overrides
        if -(-(layers + first + last) // each) == stages:
            return [*overrides, (f"{_SECTION}pipeline_parallel_layers_per_stage", str(each))]
    return []


def _by_name(split: tuple[int, ...]) -> list[tuple[str, ...]]:
    return [(f"{_SECTION}module_fqns_per_model_part", *module_names(split))]


def _refuse_expert_degrees(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError where experts are divided in another way than torchtitan has.

    Without expert parallelism they are split as other matrices are; with it they are whole, and tensor- and
    context-parallel ranks hold experts of their own.
    """
    if job.model.moe is None:
        return
    if layout.ep == 1 and layout.etp != layout.tp:
        part = f"experts that are whole under tensor parallelism alone (ep=1, etp={layout.etp})"
        raise InexpressibleError(part, [replace(layout, expert_tensor=0)])
    if layout.ep > 1 and layout.etp != 1:
        part = f"expert parallelism with experts that are split (etp={layout.etp})"
        raise InexpressibleError(part, [replace(layout, expert_tensor=1), replace(layout, ep=1)])
    ranks = (layout.dp_shard or layout.dp * layout.cp) * layout.tp if layout.zero else layout.cp * layout.tp
    if ranks % layout.ep:
        part = f"ep={layout.ep} beyond the {ranks} ranks of one sharded replica"
        unsharded = [replace(layout, dp_shard=0)] if layout.dp_shard else []
        nearest = [*unsharded, replace(layout, ep=1, expert_tensor=0)]
        raise InexpressibleError(part, nearest)


def _sharding(layout: Layout) -> Iterator[tuple[str, ...]]:
    replicate, shard = _refused_or_sizes(layout)
    yield (f"{_SECTION}data_parallel_replicate_degree", str(replicate))
    yield (f"{_SECTION}data_parallel_shard_degree", str(shard))
    if layout.zero:
        yield (f"{_SECTION}fsdp_reshard_after_forward", _RESHARD[layout.zero])


def _refused_or_sizes(layout: Layout) -> tuple[int, int]:
    """Return the ranks that replicate and those that shard; context-parallel ranks shard as well."""
    if layout.zero == 1:
        part = "ZeRO-1 with FSDP2, which shards gradients at least"
        replicas = replace(layout, zero=0, dp_shard=0, optimizer_offload=False)
        raise InexpressibleError(part, [*(replace(layout, zero=zero) for zero in (2, 3)), replicas])
    if layout.zero == 0:
        if layout.cp > 1:
            part = f"context parallelism without sharding over its ranks (cp={layout.cp}, zero=0)"
            raise InexpressibleError(part, [replace(layout, zero=zero) for zero in (2, 3)])
        return layout.dp, 1
    shard, left = divmod(layout.dp_shard or layout.dp * layout.cp, layout.cp)
    if left or not shard or layout.dp % shard:
        part = f"hybrid sharding inside of context-parallel groups (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=0)])
    if shard * layout.cp == 1:
        part = "sharding with nothing to shard over (dp=1, cp=1)"
        alone = replace(layout, zero=0, dp_shard=0, optimizer_offload=False)
        raise InexpressibleError(part, [alone, *with_data_ranks(replace(layout, dp_shard=0))])
    return layout.dp // shard, shard


def _refuse_offload(layout: Layout) -> None:
    if layout.optimizer_offload:
        part = "offload of optimizer states alone: enable_cpu_offload offloads parameters with them"
        raise InexpressibleError(part, [replace(layout, optimizer_offload=False)])
    if layout.activation_offload:
        raise InexpressibleError("offload of activations", [replace(layout, activation_offload=False)])


def _batches(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the batch of a rank in one pass of the pipeline: all of its microbatches, else one."""
    count = microbatches(job, layout)
    together = layout.microbatch * (count if layout.pp > 1 else 1)
    yield ("--training.local_batch_size", str(together))
    yield ("--training.global_batch_size", str(job.workload.global_batch_size))
    if layout.pp > 1:
        yield (f"{_SECTION}pipeline_parallel_microbatch_size", str(layout.microbatch))


def training_overrides(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the overrides of sequences, formats, compilation, and recompute, a subcommand, at the end."""
    software = job.software
    refuse_software(job, ("compile", "cuda_graphs", "pure_bf16", "loss"))
    if software.loss not in {None, "chunked"} or software.loss_chunks is not None:
        raise InexpressibleError(f"software.loss: {software.loss}, which the configuration function chooses")
    if job.precision not in _PRECISIONS:
        part = f"the precision {job.precision}: converters of the configuration function choose it"
        raise InexpressibleError(part)
    if job.optimizer != "adamw":
        raise InexpressibleError(f"the optimizer {job.optimizer}, which the configuration function creates")
    yield ("--training.seq_len", str(job.workload.sequence_length))
    yield ("--training.mixed_precision_param", _PRECISIONS[job.precision])
    yield ("--training.dtype", "bfloat16" if software.pure_bf16 else "float32")
    yield from _kernels(job, layout)
    yield (f"activation-checkpoint:{_recompute(layout)}",)


def _kernels(job: Job, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield whether layers are compiled and steps captured, as the plan is priced."""
    software = job.software
    compiled = software.compile if software.compile is not None else job.stack.block.fused_norms
    if compiled:
        yield ("--compile.enable",)
        yield ("--compile.components", "model,loss")
    else:
        yield ("--compile.no-enable",)
    if software.cuda_graphs and (layout.pp > 1 or layout.ep > 1):
        raise InexpressibleError("captured steps (software.cuda_graphs) with pipelines or expert parallelism")
    no = "no-" if software.cuda_graphs else ""
    yield (f"--training.{no}disable_cuda_graphs",)


def _recompute(layout: Layout) -> str:
    if layout.mode is None:
        part = f"recompute that differs by layer or stage (recompute={layout.recompute})"
        raise InexpressibleError(part, [layout.with_uniform_recompute(mode) for mode in RECOMPUTE])
    if layout.recompute_num_layers > 1:
        part = f"units of {layout.recompute_num_layers} recomputed layers"
        raise InexpressibleError(part, [replace(layout, recompute_num_layers=1)])
    return layout.mode


def model_words(job: Job) -> tuple[tuple[str, ...], ...]:
    """Return the words that name the configuration function of the model; none where there is none."""
    function = function_of(job.model.name)
    return (("--module", function[0]), ("--config", function[1])) if function else ()
