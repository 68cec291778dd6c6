"""The target ``ms-swift``: scripts of ``swift sft`` and ``megatron sft``, and YAML files of theirs.

``swift`` trains with the Hugging Face Trainer, and ``megatron`` with Megatron-LM, whose arguments have names
of Python. Defaults are those of ms-swift, which adapts with LoRA and recomputes unless it is told otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.catalog import checkpoint_model, load_entry
from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled, with_devices
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.hugging_face.training_fields import (
    Shipped,
    adapter_values,
    alone,
    base_values,
    batch_of,
    model_of,
    optimizer_of,
    precision_of,
    recompute_of,
    sharding_values,
    with_defaults,
    without_open,
)
from autoplan.launch.frameworks.megatron.argument_keys import CORE_KEYS, add_key
from autoplan.launch.frameworks.megatron.arguments import Arguments
from autoplan.launch.frameworks.megatron.read_layout import read_layout
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, variable_devices, visible_devices
from autoplan.schema.model import ModelSpec

SWIFT: Final = interface("ms-swift")
_SHIPPED: Final = Shipped(
    re.compile(r"(?:.*/swift/.*/|default-)?zero([0-3])([_-]offload)?(?:\.json)?"), "ms-swift"
)
_PROGRAM: Final = re.compile(
    r"(?m)(?:^|[\s/])(?:swift|megatron)\s+(?:sft|pt|rlhf)\b|swift/cli/(?:_megatron/)?(?:sft|pt|rlhf)\.py|\bllm_(?:sft|pt)\.py[\s\S]*--sft_type\b"
)
#: Programs of it by their files, and those of its second version.
_MODULE: Final = re.compile(r"(?:.*/)?swift/cli/(_megatron/)?(?:sft|pt|rlhf)\.py|(?:.*/)?llm_(?:sft|pt)\.py")
_SIGNS: Final[Sequence[str]] = SWIFT.data["signs"]
#: What shards where nothing is said, and what does where Megatron-LM trains.
_REPLICAS, _CORE = Written("DDP"), Written("Megatron-Core")
#: Fields that stay open where each process splits the layers over several devices.
_SPLIT: Final = frozenset({"devices", "tp", "pp"})
#: Trainings whose memory is that of a model alone.
_FULL: Final = frozenset({"full"})


def is_swift(file: LaunchFile) -> bool:
    """Return whether a file starts ms-swift, or has its arguments as YAML."""
    if _PROGRAM.search(file.text.replace("\\\n", " ")) is not None:
        return True
    signs = sum(re.search(rf"(?m)^{sign}\s*:", file.text) is not None for sign in _SIGNS)
    return signs >= 2 and re.search(rf"(?m)^{SWIFT.keys['model']}\s*:", file.text) is not None


def read_swift(file: LaunchFile) -> Configuration:
    """Return what a script or a YAML file of ms-swift says; raises SpecError with all problems."""
    document, devices, megatron = _document(file)
    read = _megatron if megatron else _trainer
    return read(file, document, devices)


def _document(file: LaunchFile) -> tuple[WrittenDocument, Written | None, bool]:
    """Return the arguments, the number of devices, and whether Megatron-LM trains."""
    if file.values is not None or _PROGRAM.search(file.text.replace("\\\n", " ")) is None:
        document = read_yaml(file, SWIFT)
        add_options(document, [Word(text, 0) for text in file.arguments])
        return document, None, any(path in CORE_KEYS for path in document.entries)
    script = read_script(file.text, file.name, file.variables, file.sibling)
    command, at = _training(script, file)
    document = WrittenDocument(file.name, notes=list(script.notes), table=SWIFT)
    module = _MODULE.fullmatch(command.words[at].text)
    words = [*command.words[at + (1 if module else 2) :], *(Word(text, 0) for text in file.arguments)]
    add_options(document, words)
    for earlier, key in SWIFT.data["earlier_keys"].items():
        if earlier in document.entries and key not in document.entries:
            document.entries[key] = document.entries.pop(earlier)
    devices = variable_devices(script, command, file.variables) or launched_devices(script, command)[0]
    document.notes += [] if module is None else _sharded_elsewhere(document, command)
    document.notes += _split_layers(document, script, command, devices)
    if devices is None and file.devices is None:
        document.notes.append("no variable says how many processes it starts: give --devices N")
    megatron = bool(module[1]) if module else command.words[at].text.rsplit("/", 1)[-1] == "megatron"
    return document, devices, megatron


def _split_layers(
    document: WrittenDocument, script: Script, command: Command, devices: Written | None
) -> list[str]:
    """Leave the devices open that each process splits the layers over, which is no layout of a run.

    Source: ms-swift 3602360, ``swift/utils/env.py`` (``is_mp``): ``device_map`` where more are seen.
    """
    seen = visible_devices(script.variables, command)
    stage = str(getattr(document.given("deepspeed"), "value", ""))
    if devices is None or seen is None or seen < 2 * devices.value or "3" in stage:
        return []
    document.opened |= _SPLIT
    return [f"{devices.words}: each process splits the layers over {seen // devices.value} devices"]


def _sharded_elsewhere(document: WrittenDocument, command: Command) -> list[str]:
    """Leave the sharding open that a file of accelerate decides."""
    if not any(word.text.rsplit("/", 1)[-1] == "accelerate" for word in command.words):
        return []
    document.opened |= {"zero", "dp_shard"}
    return ["accelerate launch has a file of its own, which is not read: sharding is left open"]


def _training(script: Script, file: LaunchFile) -> tuple[Command, int]:
    """Return the command that trains, and the place of its program among the words."""
    programs = SWIFT.data["programs"]
    for command in reversed(script.commands):
        texts = [word.text for word in command.words]
        for at, text in enumerate(texts[:-1]):
            if _MODULE.fullmatch(text) or texts[at + 1] in programs.get(text.rsplit("/", 1)[-1], ()):
                return command, at
    raise SpecError([Problem("there is no command of ms-swift", "script", file.name)])


def _trainer(file: LaunchFile, document: WrittenDocument, devices: Written | None) -> Configuration:
    values = {**alone(), **({"devices": devices} if devices else {})}
    values |= {**_precision(document), "optimizer": optimizer_of(document)}
    values |= {"way": _REPLICAS} | _sharding(document, file)
    values |= document.bound("cp", "sequence_length")
    values["recompute"] = Written("full", default=True)
    values |= recompute_of(document, "recompute")
    with_defaults(document, "mbs")
    values |= _split_batches(document, file, values)
    values |= _adapters(document) | _software(document)
    for path, written in document.entries.items():
        if path not in (*SWIFT.keys.values(), *SWIFT.data["engine"]) and "." not in path:
            document.leave_open(path, written)
    document.stop_at_problems()
    return _assembled(file, document, without_open(values), document.opened)


def _assembled(
    file: LaunchFile, document: WrittenDocument, values: Mapping[str, Written], opened: set[str]
) -> Configuration:
    if document.given("model") is None and document.given("earlier_model") is not None:
        document.entries[SWIFT.keys["model"]] = document.entries[SWIFT.keys["earlier_model"]]
    model = model_of(document)
    return assembled("ms-swift", file, values, model=model, opened=opened, warnings=document.notes)


def _precision(document: WrittenDocument) -> dict[str, Written]:
    """Return the precision: that of a flag, or the type of the weights; left out, it is the checkpoint's."""
    values = precision_of(document)
    if values and not values["precision"].default:
        return values
    named = document.bound("dtype")
    return {"precision": named["dtype"]} if "dtype" in named else {}


def _sharding(document: WrittenDocument, file: LaunchFile) -> dict[str, Written]:
    values = sharding_values(document, file, _SHIPPED)
    if str(getattr(document.given("fsdp"), "value", "")).lower() == "fsdp2":
        values.pop("recompute", None)
    return values


def _split_batches(
    document: WrittenDocument, file: LaunchFile, values: Mapping[str, Written]
) -> dict[str, Written]:
    """Return microbatch and batch; where processes split layers, they are the data-parallel ranks."""
    split = _SPLIT & document.opened if "devices" in values else frozenset()
    document.opened -= split
    fields = _batches(document, file, values)
    document.opened |= split
    return {**fields, "dp": values["devices"]} if split else fields


def _batches(
    document: WrittenDocument, file: LaunchFile, values: Mapping[str, Written]
) -> dict[str, Written]:
    """Return microbatch and batch; without steps, these are what makes a batch of sixteen, or of one each."""
    devices = values["devices"].value if "devices" in values else file.devices
    mbs = document.number("mbs")
    if document.given("steps") is None and mbs is not None and devices is not None:
        steps = max(1, math.ceil(16 / mbs.value / devices))
        document.entries[SWIFT.keys["steps"]] = Written(steps, default=True)
    return batch_of(document, file, values)


def _adapters(document: WrittenDocument) -> dict[str, Written]:
    """Return the adapters of LoRA, which is how ms-swift tunes unless it is told to train all."""
    kinds = (document.text(name) for name in ("tuner", "earlier_tuner", "earliest_tuner"))
    kind = next((written for written in kinds if written is not None), Written("lora", default=True))
    if kind.value in _FULL:
        return {}
    if kind.value not in {"lora", "qlora"}:
        document.notes.append(f"{kind.words}: read as low-rank adapters")
    targets = document.given("adapted")
    every = targets is None or str(targets.value) in {"all-linear", "ALL"}
    rank = document.number("adapter_rank") or Written(8, kind.line, kind.words, default=True)
    bits, four = document.number("bits"), document.flag("four_bits")
    quantised = bits.value if bits else 4 if four is not None and four.value else None
    base = {4: "nf4", 8: "int8"}.get(quantised) if quantised is not None else None
    return adapter_values(rank, targets, every=every, more=base_values(document, base))


def _software(document: WrittenDocument) -> dict[str, Written]:
    compiled, liger = document.flag("compiled"), document.flag("liger")
    values: dict[str, Any] = {}
    if compiled is not None:
        values["compile"] = compiled.value
    if liger is not None and liger.value:
        values |= {"loss": "chunked", "fused_kernels": True}
    return {"software": Written(values)} if values else {}


def _megatron(file: LaunchFile, document: WrittenDocument, devices: Written | None) -> Configuration:
    """Return what arguments of ``megatron sft`` say; the model is that of the checkpoint."""
    arguments = Arguments(file.name, notes=document.notes)
    _name_converted(document)
    for path, written in document.entries.items():
        key = CORE_KEYS.get(path)
        if key is not None and str(written.value).lower() not in {"none", ""}:
            add_key(arguments, key, path, written)
        elif path not in SWIFT.keys.values():
            document.leave_open(path, written)
    arguments.stop_at_problems()
    model = document.text("model") or document.text("earlier_model")
    values = read_layout(arguments, None, experts=True)
    for name, default in SWIFT.data["megatron_defaults"].items():
        if name not in values or values[name].default:
            values[name] = Written(default, default=True)
    if _is_dense(model) and values["etp"].default:
        del values["etp"]
    values |= _states(document) | document.bound("sequence_length") | _tuned(document)
    if devices is not None:
        values["devices"] = devices
    arguments.stop_at_problems()
    document.stop_at_problems()
    values = dict(with_devices(file, known_alone(values, document.opened)))
    if model is None:
        document.notes.append("the model is that of a checkpoint, which is not named")
    return _assembled(file, document, {**without_open(values), "way": _CORE}, document.opened)


def _name_converted(document: WrittenDocument) -> None:
    """Name the model of a checkpoint that was converted for Megatron-LM: ``Qwen3-30B-A3B-mcore``."""
    loaded = document.entries.get("load")
    named = any(document.given(name) is not None for name in ("model", "earlier_model"))
    if loaded is None or named:
        return
    original = re.sub(r"[-_]mcore$", "", str(loaded.value).rstrip("/"))
    if checkpoint_model(original) is not None:
        document.entries[document.path("model")] = replace(loaded, value=original)


def _is_dense(named: Written | None) -> bool:
    """Return whether a model of the catalogue has no experts."""
    name = checkpoint_model(str(named.value)) if named is not None else None
    entry = load_entry("model", name) if name is not None else None
    return isinstance(entry, ModelSpec) and entry.moe is None


def _states(document: WrittenDocument) -> dict[str, Written]:
    """Return the sharding of optimizer states, which is on unless a file turns it off, and the precision."""
    off = document.flag("distributed_optimizer")
    fields = {"zero": Written(int(bool(off.value)), off.line, off.words)} if off is not None else {}
    named = document.bound("dtype")
    return fields | ({"precision": named["dtype"]} if "dtype" in named else {})


def _tuned(document: WrittenDocument) -> dict[str, Written]:
    """Return the adapters of a run of Megatron-LM, which trains all unless it is told otherwise."""
    kind = document.text("tuner") or document.text("earlier_tuner")
    return {} if kind is None or kind.value in _FULL else _adapters(document)


TARGET: Final = target_of(SWIFT, recognises=is_swift, read=read_swift)
