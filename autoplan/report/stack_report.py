"""A stack with its inherited values, each marked with the stack that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import yaml

from autoplan.catalog import ExtendedStack
from autoplan.report.document_fields import Document
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.yaml.document import Path
from autoplan.schema.yaml.inheritance import OWN, Tree, completed, leaves

__all__ = ["stack_document", "stack_text"]

#: Where each value is from, by its path: a stack, the schema's default, or nothing for the file itself.
_Marks: TypeAlias = Mapping[Path, str]

_SOURCES: Final = "sources"
#: Keys before and after the model parameters.
_ENDS: Final = (*OWN, _SOURCES)
_DEFAULT: Final = "default"
#: Longest line that is padded so that marks form a column.
_WIDEST: Final = 60
#: Lines are not folded, so that a mark is on the line of its value.
_ENDLESS: Final = 1_000_000


def stack_text(stack: ExtendedStack) -> str:
    """Return ``stack`` as a YAML file without a parent, with comments on inherited values.

    ``# NAME`` is the stack that a value comes from, ``# default`` marks defaults.
    """
    complete = completed(stack.content, StackSpec)
    ordered = {key: complete[key] for key in (*OWN, *(x for x in complete if x not in _ENDS), _SOURCES)}
    marks = dict.fromkeys(_defaults(stack, complete), _DEFAULT) | stack.inherited
    lines = list(_lines(ordered, stack.origins, marks, ()))
    short = [len(line) for line, mark in lines if mark and len(line) <= _WIDEST]
    column = max(short, default=0)
    return "\n".join(f"{line:<{column}}  # {mark}" if mark else line for line, mark in lines) + "\n"


def stack_document(stack: ExtendedStack) -> Document:
    """Return the parents of ``stack``, the nearest first, its inherited values and its defaults by path."""
    return {
        "extends": list(stack.parents),
        "inherited": {_dotted(path): name for path, name in stack.inherited.items()},
        "defaults": [_dotted(path) for path in _defaults(stack, completed(stack.content, StackSpec))],
    }


def _defaults(stack: ExtendedStack, complete: Tree) -> list[Path]:
    """Return the paths of defaults in ``complete``."""
    given = {path for path, _ in leaves(stack.content)}
    return [path for path, _ in leaves(complete) if path not in given]


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _lines(content: Tree, origins: Tree, marks: _Marks, above: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of ``content`` below the keys ``above``, each with its mark."""
    for key, value in content.items():
        path, inner = (*above, key), origins.get(key)
        line = f"{'  ' * len(above)}{key}:"
        if isinstance(value, dict) and isinstance(inner, dict) and value:
            yield line, ""
            yield from _lines(value, inner, marks, path)
        else:
            yield f"{line} {_flow(value)}", marks.get(path, "")


def _flow(value: object) -> str:
    """Return ``value`` as YAML on one line.

    >>> _flow({"orders": ("tp-cp-dp-pp",), "note": "a: b"}), _flow(None)
    ("{orders: [tp-cp-dp-pp], note: 'a: b'}", 'null')
    """
    text: str = yaml.safe_dump(_lists(value), default_flow_style=True, sort_keys=False, width=_ENDLESS)
    return text.removesuffix("\n").removesuffix("\n...")


def _lists(value: object) -> object:
    """Return ``value`` with tuples converted to lists."""
    if isinstance(value, dict):
        return {key: _lists(inner) for key, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, tuple | list) else value
