"""What serve commands say as plain values: a document, and a job file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Final

import yaml

from autoplan.launch.engines.served_run import EngineConfiguration
from autoplan.launch.header import as_comment
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout

__all__ = ["engine_document", "serving_job_text"]

#: Version of the document; goes up when it changes in a way that breaks a reader.
_SCHEMA: Final = 1
_WIDTH: Final = 100


def _fields(layout: EngineLayout, unspecified: Collection[str]) -> dict[str, Any]:
    """Return the fields of a layout; None for those that stay open."""
    return {key: None if key in unspecified else value for key, value in asdict(layout).items()}


def _layout_text(layout: EngineLayout | DisaggregatedLayout, unspecified: Collection[str]) -> str:
    """Return a layout as a string, without the fields that stay open."""
    if not isinstance(layout, EngineLayout):
        return str(layout)
    return ",".join(x for x in str(layout).split(",") if x.partition("=")[0] not in unspecified)


def engine_document(configuration: EngineConfiguration) -> dict[str, Any]:
    """Return ``configuration`` as a document; of pools the layout is a string alone."""
    layout = configuration.layout
    lines = {key: value.line for key, value in configuration.values.items() if value.line}
    return {
        "schema": _SCHEMA,
        "kind": "serving",
        "framework": configuration.engine,
        "file": configuration.file,
        "checkpoint": configuration.checkpoint,
        "layout": _fields(layout, configuration.unspecified) if isinstance(layout, EngineLayout) else {},
        "layout_string": _layout_text(layout, configuration.unspecified),
        "job": dict(configuration.job),
        "lines": lines,
        "defaults": list(configuration.defaults),
        "unspecified": list(configuration.unspecified),
        "warnings": list(configuration.warnings),
    }


def serving_job_text(configuration: EngineConfiguration) -> str:
    """Return ``configuration`` as a job file, with comments on what commands do not say."""
    lines = [
        f"read from {configuration.file}, commands of {configuration.engine}",
        f"its layout: {_layout_text(configuration.layout, configuration.unspecified)}",
        *configuration.warnings,
        *(f"not in the file: {field}" for field in configuration.unspecified),
        "add the hardware and the requests, such as `hardware: dgx-h100` (`autoplan catalog list node`)",
    ]
    if "speculation" in configuration.job:
        lines.append("add the acceptance of drafts, such as `acceptance: 0.75`, to speculation")
    text: str = yaml.safe_dump({"schema": 1, **configuration.job}, sort_keys=False, width=_WIDTH)
    return as_comment(tuple(lines)) + text
