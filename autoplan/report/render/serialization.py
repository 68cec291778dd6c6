"""Documents as text."""

from __future__ import annotations

import json
from typing import Any, Literal

__all__ = ["dump"]


def dump(document: dict[str, Any], form: Literal["json", "yaml"]) -> str:
    """Return ``document`` as JSON or YAML in its own order, in ASCII, so that any pipe carries it.

    >>> print(dump({"schema": 1, "front": []}, "yaml"), end="")
    schema: 1
    front: []
    """
    if form == "json":
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    import yaml

    text: str = yaml.safe_dump(document, sort_keys=False, width=100)
    return text
