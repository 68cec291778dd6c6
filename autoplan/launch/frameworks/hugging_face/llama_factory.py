"""The target ``llama-factory``: the YAML file of ``llamafactory-cli train``.

Keys are those of ``llamafactory/hparams/`` of the version that TARGET names, and of the TrainingArguments
that they extend. Data sets, templates, the learning rate and the like are the user's to add.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import yaml

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.frameworks.hugging_face.data_parallel import (
    checked_kind,
    compiled,
    deepspeed_section,
    formats,
    fsdp_section,
    optim_name,
    refuse_beyond_data,
)
from autoplan.launch.frameworks.hugging_face.llama_factory_values import is_llama_factory, read_llama_factory
from autoplan.launch.frameworks.hugging_face.training_edits import training_edits
from autoplan.launch.frameworks.missing_parts import dropout_note, microbatches, refuse_software, stack_note
from autoplan.launch.frameworks.written_document import read_yaml
from autoplan.launch.header import as_comment
from autoplan.launch.known_models import hub_name
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.results.launching.file_comparison import FileEdit
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_llama_factory"]

_FILE: Final = "llama_factory.yaml"


def emit_llama_factory(run: PlannedRun) -> Emission:
    """Return the plan as keys of LLaMA-Factory's YAML file; raises InexpressibleError for what has none."""
    job = run.job
    # A line of YAML is never folded, and text is quoted by the library.
    text = yaml.safe_dump(_document(job, run.layout), sort_keys=False, width=10_000)
    file = EmittedFile(_FILE, f"{as_comment((*run.header, _usage(job)))}{text}")
    return Emission((file,), environment={"FORCE_TORCHRUN": "1"}, notes=_notes(job))


def _edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    return training_edits(read_yaml(file).entries, (old, new), partial(_document, job))


def _document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for what has none."""
    refuse_software(job, ("compile", "pure_bf16"), adapters=True)
    refuse_beyond_data(layout)
    _refuse_offload(layout)
    kind = checked_kind(job, layout)
    return {
        **_model(job),
        "cutoff_len": job.workload.sequence_length,
        "per_device_train_batch_size": layout.microbatch,
        "gradient_accumulation_steps": microbatches(job, layout),
        **_formats(job),
        **({} if kind == "deepspeed" else {"optim": optim_name(job)}),
        "disable_gradient_checkpointing": layout.mode != "full",
        **(_fsdp(layout) if kind == "fsdp" else {}),
        **({"deepspeed": deepspeed_section(job, layout)} if kind == "deepspeed" else {}),
        **compiled(job),
        **({"enable_liger_kernel": True} if job.stack.name.endswith("-liger") else {}),
    }


def _refuse_offload(layout: Layout) -> None:
    if layout.activation_offload:
        raise InexpressibleError("offload of activations", [replace(layout, activation_offload=False)])


def _model(job: Job) -> dict[str, Any]:
    """Return the keys of the model and of what is trained of it."""
    name = hub_name(job.model)
    base = {"model_name_or_path": name} if name else {}
    if job.adapters is None:
        return {**base, "finetuning_type": "full"}
    adapters = job.adapters
    return {
        **base,
        **_quantization(adapters),
        "finetuning_type": "lora",
        "lora_rank": adapters.rank,
        "lora_target": "all" if adapters.targets == "all" else ",".join(adapters.modules),
        **({"lora_dropout": adapters.dropout} if adapters.dropout else {}),
        **({"use_dora": True} if adapters.dora else {}),
    }


def _quantization(adapters: AdapterSpec) -> dict[str, Any]:
    """Return the keys of the frozen base's format."""
    if adapters.base is None:
        return {}
    if adapters.base == "int8":
        return {"quantization_bit": 8, "quantization_method": "bnb"}
    scales = {"double_quantization": adapters.doubly_quantized}
    return {
        "quantization_bit": 4,
        "quantization_method": "bnb",
        "quantization_type": adapters.base,
        **scales,
    }


def _formats(job: Job) -> dict[str, bool]:
    pure = {"pure_bf16": True} if job.software.pure_bf16 else {}
    return {**formats(job), **pure}


def _fsdp(layout: Layout) -> dict[str, Any]:
    """Return the keys of FSDP2; reentrant recompute is none of it."""
    section = {"version": 2, **fsdp_section(layout)}
    return {"use_reentrant_gc": False, "fsdp": "full_shard auto_wrap", "fsdp_config": section}


def _usage(job: Job) -> str:
    nodes = f"NNODES={job.cluster.nodes} NODE_RANK=... MASTER_ADDR=... " if job.cluster.nodes > 1 else ""
    start = f"FORCE_TORCHRUN=1 {nodes}llamafactory-cli train {_FILE}"
    return f"usage: add stage, data sets, template, learning rate and output_dir, then: {start}"


def _notes(job: Job) -> tuple[str, ...]:
    unknown = f"set model_name_or_path: the hub has no known name for {job.model.name}"
    model = () if hub_name(job.model) else (unknown,)
    return (
        *model,
        *dropout_note(job),
        *stack_note(job, ("hf-", "ddp", "deepspeed", "fsdp2"), "hf-fsdp2", "LLaMA-Factory"),
    )


TARGET: Final = Target(
    name="llama-factory",
    framework="LLaMA-Factory",
    version="0.9.5",
    check="accepted by the framework's parser",
    emit=emit_llama_factory,
    recognises=is_llama_factory,
    read=read_llama_factory,
    edits=_edits,
)
