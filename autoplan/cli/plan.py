"""``autoplan plan``: the Pareto-optimal layouts of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from autoplan.cli.output import (
    NOTHING_FEASIBLE,
    Format,
    FormatOption,
    JobArgument,
    OutputOption,
    present,
)
from autoplan.cli.progress import Progress

__all__ = ["plan"]


def plan(
    job: JobArgument,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    all_plans: Annotated[
        bool, typer.Option("--all", help="Print every plan of the front, however many.")
    ] = False,
) -> None:
    """Find the layouts of JOB that nothing beats in step time and memory, with the proof.

    Exit code 1 says that no layout is feasible; the reasons are in the answer.
    """
    from autoplan import planning

    progress = Progress()
    try:
        front = planning.plan(job, progress=progress)
    finally:
        progress.close()

    from autoplan.report.document import front_document
    from autoplan.report.table import front_table

    present(
        form,
        output,
        document=lambda: front_document(front),
        table=lambda terminal: front_table(front, terminal, all_plans=all_plans),
    )
    if not front.feasible:
        raise typer.Exit(NOTHING_FEASIBLE)
