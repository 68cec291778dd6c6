"""A layout of a serving job with its prediction, as ``autoplan evaluate`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.commands.output import Format, present

if TYPE_CHECKING:
    from autoplan.results.serving.serving_front import ServingPlan
    from autoplan.schema.serving.serving_spec import ServingJob


def show_serving_plan(
    job: ServingJob,
    plan: ServingPlan,
    where: tuple[Format, Path | None, str],
    *,
    pictures: bool,  # noqa: ARG001 - as of any kind: engines have none
) -> None:
    """Write engines with their prediction; ``where`` is the form, the file and the command."""
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_plan_report import serving_plan_blocks

    def page() -> str:
        from autoplan.report.pages.serving_page import serving_plan_page

        return serving_plan_page(job, plan, command)

    form, output, command = where
    present(form, output, job, plan, document=serving_plan_document, table=serving_plan_blocks, page=page)
