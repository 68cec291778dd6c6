"""The front of a serving job, as ``autoplan plan`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.commands.output import Format, present, write
from autoplan.commands.page_output import asks_for_page

if TYPE_CHECKING:
    from autoplan.results.serving.serving_front import ServingFront

__all__ = ["show_serving_front"]


def show_serving_front(
    front: ServingFront,
    where: tuple[Format, Path | None, str],
    *,
    all_plans: bool,
    pictures: bool,  # noqa: ARG001 - as of any kind: engines have none
) -> None:
    """Write the front of a serving job; ``where`` is the form, the file and the command."""
    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_report import serving_front_table

    form, output, command = where
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
