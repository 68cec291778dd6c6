"""Job files with new values of some keys, everything else as their author wrote it.

The positions are those of PyYAML's nodes, so that the text around a value is copied and not written anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.roots import names_file
from autoplan.errors import AutoplanError, SpecError, UnsupportedError
from autoplan.schema.job import Job, JobFile
from autoplan.schema.yaml.document import Plain
from autoplan.schema.yaml.parser import parse_yaml

#: Keys of a job file that may name other files.
_NAMING_FILES: Final = (
    "model",
    "hardware",
    "stack",
    "kernels",
    "workload.input_tokens.trace",
    "workload.output_tokens.trace",
)
#: Paths that YAML reads as text without quotes, wherever they are.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z0-9]")


def edited_file(job: Job, changes: Iterable[tuple[str, str]], folder: Path) -> tuple[str, Job]:
    """Return the text of the file of ``job`` with new values of keys, as a file of ``folder``, and its job.

    Values are YAML on one line; relative paths are rewritten for ``folder``. Raises UnsupportedError where
    ``job`` comes from no file, or where the edited file cannot be read.
    """
    source = job.source
    if source is None or not source.text:
        raise UnsupportedError("the job was built by a program and has no file to edit: make the edits there")
    text = edited_text(source, changes, folder)
    try:
        edited = job_of_text(text, source.reference, name=job.name, base=folder, reference=source.reference)
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    return text, edited


def edited_text(source: JobFile, changes: Iterable[tuple[str, str]], folder: Path) -> str:
    """Return the text of a job file of any kind with new values of keys, as a file of ``folder``.

    Raises UnsupportedError where the text cannot be edited.
    """
    try:
        text = _moved(source, folder)
        for key, value in changes:
            text = with_value(text, key.split("."), value)
    except AutoplanError as error:
        raise UnsupportedError(f"{source.reference} cannot be edited ({error}): edit it by hand") from error
    return text if text.endswith("\n") else f"{text}\n"


def _moved(source: JobFile, folder: Path) -> str:
    """Return the text of ``source`` with its relative paths as those of a file in ``folder``."""
    text = source.text
    if source.folder.resolve() == folder.resolve():
        return text
    document = parse_yaml(text, name=source.reference)
    for key in _NAMING_FILES:
        named = document.at(key.split("."))
        if not isinstance(named, str):
            continue
        # An engine's file may have its version behind it.
        name, at, version = named.rpartition("@") if "@" in named else (named, "", "")
        if (names_file(name) or key.endswith(".trace")) and not Path(name).is_absolute():
            moved = Path(os.path.relpath(source.folder / name, folder)).as_posix() + at + version
            written = moved if _PLAIN.fullmatch(moved) else json.dumps(moved)
            text = with_value(text, key.split("."), written)
    return text


_Node: TypeAlias = Any
_ALIAS: Final = re.compile(r"\*[^\s,\[\]{}]+")


def with_value(text: str, path: Sequence[str], value: str) -> str:
    r"""Return ``text``, whose root is a mapping, with ``value`` at ``path``, a sequence of keys.

    Of a list of mappings the number of an item, from 0, is a key as well.
    ``value`` is YAML on one line. Keys that are missing are added at the end of their mapping. Items that a
    new list lacks are removed line by line, so that the comments at the others stay. Raises SpecError where
    ``text`` is no YAML. An anchor at a value that is replaced is gone, and aliases of it lead nowhere.

    >>> with_value("limits: {step_time: 2 s}  # ours", ["limits", "step_time"], "3 s")
    'limits: {step_time: 3 s}  # ours'
    >>> with_value("classes: [{name: chat}, {name: rag}]", ["classes", "1", "limits", "goodput"], "90 %")
    'classes: [{name: chat}, {name: rag, limits: {goodput: 90 %}}]'
    >>> with_value("devices: 8", ["search", "recompute"], "any")
    'devices: 8\nsearch: {recompute: any}\n'
    """
    return _YamlText(text).with_value(path, value)


class _YamlText:
    """A YAML text and its root node."""

    def __init__(self, text: str) -> None:
        self.text = text
        # The scanner in Python: libyaml counts positions in bytes.
        try:
            self.root: _Node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise SpecError(f"not valid YAML: {getattr(error, 'problem', None) or error}") from error
        self.line_end = "\r\n" if "\r\n" in text else "\n"

    def with_value(self, path: Sequence[str], value: str) -> str:
        mapping, keys = self.root, list(path)
        while True:
            entry = next(((k, v) for k, v in mapping.value if k.value == keys[0]), None)
            if entry is None:
                return self._with_entry(mapping, f"{keys[0]}: {_nested(keys[1:], value)}")
            key, node = entry
            item = _item(node, keys)
            if item is not None and not _is_alias(key, node):
                mapping, keys = item, keys[2:]
                continue
            if len(keys) == 1 or not isinstance(node, yaml.MappingNode) or _is_alias(key, node):
                break
            mapping, keys = node, keys[1:]
        if isinstance(node, yaml.SequenceNode) and not node.flow_style and not _is_alias(key, node):
            shorter = self._without_items(node, path, value)
            if shorter is not None:
                return shorter
        return self._replaced(key, node, _nested(keys[1:], value))

    def _with_entry(self, mapping: _Node, entry: str) -> str:
        """Return the text with ``entry`` after the last one of ``mapping``."""
        if not mapping.value:
            start, end = mapping.start_mark.index, mapping.end_mark.index
            return f"{self.text[:start]}{{{entry}}}{self.text[end:]}"
        end = self._end(*mapping.value[-1])
        if mapping.flow_style:
            return f"{self.text[:end]}, {entry}{self.text[end:]}"
        indent = " " * int(mapping.value[0][0].start_mark.column)
        line = self.text.find("\n", end) + 1
        before = self.text[:line] if line else f"{self.text}{self.line_end}"
        return f"{before}{indent}{entry}{self.line_end}{self.text[line:] if line else ''}"

    def _replaced(self, key: _Node, node: _Node, value: str) -> str:
        """Return the text with ``value`` in the place of ``node``, the value of ``key``."""
        start, end = node.start_mark.index, self._end(key, node)
        colon = self.text.index(":", key.end_mark.index) + 1
        if _is_alias(key, node):
            alias = _ALIAS.search(self.text, colon)
            start = alias.start() if alias else colon
        if start > colon and "\n" in self.text[colon:start]:
            # A value that begins on a line of its own: the key's line keeps its comment.
            first, rest = self.text.index("\n", colon), self.text[end:]
            return f"{self.text[:colon]} {value}{self.text[colon:first].rstrip(chr(13))}{rest}"
        space = "" if start > colon else " "
        return f"{self.text[: max(start, colon)]}{space}{value}{self.text[max(end, colon) :]}"

    def _without_items(self, node: _Node, path: Sequence[str], value: str) -> str | None:
        """Return the text without the items of a list that ``value`` lacks; None where it is another list."""
        items, remaining = _at(self.text, path), _at(f"value: {value}", ["value"])
        if not isinstance(items, tuple) or not isinstance(remaining, tuple) or not remaining:
            return None
        wanted, dropped = list(remaining), []
        for item, item_node in zip(items, node.value, strict=True):
            if wanted and item == wanted[0]:
                wanted.pop(0)
            else:
                dropped.append(item_node)
        if wanted:
            return None
        text = self.text
        for item_node in reversed(dropped):
            first = text.rfind("\n", 0, item_node.start_mark.index) + 1
            end = text.find("\n", self._end(node, item_node)) + 1
            text = text[:first] + (text[end:] if end else "")
        return text

    def _end(self, key: _Node, node: _Node) -> int:
        """Return where the text of ``node`` ends; ``key`` is before it."""
        if _is_alias(key, node):
            alias = _ALIAS.search(self.text, key.end_mark.index)
            return alias.end() if alias else int(key.end_mark.index)
        if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
            last = node.value[-1]
            return self._end(*(last if isinstance(last, tuple) else (node, last)))
        start, end = node.start_mark.index, node.end_mark.index
        return int(start) + len(self.text[start:end].rstrip())


def _item(node: _Node, keys: Sequence[str]) -> _Node | None:
    """Return the mapping of a list that the second of several keys numbers, from 0, or None."""
    if not isinstance(node, yaml.SequenceNode) or len(keys) < 3 or not keys[1].isdecimal():
        return None
    number = int(keys[1])
    item = node.value[number] if number < len(node.value) else None
    return item if isinstance(item, yaml.MappingNode) else None


def _is_alias(key: _Node, node: _Node) -> bool:
    """Return whether ``node`` is written elsewhere: it begins before its key, or before its list."""
    return bool(node.start_mark.index < key.start_mark.index)


def _nested(keys: Sequence[str], value: str) -> str:
    for key in reversed(keys):
        value = f"{{{key}: {value}}}"
    return value


def _at(text: str, path: Sequence[str]) -> Plain:
    return parse_yaml(text, name="edited").at(path)
