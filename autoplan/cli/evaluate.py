"""``autoplan evaluate``: the prediction of one layout."""

from __future__ import annotations

from typing import Annotated

import typer

from autoplan.cli.shared.output import Format, FormatOption, JobArgument, OutputOption, present

__all__ = ["evaluate"]


def evaluate(
    job: JobArgument,
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            "-l",
            metavar="LAYOUT",
            help="The layout, such as tp=2,pp=2,mbs=1,recompute=selective; omitted keys have their defaults.",
            show_default=False,
        ),
    ],
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Predict step time and memory of one layout of JOB, whether it fits or not.

    A layout that breaks a rule of the model, the devices or the stack is bad input: exit code 2.
    """
    from autoplan import planning
    from autoplan.catalog import load_job

    loaded = planning.chosen(load_job(job), layout)
    answer = planning.evaluate(loaded, layout)

    from autoplan.report.document_fields import plan_document
    from autoplan.report.plan_report import plan_table

    present(
        form,
        output,
        document=lambda: plan_document(loaded, answer),
        table=lambda terminal: plan_table(loaded, answer, terminal),
    )
