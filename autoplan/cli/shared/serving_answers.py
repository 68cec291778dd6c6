"""Serving jobs in commands that take jobs of both kinds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autoplan.cli.shared.deadline_option import command_deadline
from autoplan.cli.shared.interrupts import stopped_by_signals
from autoplan.cli.shared.lean import load_solver
from autoplan.cli.shared.output import NOTHING_FEASIBLE, Format, present, write
from autoplan.cli.shared.page_output import asks_for_page

if TYPE_CHECKING:
    from autoplan.results.serving.serving_explanation import (
        ServingExplanation,
        ServingRefusal,
        ServingStanding,
    )
    from autoplan.results.serving.serving_front import ServingFront

__all__ = ["apply_serving_change", "evaluate_serving_layout", "explain_serving_job", "plan_serving_job"]


def plan_serving_job(
    job: str, form: Format, asked: tuple[Path | None, str], deadline: float | None, *, all_plans: bool
) -> None:
    """Write the front of a serving job to the file of ``asked``; exit code 1 where no plan is feasible.

    The other part of ``asked`` is the command, which a page has.
    """
    from autoplan.catalog import load_serving_job
    from autoplan.planning.serving.serving_plans import plan_serving

    loaded = load_serving_job(job)
    limit = command_deadline(loaded.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        load_solver()
        front = plan_serving(loaded, deadline=limit)

    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_report import serving_front_table

    output, command = asked
    if output is not None and asks_for_page(form, output):
        from autoplan.report.pages.serving_page import serving_front_page

        write(serving_front_page(front, command), output)
        output = None
    present(
        form,
        output,
        document=lambda: serving_front_document(front),
        table=lambda terminal: serving_front_table(front, terminal, all_plans=all_plans),
    )
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)
    if not front.answered:
        raise typer.Exit(NOTHING_FEASIBLE)


def apply_serving_change(job: str, number: int, output: Path | None, deadline: float | None) -> None:
    """Write the file of a serving job without a plan with one change made."""
    from autoplan.catalog import load_serving_job
    from autoplan.planning.serving.serving_plans import plan_serving
    from autoplan.planning.serving.serving_remedies import applied_change

    loaded = load_serving_job(job)
    limit = command_deadline(loaded.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        load_solver()
        front = plan_serving(loaded, deadline=limit)
        write(applied_change(front, number, output.parent if output else None), output)
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)


def evaluate_serving_layout(job: str, layout: str, form: Format, asked: tuple[Path | None, str]) -> None:
    """Write the prediction of one layout of a serving job, as ``plan_serving_job`` does."""
    from autoplan.planning.serving.serving_plans import evaluate_serving
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_plan_report import serving_plan_table

    loaded, plan = evaluate_serving(job, layout)
    output, command = asked
    if output is not None and asks_for_page(form, output):
        from autoplan.report.pages.serving_page import serving_plan_page

        write(serving_plan_page(loaded, plan, command), output)
        output = None
    present(
        form,
        output,
        document=lambda: serving_plan_document(loaded, plan),
        table=lambda terminal: serving_plan_table(loaded, plan, terminal),
    )


def explain_serving_job(
    job: str, layout: str | None, form: Format, output: Path | None, deadline: float | None
) -> None:
    """Write why the best plan of a serving job is the best, or where ``layout`` stands.

    Exit code 1 where nothing is feasible, or the layout cannot run or serve.
    """
    from autoplan.catalog import load_serving_job
    from autoplan.planning.serving.explained_serving import explain_serving, explain_serving_layout
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
    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_explanation_report import (
        serving_explanation_document,
        serving_explanation_table,
    )
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
    from autoplan.report.serving import serving_explanation_report as report
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
