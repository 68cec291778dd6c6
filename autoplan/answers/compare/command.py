"""``autoplan compare``: layouts of a job side by side, and where their order changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.answers.configure.read_command import (
    ArgumentOption,
    FrameworkOption,
    VariableOption,
    job_of,
    launch_file,
)
from autoplan.commands.lean import load_solver
from autoplan.commands.options import DeadlineOption, command_deadline, takes_job_options
from autoplan.commands.output import (
    Destination,
    Format,
    FormatOption,
    JobArgument,
    OutputOption,
    asks_for_page,
    option,
    page_of,
    present,
    typed_command,
)
from autoplan.commands.planned import Bar, stopped_by_signals

if TYPE_CHECKING:
    from autoplan.deadline import Deadline
    from autoplan.launch.configuration import LaunchFile
    from autoplan.schema.job import Job
    from autoplan.schema.layout import Layout
    from autoplan.schema.serving.serving_spec import ServingJob


Layouts = Annotated[
    list[str] | None,
    option(
        "--layout",
        "LAYOUT",
        "A layout, such as tp=2 or pp=2,mbs=1,recompute=full; give the option for each of them."
        " Omitted keys have their defaults.",
        "-l",
    ),
]
Axes = Annotated[
    bool,
    typer.Option(
        "--axes",
        help="Add the fastest layout of each kind: data, sharded data, tensor, pipeline, context and"
        " expert parallel.",
    ),
]
Replan = Annotated[
    bool,
    typer.Option(
        "--replan",
        help="With --axes: plan each kind again at every bandwidth, latency, batch and length.",
    ),
]
AddedFile = Annotated[
    Path | None,
    option("--from", "FILE", "Add the layout of a training script or configuration, which is not executed."),
]


@takes_job_options
def compare(  # noqa: PLR0913, PLR0917 - a parameter for each option
    context: typer.Context,
    job: JobArgument,
    layouts: Layouts = None,
    axes: Axes = False,
    replan: Replan = False,
    file: AddedFile = None,
    framework: FrameworkOption = None,
    variables: VariableOption = None,
    arguments: ArgumentOption = None,
    deadline: DeadlineOption = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Set two to six layouts of JOB side by side, and say which to pick, when another one, when to combine.

    What each splits and copies, memory by category, collectives by kind and place, exposed and hidden
    communication, bubble, latency of a microbatch; and the bandwidth, latency, batch and sequence length at
    which another layout wins, solved by pricing the layouts there. A layout that is alone is compared with
    the best one of JOB. A layout that breaks a rule is bad input: exit code 2. An --output whose name ends in
    .html is the answer as a page that loads nothing, written in addition to the table.

    Of a serving JOB: latencies, throughput, memory and limits of up to six layouts of engines, and the loads
    between which each is best.
    """
    from autoplan.kinds import kind_of

    kind, limit = kind_of(job), command_deadline(deadline)
    with stopped_by_signals(limit):
        read = None if file is None else launch_file(file, variables, arguments)
        loaded = job_of(job, read, framework)
        if deadline is None:
            limit.seconds = loaded.deadline
        options = AskedComparison(tuple(layouts or ()), axes, replan, read, framework)
        kind.show_comparison(loaded, options, Destination(form, output, typed_command(context)), limit)


@dataclass(frozen=True, slots=True)
class AskedComparison:
    """What a command line says of the layouts to compare."""

    layouts: tuple[str, ...]
    axes: bool
    replan: bool
    file: LaunchFile | None
    framework: str | None


def show_layouts(job: Job, options: AskedComparison, where: Destination, deadline: Deadline) -> None:
    """Write layouts of a training job side by side, that of a file before the others."""
    from autoplan.answers.compare import ask
    from autoplan.answers.compare.blocks import layouts_blocks, layouts_document
    from autoplan.answers.configure.comparing_files import evaluate_file
    from autoplan.answers.configure.file_notes import file_notes

    layouts: list[Layout | str] = list(options.layouts)
    names, notes = list(options.layouts), list[str]()
    with Bar("compare:") as bar:
        load_solver()
        if options.file is not None:
            read, plan, job = evaluate_file(job, options.file, options.framework)
            layouts, names = [plan.layout, *layouts], [options.file.name, *names]
            notes += file_notes(job, read, plan)
        axes, replan = options.axes, options.replan
        answer = ask.compare(
            job, layouts, names=names, axes=axes, replan=replan, progress=bar, deadline=deadline
        )
    answer, page = replace(answer, notes=tuple(notes)), page_of("compare", "comparison_page")
    present(where, answer, document=layouts_document, table=layouts_blocks, page=page)


def show_engines(job: ServingJob, options: AskedComparison, where: Destination, deadline: Deadline) -> None:
    """Write layouts of a serving job side by side."""
    from autoplan.answers.compare.ask import compare_engines

    if options.axes or options.replan or options.file is not None:
        raise typer.BadParameter("engines are compared by their layouts", param_hint="--layout")
    if asks_for_page(where.form, where.output):
        raise typer.BadParameter("no page compares engines: give .json or .txt", param_hint="--output")
    load_solver()
    answer = compare_engines(job, options.layouts, deadline=deadline)

    from autoplan.answers.compare.blocks import engine_comparison_blocks, engine_comparison_document

    present(where, answer, document=engine_comparison_document, table=engine_comparison_blocks)
