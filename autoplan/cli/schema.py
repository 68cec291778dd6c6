"""``autoplan schema``: the JSON Schema of a file, for editors and other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from autoplan.cli.output import DataFormat, DataFormatOption, Kind, OutputOption, write

__all__ = ["schema"]

_KINDS = ", ".join(kind.value for kind in Kind)


def schema(
    kind: Annotated[
        Kind, typer.Argument(metavar="[KIND]", help=f"The kind of file: one of {_KINDS}.")
    ] = Kind.job,
    form: DataFormatOption = DataFormat.json,
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of file."""
    from autoplan.catalog import CLASSES
    from autoplan.report.text import dump
    from autoplan.schema.loader import json_schema

    write(dump(json_schema(CLASSES[kind.value]), form.value), output)
