"""``autoplan sweep``: the best plan of every job of a grid."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.commands.lean import collect_again
from autoplan.commands.output import (
    INTERRUPTED,
    NOTHING_FEASIBLE,
    Destination,
    Format,
    FormatOption,
    argument,
    asks_for_page,
    complain,
    form_of_suffix,
    option,
    page_of,
    present,
    standard_output,
    typed_command,
)
from autoplan.commands.planned import Bar

if TYPE_CHECKING:
    from autoplan.results.sweep import Sweep


GridArgument = Annotated[str, argument("GRID", "A grid file, or the name of a shipped grid.")]

ResultsOption = Annotated[
    Path | None,
    option(
        "--output",
        "FILE",
        "A .csv or .parquet file for the rows. FILE.journal next to it keeps each answer as it comes."
        " Or a page (.html), .json or .yaml, which keep no journal.",
        "-o",
    ),
]

WorkersOption = Annotated[
    int | None,
    option(
        "--workers",
        "N",
        "Processes on this machine that plan. Left out: one for each core.",
        "-w",
        min=1,
        max=4096,
    ),
]

DaskOption = Annotated[
    str | None,
    option(
        "--dask",
        "ADDRESS",
        "Plan on the Dask cluster whose scheduler is at ADDRESS, such as tcp://head:8786.",
    ),
]


def sweep(
    context: typer.Context,
    grid: GridArgument,
    form: FormatOption = Format.table,
    output: ResultsOption = None,
    workers: WorkersOption = None,
    dask: DaskOption = None,
    all_cells: Annotated[bool, typer.Option("--all", help="Print every cell, however many.")] = False,
) -> None:
    """Plan every job of GRID: models, hardware, devices, limits or any other key of a job.

    With --output rows.csv it may be stopped at any moment and started again: what is finished is kept, and
    what a changed grid or cost model no longer answers is planned anew.

    Exit code 1 says that no cell has a plan; the reasons are in the answer.
    """
    if output is not None and standard_output(output) is None:
        raise typer.BadParameter(
            "rows need a file, since a journal is written next to it: name one that ends in .csv, .parquet,"
            " .json or .yaml, or leave --output out and take --format json",
            param_hint="--output",
        )
    if dask is not None and workers is not None:
        raise typer.BadParameter("the cluster's workers plan: leave --workers out", param_hint="--dask")
    at_the_end = asks_for_page(form, output) or form_of_suffix(output) is not None
    answer = _planned(grid, None if at_the_end else output, workers, dask)

    from autoplan.answers.sweep.blocks import sweep_blocks, sweep_document

    present(
        Destination(form, output if at_the_end else None, typed_command(context)),
        answer,
        document=sweep_document,
        table=partial(sweep_blocks, all_cells=all_cells),
        page=page_of("sweep", "sweep_page"),
    )
    if answer.altered:
        complain([_altered(answer)])
    if not answer.feasible:
        raise typer.Exit(NOTHING_FEASIBLE)


def _planned(grid: str, output: Path | None, workers: int | None, dask: str | None) -> Sweep:
    """Return the answer to the grid; when interrupted, say what is kept and how to go on."""
    from autoplan.answers.sweep import ask
    from autoplan.answers.sweep.executors import dask_executor
    from autoplan.catalog import load_grid

    collect_again()
    loaded = load_grid(grid)
    bar = Bar("planning")
    try:
        with ExitStack() as stack:
            stack.enter_context(bar)
            executor = stack.enter_context(dask_executor(dask)) if dask else None
            return ask.sweep(loaded, output=output, workers=workers, executor=executor, progress=bar)
    except KeyboardInterrupt as error:
        complain([_interrupted(output, bar, len(loaded.cells))])
        raise typer.Exit(INTERRUPTED) from error


def _altered(answer: Sweep) -> str:
    what = "1 answer was" if answer.altered == 1 else f"{answer.altered} answers were"
    return f"warning: {what} changed in {answer.output}.journal since it was written, and planned anew"


def _interrupted(output: Path | None, bar: Bar, cells: int) -> str:
    if output is None:
        return "interrupted: nothing is kept; with --output FILE, what is finished would be"
    return (
        f"interrupted: {bar.done} of {cells} cells are done and kept in {output} and its journal;"
        " the same command goes on from there"
    )
