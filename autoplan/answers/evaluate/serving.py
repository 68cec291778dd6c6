"""``autoplan evaluate`` of a layout of a serving job."""

from __future__ import annotations

from pathlib import Path

from autoplan.commands.output import Format, present

__all__ = ["evaluate_serving_layout"]


def evaluate_serving_layout(job: str, layout: str, form: Format, asked: tuple[Path | None, str]) -> None:
    """Write the prediction of one layout of a serving job, as ``plan_serving_job`` does."""
    from autoplan.planning.serving.serving_plans import evaluate_serving
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_plan_report import serving_plan_table

    loaded, plan = evaluate_serving(job, layout)

    def page() -> str:
        from autoplan.report.pages.serving_page import serving_plan_page

        return serving_plan_page(loaded, plan, command)

    output, command = asked
    present(
        form,
        output,
        document=lambda: serving_plan_document(loaded, plan),
        table=lambda terminal: serving_plan_table(loaded, plan, terminal),
        page=page,
    )
