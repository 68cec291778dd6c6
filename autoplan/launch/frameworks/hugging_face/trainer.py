"""The target ``trainer``: TrainingArguments of the Hugging Face Trainer, as a JSON file or as arguments.

Fields are those of ``transformers/training_args.py`` of the version that TARGET names. Devices and sequences
are no part of them: the launcher and the training program have them. Low-rank adapters are fields of a
program, here of TRL's ``trl/scripts/sft.py``, whose ModelConfig and SFTConfig (1.9.0) are given with them.
SFTConfig recomputes unless ``activation_checkpointing`` is false.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.adapter_fields import modules_of, refuse_adapter_fields
from autoplan.launch.frameworks.argument_array import torchrun_words
from autoplan.launch.frameworks.hugging_face.data_parallel import (
    checked_kind,
    compiled,
    deepspeed_section,
    formats,
    fsdp_section,
    optim_name,
    refuse_beyond_data,
)
from autoplan.launch.frameworks.hugging_face.trainer_values import (
    is_key_file,
    is_trainer,
    read_arguments,
    read_trainer,
)
from autoplan.launch.frameworks.hugging_face.training_edits import script_edits, training_edits
from autoplan.launch.frameworks.missing_parts import dropout_note, microbatches, refuse_software, stack_note
from autoplan.launch.known_models import hub_name
from autoplan.launch.target import Emission, EmittedFile, PlannedRun, Target
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_trainer"]

_FILE: Final = "training_args.json"


def emit_trainer(run: PlannedRun) -> Emission:
    """Return the plan as a JSON file that ``HfArgumentParser.parse_json_file`` takes, and as arguments.

    JSON has no comments, so that the prediction is in the notes. Raises InexpressibleError for the first part
    of the plan that has no field.
    """
    document = _document(run.job, run.layout)
    text = json.dumps(document, indent=2)
    words = tuple(word for key, value in document.items() for word in _words(key, value))
    notes = (*run.header, *_notes(run.job))
    return Emission((EmittedFile(_FILE, f"{text}\n"),), words, notes=notes, by_arguments=True)


def _edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    edits = training_edits if is_key_file(file) else script_edits
    return edits(read_arguments(file)[0].entries, (old, new), partial(_document, job))


def _document(job: Job, layout: Layout) -> dict[str, Any]:
    refuse_software(job, ("compile",), adapters=True)
    refuse_adapter_fields(job)
    refuse_beyond_data(layout)
    kind = checked_kind(job, layout)
    sections = {"fsdp": _fsdp, "deepspeed": _deepspeed, "replicas": _replicas}
    return {
        "per_device_train_batch_size": layout.microbatch,
        "gradient_accumulation_steps": microbatches(job, layout),
        **formats(job),
        **sections[kind](job, layout),
        **({"activation_checkpointing": False} if job.adapters is not None else {}),
        **_recompute(layout, kind),
        **compiled(job),
        **({"use_liger_kernel": True} if job.stack.name.endswith("-liger") else {}),
        **_adapters(job),
    }


def _adapters(job: Job) -> dict[str, Any]:
    """Return the fields of TRL's program for low-rank adapters, whose scale is 2 as by its own defaults."""
    if job.adapters is None:
        return {}
    name = hub_name(job.model)
    every = job.adapters.targets == "all"
    return {
        **({"model_name_or_path": name} if name else {}),
        "max_length": job.workload.sequence_length,
        "use_peft": True,
        "lora_r": job.adapters.rank,
        "lora_alpha": 2 * job.adapters.rank,
        "lora_dropout": 0.0,
        "lora_target_modules": ["all-linear"] if every else list(modules_of(job.adapters)),
    }


def _fsdp(job: Job, layout: Layout) -> dict[str, Any]:
    checkpoints = {"activation_checkpointing": layout.mode == "full" and not layout.activation_offload}
    section = {"version": 2, **fsdp_section(layout), **checkpoints}
    return {"optim": optim_name(job), "fsdp": True, "fsdp_config": section}


def _deepspeed(job: Job, layout: Layout) -> dict[str, Any]:
    return {"deepspeed": deepspeed_section(job, layout)}


def _replicas(job: Job, layout: Layout) -> dict[str, Any]:
    del layout
    return {"optim": optim_name(job)}


def _recompute(layout: Layout, kind: str) -> dict[str, Any]:
    """Return the fields of recompute, which FSDP has its own one for unless inputs go to host memory."""
    if layout.activation_offload:
        return {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"offload": True}}
    return {} if kind == "fsdp" else {"activation_checkpointing": layout.mode == "full"}


def _words(key: str, value: object) -> tuple[str, ...]:
    """Return a field as arguments; a mapping is one word of JSON."""
    if key == "fsdp":
        return ("--fsdp",)
    if isinstance(value, list):
        return (f"--{key}", *map(str, value))
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)
    return (f"--{key}", text)


def _notes(job: Job) -> tuple[str, ...]:
    return (
        *(_plain_start(job) if job.adapters is None else _start_of_trl(job)),
        *dropout_note(job),
        *stack_note(job, ("hf-", "ddp", "deepspeed", "fsdp2"), "hf-fsdp2", "the Trainer"),
    )


def _plain_start(job: Job) -> tuple[str, ...]:
    length = f"sequences of {job.workload.sequence_length} tokens are the training program's choice"
    return f"start it with: {torchrun_words(job)} PROGRAM {_FILE}", length


def _start_of_trl(job: Job) -> tuple[str, ...]:
    """Return how TRL's program is started with the file, which it reads as YAML."""
    name = hub_name(job.model)
    model = () if name else (f"set model_name_or_path: the hub has no known name for {job.model.name}",)
    own = "--dataset_name DATASET --output_dir FOLDER"
    return f"start it with: {torchrun_words(job)} -m trl.scripts.sft --config {_FILE} {own}", *model


TARGET: Final = Target(
    name="trainer",
    framework="transformers",
    version="5.23.0",
    check="accepted by the framework's parser",
    emit=emit_trainer,
    recognises=is_trainer,
    read=read_trainer,
    edits=_edits,
)
