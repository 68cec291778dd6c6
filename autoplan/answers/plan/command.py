"""``autoplan plan``: the Pareto-optimal layouts of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoplan.commands.lean import load_solver
from autoplan.commands.options import CacheOption, DeadlineOption, command_deadline, takes_job_options
from autoplan.commands.output import (
    NOTHING_FEASIBLE,
    Destination,
    Format,
    FormatOption,
    JobArgument,
    OutputOption,
    drawn_step,
    option,
    page_of,
    present,
    step_trace,
    typed_command,
    write,
)
from autoplan.commands.planned import Bar, Progress, stopped_by_signals

if TYPE_CHECKING:
    from autoplan.report.render.terminal import Terminal
    from autoplan.results.front import Front

__all__ = ["plan", "show_front"]


ApplyOption = Annotated[
    int | None,
    option(
        "--apply",
        "N",
        "Write JOB with change N of an infeasible answer made, comments kept, instead of the answer.",
    ),
]


@takes_job_options
def plan(  # noqa: PLR0913, PLR0917 - a parameter for each option
    context: typer.Context,
    job: JobArgument,
    form: FormatOption = Format.table,
    output: OutputOption = None,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures",
            help="Below the table, draw the front, and memory and step of the fastest plan, with letters.",
        ),
    ] = False,
    all_plans: Annotated[
        bool, typer.Option("--all", help="Print every plan of the front, however many.")
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Below the first screen, what was rejected and why, counts, and sources of figures.",
        ),
    ] = False,
    deadline: DeadlineOption = None,
    cache: CacheOption = None,
    apply: ApplyOption = None,
    lost_nodes: Annotated[
        int | None,
        option(
            "--lost-nodes",
            "N",
            "Plan for the nodes that are left without N of JOB's, with the same global batch.",
            min=1,
        ),
    ] = None,
) -> None:
    """Find the layouts of JOB that are Pareto-optimal in step time and memory, with the proof.

    A job that names neither its program nor its stack is planned for the programs that are usual for it: each
    plan is one of a program, whose configuration emit writes.

    A serving job is planned for throughput and latency: engines, the sizes of their steps, and how many.

    Exit code 1: no layout is feasible. The answer has the reasons, the limits that conflict, and the smallest
    changes that make a plan possible, each one solved; --apply N > new.yaml makes one of them. Ctrl-C and
    SIGTERM return the best plans so far, as the deadline does, with exit code 130 or 143; a second one ends
    the program at once. An --output whose name ends in trace.json is the predicted step of the fastest plan
    as a trace for Perfetto, written in addition to the table; one that ends in .html is the answer as a page
    that loads nothing.
    """
    from autoplan.kinds import kind_of
    from autoplan.planning.remaining_devices import remaining

    kind = kind_of(job)
    progress, limit = Progress(), command_deadline(deadline)
    with stopped_by_signals(limit):
        try:
            loaded = kind.load(job) if lost_nodes is None else remaining(job, lost_nodes)
            if deadline is None:
                limit.seconds = loaded.deadline
            load_solver()
            front = kind.plan(loaded, progress=progress, deadline=limit, cache=cache)
        finally:
            progress.close()
        if not front.feasible and kind.suggested is not None:
            with Bar("looking for changes that help:") as bar, limit.in_force():
                front = kind.suggested(front, progress=bar)
        if apply is not None:
            write(kind.applied(front, apply, output.parent if output else None), output)
        else:
            where = Destination(form, output, typed_command(context))
            kind.show_front(front, where, all_plans=all_plans, details=details, pictures=pictures)
    if apply is None and not front.answered:
        raise typer.Exit(NOTHING_FEASIBLE)


def show_front(front: Front, where: Destination, *, all_plans: bool, details: bool, pictures: bool) -> None:
    """Write the front of a training job."""
    from autoplan.report.document_fields import front_document

    def table(front: Front, terminal: Terminal) -> str:
        from autoplan.answers.plan.ask import faster_layout, narrower_intervals
        from autoplan.answers.plan.blocks import front_table
        from autoplan.launch.registry import expressible_number

        options: dict[str, Any] = {"all_plans": all_plans, "details": details}
        if front.feasible:
            options |= {"emitted": expressible_number(front), "intervals": narrower_intervals(front)}
            options["unexpressed"] = faster_layout(front) if details else None
        text = front_table(front, terminal, **options)
        return f"{text}\n{_pictures(front, terminal)}" if pictures and front.feasible else text

    def trace() -> str:
        from autoplan.results.merged_front import at_batch

        return step_trace(at_batch(front.job, front.fastest), front.fastest) if front.feasible else ""

    page = page_of("plan", "plan_page")
    present(where, front, document=front_document, table=table, page=page, trace=trace)


def _pictures(front: Front, terminal: Terminal) -> str:
    from autoplan.report.picture_report import front_pictures
    from autoplan.results.merged_front import at_batch

    step = drawn_step(at_batch(front.job, front.fastest), front.fastest)
    return front_pictures(front, step, terminal)
