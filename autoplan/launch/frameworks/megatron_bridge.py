"""The target ``megatron-bridge``: overrides of a recipe, as a YAML file and as words of Hydra.

What a layout needs is what Megatron-LM needs, by other names: the parts that are missing are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import yaml

from autoplan.catalog import entry_names
from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled, with_devices
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, FileEdit, LaunchFile, Written
from autoplan.launch.emitted_text import yaml_file
from autoplan.launch.frameworks.megatron.arguments import FLAGS, TABLE, Argument, Arguments, one_letter_off
from autoplan.launch.frameworks.megatron.megatron_lm import (
    dropout_values,
    layout_values,
    training_values,
)
from autoplan.launch.frameworks.megatron.read_layout import read_layout
from autoplan.launch.frameworks.megatron.reading import sharded_ranks
from autoplan.launch.frameworks.missing_parts import named, refuse_software, stack_note
from autoplan.launch.frameworks.python_recipes import is_python, read_recipe
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, training_command
from autoplan.launch.target import Emission, InexpressibleError, PlannedRun
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

_FILE: Final = "megatron_bridge.yaml"
_OPTIMIZERS: Final = dict.fromkeys(("adamw", "sgd", "muon"), "adam")
_USAGE: Final = f"usage: process_config_with_overrides(RECIPE(), config_filepath={_FILE!r})"
_BRIDGE: Final = interface("megatron-bridge").data
#: Paths of keys by the binding of Megatron-LM that they are.
PATHS: Final[Mapping[str, str]] = {name: path for path, name in _BRIDGE["keys"].items()}
_MIRRORED: Final[Mapping[str, str]] = _BRIDGE["mirrored"]
_PERFORMANCE: Final = _BRIDGE["performance"]
#: Where the name of a recipe stands in a document.
_RECIPE: Final = "recipe"
#: The library's script that runs a recipe by its name, with overrides behind it.
_RUN: Final = re.compile(r"(?m)^(?!\s*#).*\brun_recipe\.py\b.*--recipe[ =]\S+.*\btrain\.\w+_batch_size=")
#: Keys of a pattern of layers, and what stands in it for a state-space layer.
_PATTERNS: Final = ("model.hybrid_layer_pattern", "model.hybrid_override_pattern")
_STATE_SPACE: Final = "M"
_NEMO_MICROBATCH: Final = next(key for key, name in interface("nemo").data["keys"].items() if name == "mbs")
_SIGN: Final = re.compile(r"\bmodel\.(tensor|pipeline)_model_parallel_size\s*[:=]")
#: Sections of a YAML file: a model with degrees, or one beside batches of training and settings of its run.
_DEGREES: Final = re.compile(
    r"(?m)^model\s*:[^\n]*\n(?:[ \t#][^\n]*\n|\n)*? {1,8}(tensor|pipeline)_model_parallel_size\s*:"
)
_BATCHES: Final = re.compile(
    r"(?m)^train\s*:[^\n]*\n(?:[ \t#][^\n]*\n|\n)*? {1,8}(global|micro)_batch_size\s*:"
)
_BESIDE: Final = re.compile(r"(?m)^(?:scheduler|logger|ddp|dist|rng)\s*:")
#: What a file of NeMo has: a trainer, or its key of the microbatch.
_NEMO: Final = re.compile(
    rf"(?m)^\s*trainer[.:]|\btrainer\.(devices|num_nodes)\b|\b{re.escape(_NEMO_MICROBATCH)}\b"
)
_WORD: Final = re.compile(
    r"\+{0,2}((?:model|train|ddp|dist|optimizer|checkpoint|dataset|mixed_precision)[\w.]*)"
)
_SECTIONS: Final = ("model", "train", "ddp", "dist", "optimizer")


def emit_bridge(run: PlannedRun) -> Emission:
    """Return the overrides as YAML and words, null for what is not needed; raises InexpressibleError."""
    job, layout = run.job, run.layout
    values = override_values(job, layout)
    document: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        inner = document.setdefault(section, {}) if section else document
        inner[key] = value
    words = tuple(f"{path}={_hydra_text(value)}" for path, value in values.items())
    file = yaml_file(_FILE, document, (*run.header, _USAGE))
    notes = stack_note(job, ("megatron",), "megatron-bridge", "Megatron Bridge")
    return Emission((file,), words, notes=notes, by_arguments=True)


def override_values(job: Job, layout: Layout) -> dict[str, Any]:
    """Return the overrides by path."""
    refuse_software(job, ("gradients",))
    named(job, "optimizer", _OPTIMIZERS)
    if job.routing.capacity_factor is not None:
        raise InexpressibleError("a capacity of experts (routing.capacity_factor), which the recipe chooses")
    arguments = {
        name: value
        for name, value in _plan_values(job, layout).items()
        if value is not None and value is not False
    }
    unknown = [name for name in TABLE.keys if name in arguments and name not in (*PATHS, *_BRIDGE["aside"])]
    if unknown:
        raise InexpressibleError(f"what Megatron-LM calls {FLAGS[unknown[0]]}, which mixed_precision chooses")
    values = {name: _value(name, arguments.get(name)) for name in PATHS}
    # Nothing is offloaded by zero layers, and checkpoints are those of the recipe unless FSDP needs others.
    values["activation_offload"] = values["activation_offload"] or 0
    values["optimizer_offload_fraction"] = values["optimizer_offload_fraction"] or 0.0
    for name in ("checkpoint_format", "cp_comm", "sharding"):
        if values[name] is None:
            del values[name]
    for name in ("optimizer_instances", "ep"):
        values[name] = values[name] or 1
    paths = {PATHS[name]: value for name, value in values.items()}
    paths["model.cpu_offloading"] = values["activation_offload"] > 0
    paths |= {mirror: paths[path] for path, mirror in _MIRRORED.items()}
    return {**paths, "mixed_precision": _formats(job, halved="bf16_gradients" in arguments)}


def _formats(job: Job, *, halved: bool) -> Any:  # noqa: ANN401 - any value of YAML
    """Return the name of a recipe of formats, all of which reduce gradients in fp32, or the formats."""
    if not halved:
        return _BRIDGE["precisions"][job.precision]
    if job.precision != "bf16":
        part = f"gradients that are reduced in bf16 with {job.precision} (set software.gradients: fp32)"
        raise InexpressibleError(part)
    number = {"_target_": "torch.bfloat16", "_call_": False}
    return {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        "_call_": True,
        "bf16": True,
        "params_dtype": number,
        "pipeline_dtype": dict(number),
        "autocast_enabled": False,
        "grad_reduce_in_fp32": False,
    }


def _plan_values(job: Job, layout: Layout) -> dict[str, Any]:
    """Return what Megatron-LM would be given, by binding."""
    sizes = {"layers": job.model.layers, "sequence_length": job.workload.sequence_length}
    return sizes | dropout_values(job) | layout_values(job, layout) | training_values(job, layout)


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - any value of YAML
    """Return the value of a key; None where it has none, and modules as a list."""
    if TABLE[name].kind == "switch":
        return value is not None
    return list(value) if name == "recompute_modules" and value is not None else value


def is_bridge(file: LaunchFile) -> bool:
    """Return whether a file has overrides of Megatron Bridge, and is none of NeMo, which has a trainer."""
    if is_python(file):
        return "megatron.bridge" in file.text
    if _NEMO.search(file.text):
        return False
    if re.search(r"(?m)^model\s*:", file.text) is None:
        return _SIGN.search(file.text) is not None or _is_performance(file) or _runs_recipe(file)
    run = _BATCHES.search(file.text) and _BESIDE.search(file.text)
    return (_DEGREES.search(file.text) or run) is not None


def _runs_recipe(file: LaunchFile) -> bool:
    """Return whether a script starts a recipe of the library with a batch: all degrees are the recipe's."""
    return _RUN.search(file.text.replace("\\\n", " ")) is not None


def _is_performance(file: LaunchFile) -> bool:
    """Return whether a script starts the library's own script of performance."""
    named = any(f"--{name}" in file.text for name in _PERFORMANCE["signs"])
    return named and re.search(r"(?m)^(?!\s*#).*performance/[\w./]+\.py\b", file.text) is not None


def read_bridge(file: LaunchFile) -> Configuration:
    """Return what a YAML file or a script says; what neither gives is the recipe's, and stays open."""
    if is_python(file):
        return read_recipe("megatron-bridge", file)
    document, devices = override_document(file)
    for section in _SECTIONS:
        names = {path.rpartition(".")[2] for path in PATHS.values() if path.startswith(f"{section}.")}
        _refuse_misspelt(document, section, names)
    _refuse_hybrid(document)
    _refuse_two_formats(document)
    _open_unread(document)
    arguments = Arguments(file.name, dict(_arguments(document)), notes=document.notes)
    layers = document.number(PATHS["layers"])
    values = read_layout(arguments, layers.value if layers else None, experts=True)
    problems = [*document.problems, *arguments.problems]
    if problems:
        raise SpecError(list(dict.fromkeys(problems)))
    stated, deciding = set(document.entries), _BRIDGE["deciding"]
    values = {
        key: written
        for key, written in values.items()
        if not written.default or key not in deciding or stated & set(deciding[key])
    }
    if devices is not None:
        values["devices"] = devices
    values = dict(with_devices(file, values))
    values |= sharded_ranks(arguments, values)
    if arguments.problems:
        raise SpecError(arguments.problems)
    named = document.entries.get(_RECIPE)
    model = str(named.value).replace("_", "-") if named is not None else None
    known = model if model in entry_names("model") else None
    values, opened = known_alone(values, document.opened), document.opened
    return assembled("megatron-bridge", file, values, model=known, opened=opened, warnings=arguments.notes)


def _refuse_hybrid(document: WrittenDocument) -> None:
    """Refuse a model with state-space layers, by the pattern of its layers."""
    for path in _PATTERNS:
        pattern = document.entries.get(path)
        if pattern is not None and _STATE_SPACE in str(pattern.value):
            sentence = "the model is a hybrid with state-space layers, no decoder-only transformer"
            document.refuse(sentence, path, pattern.line)


def _refuse_two_formats(document: WrittenDocument) -> None:
    """Refuse a section that has both bf16 and fp16."""
    for section in _SECTIONS:
        one, other = (document.entries.get(f"{section}.{name}") for name in ("bf16", "fp16"))
        if one is not None and other is not None and one.value is True and other.value is True:
            document.refuse("bf16 and fp16 are both true", f"{section}.fp16", other.line)


def _open_unread(document: WrittenDocument) -> None:
    """Leave the fields open that a key of a section which is not read may decide."""
    read = {*PATHS.values(), *_MIRRORED.values(), "model.pipeline_dtype"}
    for path, written in list(document.entries.items()):
        section, _, name = path.rpartition(".")
        if section in _SECTIONS and path not in read:
            document.leave_open(name, written)


def override_document(file: LaunchFile) -> tuple[WrittenDocument, Written | None]:
    """Return the overrides of a file by path, and the number of devices that a script starts."""
    words: list[Word] = []
    if re.search(r"(?m)^model\s*:", file.text):
        document, devices = read_yaml(file), None
    elif _is_performance(file):
        document, devices = _performance_document(file)
    else:
        script = read_script(file.text, file.name, file.variables, file.sibling)
        words, command = training_command(script, lambda name: _path(name) in set(PATHS.values()))
        if command is None and _runs_recipe(file):
            words, command = _recipe_command(script)
        devices, _ = launched_devices(script, command)
        document = WrittenDocument(file.name, notes=list(script.notes))
        if not words:
            message = "there are no overrides of Megatron Bridge"
            raise SpecError([Problem(message, "script", file.name)])
    for word in (*words, *(Word(text, 0) for text in file.arguments)):
        _add(document, word)
    return document, devices


def _recipe_command(script: Script) -> tuple[list[Word], Command | None]:
    """Return the words behind the library's script that runs a recipe, and its command."""
    for command in reversed(script.commands):
        at = next((i for i, w in enumerate(command.words) if w.text.endswith("run_recipe.py")), None)
        if at is not None:
            return list(command.words[at + 1 :]), command
    return [], None


def _performance_document(file: LaunchFile) -> tuple[WrittenDocument, Written | None]:
    """Return the arguments of the library's script of performance as keys, and its devices."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    known = {f"--{name}" for name in _PERFORMANCE["keys"]}
    words, command = training_command(script, known.__contains__)
    document = WrittenDocument(file.name, notes=list(script.notes))
    if command is None:
        raise SpecError([Problem("the script of performance is not started", "script", file.name)])
    devices, _ = launched_devices(script, command)
    for word, behind in pairwise(words):
        name = word.text.removeprefix("--").replace("-", "_")
        path = _PERFORMANCE["keys"].get(name)
        line = word.line or None
        if path and behind.text.lower() != "none":
            _add(document, replace(behind, text=f"{path}={behind.text}"))
        elif name == _PERFORMANCE["devices"] and re.fullmatch(r"0*[1-9]\d{0,5}", behind.text):
            devices = devices or Written(int(behind.text), line, f"{word.text} {behind.text}")
        elif name == _PERFORMANCE["precision"]:
            formats = _PERFORMANCE["precisions"]
            fits = next((value for key, value in formats.items() if behind.text.startswith(key)), None)
            if fits is not None:
                document.entries["mixed_precision"] = Written(fits, line, f"{word.text} {behind.text}")
        elif name in _PERFORMANCE["signs"] and behind.unknown is None:
            document.entries[_RECIPE] = Written(behind.text, line, f"{word.text} {behind.text}")
    return document, devices


def _path(name: str) -> str:
    """Return the path that a word of Hydra overrides; empty for other words."""
    match = _WORD.fullmatch(name)
    return match[1] if match else ""


def _add(document: WrittenDocument, word: Word) -> None:
    """Add one override in Hydra's form, ``model.tensor_model_parallel_size=2``."""
    name, equals, text = word.text.partition("=")
    path = _path(name)
    if not path or not equals:
        return
    line = word.line or None
    if word.unknown is not None and path not in {*PATHS.values(), "mixed_precision"}:
        return
    if word.unknown is not None:
        do = f": give --set {word.unknown.name}=VALUE" if word.unknown.name else ": give it with --arg"
        document.refuse(f"its value depends on {word.unknown.reason}{do}", path, line)
        return
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        document.refuse(f"{text[:40]!r} is no value", path, line)
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            document.entries[f"{path}.{key}"] = Written(inner, line, word.text[:200])
        value = None
    document.entries[path] = Written(value, line, word.text[:200])


def _refuse_misspelt(document: WrittenDocument, section: str, names: set[str]) -> None:
    """Refuse keys that are one letter off those that are read; all others are the recipe's business."""
    for path, written in document.entries.items():
        parent, _, name = path.rpartition(".")
        if parent == section and name not in names:
            near = next((listed for listed in names if one_letter_off(name, listed)), None)
            if near:
                sentence = f"{name[:40]!r} is no key of Megatron Bridge: did you mean {near}?"
                document.refuse(sentence, path, written.line)


def _arguments(document: WrittenDocument) -> Iterator[tuple[str, Argument]]:
    """Yield the arguments of Megatron-LM that the keys stand for."""
    for name, path in PATHS.items():
        written = document.given(path)
        if name == "activation_offload" and written is not None and written.value == 0:
            continue
        if TABLE[name].kind == "switch":
            entry = document.on(path)
            if entry is not None:
                yield _argument(name, entry)
        elif written is not None:
            items = written.value if isinstance(written.value, list) else [written.value]
            yield _argument(name, written, *map(str, items))
    yield from _precision(document)


def _argument(name: str, written: Written, *texts: str) -> tuple[str, Argument]:
    """Return the argument of a binding by its flag, with the line of a key."""
    line = written.line or 0
    return FLAGS[name], Argument(FLAGS[name], tuple(Word(text, line) for text in texts), line)


def _precision(document: WrittenDocument) -> Iterator[tuple[str, Argument]]:
    """Yield the arguments of the precision that the name of a recipe of formats stands for."""
    halved = document.flag("mixed_precision.grad_reduce_in_fp32")
    if halved is not None and not halved.value:
        yield _argument("bf16_gradients", halved)
    for name in ("bf16", "fp16"):
        enabled = document.on(f"mixed_precision.{name}")
        if enabled is not None:
            yield _argument(name, enabled)
    eighths = document.text("mixed_precision.fp8")
    if eighths is not None:
        yield _argument("fp8_format", eighths, eighths.value)
    named = document.text("mixed_precision")
    if named is None:
        return
    ours = next((key for key, name in _BRIDGE["precisions"].items() if name == named.value), None)
    if ours is None:
        fits = [
            key for key, part in (("mxfp8", "mxfp8"), ("nvfp4", "fp4"), ("fp8", "fp8")) if part in named.value
        ]
        ours = fits[0] if fits else "bf16"
        document.notes.append(f"{named.words}: read as {ours}")
    for name, value in TABLE.data["precisions"][ours].items():
        yield _argument(name, named, *(() if value is True else (value,)))


def _edits_between(
    file: LaunchFile, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FileEdit]:
    """Yield the edits of a file; a key that it lacks is named by its path, or is a word of Hydra."""
    hydra = re.search(r"(?m)^model\s*:", file.text) is None
    entries = override_document(file)[0].entries
    for path, value in after.items():
        entry = entries.get(path)
        if value == before.get(path) or (entry is None and path in _MIRRORED.values()):
            continue
        key = path if entry is None else path.rpartition(".")[2]
        text = f"{path}={_hydra_text(value)}" if hydra else f"{key}: {_yaml_text(value)}"
        yield FileEdit(entry.words if entry else "", text, entry.line if entry else None)


def _yaml_text(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _hydra_text(value: object) -> str:
    """Return a value as Hydra reads it; text is quoted, and none of it has a quote.

    >>> _hydra_text({"stages": "Et|tL", "more": [None, True, 2]})
    "{stages: 'Et|tL', more: [null,true,2]}"
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_hydra_text(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        # Names in a list, such as modules, are plain words.
        return f"[{','.join(item if isinstance(item, str) else _hydra_text(item) for item in value)}]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def bridge_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of ``file`` that make its layout ``new`` instead of ``old``."""
    return tuple(_edits_between(file, override_values(job, old), override_values(job, new)))


TARGET: Final = target_of(
    interface("megatron-bridge"), emit=emit_bridge, recognises=is_bridge, read=read_bridge, edits=bridge_edits
)
