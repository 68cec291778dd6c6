"""``autoplan catalog``: what is known about hardware, models and software."""

from __future__ import annotations

from typing import Annotated

import typer

from autoplan.catalog.roots import KINDS, EntryKind
from autoplan.commands.output import (
    BAD_INPUT,
    Format,
    FormatOption,
    OutputOption,
    escaped,
    present,
    write,
)

__all__ = [
    "app",
]


_NAMES = ", ".join(KINDS)

KindArgument = Annotated[
    EntryKind | None,
    typer.Argument(metavar="[KIND]", help=f"One of {_NAMES}. Default: all.", show_default=False),
]

KindOption = Annotated[
    EntryKind | None,
    typer.Option("--kind", metavar="KIND", help=f"One of {_NAMES}. Default: any.", show_default=False),
]

app = typer.Typer(
    help="List, show and check the entries on hardware, models and software.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list", short_help="List entries with their key facts.")
def list_entries(
    kind: KindArgument = None, form: FormatOption = Format.table, output: OutputOption = None
) -> None:
    """List the entries of one kind or of all, with their key facts."""
    from autoplan.answers.catalog.blocks import catalog_document, catalog_table
    from autoplan.catalog import entry_names
    from autoplan.planning import parameter_counts

    kinds = [name for name in KINDS if kind in (None, name)]
    parameters = parameter_counts(entry_names("model") if "model" in kinds else ())
    present(
        form,
        output,
        document=lambda: catalog_document(kinds, parameters),
        table=lambda terminal: catalog_table(kinds, parameters, terminal),
    )


@app.command(short_help="Print one entry.")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of an entry.", show_default=False)],
    kind: KindOption = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Print the entry NAME: its file, or its values as json or yaml.

    A stack is printed with its inherited values, each with a comment that names the stack that it comes from;
    defaults have the comment "default". If entries of several kinds have this name, all of them are printed.
    """
    from autoplan.answers.catalog.blocks import entries_document, entries_text
    from autoplan.catalog import find_entries
    from autoplan.planning import parameter_counts

    entries = find_entries(name, kind)
    parameters = parameter_counts(entry for of_kind, entry in entries if of_kind == "model")
    present(
        form,
        output,
        document=lambda: entries_document(entries, parameters),
        table=lambda _: entries_text(entries, parameters),
    )


@app.command(short_help="Check every entry.")
def check() -> None:
    """Check every entry of every catalogue; exit code 2 if one is invalid."""
    from autoplan.catalog import catalog_problems

    problems, entries = catalog_problems()
    if problems:
        write(escaped("\n".join(problems) + "\n"))
        raise typer.Exit(BAD_INPUT)
    write(f"{entries} entries, all valid\n")
