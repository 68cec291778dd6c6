"""The target ``torchtune``: a script that runs ``tune run RECIPE --config CONFIG key=value ...``.

Recipes, configs and keys are those of ``recipes/`` and ``torchtune/_recipe_registry.py`` of the version that
TARGET names, which is also the last release. A config of torchtune has tokenizer, checkpoint and data set of
its own; what decides a plan is overridden here, as configs differ in it (one of 70B offloads parameters).
Context parallelism and hybrid sharding came into the recipes after that release, whose own ones would ignore
the keys. ``torchao.optim`` is where torchao >= 0.9 has its 8-bit optimizers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.catalog import checkpoint_model, model_called
from autoplan.launch.assembly import alone, assembled_document, without_open
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Written, stated
from autoplan.launch.emitted_text import command_script
from autoplan.launch.frameworks import missing_parts
from autoplan.launch.frameworks.hugging_face.training_fields import (
    adapter_values,
    batch_of,
)
from autoplan.launch.frameworks.interpolated_values import overridden, resolved
from autoplan.launch.known_models import architecture_name
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices
from autoplan.launch.target import Emission, EmittedFile, InexpressibleError, PlannedRun
from autoplan.schema.adapters import MLP_MODULES, AdapterSpec
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

TORCHTUNE: Final = interface("torchtune")
_COMPONENT: Final = re.compile(r"(?m)^\s+_component_\s*:\s*torchtune\.")
_RUN: Final = re.compile(r"(?m)(?:^|[\s/])tune\s+run\b")
_ALONE_RUN: Final = re.compile(r"(?m)^\s*#\s*tune\s+run\s+\w+_single_device\b")

_FILE: Final = "torchtune.sh"
#: Models by their name on the hub: the folder and size of torchtune's configs, and the kinds there are.
_CONFIGS: Final[Mapping[str, tuple[str, Sequence[str]]]] = TORCHTUNE.data["configs"]
#: Optimizers, and whether ``fused`` is an argument of theirs.
_OPTIMIZERS: Final[Mapping[str, tuple[str, bool]]] = TORCHTUNE.data["written_optimizers"]
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
    nodes, _ = missing_parts.node_counts(job, layout)
    first = "MASTER_ADDR=HOST " if nodes > 1 else ""
    each = f" (on each of {nodes} nodes)" if nodes > 1 else ""
    start = f"start it with: {first}bash {_FILE} checkpointer.checkpoint_dir=... tokenizer.path=...{each}"
    text = command_script((*run.header, start), _command(job, layout), ((word,) for word in words))
    return Emission((EmittedFile(_FILE, text),), words, notes=(start, *_notes(job)))


def _check(job: Job, layout: Layout) -> None:
    """Raise InexpressibleError for the first part that torchtune does not have.

    torchao's NF4 tensors have scales in 8 bits (``torchtune/modules/peft/lora.py``), and bitsandbytes'
    optimizers do not take shards. Only recipes of full fine-tunes update in backward.
    """
    missing_parts.refuse_software(job, _SOFTWARE, adapters=True)
    missing_parts.refuse_adapter_fields(job, ("base", "double_quantization", "dora", "dropout"))
    missing_parts.refuse_beyond_data(layout, _LATER)
    if layout.devices > 1:
        missing_parts.refuse_for_fsdp(layout, _STAGES)
    else:
        if layout.zero:
            raise InexpressibleError(f"ZeRO-{layout.zero} on one device", [replace(layout, zero=0)])
        missing_parts.refuse_for_replicas(layout, _STAGES)
    # The whole model has one format; recipes refuse fp16.
    missing_parts.named(job, "precision", {"bf16": "bf16", "fp32": "fp32"})
    if job.software.pure_bf16 is False or job.software.loss not in {None, "chunked"}:
        raise InexpressibleError("fp32 copies of parameters, or a loss of all tokens at once")
    component, _ = missing_parts.named(job, "optimizer", _OPTIMIZERS)
    if layout.devices > 1 and component.startswith("bitsandbytes"):
        raise InexpressibleError(f"the optimizer {job.optimizer} on several devices: FSDP2 shards its states")
    missing_parts.refuse_other_bases(job)
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
    config, nodes = _config(job), missing_parts.node_counts(job, layout)
    kind = "lora" if job.adapters is not None else "full"
    if layout.devices == 1:
        return f"tune run {kind}_finetune_single_device --config {config}"
    meeting = '--rdzv_id autoplan --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:29500" '
    several = f"--nnodes {nodes[0]} {meeting}" if nodes[0] > 1 else ""
    return f"tune run {several}--nproc_per_node {nodes[1]} {kind}_finetune_distributed --config {config}"


def _overrides(job: Job, layout: Layout) -> dict[str, str]:
    """Return the keys of the config that a plan decides; updates in backward exclude clipping."""
    component, fused = _OPTIMIZERS[job.optimizer]
    software, several, adapters = job.software, layout.devices > 1, job.adapters
    at_once = None if adapters is not None else bool(software.optimizer_in_backward)
    values = {
        "batch_size": layout.microbatch,
        "gradient_accumulation_steps": missing_parts.microbatches(job, layout),
        "tokenizer.max_seq_len": job.workload.sequence_length,
        "dtype": job.precision,
        "optimizer": component,
        "optimizer.fused": fused or None,
        "optimizer_in_bwd": at_once,
        "clip_grad_norm": "null" if at_once else None,
        "enable_activation_checkpointing": layout.mode == "full",
        "enable_activation_offloading": layout.activation_offload,
        "compile": bool(software.compile),
        "loss.num_output_chunks": software.loss_chunks or None,
        "fsdp_reshard_after_forward": layout.zero == 3 if several else None,
        "fsdp_cpu_offload": bool(software.offload_parameters) if several else None,
        **(_adapters(adapters) if adapters is not None else {}),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _adapters(adapters: AdapterSpec) -> dict[str, Any]:
    """Return the keys of low-rank adapters, whose scale is 2 as in torchtune's own configs."""
    return {
        "model.lora_attn_modules": _ATTENTION,
        "model.apply_lora_to_mlp": adapters.targets == "all",
        "model.lora_rank": adapters.rank,
        "model.lora_alpha": 2 * adapters.rank,
        "model.lora_dropout": adapters.dropout,
        "model.quantize_base": True if adapters.base is not None else None,
        "model.use_dora": True if adapters.dora else None,
    }


def _notes(job: Job) -> tuple[str, ...]:
    config = f"checkpoint, data set and learning rate are those of its config (tune cp {_config(job)} FILE)"
    return (
        config,
        "shorter samples are not padded to the length: dataset.packed=True fills sequences",
        *missing_parts.model_notes(job),
        *missing_parts.stack_note(job, ("torchtune",), "torchtune", "torchtune"),
    )


def is_torchtune(file: LaunchFile) -> bool:
    """Return whether a file is a config of torchtune, or a script that runs one."""
    return _COMPONENT.search(file.text) is not None or _runs(file)


def _runs(file: LaunchFile) -> bool:
    """Return whether a file is a script that runs a recipe; configs show such commands in comments."""
    if file.values is not None or _COMPONENT.search(file.text) is not None:
        return False
    return _RUN.search(file.text.replace("\\\n", " ")) is not None


def read_torchtune(file: LaunchFile) -> Configuration:
    """Return what a config says, or a script with its overrides; raises SpecError with all problems."""
    document, devices, complete = _document(file)
    document.table = TORCHTUNE
    for path, written in document.entries.items():
        if path not in TORCHTUNE.keys.values() and "." not in path:
            document.leave_open(path, written)
    usual = alone("zero", "recompute")
    values = usual | document.bound("tp", "cp") | stated(devices=devices)
    values |= _read_sharding(document, devices.value if devices else file.devices, file)
    values |= _read_training(document)
    values |= batch_of(document, file, values)
    values |= document.bound("sequence_length") | _read_adapters(document)
    document.stop_at_problems()
    model = _read_model(document, file)
    if not complete:
        values = {key: written for key, written in values.items() if not written.default or key in usual}
    return assembled_document(document, file, without_open(values), model)


def _document(file: LaunchFile) -> tuple[WrittenDocument, Written | None, bool]:
    """Return the keys of a config, the devices that a script starts, and whether a config was read."""
    if not _runs(file):
        document = read_yaml(file)
        overridden(document, file.arguments)
        return resolved(document, file), None, True
    script = read_script(file.text, file.name, file.variables, file.sibling)
    command = next((c for c in reversed(script.commands) if "tune" in [w.text for w in c.words[:6]]), None)
    words = list(command.words) if command else []
    texts = [word.text for word in words]
    named = texts[texts.index("--config") + 1] if "--config" in texts[:-1] else ""
    text = file.sibling(named)
    document = read_yaml(LaunchFile(named, text)) if text is not None else WrittenDocument(file.name)
    if text is None:
        document.notes.append(f"{named or 'its config'} is not read: what it says is left open")
        document.opened |= {"precision", "optimizer"}
    for word in words:
        if "=" in word.text and not word.text.startswith("-"):
            overridden(document, [word.text])
            path = word.text.partition("=")[0]
            if path in document.entries:
                document.entries[path] = replace(document.entries[path], line=word.line, words=word.text)
    overridden(document, [word for word in file.arguments if text is None or word not in texts])
    for name in ("precision", "optimizer"):
        document.opened -= {name} if TORCHTUNE.keys[name] in document.entries else set()
    single = any("single_device" in t for t in texts)
    devices = Written(1, command.line if command else None, "single_device") if single else None
    if not single and command is not None:
        devices, _ = launched_devices(
            script, replace(command, words=(Word("torchrun", command.line), *words))
        )
    return resolved(document, file), devices, text is not None


def _read_sharding(document: WrittenDocument, devices: int | None, file: LaunchFile) -> Fields:
    """Return what is sharded: all of the model in recipes of several devices, and nothing on one."""
    if devices == 1 or _is_alone(document, file):
        return {"zero": Written(0, default=True), "devices": Written(1, default=True)}
    values = document.bound("resharded")
    shards, copies = document.number("shards", least=-1), document.number("replicas")
    if copies is not None and copies.value > 1:
        if shards is not None and shards.value > 0:
            return {**values, "dp_shard": shards}
        document.opened |= {"dp_shard"}
    return values


def _is_alone(document: WrittenDocument, file: LaunchFile) -> bool:
    """Return whether a config is one of a recipe of one device, by its name, its usage or its optimizer."""
    optimizer = document.text("optimizer")
    unsharded = optimizer is not None and str(optimizer.value).startswith("bitsandbytes.")
    return (
        unsharded
        or "single_device" in file.name.rsplit("/", 1)[-1]
        or _ALONE_RUN.search(file.text) is not None
    )


def _read_training(document: WrittenDocument) -> Fields:
    """Return precision, recompute, offload, optimizer and software; the whole model has the one format."""
    values = document.bound("precision", "recompute", "activation_offload")
    named = document.text("optimizer")
    if named is not None:
        names = {component: ours for ours, (component, _) in _OPTIMIZERS.items()}
        values["optimizer"] = named.of((names | TORCHTUNE.data["optimizers"]).get(str(named.value)))
    software: dict[str, Any] = {"pure_bf16": True} if "precision" in values else {}
    software |= document.choices("compiled", "state_offload", "in_backward")
    return {**values, **({"software": Written(software)} if software else {})}


def _read_adapters(document: WrittenDocument) -> Fields:
    rank, named, component = (
        document.number("adapter_rank"),
        document.given("adapted"),
        document.text("component"),
    )
    if rank is None:
        return {}
    listed = named.value if named is not None and isinstance(named.value, list) else []
    targets = ["o_proj" if str(name) == "output_proj" else str(name) for name in listed]
    modules = [*targets, *(MLP_MODULES if document.on("adapted_dense") else ())]
    four = (component is not None and "qlora" in component.value) or document.on("quantized")
    more = {**({"base": "nf4"} if four else {}), **({"dora": True} if document.on("dora") else {})}
    return adapter_values(rank, rank.of(modules), every=False, more=more)


def _read_model(document: WrittenDocument, file: LaunchFile) -> str | None:
    """Return the entry of the model whose checkpoint is loaded, or whose config a script names."""
    folder = document.text("checkpoint")
    named = checkpoint_model(str(folder.value).rstrip("/")) if folder is not None else None
    built = re.search(r"--config\s+(\S+)", file.text.replace("\\\n", " "))
    stems = {stem: hub for hub, (stem, _) in _CONFIGS.items()}
    stem = re.sub(r"_(?:full|lora|qlora)\w*$", "", built[1]) if built else ""
    hub = stems.get(stem) or _hub_of_component(document, stems)
    if named is None and hub is None and folder is not None:
        document.notes.append(f"{folder.words}: no model of the catalogue was read from there")
    return named or (model_called(hub) if hub is not None else None)


def _hub_of_component(document: WrittenDocument, stems: Mapping[str, str]) -> str | None:
    """Return the hub's name of the model that a config builds, such as ``llama3_2.lora_llama3_2_1b``."""
    component = document.entries.get("model._component_")
    match = re.fullmatch(r"torchtune\.models\.(\w+)\.(?:q?lora_)?(\w+)", str(getattr(component, "value", "")))
    if match is None:
        return None
    built = re.sub(r"_(?:base|instruct)$", "", match[2])
    names = {f"{s.partition('/')[0]}_{_size_of(s)}": hub for s, hub in stems.items()}
    return names.get(built) if built.startswith(match[1]) else None


def _size_of(stem: str) -> str:
    """Return the size of a config as functions have it: ``qwen2_5/0.5B`` is ``0_5b``."""
    return stem.partition("/")[2].lower().replace(".", "_")


TARGET: Final = target_of(TORCHTUNE, emit=emit_torchtune, recognises=is_torchtune, read=read_torchtune)
