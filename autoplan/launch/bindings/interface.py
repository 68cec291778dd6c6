"""The interface of a framework: a table of its keys or arguments, ``specs/interfaces/NAME.yaml``.

A binding says which key of the framework stands for what of ours, what values are called there, and what
holds where the key is missing. Everywhere else a key goes by the name of its binding. Values of a plan are
written by it as words of a command, or as keys of a document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import yaml

from autoplan.catalog.roots import shipped_text
from autoplan.launch.configuration import Configuration, FileEdit, LaunchFile
from autoplan.launch.target import Emission, PlannedRun, Target
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

_FOLDER: Final = ("specs", "interfaces")
#: Types whose rows of a table may leave it out.
_USUAL: Final = "text"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Binding:
    """A key or argument of a framework.

    ``kind`` is ``count`` (at least 1), ``size`` (at least 0), ``fraction``, ``switch``, ``text`` or ``words``
    (several). ``source`` is where its value is in a plan, such as ``layout.tp``; ``names`` are the
    framework's names of our values, and ``earlier`` other keys of the same meaning. ``decides`` is the field
    that a switch or a name decides, and ``sets`` has its values by those of the key, of which None is none.
    ``read`` is False for what is written only.
    """

    name: str
    key: str
    kind: str = _USUAL
    source: str | None = None
    default: Any = None
    names: Mapping[Any, Any] = field(default_factory=dict)
    read: bool = True
    earlier: tuple[str, ...] = ()
    decides: str = ""
    sets: Mapping[Any, Any] = field(default_factory=dict)

    def ours(self, theirs: object) -> Any:  # noqa: ANN401 - any value of ours
        """Return our value that the framework calls ``theirs``, the first of several; None where none is."""
        return next((ours for ours, name in self.names.items() if name == theirs), None)


@dataclass(frozen=True, slots=True)
class Interface:
    """The bindings of a framework, by group, with the other tables of its file.

    ``keys`` has the key of each binding, ``earlier`` others of the same meaning; ``data`` is the whole file.
    """

    name: str
    groups: Mapping[str, Mapping[str, Binding]]
    keys: Mapping[str, str]
    data: Mapping[str, Any]
    earlier: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def read(self) -> frozenset[str]:
        """All keys, with those of the same meaning."""
        return frozenset((*self.keys.values(), *(key for keys in self.earlier.values() for key in keys)))

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
    bindings = [binding for rows in groups.values() for binding in rows.values()]
    keys = {binding.name: binding.key for binding in bindings}
    earlier = {binding.name: binding.earlier for binding in bindings if binding.earlier}
    return Interface(name, groups, keys, data, earlier)


def _binding(name: str, row: Mapping[str, Any] | str) -> Binding:
    """Return the binding of one row, which is the key alone where the rest is usual."""
    if isinstance(row, str):
        return Binding(name, row)
    decided, values = next(iter(row.get("sets", {"": {}}).items()))
    return Binding(
        name=name,
        key=row["key"],
        kind=row.get("type", _USUAL),
        source=row.get("from"),
        default=row.get("default"),
        names=row.get("names", {}),
        read=row.get("read", True),
        earlier=tuple(row.get("earlier", ())),
        decides=decided,
        sets=values,
    )


@cache
def listed_data(name: str) -> Mapping[str, Any]:
    """Return a list of arguments or keys, ``specs/interfaces/NAME.json``."""
    data: Mapping[str, Any] = json.loads(shipped_text(*_FOLDER, f"{name}.json"))
    return data


def plan_values(table: Interface, group: str, job: Job, layout: Layout | None = None) -> dict[str, Any]:
    """Return the values by binding that a plan has for the rows of ``group`` with a source.

    What a plan does not have, and a switch that is off, is left out. Values are those of the framework.
    """
    places = {"job": job, "layout": layout, "model": job.model}
    values = {
        name: _theirs(binding, _at(places, binding.source.split(".")))
        for name, binding in table.groups[group].items()
        if binding.source is not None
    }
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _at(places: Mapping[str, Any], path: list[str]) -> Any:  # noqa: ANN401 - any value of a plan
    value = places[path[0]]
    for name in path[1:]:
        value = None if value is None else getattr(value, name)
    return value


def _theirs(binding: Binding, value: Any) -> Any:  # noqa: ANN401 - any value of a plan
    if binding.kind == "switch":
        return bool(value)
    return binding.names.get(value) if binding.names else value


def argument_words(table: Interface, values: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the words of each argument that has a value, in the order of the table.

    >>> from autoplan.launch.bindings.interface import interface
    >>> table = interface("megatron-lm")
    >>> list(argument_words(table, {"bf16": True, "tp": 4, "recompute_modules": ("a", "b")}))
    [('--tensor-model-parallel-size', '4'), ('--recompute-modules', 'a', 'b'), ('--bf16',)]
    """
    for binding in table:
        value = values.get(binding.name)
        if value is None or value is False:
            continue
        if value is True:
            yield (binding.key,)
        else:
            yield (binding.key, *map(str, value if isinstance(value, tuple) else (value,)))


def nested(table: Interface, values: Mapping[str, Any], empty: Sequence[str] = ()) -> dict[str, Any]:
    """Return values by binding as a document, nested by the parts of their keys, in the order of the table.

    Those without a value are left out, but for the ``empty`` ones, which are null.

    >>> from autoplan.launch.bindings.interface import interface
    >>> nested(interface("deepspeed"), {"bf16": True, "mbs": 2, "cp": None})
    {'train_micro_batch_size_per_gpu': 2, 'bf16': {'enabled': True}}
    """
    document: dict[str, Any] = {}
    for binding in table:
        if values.get(binding.name) is None and binding.name not in empty:
            continue
        *sections, key = binding.key.split(".")
        inner = document
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = values.get(binding.name)
    return document


def target_of(
    table: Interface,
    *,
    recognises: Callable[[LaunchFile], bool],
    read: Callable[[LaunchFile], Configuration],
    emit: Callable[[PlannedRun], Emission] | None = None,
    edits: Callable[[LaunchFile, Job, Layout, Layout], tuple[FileEdit, ...]] | None = None,
) -> Target:
    """Return the target of a framework, called as its table says, in the directions that it has."""
    data = table.data
    return Target(table.name, data["title"], data["version"], data["check"], emit, recognises, read, edits)
