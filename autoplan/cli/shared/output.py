"""Shared by the commands: formats, output files, and exit codes.

This module imports no more than typer needs, so that ``autoplan --help`` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from autoplan.report.render.terminal import Terminal

__all__ = [
    "BAD_INPUT",
    "BROKEN_PIPE",
    "INTERRUPTED",
    "NOTHING_FEASIBLE",
    "PLANNED",
    "DataFormat",
    "DataFormatOption",
    "DeadlineOption",
    "Format",
    "FormatOption",
    "JobArgument",
    "KindName",
    "OutputOption",
    "present",
    "write",
]

#: Exit code of an answer.
PLANNED: Final = 0
#: Exit code if no layout is feasible; the answer has the reasons.
NOTHING_FEASIBLE: Final = 1
#: Exit code of invalid input; standard output is empty.
BAD_INPUT: Final = 2
#: Exit code of an interrupt, 128 + SIGINT.
INTERRUPTED: Final = 130
#: Exit code of a closed pipe, 128 + SIGPIPE.
BROKEN_PIPE: Final = 141


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    yaml = "yaml"


class DataFormat(StrEnum):
    """Output formats for programs."""

    json = "json"
    yaml = "yaml"


class KindName(StrEnum):
    """The kinds of catalogue entries."""

    device = "device"
    node = "node"
    cluster = "cluster"
    model = "model"
    job = "job"
    grid = "grid"
    kernels = "kernels"
    stack = "stack"


JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A job file, or the name of a shipped job.", show_default=False),
]

FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="table for people; json or yaml for programs.",
    ),
]

DataFormatOption = Annotated[
    DataFormat, typer.Option("--format", "-f", metavar="FORMAT", help="json or yaml.")
]

DeadlineOption = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        metavar="SECONDS",
        min=0.0,
        help="End the search after SECONDS with the best plans so far and their optimality gap."
        " Left out: the job's deadline, 60 s unless it says otherwise.",
        show_default=False,
    ),
]

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to FILE, atomically, instead of standard output.",
        show_default=False,
    ),
]


def present(
    form: Format | DataFormat,
    output: Path | None,
    *,
    document: Callable[[], dict[str, Any]],
    table: Callable[[Terminal], str],
) -> None:
    """Write the answer in ``form``: a table, or a document as JSON or YAML."""
    if form.value == "table":
        from autoplan.report.render.terminal import terminal_of

        text = table(terminal_of(None if output else sys.stdout))
    else:
        from autoplan.report.render.serialization import dump

        text = dump(document(), "json" if form.value == "json" else "yaml")
    write(text, output)


def write(text: str, output: Path | None = None) -> None:
    """Write ``text`` to ``output`` atomically, or to standard output."""
    if output is not None:
        _replace(output, text)
        return
    if sys.stdout is None:  # closed by the parent process
        return
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    # Raises errors of a full disk or a closed pipe while they can be reported.
    sys.stdout.flush()


def _replace(output: Path, text: str) -> None:
    from autoplan.catalog.file_writing import write_whole

    try:
        write_whole(output, text.encode("utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise typer.BadParameter(f"cannot write {str(output)!r}: {reason}", param_hint="--output") from error
