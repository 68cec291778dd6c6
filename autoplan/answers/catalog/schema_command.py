"""``autoplan schema``: the JSON Schema of a file, for editors and other programs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from autoplan.commands.output import DataFormat, DataFormatOption, KindName, OutputOption, write

__all__ = [
    "schema",
]


class File(StrEnum):
    """Kinds of files: catalogue entries, measured runs, and saved answers of ``plan``."""

    device = KindName.device
    node = KindName.node
    cluster = KindName.cluster
    model = KindName.model
    job = KindName.job
    serving = KindName.serving
    grid = KindName.grid
    kernels = KindName.kernels
    stack = KindName.stack
    engine = KindName.engine
    engine_kernels = KindName.engine_kernels
    intervals = KindName.intervals
    program = KindName.program
    runs = "runs"
    plan = "plan"


_KINDS = ", ".join(File)


def schema(
    kind: Annotated[
        File, typer.Argument(metavar="[KIND]", help=f"Kind of file: one of {_KINDS}.")
    ] = File.job,
    form: DataFormatOption = DataFormat.json,
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of file; `plan` is the answer of plan --format json."""
    from autoplan.catalog import FILES
    from autoplan.report.render.serialization import dump
    from autoplan.schema.run_files import RunsSpec
    from autoplan.schema.saved_front import SavedFront
    from autoplan.schema.yaml.loader import json_schema

    others: dict[File, object] = {File.runs: RunsSpec, File.plan: SavedFront}
    read = others[kind] if kind in others else FILES[KindName(kind).value]
    write(dump(json_schema(read), form.value), output)
