"""``autoplan evaluate``: the prediction of one layout, named or read from a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.answers.configure.read_command import (
    ArgumentOption,
    FrameworkOption,
    VariableOption,
    job_of,
    launch_file,
    served_reference,
)
from autoplan.commands.options import DeadlineOption, takes_job_options
from autoplan.commands.output import (
    Destination,
    Format,
    FormatOption,
    JobArgument,
    LayoutOption,
    OutputOption,
    drawn_step,
    option,
    page_of,
    present,
    step_trace,
    typed_command,
)
from autoplan.commands.planned import planned
from autoplan.lazy import Later

if TYPE_CHECKING:
    from autoplan.launch.configuration import LaunchFile
    from autoplan.report.render.terminal import Terminal
    from autoplan.results.plan import Plan
    from autoplan.results.serving.serving_front import ServingPlan
    from autoplan.schema.job import Job
    from autoplan.schema.serving.serving_spec import ServingJob


LayoutFile = Annotated[
    Path | None,
    option(
        "--from",
        "FILE",
        "Take the layout of a training script or configuration, and compare it with the best.",
    ),
]


@takes_job_options
def evaluate(  # noqa: PLR0913, PLR0917 - a parameter for each option
    context: typer.Context,
    job: JobArgument,
    layout: LayoutOption = None,
    file: LayoutFile = None,
    framework: FrameworkOption = None,
    variables: VariableOption = None,
    arguments: ArgumentOption = None,
    deadline: DeadlineOption = None,
    pictures: Annotated[
        bool,
        typer.Option("--pictures", help="Below the table, draw memory by event and the step, with letters."),
    ] = False,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Predict step time and memory of one layout of JOB, whether it fits or not.

    Of a serving job: time to the first token and per output token, throughput and memory of engines such as
    tp=4,replicas=2,seqs=256.

    The layout is named, or read from a file, which is not executed. Then the answer also has the proven
    best layout of JOB, and the fewest edits of the file that gain most. Options in the place of JOB need to
    say the hardware alone: model, batch, adapters and whatever else they leave out is what the file says.
    Where JOB leaves its program open, it is the fastest that can express the layout, or the one that the
    file is of. A layout that breaks a rule of the model, the devices or the stack is bad input: exit code
    2. An --output whose name ends in trace.json is the predicted step as a trace for Perfetto, written in
    addition to the table; one that ends in .html is the answer as a page that loads nothing.
    """
    from autoplan.kinds import kind_of

    if (layout is None) == (file is None):
        raise typer.BadParameter("give one of --layout and --from", param_hint="--layout")
    where = Destination(form, output, typed_command(context))
    if file is not None:
        read = launch_file(file, variables, arguments)
        job = served_reference(job, read, framework)
        kind_of(job).show_file(job, read, framework, deadline, where)
    else:
        kind = kind_of(job)
        kind.show_plan(*kind.evaluate(job, str(layout)), where, pictures=pictures)


def show_plan(job: Job, plan: Plan, where: Destination, *, pictures: bool) -> None:
    """Write a layout with its prediction."""
    from autoplan.answers.evaluate.blocks import plan_table
    from autoplan.report.document_fields import plan_document

    def table(job: Job, plan: Plan, terminal: Terminal) -> str:
        return plan_table(job, plan, terminal) + (_pictures(job, plan, terminal) if pictures else "")

    page, trace = page_of("evaluate", "evaluation_page"), lambda: step_trace(job, plan)
    present(where, job, plan, document=plan_document, table=table, page=page, trace=trace)


def _pictures(job: Job, plan: Plan, terminal: Terminal) -> str:
    from autoplan.report.picture_report import plan_pictures

    return f"\n{plan_pictures(job, plan, drawn_step(job, plan), terminal)}"


def show_file(
    reference: str,
    file: LaunchFile,
    framework: str | None,
    deadline: float | None,
    where: Destination,
) -> None:
    """Write the prediction of the layout of ``file``, the best layout, and the edits that gain most."""
    from autoplan.answers.configure.comparing_files import compare_file, evaluate_file
    from autoplan.launch.recognition import named_configuration

    file_comparison, plan, job = evaluate_file(job_of(reference, file, framework), file, framework)
    # What a script starts with a file of keys is changed in that file.
    started = named_configuration(file) if framework is None else None
    comparison = compare_file(job, started or file, file_comparison, plan, planned(job, deadline))

    from autoplan.answers.configure.blocks import comparison_document, comparison_text
    from autoplan.answers.evaluate.blocks import plan_table
    from autoplan.report.document_fields import plan_document

    present(
        where,
        document=lambda: {**plan_document(job, plan), "comparison": comparison_document(comparison)},
        table=lambda terminal: f"{plan_table(job, plan, terminal)}\n{comparison_text(comparison, terminal)}",
        page=partial(page_of("evaluate", "evaluation_page"), job, plan, comparison=comparison),
        trace=lambda: step_trace(job, plan),
    )


def show_serving_plan(
    job: ServingJob,
    plan: ServingPlan,
    where: Destination,
    *,
    pictures: bool,  # noqa: ARG001 - as of any kind: engines have none
) -> None:
    """Write engines with their prediction."""
    from autoplan.report.serving.serving_document import serving_plan_document
    from autoplan.report.serving.serving_report import serving_plan_blocks

    page = Later[..., str]("autoplan.report.pages.serving_page", "serving_plan_page")
    present(where, job, plan, document=serving_plan_document, table=serving_plan_blocks, page=page)
