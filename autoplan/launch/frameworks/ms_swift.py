"""The target ``ms-swift``: scripts of ``swift sft`` and ``megatron sft``, and YAML files of theirs.

``swift`` trains with the Hugging Face Trainer, and ``megatron`` with Megatron-LM, whose arguments have names
of Python. Defaults are those of ms-swift, which adapts with LoRA and recomputes unless it is told otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from autoplan.catalog import checkpoint_model
from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import alone, assembled_document, with_devices, without_open
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Values, Written, stated
from autoplan.launch.frameworks.hugging_face import training_fields as training
from autoplan.launch.frameworks.hugging_face.trainer import add_options
from autoplan.launch.frameworks.megatron.argument_keys import CORE_KEYS, add_key
from autoplan.launch.frameworks.megatron.arguments import Arguments
from autoplan.launch.frameworks.megatron.read_layout import read_layout
from autoplan.launch.known_models import model_entry
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, variable_devices, visible_devices

SWIFT: Final = interface("ms-swift")
_SHIPPED: Final = training.Shipped(
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
#: Training whose memory is that of a model alone.
_FULL: Final = "full"


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
    values = {**alone(), **stated(devices=devices)}
    values |= {**_precision(document), "optimizer": training.optimizer_of(document)}
    values |= {"way": _REPLICAS} | _sharding(document, file)
    values |= document.bound("cp", "sequence_length", "recompute")
    training.with_defaults(document, "mbs")
    # Microbatch and batch; where processes split layers, they are the data-parallel ranks.
    split = _SPLIT & document.opened if "devices" in values else frozenset()
    document.opened -= split
    fields = _batches(document, file, values)
    document.opened |= split
    values |= {**fields, "dp": values["devices"]} if split else fields
    values |= _adapters(document) | training.software_of(document, "compiled", "liger")
    for path, written in document.entries.items():
        if path not in (*SWIFT.read, *SWIFT.data["engine"]) and "." not in path:
            document.leave_open(path, written)
    document.stop_at_problems()
    return assembled_document(document, file, without_open(values), training.model_of(document))


def _precision(document: WrittenDocument) -> Fields:
    """Return the precision: that of a flag, or the type of the weights; left out, it is the checkpoint's."""
    values = training.precision_of(document)
    if values and not values["precision"].default:
        return values
    named = document.bound("dtype")
    return {"precision": named["dtype"]} if "dtype" in named else {}


def _sharding(document: WrittenDocument, file: LaunchFile) -> Fields:
    values = training.sharding_values(document, file, _SHIPPED)
    if str(getattr(document.given("fsdp"), "value", "")).lower() == "fsdp2":
        values.pop("recompute", None)
    return values


def _batches(document: WrittenDocument, file: LaunchFile, values: Values) -> Fields:
    """Return microbatch and batch; without steps, these are what makes a batch of sixteen, or of one each."""
    devices = values["devices"].value if "devices" in values else file.devices
    mbs = document.number("mbs")
    if document.given("steps") is None and mbs is not None and devices is not None:
        steps = max(1, math.ceil(16 / mbs.value / devices))
        document.entries[SWIFT.keys["steps"]] = Written(steps, default=True)
    return training.batch_of(document, file, values)


def _adapters(document: WrittenDocument) -> Fields:
    """Return the adapters of LoRA, which is how ms-swift tunes unless it is told to train all."""
    kind = document.bound("tuner")["tuner"]
    if kind.value == _FULL:
        return {}
    if kind.value not in {"lora", "qlora"}:
        document.notes.append(f"{kind.words}: read as low-rank adapters")
    targets = document.given("adapted")
    every = targets is None or str(targets.value) in {"all-linear", "ALL"}
    rank = document.number("adapter_rank") or Written(8, kind.line, kind.words, default=True)
    bits, four = document.number("bits"), document.on("four_bits")
    quantised = bits.value if bits else 4 if four else None
    base = {4: "nf4", 8: "int8"}.get(quantised) if quantised is not None else None
    return training.adapter_values(rank, targets, every=every, more=training.base_values(document, base))


def _megatron(file: LaunchFile, document: WrittenDocument, devices: Written | None) -> Configuration:
    """Return what arguments of ``megatron sft`` say; the model is that of the checkpoint."""
    arguments = Arguments(file.name, notes=document.notes)
    _name_converted(document)
    for path, written in document.entries.items():
        key = CORE_KEYS.get(path)
        if key is not None and str(written.value).lower() not in {"none", ""}:
            add_key(arguments, key, path, written)
        elif path not in SWIFT.read:
            document.leave_open(path, written)
    arguments.stop_at_problems()
    model = document.text("model")
    values = read_layout(arguments, None, experts=True)
    for name, default in SWIFT.data["megatron_defaults"].items():
        if name not in values or values[name].default:
            values[name] = Written(default, default=True)
    entry = model_entry(checkpoint_model(str(model.value)) if model is not None else None)
    if entry is not None and entry.moe is None and values["etp"].default:
        del values["etp"]
    named = document.bound("dtype")
    # States are sharded unless a file turns it off, and all is trained unless it is told otherwise.
    values |= document.bound("distributed_optimizer") | ({"precision": named["dtype"]} if named else {})
    values |= document.bound("sequence_length") | (_adapters(document) if document.text("tuner") else {})
    values |= stated(devices=devices)
    arguments.stop_at_problems()
    document.stop_at_problems()
    values = dict(with_devices(file, known_alone(values, document.opened)))
    if model is None:
        document.notes.append("the model is that of a checkpoint, which is not named")
    values = {**without_open(values), "way": _CORE}
    return assembled_document(document, file, values, training.model_of(document))


def _name_converted(document: WrittenDocument) -> None:
    """Name the model of a checkpoint that was converted for Megatron-LM: ``Qwen3-30B-A3B-mcore``."""
    loaded = document.entries.get("load")
    if loaded is None or document.given("model") is not None:
        return
    original = re.sub(r"[-_]mcore$", "", str(loaded.value).rstrip("/"))
    if checkpoint_model(original) is not None:
        document.entries[document.path("model")] = replace(loaded, value=original)


TARGET: Final = target_of(SWIFT, recognises=is_swift, read=read_swift)
