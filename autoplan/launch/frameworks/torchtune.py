"""The target ``torchtune``: a script that runs ``tune run RECIPE --config CONFIG key=value ...``.

Recipes, configs and keys are those of ``recipes/`` and ``torchtune/_recipe_registry.py`` of the version that
TARGET names, which is also the last release. A config of torchtune has tokenizer, checkpoint and data set of
its own; what decides a plan is overridden here, as configs differ in it (one of 70B offloads parameters).
Context parallelism and hybrid sharding came into the recipes after that release, whose own ones would ignore
the keys. ``torchao.optim`` is where torchao >= 0.9 has its 8-bit optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from autoplan.launch.frameworks.adapter_fields import refuse_adapter_fields, refuse_other_bases
from autoplan.launch.frameworks.argument_array import command_script
from autoplan.launch.frameworks.fsdp_mesh import refuse_for_fsdp, refuse_for_replicas
from autoplan.launch.frameworks.missing_parts import (
    dropout_note,
    microbatches,
    node_counts,
    refuse_beyond_data,
    refuse_software,
    stack_note,
)
from autoplan.launch.known_models import architecture_name
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.schema.job import AdapterSpec, Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_torchtune"]

_FILE: Final = "torchtune.sh"
_BOTH: Final = ("full", "lora")
_LORA: Final = ("lora",)
#: Models by their name on the hub: the folder and size of torchtune's configs, and the kinds there are.
_CONFIGS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "meta-llama/Llama-2-7b-hf": ("llama2/7B", _BOTH),
    "meta-llama/Llama-2-13b-hf": ("llama2/13B", _BOTH),
    "meta-llama/Llama-2-70b-hf": ("llama2/70B", _LORA),
    "meta-llama/Meta-Llama-3-8B": ("llama3/8B", _BOTH),
    "meta-llama/Meta-Llama-3-70B": ("llama3/70B", _BOTH),
    "meta-llama/Llama-3.1-8B": ("llama3_1/8B", _BOTH),
    "meta-llama/Llama-3.1-70B": ("llama3_1/70B", _BOTH),
    "meta-llama/Llama-3.2-1B": ("llama3_2/1B", _BOTH),
    "meta-llama/Llama-3.2-3B": ("llama3_2/3B", _BOTH),
    "mistralai/Mistral-7B-v0.1": ("mistral/7B", _BOTH),
    "microsoft/Phi-3-mini-4k-instruct": ("phi3/mini", _BOTH),
    "google/gemma-2b": ("gemma/2B", _BOTH),
    "google/gemma-7b": ("gemma/7B", _BOTH),
    "google/gemma-2-2b": ("gemma2/2B", _BOTH),
    "google/gemma-2-9b": ("gemma2/9B", _BOTH),
    "google/gemma-2-27b": ("gemma2/27B", _BOTH),
    "Qwen/Qwen2.5-0.5B": ("qwen2_5/0.5B", _BOTH),
    "Qwen/Qwen2.5-1.5B": ("qwen2_5/1.5B", _BOTH),
    "Qwen/Qwen2.5-3B": ("qwen2_5/3B", _BOTH),
    "Qwen/Qwen2.5-7B": ("qwen2_5/7B", _BOTH),
    "Qwen/Qwen2.5-14B": ("qwen2_5/14B", ("lora_single_device",)),
    "Qwen/Qwen2.5-32B": ("qwen2_5/32B", _LORA),
    "Qwen/Qwen2.5-72B": ("qwen2_5/72B", _LORA),
}
#: Optimizers, and whether ``fused`` is an argument of theirs: every config of the table above gives it.
_OPTIMIZERS: Final = {
    "adamw": ("torch.optim.AdamW", True),
    "adam": ("torch.optim.Adam", True),
    "sgd": ("torch.optim.SGD", True),
    "adamw-8bit": ("torchao.optim.AdamW8bit", False),
    "paged-adamw": ("bitsandbytes.optim.PagedAdamW", False),
    "paged-adamw-8bit": ("bitsandbytes.optim.PagedAdamW8bit", False),
}
#: The whole model has one format; recipes refuse fp16.
_PRECISIONS: Final = ("bf16", "fp32")
_ATTENTION: Final = "[q_proj,k_proj,v_proj,output_proj]"
_SOFTWARE: Final = (
    *("compile", "pure_bf16", "loss", "loss_chunks"),
    *("optimizer_in_backward", "offload_parameters"),
)
_LATER: Final = "which recipes of this release do not have, or with tensors split otherwise than planned"
_STAGES: Final = "torchtune has none"


def emit_torchtune(run: PlannedRun) -> Emission:
    """Return the plan as a script around ``tune run``; raises InexpressibleError for what has no key."""
    job, layout = run.job, run.layout
    _check(job, layout)
    overrides = tuple(f"{key}={value}" for key, value in _overrides(job, layout).items())
    removed = () if _OPTIMIZERS[job.optimizer][1] else ("~optimizer.fused",)
    words = (*overrides, *removed)
    start = _start(job, layout)
    text = command_script((*run.header, start), _command(job, layout), ((word,) for word in words))
    return Emission((EmittedFile(_FILE, text),), words, notes=(start, *_notes(job)))


def _check(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part that torchtune does not have."""
    refuse_software(job, _SOFTWARE, adapters=True)
    refuse_adapter_fields(job, ("base", "double_quantization", "dora", "dropout"))
    refuse_beyond_data(layout, _LATER)
    if layout.devices > 1:
        refuse_for_fsdp(layout, _STAGES)
    else:
        if layout.zero:
            raise InexpressibleError(f"ZeRO-{layout.zero} on one device", [replace(layout, zero=0)])
        refuse_for_replicas(layout, _STAGES)
    if job.precision not in _PRECISIONS:
        raise InexpressibleError(f"the precision {job.precision}")
    if job.software.pure_bf16 is False or job.software.loss not in {None, "chunked"}:
        raise InexpressibleError("fp32 copies of parameters, or a loss of all tokens at once")
    _check_fine_tuning(job, layout)


def _check_fine_tuning(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for an optimizer or a base that torchtune has not, or not on several devices.

    torchao's NF4 tensors have scales in 8 bits (``torchtune/modules/peft/lora.py``), and bitsandbytes'
    optimizers do not take shards. Only recipes of full fine-tunes update in backward.
    """
    if job.optimizer not in _OPTIMIZERS:
        raise InexpressibleError(f"the optimizer {job.optimizer}")
    if layout.devices > 1 and _OPTIMIZERS[job.optimizer][0].startswith("bitsandbytes"):
        raise InexpressibleError(f"the optimizer {job.optimizer} on several devices: FSDP2 shards its states")
    refuse_other_bases(job)
    if job.adapters is not None and job.software.optimizer_in_backward:
        raise InexpressibleError("updates of adapters in backward (software.optimizer_in_backward)")


def _config(job: Job) -> str:
    """Return the name of the config of the model; raises InexpressibleError where torchtune has none."""
    kind = "lora" if job.adapters is not None else "full"
    stem, kinds = _CONFIGS.get(architecture_name(job.model) or "", ("", ()))
    for found in kinds:
        if found.startswith(kind):
            return f"{stem}_{found}"
    raise InexpressibleError(f"the model {job.model.name}: torchtune has no {kind} config of it")


def _command(job: Job, layout: Layout) -> str:
    """Return the command without its overrides, in shell syntax."""
    config, nodes = _config(job), node_counts(job, layout)
    kind = "lora" if job.adapters is not None else "full"
    if layout.devices == 1:
        return f"tune run {kind}_finetune_single_device --config {config}"
    meeting = '--rdzv_id autoplan --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:29500" '
    several = f"--nnodes {nodes[0]} {meeting}" if nodes[0] > 1 else ""
    return f"tune run {several}--nproc_per_node {nodes[1]} {kind}_finetune_distributed --config {config}"


def _overrides(job: Job, layout: Layout) -> dict[str, str]:
    """Return the keys of the config that a plan decides."""
    component, fused = _OPTIMIZERS[job.optimizer]
    software = job.software
    return {
        "batch_size": str(layout.microbatch),
        "gradient_accumulation_steps": str(microbatches(job, layout)),
        "tokenizer.max_seq_len": str(job.workload.sequence_length),
        "dtype": job.precision,
        "optimizer": component,
        **({"optimizer.fused": "True"} if fused else {}),
        **_in_backward(job),
        "enable_activation_checkpointing": str(layout.mode == "full"),
        "enable_activation_offloading": str(layout.activation_offload),
        "compile": str(bool(software.compile)),
        **({"loss.num_output_chunks": str(software.loss_chunks)} if software.loss_chunks else {}),
        **(_sharding(job, layout) if layout.devices > 1 else {}),
        **(_adapters(job.adapters) if job.adapters is not None else {}),
    }


def _in_backward(job: Job) -> dict[str, str]:
    """Return the keys of updates in backward, which exclude clipping (recipes of full fine-tunes)."""
    if job.adapters is not None:
        return {}
    chosen = bool(job.software.optimizer_in_backward)
    return {"optimizer_in_bwd": str(chosen), **({"clip_grad_norm": "null"} if chosen else {})}


def _sharding(job: Job, layout: Layout) -> dict[str, str]:
    offloaded = bool(job.software.offload_parameters)
    return {"fsdp_reshard_after_forward": str(layout.zero == 3), "fsdp_cpu_offload": str(offloaded)}


def _adapters(adapters: AdapterSpec) -> dict[str, str]:
    """Return the keys of low-rank adapters, whose scale is 2 as in torchtune's own configs."""
    return {
        "model.lora_attn_modules": _ATTENTION,
        "model.apply_lora_to_mlp": str(adapters.targets == "all"),
        "model.lora_rank": str(adapters.rank),
        "model.lora_alpha": str(2 * adapters.rank),
        "model.lora_dropout": str(adapters.dropout),
        **({"model.quantize_base": "True"} if adapters.base is not None else {}),
        **({"model.use_dora": "True"} if adapters.dora else {}),
    }


def _start(job: Job, layout: Layout) -> str:
    nodes, _ = node_counts(job, layout)
    first = "MASTER_ADDR=HOST " if nodes > 1 else ""
    each = f" (on each of {nodes} nodes)" if nodes > 1 else ""
    return f"start it with: {first}bash {_FILE} checkpointer.checkpoint_dir=... tokenizer.path=...{each}"


def _notes(job: Job) -> tuple[str, ...]:
    config = f"checkpoint, data set and learning rate are those of its config (tune cp {_config(job)} FILE)"
    return (
        config,
        "shorter samples are not padded to the length: dataset.packed=True fills sequences",
        *dropout_note(job),
        *stack_note(job, ("torchtune",), "torchtune", "torchtune"),
    )


TARGET: Final = Target(
    name="torchtune",
    framework="torchtune",
    version="0.6.1",
    check="names checked",
    emit=emit_torchtune,
)
