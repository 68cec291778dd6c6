"""Values of a plan as a framework has them: words of a command, or keys of a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoplan.launch.bindings.interface import Binding, Interface
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout


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
