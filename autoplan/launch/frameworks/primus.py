"""The target ``primus``: experiments of Primus, which override a trainer of Megatron-LM or torchtitan.

An experiment names its trainer, a file with the model, and overrides by the names that the trainer gives
them. What neither says is as in the module of Primus that it extends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.assembly import assembled_document, with_devices
from autoplan.launch.bindings.deciding_names import known_alone
from autoplan.launch.bindings.interface import interface, target_of
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, LaunchFile, Written
from autoplan.launch.frameworks.interpolated_values import overridden, resolved
from autoplan.launch.frameworks.megatron.argument_keys import CORE_KEYS, add_key, refuse_misspelt
from autoplan.launch.frameworks.megatron.arguments import FLAGS, Arguments, arities
from autoplan.launch.frameworks.megatron.read_layout import read_layout
from autoplan.launch.frameworks.megatron.reading import following_values
from autoplan.launch.frameworks.torchtitan.override_words import DEFAULTS, KEYS
from autoplan.launch.frameworks.torchtitan.torchtitan_values import titan_configuration
from autoplan.launch.known_models import model_entry

_PRIMUS: Final = interface("primus").data
#: What holds in an experiment of torchtitan that says nothing: its module recomputes nothing.
_TITAN: Final = {**DEFAULTS, KEYS["recompute"]: "none", KEYS["uncaptured"]: True}
_MODULES: Final = "|".join(_PRIMUS["modules"])
_VARIABLE: Final = re.compile(r"\$\{(\w+):([^{}]*)\}")
#: Ending of torchtitan's models whose file of Primus quantizes them.
_EIGHT: Final = "-fp8"
_SIGN: Final = re.compile(rf"(?m)^modules\s*:[\s\S]*?^\s+(?:{_MODULES})\s*:[\s\S]*?^\s+framework\s*:")


def is_primus(file: LaunchFile) -> bool:
    """Return whether a file is an experiment of Primus."""
    return _SIGN.search(file.text) is not None


def read_primus(file: LaunchFile) -> Configuration:
    """Return what an experiment says; raises SpecError with all problems."""
    document = read_yaml(file)
    module = next((m for m in _PRIMUS["modules"] if f"modules.{m}" in document.entries), "")
    prefix = f"modules.{module}."
    trainer = document.entries.get(f"{prefix}{_PRIMUS['framework']}")
    named = document.entries.get(f"{prefix}model")
    start = f"{prefix}{_PRIMUS['overrides']}."
    document.entries = {
        path.removeprefix(start): entry for path, entry in document.entries.items() if path.startswith(start)
    }
    overridden(document, file.arguments)
    document.entries = {path: _filled(entry, file) for path, entry in document.entries.items()}
    document = resolved(document, file)
    model = _model(document, named)
    readers = {"megatron": _megatron, "torchtitan": _torchtitan}
    if trainer is None or str(trainer.value) not in readers:
        shown = trainer.value if trainer else "nothing"
        sentence = f"experiments of {shown!s:.40} are not read: {', '.join(readers)} are"
        raise SpecError([Problem(sentence, "framework", file.name, trainer.line if trainer else None)])
    return readers[str(trainer.value)](file, document, module, model)


def _filled(written: Written, file: LaunchFile) -> Written:
    """Return a value whose variable of the environment is filled in, or its default, ``${NAME:value}``."""
    match = _VARIABLE.fullmatch(str(written.value)) if isinstance(written.value, str) else None
    if match is None:
        return written
    try:
        value = yaml.safe_load(file.variables.get(match[1], match[2]))
    except yaml.YAMLError:
        return written
    return written.of(value)


def _model(document: WrittenDocument, named: Written | None) -> str | None:
    """Return the entry of the model that an experiment names by a file of Primus."""
    if named is None:
        return None
    name = str(named.value).rsplit("/", 1)[-1].removesuffix(".yaml")
    default = _VARIABLE.match(str(named.value))
    stem = default[2].removesuffix(".yaml") if default else name
    if stem.endswith(_EIGHT):
        converters = named.of([_PRIMUS["eight_bit_converter"]])
        document.entries.setdefault(KEYS["converters"], converters)
        stem = stem.removesuffix(_EIGHT)
    models: Mapping[str, str] = {key.lower(): entry for key, entry in _PRIMUS["models"].items()}
    entry = models.get(stem.lower())
    if entry is None:
        document.notes.append(f"{named.words}: its sizes are those of a file of Primus, which is not read")
    return entry


def _megatron(file: LaunchFile, document: WrittenDocument, module: str, model: str | None) -> Configuration:
    arguments = Arguments(file.name, notes=document.notes)
    refuse_misspelt(arguments, document.entries, CORE_KEYS, "Megatron-LM")
    for path, written in document.entries.items():
        key = CORE_KEYS.get(path)
        if key is not None:
            add_key(arguments, key, path, _switch(key.kind, written))
        elif f"--{path.replace('_', '-')}" not in arities():
            document.leave_open(path, written)
    arguments.opened |= document.opened
    arguments.stop_at_problems()
    defaults = _PRIMUS["defaults"][module]
    for name, value in defaults.items():
        if (
            not arguments.has(name)
            and _path(name) not in document.entries
            and not (name == "bf16" and arguments.has("fp16"))
        ):
            add_key(arguments, CORE_KEYS[_path(name)], name, Written(value, default=True))
    entry, counted = model_entry(model), arguments.number("layers")
    layers = counted.value if counted else entry.layers if entry is not None else None
    values = read_layout(arguments, layers, experts=True)
    values = {key: _marked(written) for key, written in values.items()}
    arguments.stop_at_problems()
    document.problems += arguments.problems
    document.stop_at_problems()
    values = dict(with_devices(file, known_alone(values, arguments.opened)))
    values |= following_values(arguments, values)
    arguments.stop_at_problems()
    stated = any(arguments.has(name) for name in ("layers", "hidden_size", "experts"))
    return assembled_document(
        document, file, values, None if stated else model, framework="primus", opened=arguments.opened
    )


def _switch(kind: str, written: Written) -> Written:
    """Return a switch that is written as a number as one that is true or false."""
    if kind in {"on", "off"} and written.value in {0, 1}:
        return written.of(bool(written.value))
    return written


def _path(name: str) -> str:
    """Return the name of Python that a binding of Megatron-LM has."""
    return next(path for path, key in CORE_KEYS.items() if key.flag == FLAGS[name])


def _marked(written: Written) -> Written:
    """Return a value that has no line as a default, which Primus has by its own files."""
    return written if written.line or written.default else Written(written.value, None, "", default=True)


def _torchtitan(file: LaunchFile, document: WrittenDocument, module: str, model: str | None) -> Configuration:
    del module
    return titan_configuration("primus", file, document, model, defaults=_TITAN)


TARGET: Final = target_of(interface("primus"), recognises=is_primus, read=read_primus)
