"""Shared by the commands: formats, output files, messages, and exit codes.

This module imports no more than typer needs, so that ``autoplan --help`` is fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

if TYPE_CHECKING:
    from autoplan.report.render.terminal import Terminal
    from autoplan.results import Plan
    from autoplan.schema.job import Job

__all__ = [
    "BAD_INPUT",
    "BROKEN_PIPE",
    "INTERRUPTED",
    "NOTHING_FEASIBLE",
    "PLANNED",
    "DataFormat",
    "DataFormatOption",
    "Format",
    "FormatOption",
    "JobArgument",
    "KindName",
    "OutputOption",
    "asks_for_trace",
    "checked_output",
    "complain",
    "discard",
    "escaped",
    "present",
    "standard_output",
    "write",
    "write_trace",
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

#: A colour or a weight of text on a terminal, as rich writes them.
_STYLE: Final = re.compile(r"(\x1b\[[0-9;]*m)")


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
    serving = "serving"
    grid = "grid"
    kernels = "kernels"
    stack = "stack"
    engine = "engine"
    engine_kernels = "engine-kernels"
    intervals = "intervals"
    program = "program"


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job file, or the name of a shipped job; left out with --model and --hardware.",
        show_default=False,
    ),
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


def standard_output(output: Path | None) -> Path | None:
    """Return None, which stands for standard output, for the file ``-``; any other file as it is."""
    return None if output == Path("-") else output


def checked_output(output: Path | None) -> Path | None:
    """Return the file to write, None for standard output; refuse what cannot be written before any work."""
    output = standard_output(output)
    if output is not None:
        from autoplan.catalog.file_writing import check_target

        _told(output, lambda: check_target(output))
    return output


OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to FILE, atomically, instead of standard output (-).",
        show_default=False,
        callback=checked_output,
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

        terminal = terminal_of(None if output else sys.stdout)
        text = escaped(table(terminal), styled=terminal.colour)
    else:
        from autoplan.report.render.serialization import dump

        text = dump(document(), "json" if form.value == "json" else "yaml")
    write(text, output)


def escaped(text: str, *, styled: bool = False) -> str:
    """Return ``text`` with every character escaped that acts on a terminal instead of being seen on it.

    These are control characters, those that change the direction of text, and every other that is neither
    a sign nor a space; line feeds stay, and the colours of a text that is ``styled``.

    >>> escaped("naïve"), len(escaped(chr(0x202E))), len(escaped(chr(7)))
    ('naïve', 6, 4)
    """
    if styled:
        parts = _STYLE.split(text)
        return "".join(part if at % 2 else escaped(part) for at, part in enumerate(parts))
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_visible, line)) for line in lines)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() and character > "\x7f" else character.encode("unicode_escape").decode()


def complain(lines: Iterable[str]) -> None:
    """Write ``lines`` to standard error; where that is full or closed, nothing fails."""
    try:
        for line in lines:
            typer.echo(escaped(line), err=True)
    except (OSError, ValueError):
        discard(sys.stderr)


def discard(stream: TextIO | None) -> None:
    """Send what is left for ``stream`` nowhere, so that leaving does not fail once more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno() if stream else -1)
    except (OSError, ValueError):
        return


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

    _told(output, lambda: write_whole(output, text.encode("utf-8")))


def _told(output: Path, act: Callable[[], None]) -> None:
    """Run ``act``, and refuse the option where ``output`` cannot be written."""
    try:
        act()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise typer.BadParameter(f"cannot write {str(output)!r}: {reason}", param_hint="--output") from error


# ``--output trace.json``: the predicted step as a trace, in addition to the table.


def asks_for_trace(form: Format, output: Path | None) -> bool:
    """Return whether ``--output`` names a trace: its name ends in trace.json, and no document was asked for.

    >>> asks_for_trace(Format.table, Path("my-trace.json")), asks_for_trace(Format.json, Path("trace.json"))
    (True, False)
    """
    return output is not None and output.name.endswith("trace.json") and form is Format.table


def write_trace(job: Job, plan: Plan, output: Path) -> None:
    """Write the predicted step of ``plan`` to ``output``."""
    from autoplan import planning
    from autoplan.report.charts.predicted_trace import predicted_trace

    timeline = planning.predicted_step(job, plan.layout)
    write(predicted_trace(job, plan, timeline, planning.communication(job, plan.layout)), output)
