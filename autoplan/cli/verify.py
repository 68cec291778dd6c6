"""``autoplan verify``: verification of a saved answer without the solver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoplan.cli.shared.lean import collect_again
from autoplan.cli.shared.output import NOTHING_FEASIBLE, Format, FormatOption, OutputOption, present
from autoplan.cli.shared.progress import Bar

__all__ = ["verify"]


def verify(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="Output of `autoplan plan JOB --format json`.", show_default=False
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="JOB",
            help="A job file: the plan must be one of this job, with the current catalogue.",
            show_default=False,
        ),
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Enumerate all layouts on more than 8 devices, too (slow)."),
    ] = False,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Verify a saved PLAN without the solver that computed it.

    Checks rules, step times, memory and counts; on up to 8 devices also that no layout dominates the plans,
    by enumeration of all layouts.

    Exit code 0: no check fails; 1: a check fails; 2: PLAN cannot be read.
    """
    from autoplan import planning

    collect_again()
    with Bar("enumerating layouts") as bar:
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
