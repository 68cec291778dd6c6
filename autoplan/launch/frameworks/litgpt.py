"""The target ``litgpt``: a script that runs ``litgpt finetune_lora``, ``finetune_full`` or ``pretrain``.

Arguments are those of ``litgpt/finetune/lora.py``, ``finetune/full.py``, ``pretrain.py`` and ``args.py`` of
the version that TARGET names. What shards and recomputes is written into each command: fine-tuning on several
devices shards over all of them and recomputes each block, pre-training shards inside of a node and recomputes
nothing, and on one device nothing does either. So a plan is what chooses the command.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Final

from autoplan.launch.frameworks.adapter_fields import refuse_adapter_fields
from autoplan.launch.frameworks.argument_array import command_script
from autoplan.launch.frameworks.missing_parts import (
    dropout_note,
    microbatches,
    node_counts,
    refuse_beyond_data,
    refuse_experts,
    refuse_order,
    refuse_pipeline,
    refuse_software,
    stack_note,
)
from autoplan.launch.known_models import architecture_name, hub_name
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.schema.job import AdapterSpec, Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import RecomputeMode

__all__ = ["TARGET", "emit_litgpt"]

_FILE: Final = "litgpt.sh"
#: Models of litgpt/config.py by their name on the hub.
_MODELS: Final = frozenset(
    {
        *(f"meta-llama/Llama-2-{size}-hf" for size in ("7b", "13b", "70b")),
        *(f"meta-llama/Meta-Llama-3-{size}" for size in ("8B", "70B")),
        *(f"meta-llama/Llama-3.2-{size}" for size in ("1B", "3B")),
        *(f"google/gemma-{size}" for size in ("2b", "7b", "2-2b", "2-9b", "2-27b")),
        *(f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")),
        *(f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")),
        *("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B"),
        *("mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x22B-v0.1"),
        *("microsoft/phi-2", "microsoft/Phi-3-mini-4k-instruct", "codellama/CodeLlama-34b-hf"),
        *("tiiuae/falcon-7b", "tiiuae/falcon-40b"),
    }
)
#: Names that litgpt has for models which the hub has renamed since.
_RENAMED: Final = {
    f"meta-llama/Llama-3.1-{size}": f"meta-llama/Meta-Llama-3.1-{size}" for size in ("8B", "70B", "405B")
}
_OPTIMIZERS: Final = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "adamw-8bit": "bitsandbytes.optim.AdamW8bit",
    "paged-adamw": "bitsandbytes.optim.PagedAdamW",
}
_PRECISIONS: Final = {"bf16": "bf16-mixed", "fp32": "32-true"}
#: Arguments of adapters at the products of attention.
_ATTENTION: Final = ("lora_query", "lora_key", "lora_value", "lora_projection")


def emit_litgpt(run: PlannedRun) -> Emission:
    """Return the plan as a script around ``litgpt``; raises InexpressibleError for what it has not."""
    job, layout = run.job, run.layout
    refuse_software(job, ("compile", "pure_bf16"), adapters=True)
    refuse_adapter_fields(job, ("base", "double_quantization", "dropout"))
    _check_layout(job, layout)
    command = _command(job, layout)
    options = _options(job, layout, command)
    start = _start(job, layout)
    words = tuple(word for option in options for word in option)
    base = f"litgpt {command} {shlex.quote(_model(job))}"
    text = command_script((*run.header, start), base, options)
    return Emission((EmittedFile(_FILE, text),), words, notes=(start, *_notes(job, command)))


def _command(job: Job, layout: Layout) -> str:
    if job.adapters is not None:
        return "finetune_lora"
    return "finetune_full" if layout.mode == "full" else "pretrain"


def _check_layout(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part that no command has."""
    refuse_pipeline(layout, "LitGPT trains with none")
    refuse_experts(layout)
    refuse_order(layout)
    refuse_beyond_data(replace(layout, dp_shard=0), "which LitGPT trains without")
    if layout.offload != "none":
        resident = replace(layout, optimizer_offload=False, activation_offload=False)
        raise InexpressibleError(f"offload (offload={layout.offload})", [resident])
    one = layout.devices == 1
    zero = 0 if one else 3
    if layout.zero != zero:
        part = f"ZeRO-{layout.zero} on {layout.devices} devices: LitGPT shards all on several and none on one"
        raise InexpressibleError(part, [replace(layout, zero=zero)])
    modes: tuple[RecomputeMode, ...] = (
        ("none",) if one else ("full",) if job.adapters is not None else ("none", "full")
    )
    if layout.mode not in modes or layout.recompute_num_layers > 1:
        part = f"recompute={layout.recompute}: here LitGPT has {' or '.join(modes)}, of each block"
        single = replace(layout, recompute_num_layers=1)
        raise InexpressibleError(part, [single.with_uniform_recompute(mode) for mode in modes])
    _check_groups(job, layout)


def _check_groups(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError where a command shards over other ranks than the plan."""
    nodes, per_node = node_counts(job, layout)
    inside = _command(job, layout) == "pretrain" and nodes > 1
    if layout.dp_shard not in ({per_node} if inside else {0, layout.dp}):
        part = f"sharding over {layout.dp_shard or layout.dp} ranks: LitGPT has HYBRID_SHARD to pre-train on"
        part = f"{part} several nodes, else FULL_SHARD (dp_shard={layout.dp_shard})"
        raise InexpressibleError(part, [replace(layout, dp_shard=per_node if inside else 0)])


#: Ends of names that litgpt/config.py lists beside a model's: the maker's own tuned checkpoints.
_TUNED: Final = ("-Instruct", "-it")


def _model(job: Job) -> str:
    """Return the name that litgpt has for the model; raises InexpressibleError where it has none."""
    first = architecture_name(job.model) or ""
    name = hub_name(job.model) or ""
    end = next((end for end in ("", *_TUNED) if name == f"{first}{end}"), None)
    if end is None or (first not in _MODELS and first not in _RENAMED):
        raise InexpressibleError(f"the model {name or job.model.name}: it is none of litgpt/config.py")
    return f"{_RENAMED.get(first, first)}{end}"


def _options(job: Job, layout: Layout, command: str) -> list[tuple[str, ...]]:
    """Return the arguments of a command, by pairs."""
    nodes, per_node = node_counts(job, layout)
    microbatches(job, layout)
    values = {
        "precision": _precision(job),
        "devices": per_node,
        "num_nodes": nodes,
        "train.global_batch_size": job.workload.global_batch_size,
        "train.micro_batch_size": layout.microbatch,
        "train.max_seq_length": job.workload.sequence_length,
        "optimizer": _optimizer(job),
        **_quantization(job, layout),
        **(_adapters(job.adapters) if job.adapters is not None else {}),
    }
    _check_compile(job, command)
    return [(f"--{name}", str(value)) for name, value in values.items()]


def _check_compile(job: Job, command: str) -> None:
    compiles = command == "pretrain"
    if job.software.compile not in {None, compiles}:
        raise InexpressibleError(
            f"software.compile: litgpt {command} {'always' if compiles else 'never'} does"
        )


def _precision(job: Job) -> str:
    if job.precision not in _PRECISIONS:
        raise InexpressibleError(f"the precision {job.precision}")
    return "bf16-true" if job.software.pure_bf16 else _PRECISIONS[job.precision]


def _optimizer(job: Job) -> str:
    if job.optimizer not in _OPTIMIZERS:
        raise InexpressibleError(f"the optimizer {job.optimizer}")
    return _OPTIMIZERS[job.optimizer]


def _quantization(job: Job, layout: Layout) -> dict[str, object]:
    """Return the argument of the frozen base's format, which is on one device, in bf16 alone, with pages.

    ``finetune/lora.py`` refuses mixed precision and several devices with it; ``instantiate_bnb_optimizer``
    makes PagedAdamW of any AdamW.
    """
    base = job.adapters.base if job.adapters is not None else None
    if job.optimizer.startswith("paged") != (base is not None):
        where = "with" if base else "without"
        raise InexpressibleError(f"the optimizer {job.optimizer} {where} a quantised base")
    if base is None or job.adapters is None:
        return {}
    if base == "int8" or layout.devices > 1 or not job.software.pure_bf16:
        need = "LitGPT has nf4 and fp4, on one device, with software.pure_bf16"
        raise InexpressibleError(f"this frozen base (adapters.base={base}): {need}")
    return {"quantize": f"bnb.{base}{'-dq' if job.adapters.doubly_quantized else ''}"}


def _adapters(adapters: AdapterSpec) -> dict[str, object]:
    """Return the arguments of low-rank adapters, whose scale is 2 as LitGPT's own."""
    return {
        "lora_r": adapters.rank,
        "lora_alpha": 2 * adapters.rank,
        "lora_dropout": adapters.dropout,
        **dict.fromkeys(_ATTENTION, "true"),
        "lora_mlp": str(adapters.targets == "all").lower(),
        "lora_head": "false",
    }


def _start(job: Job, layout: Layout) -> str:
    nodes, _ = node_counts(job, layout)
    several = "MASTER_ADDR=HOST MASTER_PORT=29500 NODE_RANK=R " if nodes > 1 else ""
    each = f" (on node R of {nodes})" if nodes > 1 else ""
    return f"start it with: {several}bash {_FILE} --data ...{each}"


def _notes(job: Job, command: str) -> tuple[str, ...]:
    other = "from random weights: --initial_checkpoint_dir continues from a checkpoint"
    begun = (other,) if command == "pretrain" else ()
    length = "shorter samples are padded to the longest of a microbatch alone"
    return (
        *begun,
        *((length,) if command != "pretrain" else ()),
        *dropout_note(job),
        *stack_note(job, ("litgpt",), "litgpt", "LitGPT"),
    )


TARGET: Final = Target(
    name="litgpt",
    framework="LitGPT",
    version="0.5.13",
    check="names checked",
    emit=emit_litgpt,
)
