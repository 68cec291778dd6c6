"""``autoplan explain`` of a serving job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from autoplan.commands.lean import load_solver
from autoplan.commands.output import Format, present
from autoplan.errors import UnsupportedError

if TYPE_CHECKING:
    from autoplan.deadline import Deadline
    from autoplan.results.serving.serving_explanation import (
        ServingExplanation,
        ServingRefusal,
        ServingStanding,
    )
    from autoplan.results.serving.serving_front import ServingFront
    from autoplan.schema.serving.serving_spec import ServingJob


def show_serving_explanation(
    job: ServingJob, layout: str | None, where: tuple[str, Path | None, str], deadline: Deadline
) -> bool:
    """Write why the best plan of a serving job is the best, or where ``layout`` stands.

    ``where`` is the form, the file and the command. Returns whether something is feasible, or the layout can
    run and serve.
    """
    from autoplan.answers.explain.explained_serving import explain_serving, explain_serving_layout
    from autoplan.results.serving.serving_front import ServingFront

    form, output, _ = where
    if form == "svg":
        raise UnsupportedError("no chart of a serving job: give a training job, or --format table")
    if form == "html":
        raise UnsupportedError(
            "no page explains a serving job: give --format table; `autoplan plan` writes a page"
        )
    load_solver()
    if layout is not None:
        standing = explain_serving_layout(job, layout, deadline=deadline)
        return _present_standing(standing, Format(form), output)
    answer = explain_serving(job, deadline=deadline)
    _present_explanation(answer, Format(form), output)
    return not isinstance(answer, ServingFront)


def show_serving_remedy(
    _job: ServingJob, _layout: str | None, _number: int, _output: Path | None, _deadline: Deadline
) -> NoReturn:
    """Raise BadParameter: what helps a serving job is a change of the job, not of a layout."""
    raise typer.BadParameter("`autoplan plan JOB --apply N` makes changes", param_hint="--apply")


def _present_explanation(
    answer: ServingExplanation | ServingFront, form: Format, output: Path | None
) -> None:
    from autoplan.answers.explain.serving_blocks import (
        serving_explanation_document,
        serving_explanation_table,
    )
    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_report import serving_front_blocks
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
            else serving_front_blocks(answer, terminal)
        ),
    )


def _present_standing(answer: ServingStanding | ServingRefusal, form: Format, output: Path | None) -> bool:
    """Write where a layout stands, and return whether it can run and serve."""
    import autoplan.answers.explain.serving_blocks as report
    from autoplan.results.serving.serving_explanation import ServingRefusal

    if isinstance(answer, ServingRefusal):
        present(
            form, output, answer, document=report.serving_refusal_document, table=report.serving_refusal_table
        )
        return False
    present(
        form, output, answer, document=report.serving_standing_document, table=report.serving_standing_table
    )
    return answer.plan.fits
