"""``autoplan explain``: why a layout is not on the front, and why the fastest plan wins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from autoplan.cli.shared.lean import without_pandas
from autoplan.cli.shared.output import NOTHING_FEASIBLE, Format, JobArgument, present, write
from autoplan.cli.shared.progress import Bar, Progress
from autoplan.errors import UnsupportedError

if TYPE_CHECKING:
    from autoplan.results import Explanation, Refusal
    from autoplan.schema.job import Job

__all__ = ["explain"]

#: What the end of a file's name says about what is in it; svg and html are pictures.
_FORMS: Final = {
    ".svg": "svg",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".txt": "table",
}


LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        "-l",
        metavar="LAYOUT",
        help="The layout, such as tp=2,pp=2,mbs=1,recompute=selective; what is left out takes its default.",
        show_default=False,
    ),
]

ChosenFormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="table for people; json or yaml for programs. Default: what FILE ends in, else table.",
        show_default=False,
    ),
]

PictureOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to FILE, whole or not at all, instead of standard output:"
        " a picture (.svg), a page (.html), .json, .yaml or .txt.",
        show_default=False,
    ),
]


def explain(
    job: JobArgument,
    layout: LayoutOption = None,
    form: ChosenFormatOption = None,
    output: PictureOption = None,
) -> None:
    """Say why a layout of JOB is not on the front, or without one why the fastest plan wins.

    With --layout: the rules that it breaks and the nearest layout that breaks none; or what fills its devices
    at each moment, the remedies that make it fit, and the plan of the front that beats it, part by part.

    Without: what the fastest plan's step goes to, and the best layout of every other choice of degrees,
    microbatch, ZeRO stage and recompute, each found by solving for it.

    Exit code 1 says that the layout cannot run or does not fit, or that nothing is feasible.
    """
    wanted = _form(form, output)

    from autoplan.catalog import load_job

    loaded = load_job(job)
    possible = _chosen(loaded, wanted, output) if layout is None else _held(loaded, layout, wanted, output)
    if not possible:
        raise typer.Exit(NOTHING_FEASIBLE)


def _chosen(job: Job, form: str, output: Path | None) -> bool:
    """Write why the fastest plan wins."""
    _no_picture(form, "of a choice", "--layout")
    from autoplan import planning

    with Bar("what if:") as bar, without_pandas():
        answer = planning.explain_choice(job, progress=bar)

    from autoplan.report.standing_report import choice_document, choice_table

    present(
        Format(form),
        output,
        document=lambda: choice_document(job, answer),
        table=lambda terminal: choice_table(job, answer, terminal),
    )
    return True


def _held(job: Job, layout: str, form: str, output: Path | None) -> bool:
    """Write why a layout is not on the front, and return whether it can run and fits."""
    from autoplan import planning
    from autoplan.results import Refusal

    job = planning.chosen(job, layout)
    progress = Progress()
    try:
        with without_pandas():
            answer = planning.explain(job, layout, progress=progress)
    finally:
        progress.close()
    if isinstance(answer, Refusal):
        _refused(job, answer, form, output)
        return False
    _present(job, answer, form, output)
    return answer.plan.predicted.fits


def _refused(job: Job, answer: Refusal, form: str, output: Path | None) -> None:
    _no_picture(form, "of a layout that cannot run", "a layout that keeps every rule")
    from autoplan.report.standing_report import refusal_document, refusal_table

    present(
        Format(form),
        output,
        document=lambda: refusal_document(job, answer),
        table=lambda terminal: refusal_table(job, answer, terminal),
    )


def _no_picture(form: str, of: str, needed: str) -> None:
    if form in {"svg", "html"}:
        raise UnsupportedError(f"there is no picture {of}: {needed} is needed, or --format table")


def _form(form: Format | None, output: Path | None) -> str:
    """Return what is written: what ``--format`` says, or what the file's name ends in."""
    suffix = output.suffix.lower() if output else ""
    said = _FORMS.get(suffix)
    if form is None:
        if suffix and said is None:
            known = ", ".join(_FORMS)
            raise typer.BadParameter(
                f"{suffix} names no format: one of {known}, or --format, is needed", param_hint="--output"
            )
        return said or Format.table.value
    if said is not None and said != form.value:
        raise typer.BadParameter(
            f"{form.value} and a file that ends in {suffix} differ: leave one out", param_hint="--format"
        )
    return form.value


def _present(job: Job, answer: Explanation, form: str, output: Path | None) -> None:
    """Write the answer in ``form``."""
    if form == "svg":
        from autoplan.report.charts.memory_svg import memory_svg

        write(memory_svg(job, answer.plan), output)
    elif form == "html":
        from autoplan.report.explanation_page import explanation_page

        write(explanation_page(job, answer), output)
    else:
        from autoplan.report.document_fields import explanation_document
        from autoplan.report.explanation_report import explanation_table

        present(
            Format(form),
            output,
            document=lambda: explanation_document(job, answer),
            table=lambda terminal: explanation_table(job, answer, terminal),
        )
