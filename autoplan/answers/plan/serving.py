"""``autoplan plan`` of a serving job."""

from __future__ import annotations

from pathlib import Path

import typer

from autoplan.commands.interrupts import stopped_by_signals
from autoplan.commands.lean import load_solver
from autoplan.commands.options import command_deadline
from autoplan.commands.output import NOTHING_FEASIBLE, Format, present, write

__all__ = ["apply_serving_change", "plan_serving_job"]


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

    def page() -> str:
        from autoplan.report.pages.serving_page import serving_front_page

        return serving_front_page(front, command)

    output, command = asked
    present(
        form,
        output,
        document=lambda: serving_front_document(front),
        table=lambda terminal: serving_front_table(front, terminal, all_plans=all_plans),
        page=page,
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
