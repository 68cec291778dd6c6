"""Parts of plans that several frameworks lack, the nearest layouts without them, and notes on models.

FSDP2 is that over accelerate's mesh of data, tensor and context parallelism.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from autoplan.catalog.model_names import published_format
from autoplan.costs.core.rank_parameters import experts_quantized
from autoplan.costs.core.sizes import dropout_masks
from autoplan.launch.known_models import hub_name
from autoplan.launch.target import InexpressibleError
from autoplan.schema.costmodel.software import SoftwareSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Layout

T = TypeVar("T")


def without_pipeline(layout: Layout) -> Layout:
    """Return the layout with one stage, and its devices as data-parallel ranks."""
    one = replace(
        layout,
        pp=1,
        vpp=1,
        schedule="1f1b",
        dp=layout.dp * layout.pp,
        layers=(sum(layout.layers),),
        recomputed=tuple((mode, (sum(counts),)) for mode, counts in layout.recomputed),
        dp_shard=0,
    )
    return one if one.mode is not None else one.with_uniform_recompute("full")


def with_data_ranks(layout: Layout) -> list[Layout]:
    """Return layouts in which half or all ranks of the tensor or the pipeline axis are data-parallel ones."""
    layouts = [without_pipeline(layout)] if layout.pp > 1 else []
    for tp in dict.fromkeys((layout.tp // 2, 1)):
        if tp and layout.tp % tp == 0 and tp < layout.tp:
            data = layout.dp * (layout.tp // tp)
            sequence = layout.sequence_parallel and tp > 1
            layouts.append(replace(layout, tp=tp, dp=data, sequence_parallel=sequence, expert_tensor=0))
    return layouts


def with_data_alone(layout: Layout) -> Layout:
    """Return the layout without tensor and context parallelism, whose ranks are data-parallel ones."""
    dp = layout.dp * layout.cp * layout.tp
    return replace(layout, tp=1, cp=1, dp=dp, sequence_parallel=False, expert_tensor=0, dp_shard=0)


def resident(layout: Layout) -> Layout:
    """Return the layout with nothing in host memory."""
    return replace(layout, optimizer_offload=False, activation_offload=False)


def named(job: Job, choice: str, names: Mapping[str, T]) -> T:
    """Return what a program calls the ``choice`` of a job; raises InexpressibleError where it has none."""
    chosen = getattr(job, choice)
    if chosen not in names:
        raise InexpressibleError(f"the {choice} {chosen}")
    return names[chosen]


def training_notes(
    job: Job, key: str, stacks: Sequence[str], framework: str, *, base_shipped: bool = False
) -> tuple[str, ...]:
    """Return notes on the model and the stack of a program that loads it by its name; see ``model_notes``.

    ``stacks`` are beginnings of the names of those that price it, the usual one last.
    """
    unknown = f"set {key}: the hub has no known name for {job.model.name}"
    model = (*(() if hub_name(job.model) else (unknown,)), *model_notes(job, base_shipped=base_shipped))
    return (*model, *stack_note(job, tuple(stacks), stacks[-1], framework))


def refuse_pipeline(layout: Layout, why: str) -> None:
    """Raise InexpressibleError for pipeline stages; ``why`` says where they are chosen instead."""
    if layout.pp > 1:
        raise InexpressibleError(f"pipeline stages (pp={layout.pp}): {why}", [without_pipeline(layout)])


def refuse_beyond_data(layout: Layout, why: str) -> None:
    """Raise InexpressibleError for tensor, context and hybrid parallelism; ``why`` says what has them."""
    if layout.tp * layout.cp > 1:
        part = f"tensor and context parallelism (tp={layout.tp}, cp={layout.cp}), {why}"
        raise InexpressibleError(part, [with_data_alone(layout)])
    if layout.dp_shard:
        part = f"hybrid sharding (dp_shard={layout.dp_shard}), {why}"
        raise InexpressibleError(part, [replace(layout, dp_shard=0)])


def refuse_experts(layout: Layout) -> None:
    """Raise InexpressibleError for expert parallelism."""
    if layout.ep > 1 or layout.etp != layout.tp:
        part = f"expert parallelism (ep={layout.ep}, etp={layout.etp})"
        raise InexpressibleError(part, [replace(layout, ep=1, expert_tensor=0)])


def refuse_order(layout: Layout) -> None:
    """Raise InexpressibleError for an order of ranks other than the usual one."""
    if layout.order != ORDERS[0]:
        part = f"the rank order {layout.order}"
        raise InexpressibleError(part, [replace(layout, order=ORDERS[0])])


def refuse_software(
    job: Job, expressed: Iterable[str] = (), *, adapters: bool = False, rl: Collection[str] = ()
) -> None:
    """Raise InexpressibleError for adapters, methods but ``rl``, and software that is not ``expressed``."""
    if job.adapters is not None and not adapters:
        raise InexpressibleError("low-rank adapters")
    if job.rl is not None and job.rl.method not in rl:
        raise InexpressibleError(f"the method {job.rl.method} (rl)")
    for name in SoftwareSpec.model_fields:
        if name not in expressed and getattr(job.software, name) is not None:
            raise InexpressibleError(f"the choice software.{name}, which the training program makes")


def microbatches(job: Job, layout: Layout) -> int:
    """Return the microbatches of a data-parallel rank in a step, which divide the batch."""
    batch, together = job.workload.global_batch_size, layout.dp * layout.microbatch
    if batch % together:
        raise InexpressibleError(f"a batch of {batch} for dp={layout.dp} x mbs={layout.microbatch}")
    return batch // together


def node_counts(job: Job, layout: Layout) -> tuple[int, int]:
    """Return the nodes of a layout, and the devices of each, which are as many on all of them."""
    devices, most = layout.devices, job.cluster.node.devices
    nodes = -(-devices // most)
    if devices % nodes:
        raise InexpressibleError(f"{devices} devices, no even number for each of {nodes} nodes of {most}")
    return nodes, devices // nodes


def model_notes(job: Job, *, base_shipped: bool = False) -> tuple[str, ...]:
    """Return notes on the model: its own dropout, a checkpoint's format, experts that are not quantised.

    ``base_shipped`` says that the program loads a checkpoint that is in the format of the frozen base.
    """
    notes = []
    if not job.model.gated and not dropout_masks(job):
        notes.append("the prediction is without dropout: set the probabilities in the model's config to 0")
    if job.model.attention_sinks and job.stack.block.attention == "eager":
        notes.append(
            "attention has its scores in memory, since transformers has no SDPA for sinks: on Hopper"
            " attn_implementation: kernels-community/vllm-flash-attn3 takes less time and memory"
        )
    published, base = (
        published_format(job.model.name),
        job.adapters.base if job.adapters is not None else None,
    )
    if published != "bf16" and base is None:
        notes.append(f"the publisher's checkpoint is in {published}: load it dequantised, to train in bf16")
    elif published != "bf16" and not base_shipped:
        notes.append(
            f"the publisher's checkpoint is in {published}, which is not made {base}: name one in bf16"
        )
    if base is not None and job.model.moe is not None and not experts_quantized(job):
        notes.append(
            f"weights of experts stay in 16 bits: {base} is of linear modules, and experts are stacked"
        )
    return tuple(notes)


def stack_note(job: Job, prefixes: tuple[str, ...], stack: str, framework: str) -> tuple[str, ...]:
    """Return a note where the prediction is one for another stack than that of the target."""
    if job.stack.name.startswith(prefixes):
        return ()
    sentence = f"set `stack: {stack}` in the job to plan for {framework}"
    return (f"the prediction is one for {job.stack.title}: {sentence}",)


#: Fields that every target with adapters writes, and what it knows of their products.
_WRITTEN: Final = ("rank", "targets")
_TARGETS: Final = ("attention", "all")


def refuse_adapter_fields(job: Job, expressed: Collection[str] = (), *, modules: bool = False) -> None:
    """Raise InexpressibleError for a choice of ``adapters`` that is not ``expressed``: none is dropped.

    Every target writes rank and targets; ``modules`` says whether it writes single products among these.
    """
    if job.adapters is None:
        return
    for name, field in type(job.adapters).model_fields.items():
        value = getattr(job.adapters, name)
        if name not in {*_WRITTEN, *expressed} and value != field.default:
            raise InexpressibleError(f"the choice adapters.{name}={value}")
    if not modules and job.adapters.targets not in _TARGETS:
        raise InexpressibleError(f"adapters at single products (adapters.targets={job.adapters.targets})")


def refuse_other_bases(job: Job) -> None:
    """Raise InexpressibleError for a frozen base other than nf4 whose scales are quantised themselves."""
    adapters = job.adapters
    if adapters is None or adapters.base is None or (adapters.base == "nf4" and adapters.doubly_quantized):
        return
    scales = "" if adapters.doubly_quantized else " with plain scales"
    raise InexpressibleError(f"a frozen base in {adapters.base}{scales}")


def refuse_for_replicas(layout: Layout, stages: str) -> None:
    """Raise InexpressibleError for what DDP lacks; ``stages`` says where pipelines are chosen instead."""
    refuse_pipeline(layout, stages)
    refuse_experts(layout)
    refuse_order(layout)
    if layout.optimizer_offload:
        part = f"offload without FSDP or DeepSpeed (zero=0, offload={layout.offload})"
        raise InexpressibleError(part, [resident(layout)])
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
