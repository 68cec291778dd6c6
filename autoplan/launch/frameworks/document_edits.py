"""Edits of a JSON or YAML file by key, for values that differ from those of the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autoplan.launch.configuration import Written
from autoplan.results.launching.file_comparison import FileEdit

__all__ = ["KeyEdit", "changed_keys", "key_edits"]


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
    [('zero.stage', 3, False), ('zero.offload.device', None, True)]
    """
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    for path, value in new.items():
        if path not in old or old[path] != value:
            yield KeyEdit(path, value)
    for path in old:
        if path not in new:
            yield KeyEdit(path, None, removed=True)


def _leaves(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def key_edits(entries: Mapping[str, Written], wanted: Iterable[KeyEdit]) -> Iterator[FileEdit]:
    """Yield the edits of a file with ``entries`` that give its keys the ``wanted`` values."""
    for edit in wanted:
        written = entries.get(edit.path)
        name = edit.path.rpartition(".")[2]
        if edit.removed:
            if written is not None:
                yield FileEdit(written.words, "", written.line, edit.path)
        elif written is None:
            yield FileEdit("", f"{name}: {_text(edit.value)}", None, edit.path)
        elif written.value != edit.value or isinstance(written.value, bool) != isinstance(edit.value, bool):
            yield FileEdit(written.words, f"{name}: {_text(edit.value)}", written.line, edit.path)


def _text(value: object) -> str:
    """Return a value as JSON and YAML have it."""
    return json.dumps(value, ensure_ascii=True)
