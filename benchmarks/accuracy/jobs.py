"""From a measured run to a job and the layouts that it may have had.

Everything that has to be assumed about a run is in the tables of this file, one place each; none
of them names a single run.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, cast

from autoplan.catalog import entry_names, kernels_for, load_entry
from autoplan.schema.hardware import DeviceSpec, NodeSpec
from autoplan.schema.job import Cluster, Job, RoutingSpec, Workload
from autoplan.schema.model import MixtureOfExperts, ModelSpec, SlidingWindow
from autoplan.schema.precision import Precision
from autoplan.schema.stages import even_stages
from benchmarks.accuracy.runs import Hardware, Run
from benchmarks.accuracy.stacks import stack_of
from benchmarks.skips import EXPECTED, Skipped, skipped_by

__all__ = [
    "job_of",
    "recompute_of",
    "recomputed_layers",
    "sequence_parallel",
    "sharing_ranks",
    "stage_layers",
]

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

#: Tables whose runs recompute nothing, whatever their labels say, by the start of the source.
_RECOMPUTES_NOTHING: Final = (
    # The label is the simulator's flag, not the runs'. Recomputing, runs of one stage would reach 189 TFLOP/s
    # on an A100; and a layer takes as long in a pipeline's first stage as where there is one stage, which
    # Megatron-LM's choice between all layers and none excludes unless it is none. Its table of several nodes
    # does recompute, and reaches 154.
    "VIA-Research/vTrain data/ground_truth_single.csv",
)

#: How many ranks shared optimizer state, by the start of the source: the column Zero1 of the tables.
_SHARING: Final = {"InternLM/InternEvo doc/en/train_performance.md FLOPS Testing": 8}
#: The same column in the names of runs, where they have it; -1 stands for all ranks of the data axis.
_NAMED_SHARING: Final = re.compile(r"^internevo-7b-.*-zero1(-1|[1-9][0-9]*)$")

#: What a stack counts as layers before and after them when it splits a pipeline evenly. Left out: nothing.
_COUNTED: Final = {
    # Embedding; last norm and output layer: Aleph-Alpha/scaling, transformer/model/model.py.
    "megatron-like": (1, 2),
}

#: What runs of a stack call its selective recompute.
_SELECTIVE: Final = {
    # SelectiveAC, torchtitan's default, also of train_configs/llama3_8b.toml.
    ("fsdp2", "other: selective (per-op sac)"),
    ("fsdp2", 'other: selective (torchtitan default selective = every-2nd-op/"op" sac)'),
    ("fsdp2", "other: selective (llama3_8b.toml default)"),
    ("fsdp2", "other: selective op"),
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
    "mxfp8": "mxfp8",
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
        stack=stack_of(run),
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
            recompute_of(run) not in {None, "none", "selective", "full"},
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


def stage_layers(run: Run, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage of ``run``: as even as its stack makes them."""
    before, after = _COUNTED.get(run.stack, (0, 0))
    stages = run.layout.pp
    if stages == 1 or not (before or after):
        return even_stages(layers, stages, run.layout.vpp)
    share, longer = divmod(before + layers + after, stages)
    counted = [share + (stage < longer) for stage in range(stages)]
    return (counted[0] - before, *counted[1:-1], counted[-1] - after)


def sharing_ranks(run: Run) -> int:
    """Return how many of the ranks on the data axis of ``run`` share state; 0 for all of them."""
    named = _NAMED_SHARING.match(run.id)
    told = int(named[1]) if named else next((n for x, n in _SHARING.items() if run.source.startswith(x)), 0)
    ranks = run.layout.dp * run.layout.cp
    return told if 1 < told < ranks and ranks % told == 0 else 0


def recompute_of(run: Run) -> str | None:
    """Return what the run recomputes, in this project's words where it is what its stack calls selective."""
    told = run.layout.recompute
    return "selective" if (run.stack, told) in _SELECTIVE else told


def recomputed_layers(run: Run, stages: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers that each of ``stages`` recomputes where ``run`` recomputes whole layers."""
    return (0,) * len(stages) if run.source.startswith(_RECOMPUTES_NOTHING) else stages


def sequence_parallel(run: Run) -> bool:
    """Return whether the run splits sequences beside tensors; untold, the stack's default."""
    if run.layout.tp == 1:
        return False
    told = run.layout.sequence_parallel
    return run.stack in _SEQUENCE_PARALLEL_BY_DEFAULT if told is None else told
