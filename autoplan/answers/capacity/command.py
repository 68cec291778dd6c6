"""``autoplan capacity``: what the engines of a serving job hold."""

from __future__ import annotations

from typing import Annotated

import typer

from autoplan.commands.options import takes_job_options
from autoplan.commands.output import (
    NOTHING_FEASIBLE,
    Destination,
    Format,
    FormatOption,
    OutputOption,
    argument,
    option,
    present,
)


@takes_job_options
def capacity(
    job: Annotated[
        str,
        argument(
            "JOB", "A serving job file, or the name of a shipped one; left out with --model and --hardware."
        ),
    ],
    layout: Annotated[
        str | None,
        option(
            "--layout",
            "LAYOUT",
            "The layout, such as tp=2,weights=fp8,kv=fp8; left out: what people run, the least tensor"
            " parallelism that starts, and as many engines as there is room for.",
            "-l",
        ),
    ] = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say what the engines of serving JOB hold: memory by part, tokens and requests, and what buys most.

    Exit code 1: engines do not start, or do not admit the longest request. The answer has the reasons and the
    changes that help, each one computed.
    """
    from autoplan.answers.capacity import ask

    answer = ask.capacity(job, layout)

    from autoplan.report.serving.capacity_report import capacity_blocks, capacity_document

    present(Destination(form, output), answer, document=capacity_document, table=capacity_blocks)
    if not answer.fits:
        raise typer.Exit(NOTHING_FEASIBLE)
