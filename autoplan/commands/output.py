"""Shared by the commands: options, formats, output files, messages, and exit codes.

This module imports no more than typer needs, so that ``autoplan --help`` is fast.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO, TypeVarTuple

import typer

from autoplan.errors import UnsupportedError
from autoplan.lazy import Later

if TYPE_CHECKING:
    from autoplan.costs.core.prediction import StepTimeline
    from autoplan.report.pages.page_sections import PageRequest
    from autoplan.report.render.blocks import Block
    from autoplan.report.render.terminal import Terminal
    from autoplan.results.plan import Plan
    from autoplan.schema.job import Job


def option(name: str, metavar: str, text: str, *names: str, **limits: Any) -> Any:  # noqa: ANN401 - typer's
    """Return the option ``name``; ``limits`` are those of typer, such as ``min``."""
    return typer.Option(name, *names, metavar=metavar, help=text, show_default=False, **limits)


def argument(metavar: str, text: str) -> Any:  # noqa: ANN401 - typer's
    """Return the argument that the help calls ``metavar``."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


Answer = TypeVarTuple("Answer")

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

#: How the name of a file ends that is to have the predicted step as a trace.
_TRACE: Final = "trace.json"
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


JobArgument = Annotated[
    str, argument("JOB", "A job file, or the name of a shipped job; left out with --model and --hardware.")
]

LayoutOption = Annotated[
    str | None,
    option(
        "--layout",
        "LAYOUT",
        "The layout, such as tp=2,pp=2,mbs=1,recompute=selective; omitted keys have their defaults.",
        "-l",
    ),
]

#: Suffixes of ``--output`` that say the format where ``--format`` is left out.
_FORMS: Final = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def is_typed(context: typer.Context, name: str) -> bool:
    """Return whether the parameter ``name`` stands on the command line, rather than has its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def form_of_suffix(output: Path | None) -> str | None:
    """Return the format that the name of a file asks for; None of a trace, and where it asks for none.

    >>> form_of_suffix(Path("plan.YAML")), form_of_suffix(Path("my-trace.json")), form_of_suffix(Path("plan"))
    ('yaml', None, None)
    """
    if output is None or output.name.endswith(_TRACE):
        return None
    return _FORMS.get(output.suffix.lower())


def _suffix_of_output(context: typer.Context) -> str | None:
    """Return the format that ``--output`` asks for where ``--format`` is not typed.

    Options that are typed are read before those that are not, so that the file is known.
    """
    # Earlier versions of typer make a path of it only afterwards.
    output = context.params.get("output")
    return None if is_typed(context, "form") or output is None else form_of_suffix(Path(output))


def _chosen(context: typer.Context, form: Format) -> Format:
    return Format(_suffix_of_output(context) or form)


def _chosen_data(context: typer.Context, form: DataFormat) -> DataFormat:
    return DataFormat(_suffix_of_output(context) or form)


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="table for people; json or yaml for programs. Left out: by the suffix of --output FILE.",
        callback=_chosen,
    ),
]

DataFormatOption = Annotated[
    DataFormat,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="json or yaml. Left out: by the suffix of --output FILE.",
        callback=_chosen_data,
    ),
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
    option(
        "--output",
        "FILE",
        "Write to FILE, atomically, instead of standard output (-).",
        "-o",
        callback=checked_output,
    ),
]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an answer goes: its form, the file or standard output, and the command that was typed."""

    form: str
    output: Path | None = None
    command: str = ""


def page_of(answer: str, name: str) -> Callable[..., str]:
    """Return the function ``name`` that makes the page of an ``answer``, imported where one is made."""
    return Later[..., str](f"autoplan.answers.{answer}.page", name)


def present(
    where: Destination,
    *answer: *Answer,
    document: Callable[[*Answer], dict[str, Any]],
    table: Callable[[*Answer, Terminal], str | Iterable[Block]],
    page: Callable[[*Answer, PageRequest], str] | None = None,
    trace: Callable[[], str] | None = None,
    picture: Callable[[], str] | None = None,
) -> None:
    """Write the ``answer`` where it goes: a table, a document as JSON or YAML, a page, or a picture.

    Where the name of the file asks for a page or a trace that the answer has, that is written there and the
    table is printed. A trace may be empty: then nothing is written. An answer without a trace is JSON there;
    one without a page is refused.
    """
    form, output = where.form, where.output
    if trace is None and asks_for_trace(form, output):
        form = Format.json
    written = None if page is None else lambda: page(*answer, _page_request(where.command))
    _refuse_missing(form, output, written)
    alone = {"html": written, "svg": picture}.get(form)
    if alone is not None:
        write(alone(), output)
        return
    beside = _beside(form, output, written, trace)
    if beside is not None:
        if text := beside():
            write(text, output)
        output = None
    if form == "table":
        from autoplan.report.render.terminal import render, terminal_of

        terminal = terminal_of(None if output else sys.stdout)
        blocks = table(*answer, terminal)
        text = blocks if isinstance(blocks, str) else render(blocks, terminal)
        write(escaped(text, styled=terminal.colour), output)
        return
    from autoplan.report.render.serialization import dump

    write(dump(document(*answer), "json" if form == "json" else "yaml"), output)


def _page_request(command: str) -> PageRequest:
    from autoplan.planning.communicating import placement, products
    from autoplan.report.pages.page_sections import PageRequest

    return PageRequest(command, drawn_step, products, placement)


def _refuse_missing(form: str, output: Path | None, page: Callable[[], str] | None) -> None:
    """Refuse the name of a page or a chart that the answer lacks: a table would be written there."""
    if output is None or form != "table":
        return
    if output.suffix.lower() == ".svg" or (page is None and asks_for_page(form, output)):
        what = f"there is no {output.suffix} of this answer: name a .json, .yaml or .txt file"
        raise typer.BadParameter(what, param_hint="--output")


def _beside(
    form: str, output: Path | None, page: Callable[[], str] | None, trace: Callable[[], str] | None
) -> Callable[[], str] | None:
    """Return what writes the trace or page beside the table; None where the file has the answer itself."""
    if trace is not None and asks_for_trace(form, output):
        return trace
    return page if asks_for_page(form, output) else None


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
    """Discard what is left for ``stream``, so that the exit does not fail again."""
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


# What ``--output`` names by its suffix, in addition to the table: the predicted step as a trace, or a page.

_PAGES: Final = frozenset({".html", ".htm"})


def asks_for_trace(form: str, output: Path | None) -> bool:
    """Return whether ``--output`` names a trace: its name ends in trace.json, and no document was asked for.

    >>> asks_for_trace(Format.table, Path("my-trace.json")), asks_for_trace(Format.json, Path("trace.json"))
    (True, False)
    """
    return output is not None and output.name.endswith(_TRACE) and form == "table"


def asks_for_page(form: str, output: Path | None) -> bool:
    """Return whether ``--output`` names a page: its name ends in .html, and no document was asked for.

    >>> asks_for_page(Format.table, Path("report.html")), asks_for_page(Format.json, Path("report.html"))
    (True, False)
    """
    return output is not None and output.suffix.lower() in _PAGES and form == "table"


def step_trace(job: Job, plan: Plan) -> str:
    """Return the predicted step of ``plan`` as a trace."""
    from autoplan.planning.communicating import communication, predicted_step
    from autoplan.report.charts.predicted_trace import predicted_trace

    timeline = predicted_step(job, plan.layout)
    return predicted_trace(job, plan, timeline, communication(job, plan.layout))


def drawn_step(job: Job, plan: Plan) -> StepTimeline | str:
    """Return the predicted step of ``plan``, or why it is not drawn."""
    from autoplan.planning.communicating import predicted_step

    try:
        return predicted_step(job, plan.layout)
    except UnsupportedError as error:
        return str(error)


def typed_command(context: typer.Context) -> str:
    """Return the command of ``context`` with what was given on the command line, as a shell reads it."""
    words = ["autoplan", *context.command_path.split()[1:]]
    for parameter in context.command.params:
        name = str(parameter.name)
        if is_typed(context, name):
            words += _words(parameter, context.params[name])
    return shlex.join(words)


def _words(parameter: Any, value: Any) -> list[str]:  # noqa: ANN401 - an option of click's, and what it holds
    """Return what is typed for ``parameter`` to have ``value``."""
    values = [str(getattr(x, "value", x)) for x in (value if isinstance(value, list | tuple) else [value])]
    if parameter.param_type_name != "option":
        return values
    name = max(parameter.opts, key=len)
    if parameter.is_flag:
        return [name if value else max(parameter.secondary_opts, key=len)]
    return [word for text in values for word in (name, text)]
