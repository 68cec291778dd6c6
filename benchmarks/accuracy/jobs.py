"""From a measured run to a job and the layouts that it may have had.

What a row tells is read here; what has to be known beside it is in ``data/facts.yaml``.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from autoplan.catalog import COUNTS, entry_names, kernels_for, load_entry
from autoplan.launch.frameworks.nanotron import balanced_stages
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.job import Cluster, Job, RoutingSpec, Workload
from autoplan.schema.model import MixtureOfExperts, ModelSpec, SlidingWindow
from autoplan.schema.precision import Optimizer, Precision
from autoplan.schema.recompute import RECOMPUTE, mode_of
from autoplan.schema.stage_layers import even_stages
from benchmarks.accuracy.facts import told_of
from benchmarks.accuracy.runs import Run, Tuning
from benchmarks.accuracy.stacks import stack_of
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = [
    "job_of",
    "recompute_of",
    "sequence_parallel",
    "sharing_ranks",
    "stage_layers",
]

#: The number format of the matrix products. Left out: not priced yet.
_PRECISIONS: Final[dict[str, Precision]] = {
    "bf16": "bf16",
    "bf16-pure": "bf16",
    "bf16-fp32-gather": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}

#: Rows name recompute modules of Megatron-Core with a plus or a blank between them.
_MODULES: Final = re.compile(r"other: (?:selective(?: modules)?: )?([a-z_]+(?:[+ ][a-z_]+)*)")
_TASKS: Final = frozenset({"pretrain", "sft", "lora", "qlora"})


_FIELDS: Final[dict[str, Any]] = {"optimizer": Optimizer, "adapters": AdapterSpec}


def job_of(run: Run) -> Job:
    """Return the job of ``run``, its stack adapted to what the row tells.

    Raises Skipped with the reason for a run that autoplan cannot express.
    """
    _refuse_unplanned(run)
    cluster = _cluster(run)
    batch = run.layout.global_batch
    length = run.priced_length
    if batch is None or length is None:
        raise Skipped("the batch is not known", "global batch or sequence length")
    model = _model(run)
    return Job(
        name="run",
        model=model,
        cluster=cluster,
        stack=stack_of(run),
        kernels=_kernels(run, cluster),
        workload=Workload(sequence_length=length, global_batch_size=batch),
        precision=_PRECISIONS[run.layout.precision],
        **_tuned(run),
        routing=run.routing if model.moe else RoutingSpec(),
    )


def _tuned(run: Run) -> dict[str, Any]:
    """Return what the job of ``run`` says of its fine-tune: optimizer and adapters, where the row tells."""
    tuning = run.tuning or Tuning(adapters=run.lora.model_dump() if run.lora else None)
    if run.task in {"lora", "qlora"} and tuning.adapters is None:
        raise Skipped("the adapters are not told", run.task)
    said = {"optimizer": tuning.optimizer, "adapters": tuning.adapters}
    try:
        return {
            key: TypeAdapter(_FIELDS[key]).validate_json(json.dumps(value))
            for key, value in said.items()
            if value is not None
        }
    except ValidationError as error:
        raise skipped_by("the fine-tune cannot be expressed", error) from error


def _kernels(run: Run, cluster: Cluster) -> KernelSpec:
    """Return the device's kernels, at the rate of the run's machine where its publication measured that."""
    named = cast("KernelSpec", load_entry("kernels", run.kernels)) if run.kernels else None
    kernels, share = named or kernels_for(cluster.device.name), told_of(run).sustained_share
    if share is None:
        return kernels
    measured = {"value": share, "kind": "measured"}
    sustained = kernels.gemm.sustained_share.model_copy(update=measured)
    gemm = kernels.gemm.model_copy(update={"sustained_share": sustained})
    # Under another name no fit moves it.
    return kernels.model_copy(update={"gemm": gemm, "name": f"{kernels.name}-measured"})


def _refuse_unplanned(run: Run) -> None:
    model, layout = run.model, run.layout
    refused = (
        (run.task not in _TASKS, f"{run.task[:40]} is not planned yet", ""),
        (layout.precision not in _PRECISIONS, f"{layout.precision[:40]} is not priced yet", ""),
        (
            not (model.attention is None or _has_latent_attention(run) or _windows(run)),
            "the kind of attention cannot be expressed",
            str(model.attention),
        ),
        (
            isinstance(layout.zero, str) or layout.zero not in {None, 0, 1, 2, 3},
            "the ZeRO stage cannot be expressed",
            str(layout.zero),
        ),
        (
            recompute_of(run) not in {None, *RECOMPUTE},
            "the recompute cannot be expressed",
            str(layout.recompute),
        ),
    )
    for applies, category, detail in refused:
        if applies:
            raise Skipped(category, detail)


def _has_latent_attention(run: Run) -> bool:
    return bool(re.search(r"\bMLA\b", f"{run.model.attention} {run.model.name}"))


def _windows(run: Run) -> dict[str, Any]:
    """Return the local attention of ``run`` where every second layer has it."""
    told = re.search(r"alternating sliding window (\d+) / full", run.model.attention or "")
    return {"sliding_window": SlidingWindow(window=int(told[1]), every=2)} if told else {}


def _latents(run: Run) -> dict[str, Any]:
    """Return the latent attention of ``run``, whose sizes are those of the family that its name tells."""
    if not _has_latent_attention(run):
        return {}
    entry = told_of(run).latent_attention_of
    if entry is None:
        raise Skipped("the architecture is not known", "sizes of the latent attention")
    family = cast("ModelSpec", load_entry("model", entry))
    return {"attention": "mla", "mla": family.mla, "head_dim": family.head_dim}


def _experts(run: Run) -> MixtureOfExperts | None:
    """Return the experts of ``run``; what no source tells of shared experts and dense layers is none."""
    moe = run.model.moe
    if moe is None and not re.search(r"\bMoE\b", run.model.name):
        return None
    if moe is None or moe.experts is None or moe.top_k is None or moe.expert_ffn is None:
        raise Skipped("the architecture is not known", "experts")
    return MixtureOfExperts(
        experts=moe.experts,
        top_k=moe.top_k,
        expert_ffn_size=moe.expert_ffn,
        shared_expert_ffn_size=moe.shared_expert_ffn or 0,
        first_dense_layers=moe.first_dense_layers or 0,
    )


def _model(run: Run) -> ModelSpec:
    """Return the architecture of ``run``; what sources leave out follows the block's family."""
    model = run.model
    needed = ("layers", "hidden", "ffn", "heads", "vocab", "gated_mlp")
    unknown = [name for name in needed if getattr(model, name) is None]
    if unknown:
        raise Skipped("the architecture is not known", ", ".join(unknown))
    gated = bool(model.gated_mlp)
    fields: dict[str, Any] = {
        "name": "run",
        "source": run.source[:200].ljust(3, "."),
        "layers": model.layers,
        "hidden_size": model.hidden,
        "heads": model.heads,
        "ffn_size": model.ffn,
        "vocabulary": model.vocab,
        "max_positions": run.priced_length,
        "positions": "rope" if gated else "learned",
        "activation": "swiglu" if gated else "gelu",
        "norm": "rmsnorm" if gated else "layernorm",
        # GPT blocks share the table with the head, Llama blocks do not.
        "tied_embeddings": not gated,
    }
    told = {
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "tied_embeddings": model.tied_embeddings,
    }
    fields |= dict(told_of(run).architecture or {}) | _latents(run) | _windows(run)
    fields["moe"] = _experts(run)
    fields |= {key: value for key, value in told.items() if value is not None}
    try:
        return ModelSpec(**fields)
    except EXPECTED as error:
        raise skipped_by("the architecture is refused", error) from error


def _cluster(run: Run) -> Cluster:
    """Return the devices of a run, its network at the told bandwidth."""
    hardware, told = run.hardware, told_of(run)
    if told.node:
        node = _entry_node(told.node)
    else:
        node = _usual_node(hardware.gpu, hardware.gpus_per_node, told.usual_node)
    gbit = hardware.internode_gbit_per_gpu or _noted_gbit(hardware.note or "", hardware.gpus_per_node)
    if gbit is not None:
        bandwidth = node.network.bandwidth_per_device.model_copy(
            update={"value": gbit * 1e9 / 8, "kind": "measured"}
        )
        network = node.network.model_copy(update={"bandwidth_per_device": bandwidth})
        node = node.model_copy(update={"network": network})
    device = cast("DeviceSpec", load_entry("device", node.device))
    return Cluster(device=device, node=node, devices=hardware.gpus)


def _noted_gbit(note: str, devices: int) -> float | None:
    """Return what a row's note tells of the network of a node, for each of its devices.

    >>> _noted_gbit("NVLink; inter-node 4 x 100 Gb/s RoCE per node", 8), _noted_gbit("NVLink in node", 8)
    (50.0, None)
    >>> _noted_gbit("inter-node RDMA 400 Gb/s per GPU", 8)
    400.0
    """
    found = re.search(r"(?:(\d+) x )?(\d+) Gb/s( per GPU)?", note)
    if found is None:
        return None
    links, gbit, each = found.groups()
    return int(links or 1) * float(gbit) / (1 if each else devices)


def _entry_node(name: str) -> NodeSpec:
    return cast("NodeSpec", load_entry("node", name))


@cache
def _usual_node(gpu: str, devices: int, known: str | None) -> NodeSpec:
    """Return the usual node of ``gpu`` with ``devices`` devices, or the first other one, or a derived one."""
    holders = [n for n in entry_names("node") if _entry_node(n).device == gpu]
    if not holders:
        return _derived_node(gpu, devices)
    usual = known or holders[0]
    ordered = [usual, *(n for n in holders if n != usual)]
    exact = [n for n in ordered if _entry_node(n).devices == devices]
    node = _entry_node((exact or ordered)[0])
    return node.model_copy(update={"devices": devices})


def _derived_node(gpu: str, devices: int) -> NodeSpec:
    """Return the node of the catalogue that is derived from ``gpu`` alone, with ``devices`` devices."""
    # Rows name the memory of a device of which there is one size, too.
    names = (gpu, re.sub(r"-\d+gb$", "", gpu))
    found = next((name for name in names if name in entry_names("device")), None)
    if found is None:
        raise Skipped("the device is not in the catalogue", gpu)
    count = next((n for n in COUNTS if n >= devices), COUNTS[-1])
    return _entry_node(f"{count}x-{found}").model_copy(update={"devices": devices})


def stage_layers(run: Run, model: ModelSpec) -> tuple[int, ...]:
    """Return the layers of each stage of ``run``: as even as its stack makes them."""
    before, after = told_of(run).counted_layers
    stages, layers = run.layout.pp, model.layers
    if stages > 1 and told_of(run).balanced:
        return _with_a_layer_each(balanced_stages(model, stages))
    if stages == 1 or not (before or after):
        return even_stages(layers, stages, run.layout.vpp)
    share, longer = divmod(before + layers + after, stages)
    counted = [share + (stage < longer) for stage in range(stages)]
    return (counted[0] - before, *counted[1:-1], counted[-1] - after)


def _with_a_layer_each(stages: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``stages`` with a layer of the longest one in each that has none.

    >>> _with_a_layer_each((2, 3, 1, 0))
    (2, 2, 1, 1)
    """
    shared = list(stages)
    while 0 in shared and max(shared) > 1:
        shared[shared.index(max(shared))] -= 1
        shared[shared.index(0)] += 1
    return tuple(shared)


def sharing_ranks(run: Run) -> int:
    """Return how many of the ranks on the data axis of ``run`` share state; 0 for all of them."""
    told = run.layout.zero_group or 0
    ranks = run.layout.dp * run.layout.cp
    return told if 1 < told < ranks and ranks % told == 0 else 0


def recompute_of(run: Run) -> str | None:
    """Return what the run recomputes, in this project's words.

    That is where it is what its stack calls selective, or modules of Megatron-Core by their names.
    """
    told = told_of(run).layout.recompute
    named = _MODULES.fullmatch(told or "")
    return (mode_of(re.split(r"[+ ]", named[1])) or told) if named else told


def sequence_parallel(run: Run) -> bool:
    """Return whether the run splits sequences beside tensors; untold, the stack's default."""
    return run.layout.tp > 1 and bool(told_of(run).layout.sequence_parallel)
