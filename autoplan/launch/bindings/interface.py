"""The interface of a framework: a table of its keys or arguments, ``specs/interfaces/NAME.yaml``.

A binding says which key of the framework stands for what of ours, what values are called there, and what
holds where the key is missing. Everywhere else a key goes by the name of its binding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import yaml

from autoplan.catalog.roots import shipped_text

_FOLDER: Final = ("specs", "interfaces")
#: Types whose rows of a table may leave it out.
_USUAL: Final = "text"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Binding:
    """A key or argument of a framework.

    ``kind`` is ``count`` (at least 1), ``size`` (at least 0), ``fraction``, ``switch``, ``text`` or ``words``
    (several). ``source`` is where its value is in a plan, such as ``layout.tp``; ``names`` are the
    framework's names of our values. ``read`` is False for what is written only.
    """

    name: str
    key: str
    kind: str = _USUAL
    source: str | None = None
    default: Any = None
    names: Mapping[Any, Any] = field(default_factory=dict)
    read: bool = True

    def ours(self, theirs: object) -> Any:  # noqa: ANN401 - any value of ours
        """Return our value that the framework calls ``theirs``, the first of several; None where none is."""
        return next((ours for ours, name in self.names.items() if name == theirs), None)


@dataclass(frozen=True, slots=True)
class Interface:
    """The bindings of a framework, by group, with the other tables of its file.

    ``keys`` has the key of each binding; ``data`` is the whole file.
    """

    name: str
    groups: Mapping[str, Mapping[str, Binding]]
    keys: Mapping[str, str]
    data: Mapping[str, Any]

    def __getitem__(self, name: str) -> Binding:
        """Return the binding called ``name``."""
        return next(group[name] for group in self.groups.values() if name in group)

    def __iter__(self) -> Iterator[Binding]:
        """Yield all bindings, in order."""
        return (binding for group in self.groups.values() for binding in group.values())


@cache
def interface(name: str) -> Interface:
    """Return the interface called ``name``.

    >>> table = interface("megatron-lm")
    >>> table.keys["tp"], table["tp"].source, table["norm"].ours("RMSNorm")
    ('--tensor-model-parallel-size', 'layout.tp', 'rmsnorm')
    """
    # A file that the package ships, in plain YAML.
    data = yaml.load(shipped_text(*_FOLDER, f"{name}.yaml"), _LOADER)  # noqa: S506 - a safe loader
    groups = {
        group: {row: _binding(row, value) for row, value in rows.items()}
        for group, rows in data["bindings"].items()
    }
    keys = {binding.name: binding.key for rows in groups.values() for binding in rows.values()}
    return Interface(name, groups, keys, data)


def _binding(name: str, row: Mapping[str, Any] | str) -> Binding:
    """Return the binding of one row, which is the key alone where the rest is usual."""
    if isinstance(row, str):
        return Binding(name, row)
    return Binding(
        name=name,
        key=row["key"],
        kind=row.get("type", _USUAL),
        source=row.get("from"),
        default=row.get("default"),
        names=row.get("names", {}),
        read=row.get("read", True),
    )


@cache
def listed_data(name: str) -> Mapping[str, Any]:
    """Return a list of arguments or keys, ``specs/interfaces/NAME.json``."""
    data: Mapping[str, Any] = json.loads(shipped_text(*_FOLDER, f"{name}.json"))
    return data
