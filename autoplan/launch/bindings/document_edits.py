"""Edits of a JSON or YAML file by key, for values that differ from those of the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from autoplan.launch.bindings.interface import Interface
from autoplan.launch.configuration import FileEdit, Written

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class KeyEdit:
    """A value that a key is to have; ``removed`` where it is to have none."""

    path: str
    value: Any
    removed: bool = False


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[KeyEdit]:
    """Yield the values in which the document ``after`` differs from ``before``, the nested ones by path.

    >>> old, new = {"zero": {"stage": 1, "offload": {"device": "cpu"}}}, {"zero": {"stage": 3}}
    >>> [(edit.path, edit.value, edit.removed) for edit in changed_keys(old, new)]
    [('zero.stage', 3, False), ('zero.offload', None, True)]
    """
    return _changed(before, after, "")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[KeyEdit]:
    for key, value in after.items():
        old = before.get(key, _ABSENT)
        if isinstance(value, Mapping) and value:
            yield from _changed(old if isinstance(old, Mapping) else {}, value, f"{prefix}{key}.")
        elif old != value:
            yield KeyEdit(f"{prefix}{key}", value)
    for key in before:
        if key not in after:
            yield KeyEdit(f"{prefix}{key}", None, removed=True)


def key_edits(entries: Mapping[str, Written], wanted: Iterable[KeyEdit]) -> Iterator[FileEdit]:
    """Yield the edits of a file with ``entries`` that give its keys the ``wanted`` values."""
    for edit in wanted:
        written = entries.get(edit.path)
        name = written.words.partition(":")[0] if written else edit.path.rpartition(".")[2]
        if edit.removed:
            if written is not None:
                yield FileEdit(written.words, "", written.line, edit.path)
        elif written is None:
            yield FileEdit("", f"{name}: {_text(edit.value)}", None, edit.path)
        elif written.value != edit.value or isinstance(written.value, bool) != isinstance(edit.value, bool):
            yield FileEdit(written.words, f"{name}: {_text(edit.value)}", written.line, edit.path)


def layout_edits(
    table: Interface, entries: Mapping[str, Written], document: Mapping[str, Any], usual: Mapping[str, str]
) -> tuple[FileEdit, ...]:
    """Return the edits that give a file the values of ``document``, the keys of a layout.

    Those that add a value which is ``usual`` for a binding are left out, and those that change nothing but
    the case of a name.
    """
    added = {f"{table.keys[name].rpartition('.')[2]}: {value}" for name, value in usual.items()}
    edits = key_edits(entries, changed_keys({}, document))
    return tuple(edit for edit in edits if not _idle(edit, entries.get(edit.path), added))


def _idle(edit: FileEdit, written: Written | None, added: set[str]) -> bool:
    if written is None:
        return edit.after in added
    return isinstance(written.value, str) and edit.after.lower().endswith(f'"{written.value.lower()}"')


def _text(value: object) -> str:
    """Return a value as JSON and YAML have it."""
    return json.dumps(value, ensure_ascii=True)


def edited_values(entries: Mapping[str, Written], edits: Iterable[FileEdit]) -> dict[str, Any]:
    """Return the values of a file after ``edits``, nested by key, as a program would hold them."""
    values = {
        path: written.value for path, written in entries.items() if not _is_section(path, written, entries)
    }
    for edit in edits:
        if edit.path and not edit.after:
            values_left = {
                path: value for path, value in values.items() if not f"{path}.".startswith(f"{edit.path}.")
            }
            values = values_left
        elif edit.path:
            values[edit.path] = json.loads(edit.after.partition(": ")[2])
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        place = nested
        for parent in parents:
            inner = place.get(parent)
            place[parent] = inner if isinstance(inner, dict) else {}
            place = place[parent]
        place[name] = value
    return nested


def _is_section(path: str, written: Written, entries: Mapping[str, Written]) -> bool:
    """Return whether a path is one of a mapping with keys, which have paths of their own."""
    if written.value is not None or written.words[-1:] != ":":
        return False
    return any(other.startswith(f"{path}.") for other in entries)
