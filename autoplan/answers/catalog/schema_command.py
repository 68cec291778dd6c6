"""``autoplan schema``: the JSON Schema of a file, for editors and other programs."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, cast

import typer

from autoplan.catalog.roots import KINDS, EntryKind
from autoplan.commands.output import DataFormat, DataFormatOption, OutputOption, write

__all__ = [
    "schema",
]


#: Kinds of files: catalogue entries, measured runs, and saved answers of ``plan``.
FileKind: TypeAlias = Literal[EntryKind, "runs", "plan"]
_NAMES = ", ".join((*KINDS, "runs", "plan"))


def schema(
    kind: Annotated[
        FileKind, typer.Argument(metavar="[KIND]", help=f"Kind of file: one of {_NAMES}.")
    ] = "job",
    form: DataFormatOption = DataFormat.json,
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of file; `plan` is the answer of plan --format json."""
    from autoplan.catalog import FILES
    from autoplan.report.render.serialization import dump
    from autoplan.schema.run_files import RunsSpec
    from autoplan.schema.saved_front import SavedFront
    from autoplan.schema.yaml.loader import json_schema

    others: dict[str, object] = {"runs": RunsSpec, "plan": SavedFront}
    read = others[kind] if kind in others else FILES[cast("EntryKind", kind)]
    write(dump(json_schema(read), form.value), output)
