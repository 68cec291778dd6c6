"""The target ``llama-factory``: the YAML file of ``llamafactory-cli train``.

Keys are those of ``llamafactory/hparams/`` of the version that TARGET names, and of the TrainingArguments
that they extend. Data sets, templates, the learning rate and the like are the user's to add. In the second
format (hiyouga/LLaMA-Factory ff6d4d1, ``src/llamafactory/v1``) backends and adapters are sections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from autoplan.launch.assembly import alone, assembled_document, with_devices, without_open
from autoplan.launch.bindings.interface import interface, nested, plan_values, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, FileEdit, LaunchFile, Written, stated
from autoplan.launch.emitted_text import yaml_file
from autoplan.launch.frameworks.accelerate_values import accelerate_words, launched_values, launcher_of
from autoplan.launch.frameworks.deepspeed import deepspeed_section, with_software
from autoplan.launch.frameworks.hugging_face import training_fields as training
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.hugging_face.training_edits import (
    edits_beside,
    edits_of_another,
    key_file_edits,
    script_edits,
)
from autoplan.launch.frameworks.missing_parts import (
    microbatches,
    refuse_software,
    training_notes,
)
from autoplan.launch.known_models import hub_name
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script, script_text
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import (
    launched_devices,
    launcher_words,
    training_command,
    variable_devices,
    visible_devices,
    without_differing,
)
from autoplan.launch.target import Emission, InexpressibleError, PlannedRun
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.post_training import RLSpec

_V1: Final = interface("llama-factory-v1")
#: Files that LLaMA-Factory ships in examples/deepspeed.
SHIPPED: Final = training.Shipped(re.compile(r"(?:.*/)?ds_z([0-3])(_offload)?_config\.json"), "LLaMA-Factory")


def is_second_format(file: LaunchFile) -> bool:
    """Return whether a file is one of the second format."""
    if file.values is not None or file.script:
        return False
    signs = [key for key in _V1.data["signs"] if re.search(rf"(?m)^{key}\s*:", file.text)]
    return len(signs) >= 2 and re.search(rf"(?m)^{_V1.keys['model']}\s*:", file.text) is not None


def read_second_format(file: LaunchFile) -> Configuration:
    """Return what a file of the second format says; raises SpecError with all problems."""
    document = read_yaml(file, _V1)
    own = {key for key in _V1.keys.values() if "." not in key}
    document.check_names("", frozenset({*own, *_V1.data["others"]}), "LLaMA-Factory")
    values = {**alone(), **document.bound("mbs", "sequence_length", "cp", "ep")}
    values |= {**_second_formats(document), **_second_sharding(document, file)}
    values = with_software(values, _second_software(document), _second_adapters(document))
    if (loss := document.text("preference")) is not None:
        document.opened.add("rl")
        document.notes.append(f"{loss.words}: the data decide whether pairs are compared: left open")
    document.stop_at_problems()
    model = training.model_of(document)
    values = dict(with_devices(file, without_open(values)))
    batch = document.number("global_batch_size")
    if batch is None and "dp" in values and not document.opened & {"cp", "dp"}:
        batch = Written(values["dp"].value * values["mbs"].value, default=True)
    values |= stated(global_batch_size=batch)
    return assembled_document(document, file, values, model, framework="llama-factory")


def _second_formats(document: WrittenDocument) -> Fields:
    """Return precision, recompute and optimizer: bf16, full and AdamW where nothing else is said."""
    named = document.text("optimizer") or Written("adamw", default=True)
    values = document.bound("bf16", "recompute") | {"optimizer": named}
    if named.value not in {"muon", "adamw"}:
        values["optimizer"] = training.OPEN
        document.notes.append(f"the optimizer {named.value[:40]!r} is not priced: left open")
    return values


def _second_sharding(document: WrittenDocument, file: LaunchFile) -> Fields:
    """Return the sharding of the backend; that of one which is not read stays open."""
    backend = document.text("backend")
    if backend is not None and backend.value == "deepspeed":
        return {**training.deepspeed_or_shipped(document, file, SHIPPED), "way": training.DEEPSPEED}
    if backend is None or backend.value != "fsdp2":
        document.opened |= {"zero"}
        shown = backend.words if backend is not None else "no dist_config"
        document.notes.append(f"{shown}: the sharding of this backend is left open")
        return {}
    whole = document.flag("resharded")
    stage = 2 if whole is not None and not whole.value else 3
    values = {"zero": backend.of(stage), "way": training.FSDP}
    copies, shards = document.number("replicas"), document.number("shards")
    if copies is not None and copies.value > 1 and shards is not None:
        values["dp_shard"] = shards
    elif copies is not None and copies.value > 1:
        document.opened.add("dp_shard")
    return values


def _second_software(document: WrittenDocument) -> Fields:
    values, kernels = document.choices("parameter_offload"), document.given("kernels")
    if kernels is not None and "liger" in str(kernels.value):
        values |= {"loss": "chunked", "fused_kernels": True}
    return {"software": Written(values)} if values else {}


def _second_adapters(document: WrittenDocument) -> Fields:
    kind, bits = document.text("finetuning"), document.number("bits")
    base = {4: "nf4", 8: "int8"}.get(bits.value) if bits is not None else None
    if kind is None or kind.value != "lora":
        if kind is not None:
            document.notes.append(f"{kind.words}: read as training of the whole model")
        return {}
    rank, targets = document.bound("adapter_rank")["adapter_rank"], document.given("adapted")
    every = targets is None or targets.value == "all"
    return training.adapter_values(rank, targets, every=every, more=training.base_values(document, base))


LLAMA_FACTORY: Final = interface("llama-factory")
_FILE: Final = "llama_factory.yaml"
#: Commands with arguments; versions before 0.7 have a program, ``src/train_bash.py``.
_COMMAND: Final = re.compile(r"(?m)^[^#\n]*\b(?:llamafactory-cli\s+train|train_bash\.py)\s+(?:\\\n\s*)?--")
#: Stage and loss of each method.
_METHODS: Final[Mapping[str, Sequence[str | None]]] = LLAMA_FACTORY.data["methods"]
#: Its names of attention kernels.
_ATTENTION: Final = {"eager": "disabled", "sdpa": "sdpa", "flash2": "fa2"}
_FSDP: Final = {"reentrant": False, "fsdp": "full_shard auto_wrap"}


def emit_llama_factory(run: PlannedRun) -> Emission:
    """Return the plan as keys of LLaMA-Factory's YAML file; raises InexpressibleError for what has none."""
    job = run.job
    file = yaml_file(_FILE, _document(job, run.layout), (*run.header, _usage(job)))
    notes = training_notes(job, LLAMA_FACTORY.keys["model"], training.STACKS, "LLaMA-Factory")
    return Emission((file,), environment={"FORCE_TORCHRUN": "1"}, notes=notes)


def _edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    if is_second_format(file):
        raise InexpressibleError("edits of files of the second format")
    document, _, launcher = _read_document(file)
    entries = document.entries
    if _is_script(file):
        beside = edits_of_another(document, launcher, file, (job, old, new))
        if beside is not None:
            return edits_beside(entries, (old, new), partial(_document, job), beside)
        return script_edits(entries, (old, new), partial(_document, job))
    return key_file_edits(file, entries, (job, old, new), partial(_document, job))


def _document(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the keys of a plan; raises InexpressibleError for what has none."""
    training.refuse_beyond_data(layout)
    _refuse_offload(layout)
    kind = training.checked_kind(job, layout)
    offloads = ("offload_parameters",) if kind == "deepspeed" else ()
    refuse_software(job, ("attention", "compile", "pure_bf16", *offloads), adapters=True, rl=_METHODS)
    values = {
        **plan_values(LLAMA_FACTORY, "written", job, layout),
        **_model(job, kind),
        **(_rl(job.rl) if job.rl is not None else {}),
        "steps": microbatches(job, layout),
        **training.formats(job),
        "pure_bf16": job.software.pure_bf16 or None,
        "optimizer": training.optim_beside(job) if kind == "deepspeed" else training.optim_name(job),
        "not_recomputed": layout.mode != "full",
        # Reentrant recompute is none of FSDP2.
        **(_FSDP | training.fsdp_values(layout) if kind == "fsdp" else {}),
        "deepspeed": deepspeed_section(job, layout) if kind == "deepspeed" else None,
        "attention": _ATTENTION.get(job.software.attention or ""),
        "compiled": job.software.compile,
        "packed": training.packing(job).get("packed"),
        "liger": True if job.stack.name.endswith("-liger") else None,
    }
    return nested(LLAMA_FACTORY, values)


def _refuse_offload(layout: Layout) -> None:
    if layout.activation_offload:
        raise InexpressibleError("offload of activations", [replace(layout, activation_offload=False)])


def _model(job: Job, kind: str) -> dict[str, Any]:
    """Return the keys of the model and of what is trained of it."""
    model = {"model": hub_name(job.model)}
    if job.adapters is None:
        return {**model, "finetuning": "full"}
    adapters = job.adapters
    if adapters.experts:
        raise InexpressibleError("adapters of stacked experts (adapters.experts)")
    return {
        **model,
        **_quantization(adapters, kind),
        "finetuning": "lora",
        "adapted": "all"
        if adapters.targets == "all"
        else ",".join(training.adapted_modules(job.model, adapters)),
        "adapter_dropout": adapters.dropout or None,
        "dora": True if adapters.dora else None,
    }


def _rl(rl: RLSpec) -> dict[str, Any]:
    """Return the stage and the loss; raises InexpressibleError for what has no key."""
    if rl.precompute_ref_log_probs:
        raise InexpressibleError("log-probabilities of the reference before training")
    stage, loss = _METHODS[rl.method]
    return {"stage": stage, "preference": loss, "preference_beta": rl.beta}


def _quantization(adapters: AdapterSpec, kind: str) -> dict[str, Any]:
    """Return the keys of the frozen base's format."""
    if adapters.base is None:
        return {}
    if adapters.base == "int8":
        training.refuse_sharded_integers(kind)
        return {"bits": 8, "quantizer": "bnb"}
    return {
        "bits": 4,
        "quantizer": "bnb",
        "base_format": adapters.base,
        "double_quantization": adapters.doubly_quantized,
    }


def _usage(job: Job) -> str:
    nodes = f"NNODES={job.cluster.nodes} NODE_RANK=... MASTER_ADDR=... " if job.cluster.nodes > 1 else ""
    start = f"FORCE_TORCHRUN=1 {nodes}llamafactory-cli train {_FILE}"
    stage = "stage, " if job.rl is None else ""
    return f"usage: add {stage}data sets, template, learning rate and output_dir, then: {start}"


def is_llama_factory(file: LaunchFile) -> bool:
    """Return whether a file is one of LLaMA-Factory."""
    if _is_script(file) or is_second_format(file):
        return True
    keys = {key for key in LLAMA_FACTORY.data["signs"] if re.search(rf"(?m)^{key}\s*:", file.text)}
    return (len(keys) >= 2 and LLAMA_FACTORY.keys["model"] in file.text) or LLAMA_FACTORY.keys[
        "finetuning"
    ] in keys


def _is_script(file: LaunchFile) -> bool:
    """Return whether a file is a script that gives the program arguments rather than a file."""
    return file.values is None and _COMMAND.search(script_text(file)) is not None


def read_llama_factory(file: LaunchFile) -> Configuration:
    """Return what a YAML file of LLaMA-Factory says, or a script; raises SpecError with all problems."""
    if is_second_format(file):
        return read_second_format(file)
    document, devices, launcher = _read_document(file)
    others = (*LLAMA_FACTORY.data["earlier"], *LLAMA_FACTORY.data["mcore_adapter"])
    megatron = (binding.key for binding in LLAMA_FACTORY.groups["megatron"].values())
    listed = (
        training.key_names("llama-factory") | training.key_names("trainer") | frozenset((*others, *megatron))
    )
    document.check_names("", listed, "LLaMA-Factory")
    values = {**alone(), **training.precision_of(document), "optimizer": training.optimizer_of(document)}
    values |= {**document.bound("eight_bit_training"), **stated(devices=devices)}
    values |= training.sharding_values(document, file, SHIPPED)
    values |= launched_values(document, launcher, file, values)
    values |= document.bound("not_recomputed") | _megatron(document)
    training.with_defaults(document, "mbs", "steps")
    values |= training.batch_of(document, file, values)
    values |= document.bound("sequence_length")
    software = training.software_of(
        document, "compiled", "pure_bf16", "cpu_offload", "state_offload", "liger"
    )
    values = with_software(values, _adapters(document), software, _read_rl(document))
    training.note_packing(document)
    document.stop_at_problems()
    return assembled_document(document, file, without_open(values), training.model_of(document))


def _read_document(file: LaunchFile) -> tuple[WrittenDocument, Written | None, Sequence[Word]]:
    """Return the keys of a file, or the arguments of a script by these names, its devices and launcher."""
    if not _is_script(file):
        document = read_yaml(file, LLAMA_FACTORY)
        return document, document.number("ray_workers"), launcher_of(file)
    script = read_script(file.text, file.name, file.variables, file.sibling)
    names = training.key_names("llama-factory") | training.key_names("trainer")
    listed = lambda name: name.startswith("--") and name[2:].replace("-", "_") in names  # noqa: E731
    words, command = training_command(script, listed)
    words, rivals = without_differing(script, command, words, listed)
    document = WrittenDocument(file.name, notes=[*script.notes, *rivals], table=LLAMA_FACTORY)
    add_options(document, [*words, *(Word(text, 0) for text in file.arguments)])
    if command is None:
        return document, None, ()
    devices = _started(script, command, file.variables)
    return document, devices, accelerate_words(command.words)


def _started(script: Script, command: Command, outside: Mapping[str, str]) -> Written | None:
    """Return the processes that a launcher before the program starts, or those of the devices that it sees.

    Source: LLaMA-Factory 0.9.5, ``launcher.py``, which calls torchrun where there are several.
    """
    devices = variable_devices(script, command, outside)
    if devices is not None or len(launcher_words(command.words)) < len(command.words):
        return devices or launched_devices(script, command)[0]
    count = visible_devices(script.variables, command)
    words = f"{count} of CUDA_VISIBLE_DEVICES"
    return None if count is None else Written(count, command.line, words)


def _megatron(document: WrittenDocument) -> Fields:
    """Return the degrees of Megatron-LM by mcore_adapter."""
    values, sp = document.bound("tp", "pp", "cp", "ep", "vpp"), document.flag("sp")
    if sp is not None and "tp" in values and values["tp"].value > 1:
        values["sp"] = sp
    values |= document.bound("distributed_optimizer", "recompute")
    if values and not (values.keys() <= {"cp"}):
        document.notes.append("degrees of Megatron-LM: they need USE_MCA=1 and mcore_adapter")
    return values


def _adapters(document: WrittenDocument) -> Fields:
    kind = document.text("finetuning", ("lora", "oft", "freeze", "full"))
    if kind is not None and kind.value in {"full", "freeze", "oft"}:
        if kind.value != "full":
            document.notes.append(f"{kind.words}: read as training of the whole model")
        return {}
    rank = document.number("adapter_rank") or Written(8, default=True)
    targets = document.given("adapted")
    every = targets is None or targets.value == "all"
    return training.adapter_values(rank, targets, every=every, more=_more_of_adapters(document))


def _more_of_adapters(document: WrittenDocument) -> dict[str, Any]:
    """Return format of the base, DoRA and dropout; quantisation other than bitsandbytes' is noted."""
    bits, kind = document.number("bits"), document.text("base_format", ("nf4", "fp4"))
    method = document.text("quantizer")
    if bits is not None and method is not None and method.value not in {"bnb", "bitsandbytes"}:
        document.notes.append(f"{method.words}: read as bitsandbytes")
    four = str(kind.value) if kind is not None else "nf4"
    base = None if bits is None else {4: four, 8: "int8"}.get(bits.value)
    if bits is not None and base is None:
        document.notes.append(f"{bits.words}: read as a base in 16 bits")
    return training.base_values(document, base)


def _read_rl(document: WrittenDocument) -> Fields:
    """Return preference learning by the stage and its loss; PPO and reward models stay open."""
    stage = document.text("stage")
    if stage is None or stage.value in {"pt", "sft"}:
        return {}
    loss = document.text("preference")
    named = loss.value if loss is not None else "sigmoid"
    method = next(
        (x for x, keys in _METHODS.items() if keys in ([stage.value, named], [stage.value, None])),
        stage.value,
    )
    if method not in _METHODS:
        document.opened.add("rl")
        document.notes.append(f"{stage.words}: a method that is not priced: left open")
        return {}
    return training.rl_of(document, replace(stage, value=method), "preference_beta")


TARGET: Final = target_of(
    LLAMA_FACTORY, emit=emit_llama_factory, recognises=is_llama_factory, read=read_llama_factory, edits=_edits
)
