"""The front of a serving job, as ``autoplan plan`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoplan.commands.output import Format, present

if TYPE_CHECKING:
    from autoplan.results.serving.serving_front import ServingFront

__all__ = ["show_serving_front"]


def show_serving_front(
    front: ServingFront,
    where: tuple[Format, Path | None, str],
    *,
    all_plans: bool,
    details: bool,
    pictures: bool,  # noqa: ARG001 - as of any kind: engines have none
) -> None:
    """Write the front of a serving job; ``where`` is the form, the file and the command."""
    from autoplan.answers.plan.serving_screen import serving_screen
    from autoplan.report.serving.serving_document import serving_front_document

    def page() -> str:
        from autoplan.report.pages.serving_page import serving_front_page

        return serving_front_page(front, command)

    form, output, command = where
    present(
        form,
        output,
        document=lambda: serving_front_document(front),
        table=lambda terminal: serving_screen(front, terminal, all_plans=all_plans, details=details),
        page=page,
    )
