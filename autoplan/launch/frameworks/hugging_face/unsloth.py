"""The target ``unsloth``: a Python program that fine-tunes with FastLanguageModel and TRL's SFTTrainer.

Arguments are those of ``unsloth/models/loader.py`` and ``llama.py`` (``from_pretrained``, ``get_peft_model``)
of the version that TARGET names, and of SFTConfig of TRL from 0.18 on, which it requires. On several devices
the same program runs under torchrun as data-parallel replicas.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.catalog import checkpoint_model
from autoplan.launch.assembly import alone, assembled_document, without_open
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Written
from autoplan.launch.emitted_text import as_comment
from autoplan.launch.frameworks import missing_parts
from autoplan.launch.frameworks.hugging_face import training_fields as training
from autoplan.launch.frameworks.hugging_face.python_program import (
    UNKNOWN,
    ProgramValues,
    keywords_of,
    parsed_program,
    program_values,
)
from autoplan.launch.known_models import has_experts, hub_name
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun
from autoplan.schema.adapters import MLP_MODULES, AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.model import ModelSpec

UNSLOTH: Final = interface("unsloth")
_IMPORT: Final = re.compile(r"(?m)^\s*from\s+unsloth\s+import\s.*\bFast\w*Model\b")
#: Fields that an argument decides, by its name.
_DECIDED: Final[Mapping[str, set[str]]] = {
    "per_device_train_batch_size": {"mbs", "global_batch_size"},
    "gradient_accumulation_steps": {"global_batch_size"},
    "max_length": {"sequence_length"},
    "max_seq_length": {"sequence_length"},
    "use_gradient_checkpointing": {"recompute", "offload"},
    "bf16": {"precision"},
    "fp16": {"precision"},
    "optim": {"optimizer"},
}

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
        tables["ADAPTERS"] = _adapters(job.model, job.adapters, layout)
    program = "".join(f"{name} = {_table(values)}" for name, values in tables.items())
    steps = f"{_LOAD}{_ADAPT if job.adapters is not None else ''}{_TRAIN}"
    text = f"{as_comment((*run.header, start))}{_HEAD}{program}{steps}"
    return Emission((EmittedFile(_FILE, text),), notes=(start, *_notes(job)))


def _check(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part that Unsloth does not have."""
    missing_parts.refuse_software(job, ("pure_bf16",), adapters=True)
    missing_parts.refuse_adapter_fields(job, ("base", "double_quantization", "experts"), modules=True)
    missing_parts.refuse_other_bases(job)
    missing_parts.refuse_beyond_data(layout, "which Unsloth trains without")
    if layout.zero:
        part = f"ZeRO-{layout.zero}: Unsloth runs on one device or as replicas"
        raise InexpressibleError(part, [replace(layout, zero=0, dp_shard=0)])
    missing_parts.refuse_for_replicas(layout, "Unsloth has none")
    missing_parts.named(job, "precision", _DTYPES)
    if job.software.pure_bf16 is False:
        raise InexpressibleError("parameters in fp32 (software.pure_bf16: false)")


def _starter(job: Job, layout: Layout) -> str:
    nodes, per_node = missing_parts.node_counts(job, layout)
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


def _adapters(model: ModelSpec, adapters: AdapterSpec, layout: Layout) -> dict[str, Any]:
    """Return the arguments of get_peft_model; adapters have a scale of 2."""
    return {
        "r": adapters.rank,
        "lora_alpha": 2 * adapters.rank,
        "lora_dropout": 0.0,
        "target_modules": _targets(model, adapters),
        "use_gradient_checkpointing": _checkpointing(layout),
    }


def _targets(model: ModelSpec, adapters: AdapterSpec) -> list[str]:
    """Return the modules with an adapter; modules of the MLP name the stacks of experts, too."""
    modules = training.adapted_modules(model, adapters)
    if model.moe is None:
        return modules
    others = [name for name in modules if name not in MLP_MODULES]
    return [*others, *(MLP_MODULES if adapters.experts else ())]


def _training(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the arguments of SFTConfig."""
    return {
        "output_dir": "unsloth_output",
        "per_device_train_batch_size": layout.microbatch,
        "gradient_accumulation_steps": missing_parts.microbatches(job, layout),
        "max_length": job.workload.sequence_length,
        **training.formats(job),
        "optim": training.optim_name(job),
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
    data = "DATASET is one of the hub or a folder; add the learning rate in TRAINING"
    return data, *missing_parts.training_notes(job, "model_name", ("unsloth",), "Unsloth", base_shipped=True)


def is_unsloth(file: LaunchFile) -> bool:
    """Return whether a file is a program in Python that loads its model with Unsloth."""
    return file.values is None and _IMPORT.search(file.text) is not None


def read_unsloth(file: LaunchFile) -> Configuration:
    """Return what the calls of a program set by constants; on how many devices it runs, it does not say."""
    document = _calls(file)
    values = alone("recompute")
    values |= {"devices": Written(file.devices)} if file.devices is not None else {}
    values |= training.batch_of(document, file, values)
    values |= _precision_of(document) | _checkpointing_of(document)
    name = document.text("model")
    model = checkpoint_model(str(name.value)) if name is not None else None
    values |= {"optimizer": training.optimizer_of(document)} | _adapters_of(document, model)
    longest = document.bound("sequence_length") or document.bound("longest")
    values["sequence_length"] = next(iter(longest.values()))
    document.stop_at_problems()
    return assembled_document(document, file, without_open(values), model)


def _precision_of(document: WrittenDocument) -> Fields:
    """Return the precision, which Unsloth takes from the weights where the arguments say none.

    Source: unslothai/unsloth unsloth/models/rl.py, mixed_precision: args.bf16 = not float16.
    """
    values = training.precision_of(document)
    if "precision" not in values or not values["precision"].default:
        return values
    loaded = document.given("dtype")
    half = loaded is not None and loaded.value in {"float16", "half", "fp16"}
    return {"precision": Written("fp16" if half else "bf16", default=True)}


def _calls(file: LaunchFile) -> WrittenDocument:
    """Return the arguments of the calls of a program, by path; raises SpecError for what is no Python."""
    tree = parsed_program(file)
    values = program_values(tree, file.variables)
    document = WrittenDocument(file.name, table=UNSLOTH)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ".".join(ast.unparse(node.func).split(".")[-2:])
            section = UNSLOTH.data["calls"].get(called) or UNSLOTH.data["calls"].get(called.split(".")[-1])
            for name, value in keywords_of(node, values.names) if section is not None else ():
                _add(document, f"{section}.{name}", value, values)
            if section == "model" and node.args:
                _add(document, UNSLOTH.keys["model"], node.args[0], values)
    return document


def _add(document: WrittenDocument, path: str, node: ast.expr, values: ProgramValues) -> None:
    """Add the value of an argument; one that is no constant leaves open what it may decide."""
    value = values.of(node)
    text = f"{path.rpartition('.')[2]}={ast.unparse(node)}"[:80]
    decides = path in UNSLOTH.keys.values()
    if value is not UNKNOWN:
        document.entries[path] = Written(value, node.lineno, text)
        if decides and values.is_argument(node):
            document.notes.append(f"{text} (line {node.lineno}): read as the default of this argument")
    elif decides:
        document.notes.append(f"{text} (line {node.lineno}) is no constant: left open")
        document.opened |= _DECIDED.get(path.rpartition(".")[2], set())


def _checkpointing_of(document: WrittenDocument) -> Fields:
    """Return recompute, and the offload of its inputs, by what FastLanguageModel is told; unsloth is both."""
    whole = document.bound("whole")["whole"]
    given = document.given("whole_checkpointing" if whole.value else "adapted_checkpointing")
    written = given or Written("unsloth", default=True)
    offloaded = written.value == "unsloth"
    on = replace(written, value="full" if offloaded or written.value is True else "none")
    return {"recompute": on, **({"offload": replace(written, value="activations")} if offloaded else {})}


def _adapters_of(document: WrittenDocument, model: str | None) -> Fields:
    flags, adapted = (
        document.bound("whole", "four_bits", "eight_bits", "adapter_rank"),
        document.given("adapted"),
    )
    if flags["whole"].value:
        return {}
    base = "nf4" if flags["four_bits"].value else "int8" if flags["eight_bits"].value else None
    more: dict[str, Any] = {"base": base} if base is not None else {}
    dropout = document.given("adapter_dropout")
    if dropout is not None and isinstance(dropout.value, int | float) and dropout.value:
        more["dropout"] = float(dropout.value)
    names = adapted.value if adapted is not None and isinstance(adapted.value, list | tuple) else ()
    # Modules of the MLP are the stacks of experts, too.
    if set(names) & set(MLP_MODULES) and has_experts(model):
        more["experts"] = True
    every = adapted is None or adapted.value == "all-linear"
    return training.adapter_values(flags["adapter_rank"], adapted, every=every, more=more)


TARGET: Final = target_of(UNSLOTH, emit=emit_unsloth, recognises=is_unsloth, read=read_unsloth)
