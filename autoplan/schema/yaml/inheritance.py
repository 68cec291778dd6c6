"""Files that extend others: merging the content of a file over that of its parent.

Groups and tables are merged key by key; a text, a switch, a count, a list and a number with its source are
each replaced as a unit, so that notes and sources stay with their values. An
empty value (``null``) removes that of the parent, so that the default of the schema applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, get_origin

from pydantic import BaseModel

from autoplan.schema.base import Sourced
from autoplan.schema.yaml.annotations import Place, below, fields, unfold
from autoplan.schema.yaml.document import Path, Plain

#: The key that names the parent.
EXTENDS: Final = "extends"
#: Keys that are not inherited.
OWN: Final = ("schema", "kind", "name", "title", "description")

#: Nested mappings whose leaves are not mappings, or are replaced as a unit.
Tree: TypeAlias = Mapping[str, Any]


def merged(parent: Tree, child: Tree, model: object) -> dict[str, Any]:
    """Return the content of ``child`` over that of ``parent``, both files of ``model``.

    >>> from autoplan.schema.costmodel.stack import StackSpec
    >>> parent = {"memory": {"state_bytes": 4, "master_bytes": 4}, "rules": {"zero_stages": (0, 1)}}
    >>> child = {"memory": {"master_bytes": 0}, "rules": {"zero_stages": (3,)}}
    >>> merged(parent, child, StackSpec)
    {'memory': {'state_bytes': 4, 'master_bytes': 0}, 'rules': {'zero_stages': (3,)}}
    """
    inherited = {key: value for key, value in parent.items() if key not in OWN}
    return _merged(inherited, child, unfold(model))


def _merged(parent: Tree, child: Tree, place: Place) -> dict[str, Any]:
    result = dict(parent)
    for key, value in child.items():
        inner = below(place, key)
        if value is None and key in parent:
            del result[key]
        elif isinstance(value, dict) and isinstance(parent.get(key), dict) and _is_merged(inner):
            result[key] = _merged(parent[key], value, inner)
        else:
            result[key] = value
    return result


def _is_merged(place: Place) -> bool:
    """Return whether mappings at ``place`` are merged key by key: groups of knobs, and tables by name."""
    origins: list[object] = [get_origin(x) for x in place]
    return dict in origins or any(_is_group(x) for x in place)


def _is_group(annotation: object) -> bool:
    return (
        isinstance(annotation, type)
        and issubclass(annotation, BaseModel)
        and not issubclass(annotation, Sourced)
    )


def labelled(content: Tree, label: str, model: object) -> dict[str, Any]:
    """Return ``content`` with ``label`` in the place of every value that is replaced as a unit.

    Merged like the contents, it gives the origin of each value. Empty values stay empty.
    """
    return _labelled(content, label, unfold(model))


def _labelled(content: Tree, label: str, place: Place) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in content.items():
        inner = below(place, key)
        if isinstance(value, dict) and _is_merged(inner):
            result[key] = _labelled(value, label, inner)
        else:
            result[key] = None if value is None else label
    return result


def leaves(tree: Tree, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each leaf of ``tree`` with its path."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def completed(content: Tree, model: object) -> dict[str, Any]:
    """Return ``content``, a file of ``model``, in the schema's order and with its defaults written out."""
    return _completed(content, unfold(model))


def _completed(content: Tree, place: Place) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, info in fields(place).items():
        inner, value = unfold(info.annotation), content.get(key)
        if key not in content and not info.is_required():
            result[key] = _written(info.get_default(call_default_factory=True))
        elif key in content:
            group = isinstance(value, dict) and any(_is_group(x) for x in inner)
            result[key] = _completed(content[key], inner) if group else value
    return result


def _written(value: object) -> Plain:
    """Return a default as a file writes it; defaults are switches, counts, words and lists of them."""
    return tuple(map(_written, value)) if isinstance(value, tuple | list) else value  # type: ignore[return-value]


def partial_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a file that may extend another; keys are required only if it does not."""
    parts = ((name, part) for name, part in schema["$defs"].items() if "source" not in part["properties"])
    needed = {name: part.pop("required") for name, part in parts if "required" in part}
    for table in (x for x in schema["properties"].values() if "additionalProperties" in x):
        table["additionalProperties"] = {"anyOf": [table["additionalProperties"], {"type": "null"}]}
    keys = [key for key in schema["required"] if key in OWN]
    groups = {key: {"required": needed[name]} for key, name in _groups(schema, needed)}
    alone = {"required": schema["required"], "properties": groups}
    return {**schema, "required": keys, "if": {"not": {"required": [EXTENDS]}}, "then": alone}


def _groups(schema: Mapping[str, Any], needed: Tree) -> Iterator[tuple[str, str]]:
    """Yield each key of ``schema`` whose value is a group with required keys, and the group's name."""
    for key, value in schema["properties"].items():
        for option in (value, *value.get("anyOf", ())):
            name = str(option.get("$ref", "")).rpartition("/")[2]
            if name in needed:
                yield key, name
