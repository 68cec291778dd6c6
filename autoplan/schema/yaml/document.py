"""A parsed YAML text: plain values, and the line of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

from autoplan.errors import Problem, SpecError

Plain: TypeAlias = "str | int | float | bool | dict[str, Plain] | tuple[Plain, ...] | None"
Path: TypeAlias = tuple[str | int, ...]

_BARE_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a mapping or list: where it begins, those of its keys, and those of its values."""

    begin: int
    keys: Mapping[str, int] = field(default_factory=dict)
    below: Mapping[str | int, Lines | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed YAML text: ``name`` for messages, plain ``value``, and ``lines``."""

    name: str
    value: Plain
    lines: Lines | int

    def at(self, path: Sequence[str | int]) -> Plain:
        """Return the value at ``path``, or None."""
        node: Any = self.value
        for part in path:
            try:
                node = node[part]
            except (KeyError, IndexError, TypeError):
                return None
        return node  # type: ignore[no-any-return]

    def line(self, path: Sequence[str | int], *, key: bool = False) -> int:
        """Return the line, from 1, of the value at ``path``, or of its key where ``key`` is true.

        A path that leads out of the document gives the line of the last part that is in it.

        >>> lines = Lines(1, {"a": 1}, {"a": Lines(2, {"b": 2}, {"b": 2})})
        >>> document = Document("x.yaml", {"a": {"b": True}}, lines)
        >>> document.line(["a", "b"]), document.line(["a"], key=True)
        (2, 1)
        """
        node, key_line = self.lines, None
        for part in path:
            if isinstance(node, int) or part not in node.below:
                break
            key_line = node.keys.get(part) if isinstance(part, str) else None
            node = node.below[part]
        if key and key_line is not None:
            return key_line
        return node if isinstance(node, int) else node.begin


def format_path(path: Sequence[str | int]) -> str:
    """Return ``path`` as text.

    >>> format_path(["search", "tensor_parallel", 2]), format_path(["a b"])
    ('$.search.tensor_parallel[2]', "$['a b']")
    """
    return "$" + "".join(_format_part(part) for part in path)


def _format_part(part: str | int) -> str:
    if isinstance(part, str) and _BARE_KEY.fullmatch(part) and len(part) <= 60:
        return f".{part}"
    return f"[{shown(part)}]"


def shown(value: object) -> str:
    """Return ``value`` as a message quotes it: short, and in the words of YAML.

    >>> shown("fp17"), shown(True), shown(None), shown((1, 2))
    ("'fp17'", 'true', 'an empty value', 'a list')
    """
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, str) and len(value) > 60:
        value = f"{value[:57]}..."
    return repr(value)


def refuse(message: str, name: str, line: int | None, path: Path = ()) -> NoReturn:
    """Raise a SpecError of one problem: ``message`` at ``path`` of the file called ``name``."""
    raise SpecError([Problem(message, format_path(path), name, line)])
