"""``autoplan explain``: why a layout is not on the front, and why the best plan wins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from autoplan.commands.lean import load_solver
from autoplan.commands.options import DeadlineOption, command_deadline, takes_job_options
from autoplan.commands.output import (
    NOTHING_FEASIBLE,
    Destination,
    Format,
    JobArgument,
    LayoutOption,
    checked_output,
    option,
    page_of,
    present,
    typed_command,
    write,
)
from autoplan.commands.planned import Bar, Progress, stopped_by_signals
from autoplan.errors import UnsupportedError

if TYPE_CHECKING:
    from autoplan.deadline import Deadline
    from autoplan.results.explanation import Explanation, Refusal
    from autoplan.schema.job import Job
    from autoplan.schema.serving.serving_spec import ServingJob


#: Formats by file suffix; svg and html are charts.
_FORMS: Final = {
    ".svg": "svg",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".txt": "table",
}


ChosenFormatOption = Annotated[
    Format | None,
    option(
        "--format",
        "FORMAT",
        "table for people; json or yaml for programs. Default: by the suffix of FILE, else table.",
        "-f",
    ),
]

PictureOption = Annotated[
    Path | None,
    option(
        "--output",
        "FILE",
        "Write to FILE, atomically, instead of standard output (-):"
        " a chart (.svg), a page (.html), .json, .yaml or .txt.",
        "-o",
        callback=checked_output,
    ),
]

ApplyOption = Annotated[
    int | None,
    option(
        "--apply",
        "N",
        "Write JOB restricted to the layout of remedy N, comments kept, instead of the answer.",
    ),
]


@takes_job_options
def explain(
    context: typer.Context,
    job: JobArgument,
    layout: LayoutOption = None,
    form: ChosenFormatOption = None,
    output: PictureOption = None,
    deadline: DeadlineOption = None,
    apply: ApplyOption = None,
) -> None:
    """Explain why a layout of JOB is not on the front, or why the fastest plan is the fastest.

    With --layout: the rules that it breaks and the nearest layout that breaks none; or its memory timeline,
    the remedies that make it fit, and the plan of the front that dominates it, with step times by part.
    --apply N > new.yaml writes a job file that allows the layout of remedy N alone.

    Without: the breakdown of the fastest plan's step, and the best layout for every other choice of degrees,
    microbatch size, ZeRO stage and recompute, each one solved.

    Of a serving job: what bounds an iteration, what each other choice loses, the tightest limit, and the load
    at which the answer changes.

    Exit code 1: the layout cannot run or does not fit, or no layout is feasible. Ctrl-C and SIGTERM end the
    search as the deadline does, with exit code 130 or 143.
    """
    chosen_form = _form(form, output)

    from autoplan.kinds import kind_of

    kind, limit = kind_of(job), command_deadline(deadline)
    with stopped_by_signals(limit):
        loaded = kind.load(job)
        if deadline is None:
            limit.seconds = loaded.deadline
        if apply is not None:
            kind.show_remedy(loaded, layout, apply, output, limit)
            return
        where = Destination(chosen_form, output, typed_command(context))
        possible = kind.show_explanation(loaded, layout, where, limit)
    if not possible:
        raise typer.Exit(NOTHING_FEASIBLE)


def show_explanation(job: Job, layout: str | None, where: Destination, deadline: Deadline) -> bool:
    """Write why a layout of a training job, or the fastest one, is what it is; return whether it can run."""
    if layout is None:
        return _explain_fastest(job, where, deadline)
    return _explain_layout(job, layout, where, deadline)


def show_remedy(job: Job, layout: str | None, number: int, output: Path | None, deadline: Deadline) -> None:
    """Write the job file with a remedy of a layout applied."""
    from autoplan.answers.explain import ask
    from autoplan.answers.explain.remedies import remedied
    from autoplan.planning.plan_and_evaluate import chosen
    from autoplan.results.explanation import Refusal

    if layout is None:
        raise typer.BadParameter("a remedy is one of a layout: give --layout too", param_hint="--apply")
    load_solver()
    answer = ask.explain(chosen(job, layout), layout, deadline=deadline)
    if isinstance(answer, Refusal):
        raise UnsupportedError(f"the layout cannot run, and has no remedies: {'; '.join(answer.rules)}")
    write(remedied(job, answer, number, output.parent if output else None), output)


def _explain_fastest(job: Job, where: Destination, deadline: Deadline) -> bool:
    """Write why the fastest plan is the fastest."""
    _no_picture(where.form, "of a choice", "--layout")
    from autoplan.answers.explain.ask import explain_choice

    with Bar("what if:") as bar:
        load_solver()
        answer = explain_choice(job, progress=bar, deadline=deadline)

    from autoplan.answers.explain.blocks import choice_blocks, choice_document
    from autoplan.results.merged_front import at_batch

    page = page_of("explain", "choice_page")
    job = at_batch(job, answer.best)
    present(where, job, answer, document=choice_document, table=choice_blocks, page=page)
    return True


def _explain_layout(job: Job, layout: str, where: Destination, deadline: Deadline) -> bool:
    """Write why a layout is not on the front, and return whether it can run and fits."""
    from autoplan.answers.explain import ask
    from autoplan.planning.plan_and_evaluate import chosen
    from autoplan.results.explanation import Refusal

    job = chosen(job, layout)
    progress = Progress()
    try:
        load_solver()
        answer = ask.explain(job, layout, progress=progress, deadline=deadline)
    finally:
        progress.close()
    if isinstance(answer, Refusal):
        _refused(job, answer, where)
        return False
    _present(job, answer, where)
    return answer.plan.predicted.fits


def _refused(job: Job, answer: Refusal, where: Destination) -> None:
    _no_picture(where.form, "of a layout that cannot run", "a layout that satisfies every rule")
    from autoplan.answers.explain.blocks import refusal_blocks, refusal_document

    page = page_of("explain", "refusal_page")
    present(where, job, answer, document=refusal_document, table=refusal_blocks, page=page)


def _no_picture(form: str, of: str, needed: str) -> None:
    if form == "svg":
        raise UnsupportedError(f"no chart {of}: give {needed}, or --format table")


def _form(form: Format | None, output: Path | None) -> str:
    """Return the output format: that of ``--format``, or of the file suffix."""
    suffix = output.suffix.lower() if output else ""
    by_suffix = _FORMS.get(suffix)
    if form is None:
        if suffix and by_suffix is None:
            forms = ", ".join(_FORMS)
            raise typer.BadParameter(
                f"{suffix} is not a known format: use one of {forms}, or --format", param_hint="--output"
            )
        return by_suffix or Format.table.value
    if by_suffix is not None and by_suffix != form.value:
        raise typer.BadParameter(
            f"--format {form.value} contradicts the suffix {suffix}: omit one", param_hint="--format"
        )
    return form.value


def _present(job: Job, answer: Explanation, where: Destination) -> None:
    from autoplan.answers.explain.blocks import explanation_blocks
    from autoplan.report.document_fields import explanation_document

    def picture() -> str:
        from autoplan.report.charts.memory_svg import memory_svg

        return memory_svg(job, answer.plan)

    present(
        where,
        job,
        answer,
        document=explanation_document,
        table=explanation_blocks,
        page=page_of("explain", "explanation_page"),
        picture=picture,
    )


def show_serving_explanation(
    job: ServingJob, layout: str | None, where: Destination, deadline: Deadline
) -> bool:
    """Write why the best plan of a serving job is the best, or where ``layout`` stands.

    Returns whether something is feasible, or the layout can run and serve.
    """
    from autoplan.answers.explain import serving_blocks as report
    from autoplan.answers.explain.explained_serving import explain_engines
    from autoplan.report.serving.serving_document import serving_front_document
    from autoplan.report.serving.serving_report import serving_front_blocks
    from autoplan.results.serving.serving_explanation import (
        ServingExplanation,
        ServingRefusal,
        ServingStanding,
    )
    from autoplan.results.serving.serving_front import ServingFront

    if where.form == "svg":
        raise UnsupportedError("no chart of a serving job: give a training job, or --format table")
    if where.form == "html":
        raise UnsupportedError(
            "no page explains a serving job: give --format table; `autoplan plan` writes a page"
        )
    load_solver()
    answer = explain_engines(job, layout, deadline=deadline)
    forms: dict[type, tuple[Any, Any]] = {
        ServingFront: (serving_front_document, serving_front_blocks),
        ServingRefusal: (report.serving_refusal_document, report.serving_refusal_blocks),
        ServingExplanation: (report.serving_explanation_document, report.serving_explanation_blocks),
        ServingStanding: (report.serving_standing_document, report.serving_standing_blocks),
    }
    document, table = forms[type(answer)]
    present(where, answer, document=document, table=table)
    return answer.plan.fits if isinstance(answer, ServingStanding) else isinstance(answer, ServingExplanation)


def show_serving_remedy(
    _job: ServingJob, _layout: str | None, _number: int, _output: Path | None, _deadline: Deadline
) -> NoReturn:
    """Raise BadParameter: what helps a serving job is a change of the job, not of a layout."""
    raise typer.BadParameter("`autoplan plan JOB --apply N` makes changes", param_hint="--apply")
