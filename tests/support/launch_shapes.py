"""Eleven plans of different shapes, and what each target of ``emit`` says to them."""

import shlex
from dataclasses import replace

import autoplan
from autoplan.catalog import load_entry
from autoplan.launch.registry import find_target
from autoplan.launch.target import PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Workload
from autoplan.schema.layout import parse_layout

__all__ = ["REFUSED", "SHAPES", "STACKS", "command", "planned"]

#: Stack and ZeRO stage of what a target runs.
STACKS = {
    "megatron-lm": ("megatron-core", 1),
    "megatron-bridge": ("megatron-bridge", 1),
    "deepspeed": ("deepspeed", 3),
    "accelerate": ("fsdp2", 3),
    "torchtitan": ("fsdp2", 3),
    "trainer": ("hf-fsdp2", 3),
    "axolotl": ("fsdp2", 3),
    "llama-factory": ("hf-fsdp2", 3),
    "torchtune": ("torchtune", 3),
    "unsloth": ("unsloth", 0),
    "litgpt": ("litgpt", 3),
}
#: Model, layout without its ZeRO stage, and changes of the job.
SHAPES = {
    "uneven stages": ("llama3-8b", "pp=2,dp=4,stages=15/17", {}),
    "interleaved": ("llama3-70b", "pp=4,vpp=2,dp=2", {}),
    "experts": ("qwen3-30b-a3b", "dp=8,ep=8", {}),
    "latent attention": ("deepseek-v3", "tp=2,dp=4,recompute=full", {}),
    "context parallel": ("llama3-8b", "cp=2,dp=4", {}),
    "hybrid sharding": ("llama3-8b", "dp=8,dp_shard=4", {}),
    "offload": ("llama3-8b", "dp=8,offload=optimizer", {}),
    "fp8": ("llama3-8b", "dp=8", {"precision": "fp8"}),
    "LoRA": ("llama3-8b", "dp=8,recompute=full", {"adapters": AdapterSpec(rank=16)}),
    "one device": ("llama3-8b", "dp=1,zero=0", {}),
    "1,024 devices": ("llama3-70b", "dp=1024", {}),
}
_STAGES = ("uneven stages", "interleaved")
_EXPERTS = "expert parallelism (ep=8, etp=1)"
_OFFLOAD = "offload of optimizer states alone"


def _without(stages, offload):
    """Return what a target of data parallelism alone lacks, with its words for stages and offload."""
    return {
        **dict.fromkeys(_STAGES, stages),
        "experts": _EXPERTS,
        "latent attention": "tensor and context parallelism (tp=2, cp=1)",
        "context parallel": "tensor and context parallelism (tp=1, cp=2)",
        "hybrid sharding": "hybrid sharding (dp_shard=4)",
        "offload": offload,
        "fp8": "the precision fp8",
    }


_WITHOUT_ADAPTERS = {"LoRA": "low-rank adapters"}
_DATA_ALONE = _without("the Trainer has none", _OFFLOAD)
#: What of a shape a target lacks; it expresses all shapes that are not here.
REFUSED = {
    "megatron-lm": _WITHOUT_ADAPTERS,
    "megatron-bridge": {"fp8": "gradients that are reduced in bf16 with fp8", **_WITHOUT_ADAPTERS},
    "deepspeed": {
        **dict.fromkeys(_STAGES, "an argument of PipelineModule"),
        "experts": _EXPERTS,
        "latent attention": "sequence parallelism with tensor parallelism",
        "hybrid sharding": "MiCS was removed",
        "fp8": "the precision fp8",
        **_WITHOUT_ADAPTERS,
    },
    "accelerate": {
        **dict.fromkeys(_STAGES, "stages in the Megatron section alone"),
        "experts": _EXPERTS,
        "latent attention": "sequence parallelism with tensor parallelism",
        "offload": _OFFLOAD,
        "fp8": "whose recipe is chosen in fp8_config",
        **_WITHOUT_ADAPTERS,
    },
    "torchtitan": {
        "offload": _OFFLOAD,
        "fp8": "converters of the configuration function choose it",
        **_WITHOUT_ADAPTERS,
    },
    "trainer": _DATA_ALONE,
    "axolotl": {
        **dict.fromkeys(_STAGES, "the Trainer has none"),
        "experts": _EXPERTS,
        "latent attention": "sequence parallelism with tensor parallelism",
        "offload": _OFFLOAD,
        "fp8": "the precision fp8",
    },
    "llama-factory": _DATA_ALONE,
    "torchtune": _without("torchtune has none", _OFFLOAD),
    "unsloth": _without("Unsloth has none", "offload without FSDP or DeepSpeed"),
    "litgpt": {
        **_without("LitGPT trains with none", "offload (offload=optimizer)"),
        "hybrid sharding": "sharding over 4 ranks",
        "1,024 devices": "sharding over 1024 ranks",
    },
}


def planned(target, shape):
    """Return a shape as a run of a target, which ``find_target(target).emit`` takes."""
    model, text, changes = SHAPES[shape]
    stack, zero = STACKS[target]
    job = replace(
        autoplan.load_job("llama3-8b-8x-a100"),
        stack=load_entry("stack", stack),
        model=load_entry("model", model),
        workload=Workload(sequence_length=2048, global_batch_size=1024),
        **changes,
    )
    full = text if "zero=" in text else f"{text},zero={zero}"
    layout = parse_layout(full, layers=job.model.layers, devices=1)
    assert find_target(target).emit is not None
    return PlannedRun(job, layout)


def command(text):
    """Return the words of the command that a script ends with."""
    return shlex.split(text[text.index("exec ") :].replace("\\\n", " "))[1:-1]
