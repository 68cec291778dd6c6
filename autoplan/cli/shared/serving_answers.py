"""Serving jobs in commands that take jobs of both kinds."""

from __future__ import annotations

from pathlib import Path

import typer

from autoplan.cli.shared.interrupts import stopped_by_signals
from autoplan.cli.shared.lean import load_solver
from autoplan.cli.shared.output import NOTHING_FEASIBLE, Format, present

__all__ = ["evaluate_serving_layout", "plan_serving_job"]


def plan_serving_job(
    job: str, form: Format, output: Path | None, deadline: float | None, *, all_plans: bool
) -> None:
    """Write the front of a serving job; exit code 1 where no plan is feasible."""
    from autoplan.catalog import load_serving_job
    from autoplan.deadline import Deadline
    from autoplan.planning.serving.serving_plans import plan_serving

    loaded = load_serving_job(job)
    limit = Deadline(loaded.deadline if deadline is None else deadline)
    with stopped_by_signals(limit) as interrupted:
        load_solver()
        front = plan_serving(loaded, deadline=limit)

    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_report import serving_front_table

    present(
        form,
        output,
        document=lambda: serving_front_document(front),
        table=lambda terminal: serving_front_table(front, terminal, all_plans=all_plans),
    )
    if interrupted.exit_code is not None:
        raise typer.Exit(interrupted.exit_code)
    if not front.feasible:
        raise typer.Exit(NOTHING_FEASIBLE)


def evaluate_serving_layout(job: str, layout: str, form: Format, output: Path | None) -> None:
    """Write the prediction of one layout of a serving job."""
    from autoplan.planning.serving.serving_plans import evaluate_serving
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_report import serving_plan_table

    loaded, plan = evaluate_serving(job, layout)
    present(
        form,
        output,
        document=lambda: serving_plan_document(loaded, plan),
        table=lambda terminal: serving_plan_table(loaded, plan, terminal),
    )
