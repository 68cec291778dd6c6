"""From a measured run to a job and the layouts that it may have had.

Everything that has to be assumed about a run is in the tables of this file, one place each; none
of them names a single run.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, cast

from autoplan.catalog import entry_names, kernels_for, load_entry, stack
from autoplan.errors import CatalogError
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.job import Cluster, Job, Precision, RoutingSpec, Workload
from autoplan.schema.layout import even_stages
from autoplan.schema.model import MixtureOfExperts, ModelSpec, SlidingWindow
from autoplan.schema.stack import StackSpec
from benchmarks.accuracy.runs import Hardware, Run, RunLayout
from benchmarks.policies import PURE_BF16, with_block, with_memory, with_overlap, with_rules
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = ["job_of", "recomputed_layers", "sequence_parallel", "stage_layers"]

#: The node that a device is usually found in. Another node of the catalogue with the run's number
#: of devices is taken where there is one.
_NODES: Final = {
    "a100-sxm4-40gb": "dgx-a100-40gb",
    "a100-sxm4-80gb": "dgx-a100-80gb",
    "a800-sxm4-80gb": "8x-a800-80gb",
    "b200-sxm-180gb": "dgx-b200",
    "b300-sxm-288gb": "dgx-b300",
    "h100-sxm5-80gb": "dgx-h100",
    "h100-sxm5-96gb-hbm2e-500w": "8x-h100-96gb-hbm2e-500w",
    "h200-sxm-141gb": "hgx-h200",
    "v100-sxm2-16gb": "8x-v100-16gb",
    "v100-sxm2-32gb": "8x-v100-32gb",
}

#: Nodes that a row's note tells by where they stand.
_PLACES: Final = {"JZ cluster": "jean-zay-a100"}

#: Devices whose fast fabric joins a rack: runs count the devices of a tray as their node.
_RACKS: Final = {"gb200-186gb": "gb200-nvl72", "gb300-288gb": "gb300-nvl72"}

#: Whose cost model prices a stack that has none of its own. Left out: itself, else analytic.
_STACKS: Final = {
    "megatron-like": "megatron-flash",  # Hagemann et al. 2023: Megatron with flash attention
    "other: oneflow gpt 0.3.5": "megatron-lm",  # a port of Megatron-LM's GPT of its day
    "other: hf trainer ddp": "ddp",
    "other: hf trainer + deepspeed": "deepspeed",
}

#: What a stack that another's cost model prices hides behind compute.
_HIDES: Final = {
    # Its actors send what is ready while they compute: Yuan et al. 2021, arXiv:2110.15032, section 4.
    "other: oneflow gpt 0.3.5": {"gradient_reduce": True, "pipeline": True},
}

#: Tables of PyTorch before 2.1, whose checkpoints recompute a whole layer (pytorch/pytorch#96866).
_REPEATS_ALL: Final = (
    # Added in May 2023, for torch 1.13; the tables of other devices are of October (README.md @b2a43a147).
    "mosaicml/llm-foundry scripts/train/benchmarking/README.md A100 40GB",
)

#: Publications whose runs carry in their names whether tensor parallelism is asynchronous.
_ASYNCHRONOUS: Final = "pytorch/torchtitan"

#: What a publication ran where its rows' stack had several releases, by the start of the source.
_RELEASES: Final = {
    # Its own changes to Megatron-LM, on the code of 2022: arXiv 2205.05198, section 6.
    "Korthikanti et al.": "megatron-lm-2022",
}

#: Tables whose runs recompute nothing, whatever their labels say, by the start of the source.
_RECOMPUTES_NOTHING: Final = (
    # The label is the simulator's flag, not the runs'. Recomputing, those of one stage would reach 189 TFLOP/s
    # on an A100; and a layer takes as long in a pipeline's first stage as where there is one stage, which
    # Megatron-LM's choice between all layers and none excludes unless it is none. Its table of several nodes
    # does recompute, and reaches 154.
    "VIA-Research/vTrain data/ground_truth_single.csv",
)

#: What a stack counts as layers before and after them when it splits a pipeline evenly. Left out: nothing.
_COUNTED: Final = {
    # Embedding; last norm and output layer: Aleph-Alpha/scaling, transformer/model/model.py.
    "megatron-like": (1, 2),
}

#: Stacks that split sequences beside tensors unless told not to; the others have it off by default.
_SEQUENCE_PARALLEL_BY_DEFAULT: Final = frozenset({"megatron-core", "fsdp2"})

_NO_BIAS: Final = {"qkv": False, "attention_output": False, "mlp": False, "norm": False}

#: Parts of an architecture that a row does not tell, by the start of the model's name; what no line
#: matches is a Llama block where the MLP is gated, a GPT-3 block where it is not.
_FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "MPT": {"positions": "alibi", "bias": _NO_BIAS},
    "Nemotron-4": {
        "positions": "rope",
        "activation": "relu2",
        "bias": {**_NO_BIAS, "norm": True},
        "tied_embeddings": False,
    },
    "Qwen3": {"qk_norm": True},
}

#: Models of the catalogue with the latent attention of a family, by the start of the model's name.
_LATENTS: Final = {
    "DeepSeek-V2": "deepseek-v2",
    "DeepSeek-V3": "deepseek-v3",
    "Moonlight": "moonlight-16b-a3b",
}

#: The number format of the matrix products. Left out: not priced yet.
_PRECISIONS: Final[dict[str, Precision]] = {
    "bf16": "bf16",
    "bf16-pure": "bf16",
    "bf16-fp32-gather": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "fp8": "fp8",
}

_TASKS: Final = frozenset({"pretrain", "sft"})


def job_of(run: Run) -> Job:
    """Return the job of ``run``, its stack adapted to what the row tells.

    Raises Skipped with the reason for a run that autoplan cannot express.
    """
    _refuse_unplanned(run)
    cluster = _cluster(run.hardware)
    batch = run.layout.global_batch
    length = run.model.sequence_length
    if batch is None or length is None:
        raise Skipped("the batch is not known", "global batch or sequence length")
    model = _model(run)
    return Job(
        name="run",
        model=model,
        cluster=cluster,
        stack=_stack(run),
        kernels=kernels_for(cluster.device.name),
        workload=Workload(sequence_length=length, global_batch_size=batch),
        precision=_PRECISIONS[run.layout.precision],
        # Runs of benchmarks route tokens evenly.
        routing=RoutingSpec(load_variation=0.0 if model.moe else None),
    )


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
            layout.recompute not in {None, "none", "selective", "full"},
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
    entry = next((x for start, x in _LATENTS.items() if run.model.name.startswith(start)), None)
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
        "max_positions": model.sequence_length,
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
    fields |= _family(model.name) | _latents(run) | _windows(run)
    fields["moe"] = _experts(run)
    fields |= {key: value for key, value in told.items() if value is not None}
    try:
        return ModelSpec(**fields)
    except EXPECTED as error:
        raise skipped_by("the architecture is refused", error) from error


def _family(name: str) -> dict[str, Any]:
    return next((x for start, x in _FAMILIES.items() if name.startswith(start)), {})


def _cluster(hardware: Hardware) -> Cluster:
    """Return the devices of a run, its network at the told bandwidth."""
    place = next((name for words, name in _PLACES.items() if words in (hardware.note or "")), None)
    named = place or _RACKS.get(hardware.gpu)
    node = _entry_node(named) if named else _usual_node(hardware.gpu, hardware.gpus_per_node)
    gbit = hardware.internode_gbit_per_gpu or _noted_gbit(hardware.note or "", hardware.gpus_per_node)
    if gbit is not None:
        told = {"value": gbit * 1e9 / 8, "kind": "measured"}
        bandwidth = node.network.bandwidth_per_device.model_copy(update=told)
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
def _usual_node(gpu: str, devices: int) -> NodeSpec:
    """Return the usual node of ``gpu``, or the first other one, with ``devices`` devices."""
    holders = [n for n in entry_names("node") if _entry_node(n).device == gpu]
    if not holders:
        raise Skipped("no node of the catalogue holds the device", gpu)
    usual = _NODES.get(gpu, holders[0])
    ordered = [usual, *(n for n in holders if n != usual)]
    exact = [n for n in ordered if _entry_node(n).devices == devices]
    node = _entry_node((exact or ordered)[0])
    return node.model_copy(update={"devices": devices})


def _stack(run: Run) -> StackSpec:
    layout = run.layout
    compiled = f"{run.stack}-compile"
    known = layout.compile and compiled in entry_names("stack")
    found = _adapted(stack(compiled) if known else _priced_as(run), layout)
    if run.source.startswith(_ASYNCHRONOUS) and "async" in run.id:
        found = with_overlap(found, tensor=True)
    if run.source.startswith(_REPEATS_ALL):
        found = with_block(found, checkpoint_stops_early=False)
    return _permitted(with_overlap(found, **_HIDES.get(run.stack, {})), layout)


def _priced_as(run: Run) -> StackSpec:
    """Return the cost model that prices the stack of ``run``."""
    released = next((name for start, name in _RELEASES.items() if run.source.startswith(start)), None)
    try:
        return stack(released or _STACKS.get(run.stack, run.stack))
    except CatalogError:
        return stack("analytic")


def _adapted(found: StackSpec, layout: RunLayout) -> StackSpec:
    """Return the stack with the kernels, number formats and overlap that the row tells."""
    attention = _attention(layout.kernel)
    # A row says whether attention is fused; which generation of kernels that is, the stack knows.
    if attention is not None and (attention == "eager") != (found.block.attention == "eager"):
        found = with_block(found, attention=attention)
    if "RMS kernel" in (layout.kernel or ""):
        found = with_block(found, norm_copy_bytes=0, fused_norms=True)
    if layout.compile:
        fused = ("fused_norms", "fused_rotation", "fused_activation", "fused_casts")
        found = with_block(found, **dict.fromkeys(fused, True))
    if layout.precision == "bf16-pure":
        found = with_overlap(with_memory(found, **PURE_BF16), gradient_bytes=2)
    if layout.precision == "bf16-fp32-gather":
        found = with_memory(found, gathered_bytes=4)
    overlap = _overlap(layout.overlap)
    return with_overlap(found, **overlap) if overlap else found


def _attention(kernel: str | None) -> str | None:
    """Return what a row's kernel says of attention, None where it says nothing.

    >>> _attention("unfused + fused softmax"), _attention("TE fused/flash"), _attention(None)
    ('eager', 'flash', None)
    """
    if kernel is None:
        return None
    if kernel.startswith(("unfused", "eager")):
        return "eager"
    return "flash" if "flash" in kernel.lower() else None


def _overlap(told: str | None) -> dict[str, bool]:
    """Return the overlap switches that a row tells.

    >>> _overlap("none (no flags)"), _overlap("--overlap-grad-reduce")
    ({'gradient_reduce': False, 'parameter_gather': False}, {'gradient_reduce': True})
    """
    told = told or ""
    if told.startswith(("none", "off")) or "not overlapped" in told:
        return {"gradient_reduce": False, "parameter_gather": False}
    flags = {
        "--overlap-grad-reduce": "gradient_reduce",
        "--overlap-param-gather": "parameter_gather",
        "--tp-comm-overlap": "tensor",
    }
    return {field: True for flag, field in flags.items() if flag in told}


def _permitted(found: StackSpec, layout: RunLayout) -> StackSpec:
    """Return the stack with this layout among its rules: the run ran, so the stack could.

    A row of an analytic stand-in, or ZeRO-3 in a stack that the search would not offer it for, is
    then priced rather than refused. Rules of the model and the batch stay.
    """
    rules = found.rules
    told = () if layout.zero is None else (int(layout.zero),)
    zeros = tuple(sorted({*rules.zero_stages, *told}))
    return with_rules(
        found,
        zero_stages=zeros,
        zero_stages_with_pipeline=tuple(sorted({*rules.zero_stages_with_pipeline, *told})),
        tensor_parallel=True,
        pipeline_parallel=True,
        sequence_parallel=True,
        schedules=("1f1b", "gpipe", "interleaved"),
        uneven_stages=True,
    )


def stage_layers(run: Run, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage of ``run``: as even as its stack makes them."""
    before, after = _COUNTED.get(run.stack, (0, 0))
    stages = run.layout.pp
    if stages == 1 or not (before or after):
        return even_stages(layers, stages, run.layout.vpp)
    share, longer = divmod(before + layers + after, stages)
    counted = [share + (stage < longer) for stage in range(stages)]
    return (counted[0] - before, *counted[1:-1], counted[-1] - after)


def recomputed_layers(run: Run, stages: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers that each of ``stages`` recomputes where ``run`` recomputes whole layers."""
    return (0,) * len(stages) if run.source.startswith(_RECOMPUTES_NOTHING) else stages


def sequence_parallel(run: Run) -> bool:
    """Return whether the run splits sequences beside tensors; untold, the stack's default."""
    if run.layout.tp == 1:
        return False
    told = run.layout.sequence_parallel
    return run.stack in _SEQUENCE_PARALLEL_BY_DEFAULT if told is None else told
