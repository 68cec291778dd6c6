"""``autoplan schema``: the JSON Schema of a file, for editors and other programs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from autoplan.cli.output import DataFormat, DataFormatOption, Kind, OutputOption, write

__all__ = ["schema"]


class File(StrEnum):
    """What is read: entries of the catalogues, and runs, which are the user's alone."""

    device = Kind.device
    node = Kind.node
    cluster = Kind.cluster
    model = Kind.model
    job = Kind.job
    grid = Kind.grid
    kernels = Kind.kernels
    stack = Kind.stack
    runs = "runs"


_KINDS = ", ".join(File)


def schema(
    kind: Annotated[
        File, typer.Argument(metavar="[KIND]", help=f"The kind of file: one of {_KINDS}.")
    ] = File.job,
    form: DataFormatOption = DataFormat.json,
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of file."""
    from autoplan.catalog import FILES
    from autoplan.report.text import dump
    from autoplan.schema.loader import json_schema
    from autoplan.schema.runs import RunsSpec

    read = RunsSpec if kind is File.runs else FILES[Kind(kind).value]
    write(dump(json_schema(read), form.value), output)
