"""Overrides of torchtitan in a shell script, and its earlier TOML files, as values by dotted path."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import LaunchFile, Written
from autoplan.launch.scripts.pieces import Word
from autoplan.launch.scripts.shell_reader import read_script
from autoplan.launch.scripts.training_command import launched_devices, training_command

#: Settings that have no default.
_OPEN: Final = ("modules", "components")
TABLE: Final = interface("torchtitan")
#: Paths of settings by the names of their bindings.
KEYS: Final = TABLE.keys
#: Arguments that name the module and the configuration function.
FUNCTION: Final = tuple(f"--{KEYS[name]}" for name in ("module", "function"))
#: What holds for a configuration that says nothing else, by path; of some settings nothing does.
DEFAULTS: Final[Mapping[str, Any]] = {
    binding.key: binding.default
    for binding in TABLE
    if binding.name not in _OPEN and (binding.name not in TABLE.groups["read"] or binding.default is not None)
}
#: Functions of ``--config`` that make a configuration, by name.
CONFIG_FUNCTIONS: Final[Mapping[str, Mapping[str, Any]]] = TABLE.data["functions"]
#: Keys of the sections that decide a layout.
SECTIONS: Final[Mapping[str, frozenset[str]]] = {
    section: frozenset(names) for section, names in TABLE.data["sections"].items()
}
#: Values other than those with a default that decide a layout or what it costs.
_WANTED: Final = frozenset(KEYS[name] for name in _OPEN)
_FRAMEWORK: Final = "torchtitan"
_SUBCOMMAND: Final = "activation-checkpoint:"
_TABLE: Final = re.compile(r"\[\s*([\w.\"'-]+)\s*\]\s*(?:#.*)?")
_KEY: Final = re.compile(r"([\w-]+)\s*=")


def is_toml(file: LaunchFile) -> bool:
    """Return whether a file is a TOML file of torchtitan before 0.3.0."""
    tables = {match[1] for line in file.text.splitlines() if (match := _TABLE.fullmatch(line.strip()))}
    return "training" in tables and bool(tables & {"parallelism", "activation_checkpoint", "lr_scheduler"})


def read_toml(file: LaunchFile) -> WrittenDocument:
    """Return the values of a TOML file with their lines; raises SpecError for what is none."""
    try:
        root = tomllib.loads(file.text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        where = re.search(r"line ([0-9]+)", str(error))
        line = int(where[1]) if where else None
        raise SpecError([Problem(f"it is no TOML: {str(error)[:200]}", "$", file.name, line)]) from error
    document = WrittenDocument(file.name)
    lines = dict(_lines(file.text))
    for path, value in _leaves(root, ""):
        line = lines.get(path)
        shown = f"{path.rpartition('.')[2]} = {value!r}"[:80]
        document.entries[path] = Written(value, line, shown)
    _add(document, [Word(text, 0) for text in file.arguments])
    return _checked(document)


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield the line of each key that begins one."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if match := _TABLE.fullmatch(stripped):
            table = f"{match[1]}."
        elif match := _KEY.match(stripped):
            yield f"{table}{match[1]}", number


def read_overrides(file: LaunchFile) -> tuple[WrittenDocument, Written | None, bool]:
    """Return the overrides of a shell script, the devices that it starts, and whether over a TOML file.

    Raises SpecError where there are none. Module and function are the values of ``module`` and ``config``.
    """
    script = read_script(file.text, file.name, file.variables, file.sibling)
    words, command = training_command(script, _known)
    started = command or next((c for c in reversed(script.commands) if _config_word(c.words)), None)
    named = _config_word(started.words) if started is not None else None
    devices, why = launched_devices(script, started)
    if not words and named is not None and started is not None:
        at = next(i for i, word in enumerate(started.words) if word.text == TABLE.data["program"])
        words, command = list(started.words[at + 1 :]), started
    if not words:
        more = f"; {'; '.join(script.notes)}" if script.notes else ""
        raise SpecError([Problem(f"there are no overrides of torchtitan{more}", "script", file.name)])
    document = WrittenDocument(file.name, notes=list(script.notes))
    if devices is None and file.devices is None and why:
        document.notes.append(why)
    if command is not None and command.doubt:
        document.notes.append(f"the command in line {command.line} runs only under {command.doubt}")
    text = file.sibling(named.text) if named is not None and named.unknown is None else None
    if text is not None and named is not None:
        inner = read_toml(LaunchFile(named.text, text))
        document.entries |= {path: replace(entry, line=None) for path, entry in inner.entries.items()}
        document.notes.append(f"{named.text}: read with this file")
    _add(document, [*words, *(Word(text, 0) for text in file.arguments)])
    for hint in script.hints if document.problems else ():
        document.refuse(hint, "script")
    return _checked(document), devices, text is not None


def _config_word(words: Sequence[Word]) -> Word | None:
    """Return the word that names a TOML file of a command that starts torchtitan; None where none does."""
    if not any(word.text == TABLE.data["program"] for word in words):
        return None
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name.replace("-", "_") == f"__{TABLE.data['file']}":
            behind = words[at + 1] if at + 1 < len(words) else None
            return replace(word, text=value) if equals else behind
    return None


def _known(name: str) -> bool:
    section, _, key = name.removeprefix("--").partition(".")
    key = key.replace("-", "_").removeprefix("no_")
    return name in (*FUNCTION, "torchtitan.train") or key in SECTIONS.get(section, ())


def _add(document: WrittenDocument, words: Sequence[Word]) -> None:
    """Add overrides to the values; the last of equal ones counts."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.text.startswith(_SUBCOMMAND):
            mode = word.text.removeprefix(_SUBCOMMAND).replace("-", "_")
            document.entries[KEYS["recompute"]] = Written(mode, word.line or None, word.text)
        elif word.text.startswith("--"):
            name, equals, value = word.text.partition("=")
            behind = [] if equals else _values(words[position:])
            position += len(behind)
            value_words = [Word(value, word.line, word.unknown)] if equals else behind
            _set(document, name.removeprefix("--"), word.line, value_words)
        elif word.unknown is not None and not word.text and not word.unknown.name:
            document.refuse(f"overrides depend on {word.unknown.reason}", "script", word.line or None)


def _values(words: Sequence[Word]) -> list[Word]:
    values = []
    for word in words:
        if word.text.startswith(("--", _SUBCOMMAND)):
            break
        values.append(word)
    return values


def _set(document: WrittenDocument, name: str, line: int, value_words: Sequence[Word]) -> None:
    """Add one override; one without a value is a flag."""
    section, dot, key = name.replace("-", "_").partition(".")
    off = dot and not value_words and key.startswith("no_")
    path = f"{section}{dot}{key.removeprefix('no_') if off else key}"
    unknown = next((word.unknown for word in value_words if word.unknown is not None), None)
    if unknown is not None and path not in DEFAULTS and path not in _WANTED:
        return
    if unknown is not None:
        do = f": give --set {unknown.name}=VALUE" if unknown.name else ": give the override with --arg"
        document.refuse(f"its value depends on {unknown.reason}{do}", path, line or None)
        return
    texts = [word.text for word in value_words]
    value: Any = texts[0] if len(texts) == 1 else texts or not off
    if path == KEYS["modules"]:
        value = [text.split(",") for text in texts]
    shown = " ".join((f"--{name}", *texts))
    document.entries[path] = Written(value, line or None, shown[:200])


def _checked(document: WrittenDocument) -> WrittenDocument:
    """Return the document; misspelt keys of the sections that are read are problems of it.

    Keys of earlier versions count as the present ones, and what else may decide a layout leaves it open.
    """
    for old, new in TABLE.data["earlier_keys"].items():
        if old in document.entries and new not in document.entries:
            document.entries[new] = document.entries.pop(old)
    for section, names in SECTIONS.items():
        earlier = {
            old.rpartition(".")[2] for old in TABLE.data["earlier_keys"] if old.startswith(f"{section}.")
        }
        document.check_names(section, names | earlier, _FRAMEWORK)
    for path, written in document.entries.items():
        section, _, name = path.rpartition(".")
        if section not in SECTIONS and path not in DEFAULTS and path not in KEYS.values():
            document.leave_open(name, written)
    return document


def function_of(model: str) -> tuple[str, str] | None:
    """Return module and function of a model of the catalogue; None where torchtitan has none.

    >>> function_of("llama3-8b"), function_of("gpt2")
    (('llama3', 'llama3_8b'), None)
    """
    return next(
        (
            (function["module"], name)
            for name, function in CONFIG_FUNCTIONS.items()
            if model in function["models"]
        ),
        None,
    )
