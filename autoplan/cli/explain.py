"""``autoplan explain``: what fills the memory of one layout, and what would make it fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from autoplan.cli.output import NOTHING_FEASIBLE, Format, JobArgument, present, write
from autoplan.errors import UnsupportedError

if TYPE_CHECKING:
    from autoplan.plans import Explanation
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
    """Show what fills the devices under one layout of JOB, and what would make room.

    Memory is shown for each stage at each moment of a step. The remedies are the smallest change of
    each kind that is enough, the fastest first, with what each saves and costs.

    Exit code 1 says that the layout does not fit. A layout that breaks a rule is bad input: exit code 2.
    """
    if layout is None:
        raise UnsupportedError(
            "explain needs --layout in this version: name the layout, such as --layout tp=2,pp=2,mbs=1"
        )
    wanted = _form(form, output)

    from autoplan import planning
    from autoplan.catalog import load_job

    loaded = planning.chosen(load_job(job), layout)
    answer = planning.explain(loaded, layout)
    _present(loaded, answer, wanted, output)
    if not answer.plan.predicted.fits:
        raise typer.Exit(NOTHING_FEASIBLE)


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
        from autoplan.report.memory_svg import memory_svg

        write(memory_svg(job, answer.plan), output)
    elif form == "html":
        from autoplan.report.explanation_page import explanation_page

        write(explanation_page(job, answer), output)
    else:
        from autoplan.report.document import explanation_document
        from autoplan.report.explanation import explanation_table

        present(
            Format(form),
            output,
            document=lambda: explanation_document(job, answer),
            table=lambda terminal: explanation_table(job, answer, terminal),
        )
