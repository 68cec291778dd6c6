"""``autoplan verify``: a saved answer, checked without the solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli.shared.output import NOTHING_FEASIBLE, Format, FormatOption, OutputOption, present
from autoplan.cli.shared.progress import Bar

__all__ = ["verify"]


def verify(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="What `autoplan plan JOB --format json` wrote.", show_default=False
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            help="A job that the plan must be for, as its file and the catalogue are now.",
            show_default=False,
        ),
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="List all layouts on more than 8 devices too, however long."),
    ] = False,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Check a saved PLAN again, without the solver that made it.

    Rules, prices, memory, counts, and on up to 8 devices that no layout is better than the plans: every way
    to build one is looked at.

    Exit code 0 says that nothing fails, 1 that something does, 2 that PLAN cannot be read.
    """
    from autoplan import planning

    with Bar("listing layouts") as bar:
        verdict = planning.verify(plan, job=job, exhaustive=exhaustive, progress=bar)

    from autoplan.report.verdict_report import verdict_document, verdict_table

    present(
        form,
        output,
        document=lambda: verdict_document(verdict),
        table=lambda terminal: verdict_table(verdict, terminal),
    )
    if not verdict.verified:
        raise typer.Exit(NOTHING_FEASIBLE)
