"""``python -m docs.generate_cli [FILE]`` writes ``docs/cli.md`` from the commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from autoplan.cli.app import app
from autoplan.commands.output import write

__all__ = ["main", "reference"]

_HEAD = """# Command line

Written by `make docs` from the commands themselves: edit their docstrings, not this page.

Answers go to standard output, messages to standard error. Every command takes `-h` or `--help`.

| exit code | meaning |
|---|---|
| 0 | there is an answer |
| 1 | nothing is feasible, or what `explain` explains does not fit; the answer says why |
| 2 | bad input; the message says what and where |
| 130 | interrupted |
| 141 | the reader of the output went away |

Tables are as wide as the terminal, or as `COLUMNS` says, and 120 columns where there is no
terminal. `NO_COLOR` switches colours off, `FORCE_COLOR` on. `AUTOPLAN_CATALOG` names a folder of
your own entries, laid out like the shipped catalogues, that is searched first.
"""


def reference() -> str:
    """Return the reference page of all commands, in Markdown."""
    # Typer brings its own copy of click in some versions: what is used here is in all of them.
    root: Any = typer.main.get_command(app)
    return "\n".join([_HEAD, *_command(root, "autoplan")])


def _command(command: Any, name: str) -> Iterator[str]:  # noqa: ANN401
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not _is_help(p)]
    below: dict[str, Any] = getattr(command, "commands", {})
    yield f"## {name}\n"
    usage = " ".join([name, *(_metavar(p) for p in arguments), *_options_usage(options)])
    yield f"```\n{usage}{' COMMAND' if below else ''}\n```\n"
    yield f"{_paragraphs(command.help)}\n"
    if arguments or options:
        yield "| | |\n|---|---|"
        yield from (_row(_metavar(p), p) for p in arguments)
        yield from (_row(_option_names(p), p) for p in options)
        yield ""
    if below:
        yield "| command | |\n|---|---|"
        yield from (f"| `{each}` | {_first(inner.help)} |" for each, inner in below.items())
        yield ""
    for each, inner in below.items():
        yield from _command(inner, f"{name} {each}")


def _is_help(option: Any) -> bool:  # noqa: ANN401
    return "--help" in option.opts


def _options_usage(options: Sequence[Any]) -> list[str]:
    required = [f"{o.opts[0]} {_metavar(o)}" for o in options if o.required]
    return [*required, "[OPTIONS]"] if options else required


def _metavar(parameter: Any) -> str:  # noqa: ANN401
    return parameter.metavar or ""


def _option_names(option: Any) -> str:  # noqa: ANN401
    metavar = _metavar(option)
    return f"{', '.join(option.opts)}{f' {metavar}' if metavar else ''}"


def _row(left: str, parameter: Any) -> str:  # noqa: ANN401
    default = getattr(parameter.default, "value", parameter.default)
    shown = isinstance(default, str) and bool(default)
    note = f" Default: {default}." if shown else " Required." if parameter.required else ""
    return f"| `{left}` | {parameter.help}{note} |".replace(" |  |", " | |")


def _first(text: str | None) -> str:
    return _paragraphs(text).split("\n")[0]


def _paragraphs(text: str | None) -> str:
    """Return a docstring as paragraphs of one line each."""
    parts = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page to the file that the first argument names, or print it."""
    files = sys.argv[1:] if arguments is None else list(arguments)
    write(reference(), Path(files[0]) if files else None)


if __name__ == "__main__":
    main()
