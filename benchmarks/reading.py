"""Files of measured runs and of memory cases, read so that one bad entry costs that entry only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

__all__ = ["Unreadable", "fixed_sample", "read_entries"]

Row = TypeVar("Row")

#: libyaml where it is there: ten times faster than the loader in Python.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_ENTRY_START: Final = re.compile(r"^- ", re.MULTILINE)
_BLANK: Final = re.compile(r"\s*(#.*)?")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that is not YAML, and why."""

    reason: str


def read_entries(path: Path, key: str) -> list[object]:
    """Return the entries of ``path``: a YAML list, or the list under ``key``.

    Entries written as JSON, one a line after ``- ``, take a fast path. What cannot be read is an
    Unreadable in its place. Raises OSError where the file cannot be opened, ValueError where it
    holds no list.
    """
    text = path.read_text(encoding="utf-8-sig")
    entries = _split(text)
    if entries and all(_is_json_line(entry) for entry in entries):
        return [_from_json(entry) for entry in entries]
    try:
        value = yaml.load(text, Loader=_LOADER)  # noqa: S506 -- one of the two safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if entries:
            return [_from_yaml(entry) for entry in entries]
        raise ValueError(f"not YAML: {_one_line(error)}") from error
    found = value.get(key) if isinstance(value, dict) else value
    if isinstance(found, list):
        return found
    raise ValueError(f"a YAML list is needed, or a mapping with one under {key!r}")


def fixed_sample(rows: Sequence[Row], size: int, name_of: Callable[[Row], str]) -> list[Row]:
    """Return ``size`` of ``rows`` in their order: those whose names have the least SHA-256.

    The sample is the same in every run, favours nothing, and changes by few rows where some are added.

    >>> fixed_sample(["a", "b", "c"], 2, str)
    ['b', 'c']
    """
    drawn = sorted(range(len(rows)), key=lambda i: sha256(name_of(rows[i]).encode()).hexdigest())[:size]
    return [rows[i] for i in sorted(drawn)]


def _split(text: str) -> list[str]:
    """Return the text of each top-level list entry; what precedes the first is a header.

    A list that is indented has none: it is read as one document.
    """
    starts = [match.start() for match in _ENTRY_START.finditer(text)]
    return [text[a:b] for a, b in pairwise([*starts, len(text)])]


def _is_json_line(entry: str) -> bool:
    first, *rest = entry.splitlines()
    return first.startswith("- {") and all(_BLANK.fullmatch(line) for line in rest)


def _from_json(entry: str) -> object:
    try:
        value: object = json.loads(entry.splitlines()[0][2:])
    except (ValueError, RecursionError):
        return _from_yaml(entry)
    return value


def _from_yaml(entry: str) -> object:
    try:
        value = yaml.load(entry, Loader=_LOADER)  # noqa: S506 -- one of the two safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Unreadable(f"not YAML: {_one_line(error)}")
    return value[0] if isinstance(value, list) and value else Unreadable("not a list entry")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
