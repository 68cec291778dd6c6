"""What a YAML file of ``accelerate launch`` says, by field, and what its words decide around a program."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import alone, assembled_document
from autoplan.launch.bindings.deciding_names import may_decide
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, Fields, LaunchFile, Values, Written, stated
from autoplan.launch.frameworks.deepspeed import (
    enabled_precision,
    named_deepspeed,
    sharding_of,
)
from autoplan.launch.frameworks.hugging_face.training_fields import DEEPSPEED, FSDP, OPEN, key_names, stands
from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import Command, Script
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, launcher_words, without_differing

ACCELERATE: Final = interface("accelerate")
#: FSDP1's strategies, and whether each is hybrid; numbers are those of its enumeration.
_STRATEGIES: Final[Mapping[str, tuple[int, bool]]] = ACCELERATE.data["strategies"]
_NUMBERED: Final = dict(enumerate(_STRATEGIES, 1))
#: A command that starts a program with accelerate, and values that speak of parallelism.
_LAUNCHES: Final = re.compile(r"(?m)^(?!\s*#).*\baccelerate\s+launch\b")
_MODES: Final = re.compile(
    r"(?i)(?:ring|ulysses|zigzag|usp|context|sequence|tensor)\w*[_-](?:attn|attention|parallel)"
)
#: The section of DeepSpeed's file that says the stage, where a section of accelerate has it by mistake.
_DEEPSPEEDS: Final = "deepspeed_config.zero_optimization."
_PRECISIONS: Final = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


def is_accelerate(file: LaunchFile) -> bool:
    """Return whether a file is of ``accelerate launch``, or starts a program of its own with it."""
    written = re.search(rf"(?m)^{ACCELERATE.keys['kind']}\s*:", file.text) is not None
    return written or (is_launch_script(file) and _LAUNCHES.search(file.text) is not None)


def is_launch_script(file: LaunchFile) -> bool:
    """Return whether a file is a script rather than a file of keys."""
    data = file.name.endswith((".yaml", ".yml", ".json", ".toml", ".py")) and not file.script
    written = re.search(rf"(?m)^{ACCELERATE.keys['kind']}\s*:", file.text) is not None
    return file.values is None and not data and not written and not file.text.lstrip().startswith("{")


def _read_script(file: LaunchFile) -> Configuration:
    """Return what the last ``accelerate launch`` decides; what its program may say stays open."""
    script = read_script(file.text, file.name, file.variables, file.sibling)
    launched = [(c, words) for c in script.commands if (words := accelerate_words(c.words))]
    if not launched:
        raise SpecError([Problem("nothing is started with accelerate launch", "script", file.name)])
    command, words = launched[-1]
    document = launcher_document(words, file) or WrittenDocument(file.name, table=ACCELERATE)
    missing = not document.entries
    document.entries.setdefault(ACCELERATE.keys["kind"], Written("NO", default=True))
    values = accelerate_layout(document, file)
    if missing:
        document.notes.append("accelerate launch has a file of its own, which is not read: left open")
        document.opened |= {"zero", "precision", "tp", "cp", "dp"}
        devices, why = launched_devices(script, command)
        values = {**values, **stated(devices=devices)}
        document.notes += [why] if why and devices is None else []
    if len(launched) > 1:
        document.notes.append(f"of {len(launched)} programs that are started, the last is read")
    _of_the_program(document, command.words[len(words) :])
    document.notes += script.notes
    document.stop_at_problems()
    return assembled_document(document, file, values)


#: Arguments of the Trainer, whose sharding goes over the launcher's.
_SHARDING: Final = frozenset({"deepspeed", "fsdp", "deepspeed_config", "ds_config"})


def _of_the_program(document: WrittenDocument, words: Sequence[Word]) -> None:
    """Leave open what arguments of a program of its own may decide."""
    document.opened.add("recompute")
    for name, word in _launcher_options(words):
        mode = _MODES.search(f"{name} {word.text}") is not None
        fields = ("cp", "tp") if mode else may_decide(name, word.text)
        if name in _SHARDING and word.text.lower() not in {"false", "none", ""}:
            fields = ("zero", "offload", "precision")
        if fields:
            document.opened |= set(fields)
            document.notes.append(f"--{name} {word.text[:40]} may decide {', '.join(fields)}: left open")


def read_accelerate(file: LaunchFile) -> Configuration:
    """Return what a file with arguments, or a script before its program, says; raises SpecError."""
    if is_launch_script(file):
        return _read_script(file)
    document = read_yaml(file, ACCELERATE)
    values = accelerate_layout(document, file)
    values |= _program(document, file, values)
    document.stop_at_problems()
    return assembled_document(document, file, values)


def accelerate_layout(document: WrittenDocument, file: LaunchFile) -> Fields:
    """Return devices, precision, degrees and sharding of a file, or of the options of the launcher."""
    document.check_sections()
    kind = _kind(document)
    sections = {"fsdp": _fsdp, "deepspeed": _deepspeed, "megatron": _megatron}
    readers = {name: sections[section] for name, section in ACCELERATE.data["kinds"].items()}
    if kind is None:
        document.refuse(f"{document.path('kind')} is missing", "kind")
    elif kind.value not in {*readers, "NO", "MULTI_GPU"}:
        document.refuse(f"{kind.value[:40]!r} is not read", "kind")
    document.stop_at_problems()
    values = {**alone(), **_processes(document, file), **_precision(document)}
    section = ACCELERATE.data["kinds"].get(kind.value) if kind is not None else None
    if kind is not None and kind.value in readers:
        values |= readers[kind.value](document, values, file)
    document.stop_at_problems()
    if not file.arguments and values.get("precision", _LEFT).value == _PRECISIONS["no"]:
        document.opened.add("precision")
        document.notes.append("no mixed precision: the training program decides the type: left open")
    if not file.arguments and section != "megatron" and values.get("recompute", _LEFT).default:
        document.opened.add("recompute")
        document.notes.append("the training program, which is not read, may recompute: left open")
    return values


def _kind(document: WrittenDocument) -> Written | None:
    """Return the kind of distribution; YAML reads a bare ``NO`` as false."""
    path = document.path("kind")
    written = document.entries.get(path)
    if written is not None and written.value is False:
        document.entries[path] = replace(written, value="NO")
    return document.text("kind")


def launcher_document(words: Sequence[Word], file: LaunchFile) -> WrittenDocument | None:
    """Return what words of ``accelerate launch`` say, over the file that they name; None where it is away.

    ``words`` are those before the training program. Options have the names of the keys of the file.
    """
    options = {name.replace("-", "_"): word for name, word in _launcher_options(words)}
    named = options.pop(ACCELERATE.data["launcher"]["file"], None)
    inner = launcher_file(words, file)
    if named is not None and inner is None:
        return None
    document = WrittenDocument(file.name, table=ACCELERATE)
    if inner is not None:
        document = read_yaml(inner, ACCELERATE)
        document.file = file.name
        document.entries = {path: replace(entry, line=None) for path, entry in document.entries.items()}
        document.notes.append(f"{inner.name}: read with this file")
    elif not options:
        return None
    document.entries.setdefault(ACCELERATE.keys["kind"], Written("NO", default=True))
    for name, word in options.items():
        _set_option(document, name, word)
    if document.entries[ACCELERATE.keys["kind"]].default and any("deepspeed" in name for name in options):
        # Only the switch, or a default file of the user, starts DeepSpeed (accelerate, commands/launch.py).
        document.opened |= {"zero", "precision"} - ({"precision"} if "mixed_precision" in options else set())
        document.notes.append("options of DeepSpeed without --use_deepspeed: the sharding is left open")
    return document


def launcher_file(words: Sequence[Word], file: LaunchFile) -> LaunchFile | None:
    """Return the file that words of ``accelerate launch`` name, where it lies beside ``file``."""
    options = {name.replace("-", "_"): word for name, word in _launcher_options(words)}
    named = options.get(ACCELERATE.data["launcher"]["file"])
    text = file.sibling(named.text) if named is not None and named.unknown is None else None
    return None if named is None or text is None else LaunchFile(named.text, text)


def accelerate_words(words: Sequence[Word]) -> Sequence[Word]:
    """Return the words of ``accelerate launch`` before a program; nothing of another launcher."""
    before = launcher_words(words)
    names = [word.text.rsplit("/", 1)[-1] for word in before]
    return before if "accelerate" in names and "launch" in names else ()


def _launcher_options(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Yield the options among the words of the launcher; those without a value are ``true``."""
    for at, word in enumerate(words):
        if not word.text.startswith("--"):
            continue
        name, equals, value = word.text[2:].partition("=")
        behind = words[at + 1] if at + 1 < len(words) and not words[at + 1].text.startswith("-") else None
        option = Word(value, word.line, word.unknown) if equals else behind or Word("true", word.line)
        yield name, option


def _set_option(document: WrittenDocument, name: str, word: Word) -> None:
    """Set the key that an option of the launcher is; a switch of a kind sets the kind."""
    kinds, sections = ACCELERATE.data["launcher"]["kinds"], ACCELERATE.data["sections"]
    written = Written(word.text, word.line or None, f"--{name} {word.text}")
    if name in kinds:
        if word.text.lower() == "true":
            document.entries[ACCELERATE.keys["kind"]] = replace(written, value=kinds[name])
        return
    section = next((s for s, keys in sections.items() if s != "top" and name in keys), None)
    path = f"{section}.{name}" if section else name if name in sections["top"]["keys"] else ""
    if path == ACCELERATE.keys["devices"] and word.unknown is not None:
        document.entries.pop(path, None)
        document.opened.add("devices")
        document.notes.append(f"--{name} depends on {word.unknown.reason}: left open: give --devices N")
    elif path and word.unknown is not None:
        how = f": give --set {word.unknown.name}=VALUE" if word.unknown.name else ""
        if path in ACCELERATE.keys.values():
            document.refuse_key(f"its value depends on {word.unknown.reason}{how}", path, word.line or None)
    elif path:
        document.entries[path] = written


#: A value that another file decides.
_LEFT: Final = Written(None, default=True)


def _processes(document: WrittenDocument, file: LaunchFile) -> Fields:
    written = document.number("devices", least=-1)
    kind = document.given("kind")
    if written is None and kind is not None and kind.value == "NO" and not kind.default:
        # One process, unless the words behind the launcher say more.
        return {} if file.devices is not None else {"devices": replace(kind, value=1)}
    if written is None or written.value < 1:
        return {}
    if file.devices is not None and file.devices != written.value:
        document.refuse(
            f"{document.path('devices')} {written.value} is not --devices {file.devices}", "devices"
        )
    return {"devices": written}


def _precision(document: WrittenDocument) -> Fields:
    written = document.given("precision")
    if written is None:
        return {"precision": Written("fp32", default=True)}
    # YAML reads a bare ``no`` as false.
    name = "no" if written.value is False else str(written.value).lower()
    if name not in _PRECISIONS:
        document.refuse(f"{name[:40]!r} is none of {', '.join(_PRECISIONS)}", "precision")
    return {"precision": written.of(_PRECISIONS.get(name))}


def _fsdp(document: WrittenDocument, values: Fields, file: LaunchFile) -> Fields:
    del file
    version = document.number("fsdp_version")
    first = version is None or version.value == 1
    fields = _strategy(document, values) if first else document.bound("resharded")
    fields |= _sizes(document, values, first=first)
    return fields | document.bound("recompute", "activation_offload", "state_offload")


def _strategy(document: WrittenDocument, values: Fields) -> Fields:
    """Return the sharding of FSDP1; hybrid strategies shard over the processes of a machine."""
    path = next((p for p in ("strategy", "resharded") if document.given(p)), None)
    if path is None:
        return {"zero": Written(3, default=True)}
    written = document.entries[document.path(path)]
    number = int(written.value) if str(written.value).isdigit() else 0
    name = _NUMBERED.get(number, str(written.value).lower()) if written.value is not True else ""
    if name not in _STRATEGIES:
        document.refuse(f"{name[:40]!r} is none of {', '.join(_STRATEGIES).upper()}", path)
        return {}
    (zero, hybrid), machines = _STRATEGIES[name], document.number("machines")
    fields = {"zero": written.of(zero)}
    if hybrid and machines is not None and machines.value > 1 and "devices" in values:
        fields["dp_shard"] = written.of(values["devices"].value // machines.value)
    return fields


def _sizes(document: WrittenDocument, values: Fields, *, first: bool) -> Fields:
    """Return the degrees of ``parallelism_config``, whose product has to be the number of processes."""
    names = {"dp_replicate": "replicas", "dp_shard": "shards", **{d: f"mesh_{d}" for d in ("tp", "cp", "sp")}}
    given = stated(**{name: document.number(binding) for name, binding in names.items()})
    if not given:
        return {}
    if first:
        document.refuse("parallelism_config needs fsdp_version: 2", "parallelism_config")
    number = {name: given[name].value if name in given else 1 for name in names}
    product, devices = math.prod(number.values()), values.get("devices")
    if devices is not None and product != devices.value:
        shown = " x ".join(f"{name} {size.value} (line {size.line})" for name, size in given.items())
        sentence = f"{shown} = {product} is not {document.path('devices')} {devices.value}"
        document.refuse(sentence, "parallelism_config", next(iter(given.values())).line)
    if number["sp"] > 1:
        document.refuse("sp_size is one of DeepSpeed's sequence parallelism", "mesh_sp")
    fields = {name: size for name, size in given.items() if name in {"tp", "cp"}}
    shard = given.get("dp_shard") or next(iter(given.values()))
    fields["dp"] = shard.of(number["dp_replicate"] * number["dp_shard"])
    if number["dp_replicate"] > 1:
        fields["dp_shard"] = shard.of(number["dp_shard"] * number["cp"])
    return fields


def _deepspeed(document: WrittenDocument, values: Fields, file: LaunchFile) -> Fields:
    # DeepSpeed's sequence parallelism divides sequences over as many devices.
    size = document.number("mesh_sp") or document.number("mesh_cp")
    fields, other = stated(cp=size), document.text("deepspeed_file")
    if other is not None:
        return fields | _deepspeed_file(document, values, file, other)
    fields |= document.bound("zero")
    if fields["zero"].default and any(path.startswith(_DEEPSPEEDS) for path in document.entries):
        document.opened.add("zero")
        document.notes.append("keys of DeepSpeed's file are none of deepspeed_config: the stage is left open")
    if fields["zero"].value > 3:
        document.refuse(f"{fields['zero'].value} is no ZeRO stage", "zero")
    return fields | document.bound("optimizer_offload", "parameter_offload")


def _deepspeed_file(document: WrittenDocument, values: Fields, file: LaunchFile, other: Written) -> Fields:
    """Return the sharding of DeepSpeed's own file where it lies there; else what it decides stays open."""
    inner = named_deepspeed(document, file, str(other.value))
    if inner is None:
        document.notes.append(f"{other.words} (line {other.line}): read that file for the layout")
        for key in ("zero", "precision", "recompute", "cp", "tp"):
            values.pop(key, None)
        document.opened |= {"zero", "precision", "recompute"}
        return {}
    return sharding_of(document, inner) | enabled_precision(inner)


def _megatron(document: WrittenDocument, values: Fields, file: LaunchFile) -> Fields:
    """Return the degrees of the Megatron section; what it leaves out is as in the plugin."""
    del values, file
    result = document.bound("tp", "pp", "ep", "cp")
    experts = document.number("etp")
    if experts is not None or ("ep" in result and result["ep"].value > 1):
        result["etp"] = experts or Written(1, default=True)
    result |= document.bound("sp", "distributed_optimizer", "megatron_offload")
    last = document.number("last_stage")
    if last is not None:
        document.opened.add("stages")
        document.notes.append(f"{last.words} (line {last.line}): the layers of stages are left open")
    return result | _granularity(document)


def _granularity(document: WrittenDocument) -> Fields:
    written = document.text("recompute_kind", ("full", "selective"))
    units = document.number("recompute_num_layers")
    method = document.text("recompute_method", ("uniform", "block"))
    if method is not None and method.value == "block":
        document.notes.append(f"{method.words}: read as recompute of all layers")
        units = None
    recompute = written or Written("full", default=True)
    if recompute.value == "selective" or units is None:
        return {"recompute": recompute}
    return {"recompute": recompute, "recompute_num_layers": units}


def _program(document: WrittenDocument, file: LaunchFile, values: Fields) -> Fields:
    """Return the batches and the recompute that arguments of the training program say."""
    options = _options(file.arguments)
    document.entries |= {name: Written(value, None, f"{name} {value}") for name, value in options.items()}
    mbs = document.number("mbs")
    # The microbatches of a step, which several places may say, but alike.
    places = ("program_steps", "deepspeed_steps", "steps")
    counts = [(path, written) for path in places if (written := document.number(path)) is not None]
    if len({written.value for _, written in counts}) > 1:
        document.refuse(f"{counts[0][1].words} differs from {counts[1][1].words}", counts[1][0])
    steps = counts[0][1] if counts else None
    fields = stated(mbs=mbs)
    devices = values.get("devices") or (Written(file.devices) if file.devices else None)
    if mbs is not None and steps is not None and devices is not None:
        model = math.prod(values[key].value for key in ("tp", "pp", "cp") if key in values)
        if devices.value % model == 0:
            batch = mbs.value * steps.value * (devices.value // model)
            fields["global_batch_size"] = Written(batch, steps.line, f"{mbs.words} {steps.words}")
    return fields | document.bound("program_recompute")


def _options(words: tuple[str, ...]) -> dict[str, str]:
    """Return the options among words of a command line; those without a value are ``true``."""
    values: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = f"--{name[2:].replace('-', '_')}"
            values[name] = value if equals else "true"
        elif name:
            values[name] = word
    return values


#: Fields of sharding, which a file of DeepSpeed or FSDP among the arguments has in the launcher's place.
_SHARDED: Final = frozenset({"zero", "dp_shard", "offload", "software", "way"})


#: How a program shards by a section of the launcher's file.
_WAYS: Final = {"deepspeed": DEEPSPEED, "fsdp": FSDP}


def launcher_of(file: LaunchFile) -> list[Word]:
    """Return the words of the launcher that starts a program with this file."""
    return [Word(text, 0, Unknown(why, 0) if why else None) for text, why in file.launcher]


def launched_values(
    document: WrittenDocument, launcher: Sequence[Word], file: LaunchFile, values: Values
) -> Fields:
    """Return what ``accelerate launch`` decides, by its options and by its file where that lies there.

    TrainingArguments go over its precision, and their DeepSpeed over its sharding. Source:
    ``transformers/training_args.py`` 5.23, where both set the variables that the launcher sets.
    """
    if not any(word.text.rsplit("/", 1)[-1] == "accelerate" for word in launcher):
        return {}
    inner = launcher_document(launcher, file)
    if inner is None:
        document.opened |= {"zero", "tp", "cp", "dp"}
        document.notes.append(
            "accelerate launch has a file of its own, which is not read: sharding is left open"
        )
        return {}
    launched = accelerate_layout(inner, replace(file, arguments=("",)))
    kind = inner.given("kind")
    section = ACCELERATE.data["kinds"].get(kind.value) if kind is not None else None
    launched |= {"way": _WAYS[section]} if section in _WAYS else {}
    document.problems += inner.problems
    document.notes += inner.notes
    names = [name for name in ("recompute", "earlier_recompute") if name in document.table.keys]
    stated = {"recompute"} if any(stands(document, name) for name in names) else set()
    stated |= set() if values.get("precision", OPEN).default else {"precision"}
    document.opened |= inner.opened - stated
    unsaid = {key for key in ("precision", "recompute") if launched.get(key, OPEN).default}
    unsaid |= stated - {"recompute"}
    if stands(document, "deepspeed") or stands(document, "fsdp"):
        unsaid |= _SHARDED
    return {key: written for key, written in launched.items() if key not in unsaid}


_TRAINER: Final = interface("trainer")
_TOKENS: Final = frozenset(_TRAINER.data["lengths"])
#: Arguments that go over keys of a file, and those of them whose value has to be known.
_OVER: Final = {
    "trainer": (("trainer", "trl"), {*_TRAINER.data["decides"], *_TOKENS, _TRAINER.keys["model"]}),
    "axolotl": (("axolotl",), {*interface("axolotl").keys.values()}),
}


def overriding(
    framework: str, file: LaunchFile, script: Script, started: tuple[Command, Sequence[Word]]
) -> tuple[str, ...]:
    """Return the arguments behind a file of keys, which is ``started``; raises SpecError for unknown ones."""
    (parts, deciding), (command, behind) = _OVER[framework], started
    names = frozenset().union(*map(key_names, parts), _TOKENS)
    words, _ = without_differing(
        script, command, behind, lambda name: name.startswith("--") and name[2:].replace("-", "_") in names
    )
    given = {text.partition("=")[0].lstrip("-") for text in file.arguments}
    problems, skipped = [], set()
    for at, (before, word) in enumerate(pairwise([Word("", 0), *words])):
        if word.unknown is None:
            continue
        option = word if word.text.startswith("--") else before
        name = option.text.partition("=")[0].lstrip("-").replace("-", "_")
        skipped |= {at} if option is word else {at - 1, at}
        if name in deciding - given:
            sentence = f"its value depends on {word.unknown.reason}: give the argument with --arg"
            problems.append(Problem(sentence, name, file.name, word.line or None))
    if problems:
        raise SpecError(problems)
    texts = [word.text for at, word in enumerate(words) if at not in skipped]
    start = next((at for at, text in enumerate(texts) if text.startswith("--")), len(texts))
    return tuple(texts[start:])
