"""A layout of a serving job with its prediction, as ``autoplan evaluate`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.commands.output import Format, present, write
from autoplan.commands.page_output import asks_for_page

if TYPE_CHECKING:
    from autoplan.results.serving.serving_front import ServingPlan
    from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["show_serving_plan"]


def show_serving_plan(
    job: ServingJob,
    plan: ServingPlan,
    where: tuple[Format, Path | None, str],
    *,
    pictures: bool,  # noqa: ARG001 - as of any kind: engines have none
) -> None:
    """Write engines with their prediction; ``where`` is the form, the file and the command."""
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_plan_report import serving_plan_table

    form, output, command = where
    if output is not None and asks_for_page(form, output):
        from autoplan.report.pages.serving_page import serving_plan_page

        write(serving_plan_page(job, plan, command), output)
        output = None
    present(
        form,
        output,
        document=lambda: serving_plan_document(job, plan),
        table=lambda terminal: serving_plan_table(job, plan, terminal),
    )
