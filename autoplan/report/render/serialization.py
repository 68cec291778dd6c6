"""Documents as text."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, Final, Literal

#: One level of indentation.
_INDENT: Final = "  "
_encoded = json.JSONEncoder(allow_nan=False).encode


def dump(document: dict[str, Any], form: Literal["json", "yaml"]) -> str:
    """Return ``document`` as JSON or YAML, keys in their order, in ASCII, so that any pipe carries it.

    >>> print(dump({"schema": 1, "front": []}, "yaml"), end="")
    schema: 1
    front: []
    """
    if form == "json":
        return _json(document, "\n") + "\n"
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, width=100)
    return text


def _json(value: Any, line: str) -> str:  # noqa: ANN401 - plain values
    r"""Return what ``json.dumps`` with an indent of 2 does, in half of its time; ``line`` starts a line.

    >>> document = {"schema": 1, "front": [], "rows": [1.5, {"a": None, "b": "\u00e9"}]}
    >>> _json(document, "\n") == json.dumps(document, indent=2)
    True
    """
    # Classes are compared, since ``isinstance`` would take as long as all the rest.
    kind = value.__class__
    if kind is str:
        return encode_basestring_ascii(value)
    if kind is int or (kind is float and isfinite(value)):
        return repr(value)
    if not value or not isinstance(value, (dict, list, tuple)):
        return _encoded(value)
    inner = line + _INDENT
    if isinstance(value, dict):
        entries = [f"{inner}{_key(key)}: {_json(entry, inner)}" for key, entry in value.items()]
        return f"{{{','.join(entries)}{line}}}"
    return f"[{','.join([inner + _json(entry, inner) for entry in value])}{line}]"


def _key(key: object) -> str:
    """Return a key of a mapping as JSON, which has texts alone as keys."""
    return encode_basestring_ascii(key if isinstance(key, str) else _encoded(key))
