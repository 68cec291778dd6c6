"""Edits of overrides of Megatron Bridge, and values as Hydra reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.file_comparison import FileEdit
from autoplan.launch.frameworks.bridge.bridge_keys import MIRRORED
from autoplan.launch.frameworks.bridge.bridge_values import override_document

__all__ = ["edits_between", "hydra_text"]


def edits_between(
    file: LaunchFile, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FileEdit]:
    """Yield the edits of ``file`` that make its overrides ``after`` instead of ``before``.

    A key that a YAML file lacks is named by its path, and is a word of Hydra in a script.
    """
    hydra = re.search(r"(?m)^model\s*:", file.text) is None
    entries = override_document(file)[0].entries
    for path, value in after.items():
        entry = entries.get(path)
        if value == before.get(path) or (entry is None and path in MIRRORED.values()):
            continue
        key = path if entry is None else path.rpartition(".")[2]
        text = f"{path}={hydra_text(value)}" if hydra else f"{key}: {_yaml_text(value)}"
        yield FileEdit(entry.words if entry else "", text, entry.line if entry else None)


def _yaml_text(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def hydra_text(value: object) -> str:
    """Return a value as Hydra reads it; text is quoted, and none of it has a quote.

    >>> hydra_text({"stages": "Et|tL", "more": [None, True, 2]})
    "{stages: 'Et|tL', more: [null,true,2]}"
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {hydra_text(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        # Names in a list, such as modules, are plain words.
        return f"[{','.join(item if isinstance(item, str) else hydra_text(item) for item in value)}]"
    return f"'{value}'" if isinstance(value, str) else str(value)
