"""The target ``unsloth``: a Python program that fine-tunes with FastLanguageModel and TRL's SFTTrainer.

Arguments are those of ``unsloth/models/loader.py`` and ``llama.py`` (``from_pretrained``, ``get_peft_model``)
of the version that TARGET names, and of SFTConfig of TRL 0.18 to 0.24, which it requires. On several devices
the same program runs under torchrun as data-parallel replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.launch.frameworks.adapter_fields import refuse_adapter_fields, refuse_other_bases
from autoplan.launch.frameworks.fsdp_mesh import refuse_for_replicas
from autoplan.launch.frameworks.hugging_face.data_parallel import formats, optim_name
from autoplan.launch.frameworks.missing_parts import (
    dropout_note,
    microbatches,
    node_counts,
    refuse_beyond_data,
    refuse_software,
    stack_note,
)
from autoplan.launch.header import as_comment
from autoplan.launch.known_models import hub_name
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun, Target
from autoplan.schema.job import AdapterSpec, Job
from autoplan.schema.layout import Layout

__all__ = ["TARGET", "emit_unsloth"]

_FILE: Final = "unsloth_train.py"
#: Format that the model is loaded in.
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
_HEAD: Final = """import os
import sys

import torch
from unsloth import FastLanguageModel  # before trl, which it changes
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

"""
_LOAD: Final = """
device = {"": int(os.environ.get("LOCAL_RANK", "0"))}
model, tokenizer = FastLanguageModel.from_pretrained(**MODEL, device_map=device)
"""
_ADAPT: Final = "model = FastLanguageModel.get_peft_model(model, **ADAPTERS)\n"
_TRAIN: Final = """data = load_dataset(sys.argv[1], split="train")
args = SFTConfig(**TRAINING)
SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer).train()
"""


def emit_unsloth(run: PlannedRun) -> Emission:
    """Return the plan as a program; raises InexpressibleError for what Unsloth does not have."""
    job, layout = run.job, run.layout
    _check(job, layout)
    start = f"start it with: {_starter(job, layout)} {_FILE} DATASET"
    tables = {"MODEL": _model(job, layout), "TRAINING": _training(job, layout)}
    if job.adapters is not None:
        tables["ADAPTERS"] = _adapters(job.adapters, layout)
    program = "".join(f"{name} = {_table(values)}" for name, values in tables.items())
    steps = f"{_LOAD}{_ADAPT if job.adapters is not None else ''}{_TRAIN}"
    text = f"{as_comment((*run.header, start))}{_HEAD}{program}{steps}"
    return Emission((EmittedFile(_FILE, text),), notes=(start, *_notes(job)))


def _check(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part that Unsloth does not have."""
    refuse_software(job, ("pure_bf16",), adapters=True)
    refuse_adapter_fields(job, ("base", "double_quantization"), modules=True)
    refuse_other_bases(job)
    refuse_beyond_data(layout, "which Unsloth trains without")
    if layout.zero:
        part = f"ZeRO-{layout.zero}: Unsloth runs on one device or as replicas"
        raise InexpressibleError(part, [replace(layout, zero=0, dp_shard=0)])
    refuse_for_replicas(layout, "Unsloth has none")
    if job.precision not in _DTYPES:
        raise InexpressibleError(f"the precision {job.precision}")
    if job.software.pure_bf16 is False:
        raise InexpressibleError("parameters in fp32 (software.pure_bf16: false)")


def _starter(job: Job, layout: Layout) -> str:
    nodes, per_node = node_counts(job, layout)
    meeting = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 " if nodes > 1 else ""
    return "python" if layout.devices == 1 else f"torchrun {meeting}--nproc-per-node {per_node}"


def _checkpointing(layout: Layout) -> bool | str:
    """Return how layers are recomputed; ``unsloth`` also keeps their inputs in host memory."""
    return "unsloth" if layout.activation_offload else layout.mode == "full"


def _model(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the arguments of from_pretrained; its defaults are those of QLoRA."""
    full = job.adapters is None
    return {
        "model_name": hub_name(job.model) or job.model.name,
        "max_seq_length": job.workload.sequence_length,
        "dtype": _Dtype(_DTYPES[job.precision]),
        "load_in_4bit": job.adapters is not None and job.adapters.base is not None,
        "load_in_8bit": False,
        "full_finetuning": full,
        **({"use_gradient_checkpointing": _checkpointing(layout)} if full else {}),
    }


def _adapters(adapters: AdapterSpec, layout: Layout) -> dict[str, Any]:
    """Return the arguments of get_peft_model; adapters have a scale of 2."""
    return {
        "r": adapters.rank,
        "lora_alpha": 2 * adapters.rank,
        "lora_dropout": 0.0,
        "target_modules": list(adapters.modules),
        "use_gradient_checkpointing": _checkpointing(layout),
    }


def _training(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the arguments of SFTConfig."""
    return {
        "output_dir": "unsloth_output",
        "per_device_train_batch_size": layout.microbatch,
        "gradient_accumulation_steps": microbatches(job, layout),
        "max_length": job.workload.sequence_length,
        **formats(job),
        "optim": optim_name(job),
        "gradient_checkpointing": layout.mode == "full",
    }


class _Dtype(str):
    """A format of torch, whose representation is its name in Python."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"torch.{self}"


def _table(values: Mapping[str, Any]) -> str:
    """Return arguments as a table in Python, one a line."""
    return "{\n" + "".join(f'    "{name}": {value!r},\n' for name, value in values.items()) + "}\n"


def _notes(job: Job) -> tuple[str, ...]:
    unknown = f"set model_name: the hub has no known name for {job.model.name}"
    return (
        "DATASET is one of the hub or a folder; add the learning rate in TRAINING",
        *(() if hub_name(job.model) else (unknown,)),
        *dropout_note(job),
        *stack_note(job, ("unsloth",), "unsloth", "Unsloth"),
    )


TARGET: Final = Target(
    name="unsloth",
    framework="Unsloth",
    version="2026.8.19",
    check="names checked",
    emit=emit_unsloth,
)
