"""``autoplan explain`` of a serving job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autoplan.commands.interrupts import stopped_by_signals
from autoplan.commands.lean import load_solver
from autoplan.commands.options import command_deadline
from autoplan.commands.output import NOTHING_FEASIBLE, Format, present

if TYPE_CHECKING:
    from autoplan.results.serving.serving_explanation import (
        ServingExplanation,
        ServingRefusal,
        ServingStanding,
    )
    from autoplan.results.serving.serving_front import ServingFront

__all__ = ["explain_serving_job"]


def explain_serving_job(
    job: str, layout: str | None, form: Format, output: Path | None, deadline: float | None
) -> None:
    """Write why the best plan of a serving job is the best, or where ``layout`` stands.

    Exit code 1 where nothing is feasible, or the layout cannot run or serve.
    """
    from autoplan.answers.explain.explained_serving import explain_serving, explain_serving_layout
    from autoplan.catalog import load_serving_job
    from autoplan.results.serving.serving_front import ServingFront

    loaded = load_serving_job(job)
    limit = command_deadline(loaded.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        load_solver()
        if layout is not None:
            possible = _present_standing(explain_serving_layout(loaded, layout, deadline=limit), form, output)
        else:
            answer = explain_serving(loaded, deadline=limit)
            possible = not isinstance(answer, ServingFront)
            _present_explanation(answer, form, output)
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)
    if not possible:
        raise typer.Exit(NOTHING_FEASIBLE)


def _present_explanation(
    answer: ServingExplanation | ServingFront, form: Format, output: Path | None
) -> None:
    from autoplan.answers.explain.serving_blocks import (
        serving_explanation_document,
        serving_explanation_table,
    )
    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_report import serving_front_table
    from autoplan.results.serving.serving_explanation import ServingExplanation

    present(
        form,
        output,
        document=lambda: (
            serving_explanation_document(answer)
            if isinstance(answer, ServingExplanation)
            else serving_front_document(answer)
        ),
        table=lambda terminal: (
            serving_explanation_table(answer, terminal)
            if isinstance(answer, ServingExplanation)
            else serving_front_table(answer, terminal)
        ),
    )


def _present_standing(answer: ServingStanding | ServingRefusal, form: Format, output: Path | None) -> bool:
    """Write where a layout stands, and return whether it can run and serve."""
    import autoplan.answers.explain.serving_blocks as report
    from autoplan.results.serving.serving_explanation import ServingRefusal

    if isinstance(answer, ServingRefusal):
        present(
            form,
            output,
            document=lambda: report.serving_refusal_document(answer),
            table=lambda terminal: report.serving_refusal_table(answer, terminal),
        )
        return False
    present(
        form,
        output,
        document=lambda: report.serving_standing_document(answer),
        table=lambda terminal: report.serving_standing_table(answer, terminal),
    )
    return answer.plan.fits
