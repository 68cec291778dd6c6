"""Files of Megatron-LM: which they are, what they say, and the edits that change their layout.

A script with the arguments of a command, or arguments that are no command: YAML files, and what a program has
parsed. The latter have three forms: ``MODEL_ARGS`` with arguments as keys (``model_config.yaml`` of
Megatron-LM's functional tests), the nested ``model_parallel`` and ``language_model`` of the experimental
``--yaml-cfg`` (``megatron/training/yaml_arguments.py``), and values by the names of argparse, such as those
of an ``argparse.Namespace``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from autoplan.errors import SpecError
from autoplan.launch.bindings.written_document import WrittenDocument, read_yaml
from autoplan.launch.configuration import Configuration, FileEdit, LaunchFile, Written
from autoplan.launch.frameworks.interpolated_values import overridden
from autoplan.launch.frameworks.megatron.argument_keys import (
    CORE_KEYS,
    Key,
    add_key,
    key_of,
    keyed_edits,
    keyed_error,
    refuse_misspelt,
    value_words,
)
from autoplan.launch.frameworks.megatron.arguments import (
    FLAGS,
    READ_FLAGS,
    TABLE,
    Argument,
    Arguments,
    arities,
    parse_arguments,
)
from autoplan.launch.frameworks.megatron.emitted_arguments import (
    layout_values,
    training_values,
    words_by_flag,
)
from autoplan.launch.frameworks.megatron.reading import configured, is_megatron, read_megatron
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import training_command
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

_SECTION: Final = "MODEL_ARGS"
#: Names that argparse gives the arguments, by binding: the first of several.
_NAMES: Final = {name: path for path, name in reversed(list(TABLE.data["python_names"].items()))}
_NESTED: Final = re.compile(r"(?m)^(?:language_model|model_parallel)\s*:")
#: Names of ``ModelParallelConfig``, and of the arguments next to both sections; others are the model's.
_PARALLEL: Final = frozenset(TABLE.data["nested_names"]["model_parallel"])
_BESIDE: Final = frozenset(TABLE.data["nested_names"]["beside"])


def is_megatron_file(file: LaunchFile) -> bool:
    """Return whether a file is one of Megatron-LM: a script, or one of the documents."""
    return is_megatron(file) or is_nested_document(file)


def read_megatron_file(file: LaunchFile) -> Configuration:
    """Return what a file says; raises SpecError with all problems."""
    return read_argument_document(file) if is_argument_document(file) else read_megatron(file)


def edited_file(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a file that make its layout ``new`` instead of ``old``."""
    edits = document_edits if is_argument_document(file) else megatron_edits
    return edits(file, job, old, new)


def megatron_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of ``file`` that make its layout ``new`` instead of ``old``.

    Raises InexpressibleError for a layout that Megatron-LM cannot express.
    """
    script = read_script(file.text, file.name, file.variables, file.sibling)
    words, _ = training_command(script, arities().__contains__)
    words += [Word(text, 0) for text in file.arguments]
    arguments = parse_arguments(words, file.name, frozenset()).given
    before, after = _flags(job, old), _flags(job, new)
    return tuple(_edits(arguments, before, after))


def _flags(job: Job, layout: Layout) -> dict[str, tuple[str, ...]]:
    return words_by_flag(layout_values(job, layout) | training_values(job, layout))


def _edits(
    arguments: dict[str, Argument], before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> Iterator[FileEdit]:
    """Yield the edits of arguments in which two layouts differ."""
    also = {FLAGS[name]: FLAGS[other] for name, other in TABLE.data["also"].items()}
    for flag in dict.fromkeys((*before, *after)):
        old, new = before.get(flag), after.get(flag)
        if old == new:
            continue
        entry = arguments.get(flag) or arguments.get(also.get(flag, ""))
        words = shlex.join(new) if new else ""
        if entry is not None:
            line = next((value.line for value in entry.values if value.line), entry.line)
            yield FileEdit(entry.words, words, line or None)
        elif words:
            yield FileEdit("", words)


def is_argument_document(file: LaunchFile) -> bool:
    """Return whether a file is a YAML file with arguments, or no file but values."""
    if file.values is not None or is_nested_document(file):
        return True
    return re.search(rf"(?m)^{_SECTION}\s*:", file.text) is not None


def is_nested_document(file: LaunchFile) -> bool:
    """Return whether a file is one for ``--yaml-cfg``."""
    return _NESTED.search(file.text) is not None and _NAMES["tp"] in file.text


def read_argument_document(file: LaunchFile) -> Configuration:
    """Return what a document says; raises SpecError with all problems."""
    document = read_yaml(file)
    keys = _keys(document)
    if not keys:
        arguments = parse_arguments([*_words(document), *_more(file)], file.name, READ_FLAGS)
        arguments.notes += document.notes
        return configured(file, arguments, None, ())
    overridden(document, file.arguments)
    arguments = Arguments(file.name, notes=document.notes)
    refuse_misspelt(arguments, document.entries, keys, "Megatron-LM")
    for path, key in keys.items():
        if path in document.entries and not _unused(document, path):
            add_key(arguments, key, path, document.entries[path])
    _activation(document, arguments)
    devices = _devices(document, arguments) if file.devices is None else None
    arguments.problems += document.problems
    try:
        arguments.stop_at_problems()
        return configured(file, arguments, devices, ())
    except SpecError as error:
        raise keyed_error(error, keys) from error


def _words(document: WrittenDocument) -> Iterator[Word]:
    """Yield the words of the arguments in the section of a test."""
    prefix = f"{_SECTION}."
    for path, written in document.entries.items():
        flag = path.removeprefix(prefix)
        if not path.startswith(prefix) or written.value is False:
            continue
        line = written.line or 0
        yield Word(flag, line)
        if written.value is not True and written.value is not None:
            several = arities().get(flag, "1") in {"*", "+"}
            yield from (Word(text, line) for text in value_words(written.value, several=several))


def _more(file: LaunchFile) -> Iterator[Word]:
    return (Word(text, 0) for text in file.arguments)


def _keys(document: WrittenDocument) -> Mapping[str, Key]:
    """Return the keys of a document by path; none where arguments are keys themselves."""
    if any(path.startswith(f"{_SECTION}.--") for path in document.entries):
        return {}
    nested = any(path in document.entries for path in ("model_parallel", "language_model"))
    if not nested:
        return CORE_KEYS
    keys = {f"{section}{name}": key for name, key in CORE_KEYS.items() for section in _sections(name)}
    keys[f"language_model.{_NAMES['kv_heads']}"] = key_of("kv_heads and grouped_queries")
    return keys


def _sections(name: str) -> tuple[str, str, str]:
    """Return the sections that a name may stand in, its own first."""
    if name in _BESIDE:
        return ("", "language_model.", "model_parallel.")
    model, parallel = "language_model.", "model_parallel."
    return (parallel, model, "") if name in _PARALLEL else (model, parallel, "")


def _unused(document: WrittenDocument, path: str) -> bool:
    """Return whether a value is a default of argparse that another one makes idle."""
    grouped = document.entries.get(_NAMES["grouped_queries"])
    return path == _NAMES["kv_heads"] and grouped is not None and not grouped.value


def _activation(document: WrittenDocument, arguments: Arguments) -> None:
    path = "language_model.activation_func"
    names = TABLE.data["activation_names"]
    written = document.text(path, tuple(names))
    if written is not None and names[written.value]:
        shown = Written(value=True, line=written.line, words=written.words)
        add_key(arguments, key_of(names[written.value]), path, shown)


def _devices(document: WrittenDocument, arguments: Arguments) -> Written | None:
    """Return the number of processes; a world of one process that has several ranks is not started yet."""
    world = document.number("world_size")
    degrees = [arguments.number(name) for name in ("tp", "pp", "cp")]
    several = any(degree is not None and degree.value > 1 for degree in degrees)
    return None if world is None or (world.value == 1 and several) else world


def document_edits(file: LaunchFile, job: Job, old: Layout, new: Layout) -> tuple[FileEdit, ...]:
    """Return the edits of a document that make its layout ``new``; see ``keyed_edits``."""
    document = read_yaml(file)
    keys = _keys(document)
    if not keys:
        kinds = {"0": "on", "+": "words", "*": "words"}
        keys = {
            f"{_SECTION}.{flag}": Key(flag, kinds.get(arity, "value"))  # type: ignore[arg-type]
            for flag, arity in arities().items()
        }
    return keyed_edits(document.entries, keys, job, (old, new))
