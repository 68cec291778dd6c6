"""Validated models to YAML; ``load_model`` reads it back to an equal model."""

from __future__ import annotations

from typing import Any

import yaml

from autoplan.schema.base import TO_FILE, Frozen

#: Keys of mappings that are written on one line.
_SCALARS = (str, int, float, bool, type(None))
#: First keys of a file.
_HEAD = ("schema", "kind", "name", "title", "description")
_WIDTH = 10_000


class _Writer(yaml.SafeDumper):
    """Numbers with their source, and lists, stand in one line each, as people write them."""


def _mapping(writer: _Writer, value: dict[str, Any]) -> yaml.MappingNode:
    flat = "value" in value and all(isinstance(x, _SCALARS) for x in value.values())
    return writer.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=flat)


def _listing(writer: _Writer, value: list[Any]) -> yaml.SequenceNode:
    flat = all(isinstance(x, _SCALARS) for x in value)
    return writer.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flat)


_Writer.add_representer(dict, _mapping)
_Writer.add_representer(list, _listing)


def file_text(model: Frozen) -> str:
    """Return ``model`` as the YAML of its file: quantities with units, omitted keys stay omitted.

    >>> from autoplan.schema.base import SourcedShare
    >>> file_text(SourcedShare(value=0.87, kind="guess", source="none")).strip()
    '{value: 87 %, kind: guess, source: none}'
    """
    plain = model.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True, context={TO_FILE: True}
    )
    plain = {key: plain[key] for key in (*(k for k in _HEAD if k in plain), *plain)}
    text: str = yaml.dump(
        _value_first(plain), Dumper=_Writer, sort_keys=False, width=_WIDTH, allow_unicode=False
    )
    return text


def _value_first(plain: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return ``plain`` with the key ``value`` of each number first."""
    if isinstance(plain, dict):
        first = {"value": plain["value"]} if "value" in plain else {}
        return {**first, **{key: _value_first(x) for key, x in plain.items() if key != "value"}}
    return [_value_first(x) for x in plain] if isinstance(plain, list) else plain
