"""``autoplan guide``: how to train a model on some hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.commands.lean import load_solver
from autoplan.commands.options import DeadlineOption, command_deadline
from autoplan.commands.output import (
    NOTHING_FEASIBLE,
    Destination,
    Format,
    FormatOption,
    OutputOption,
    argument,
    option,
    page_of,
    present,
    typed_command,
)
from autoplan.commands.planned import Bar, stopped_by_signals

if TYPE_CHECKING:
    from autoplan.answers.guide.value import TrainingGuide
    from autoplan.deadline import Deadline
    from autoplan.schema.job import Job


_MOST_COUNT = 10_000_000

ModelArgument = Annotated[str | None, argument("MODEL", "A model, by name or by the path of its file.")]
HardwareArgument = Annotated[
    str | None, argument("HARDWARE", "A node or cluster, by name or by the path of its file.")
]
NamedModel = Annotated[str | None, option("--model", "MODEL", "MODEL, as other commands have it.")]
NamedHardware = Annotated[str | None, option("--hardware", "NODE", "HARDWARE, as other commands have it.")]
DeviceCount = Annotated[int | None, option("--devices", "N", "Devices to use; all if left out.", min=1)]
SequenceLength = Annotated[
    int | None,
    option(
        "--sequence-length",
        "TOKENS",
        "Tokens of a sequence; 4,096 if left out, or the model's positions if fewer.",
        min=1,
    ),
]
GlobalBatchSize = Annotated[
    int | None,
    option(
        "--global-batch-size",
        "N",
        "Sequences of a step; those of half a million tokens if left out.",
        "--batch",
        min=1,
        max=_MOST_COUNT,
    ),
]
CriticalBatch = Annotated[
    float | None,
    option(
        "--critical-batch",
        "TOKENS",
        "The critical batch size of the run, which the warnings are about.",
        min=1.0,
    ),
]
PrecisionName = Annotated[str | None, option("--precision", "NAME", "Such as bf16 or fp8.")]
StackName = Annotated[
    str | None,
    option(
        "--stack", "NAME", "The training software; that of the fastest of the usual programs if left out."
    ),
]
OptimizerOption = Annotated[str | None, option("--optimizer", "NAME", "Such as adamw.")]


def guide(  # noqa: PLR0913, PLR0917 - a parameter for each option
    context: typer.Context,
    model: ModelArgument = None,
    hardware: HardwareArgument = None,
    named_model: NamedModel = None,
    named_hardware: NamedHardware = None,
    devices: DeviceCount = None,
    sequence_length: SequenceLength = None,
    global_batch_size: GlobalBatchSize = None,
    critical_batch: CriticalBatch = None,
    precision: PrecisionName = None,
    stack: StackName = None,
    optimizer: OptimizerOption = None,
    deadline: DeadlineOption = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say how to train MODEL on HARDWARE: what fits, what each technique brings, and what limits the best.

    Memory arithmetic; baselines from data parallelism in fp32 to everything the software has, each with the
    fastest layout that it allows; what sets the tensor and the pipeline degree; 1, 2, 4, 8, 16 and more
    devices against Amdahl's and Gustafson's laws; shares of the bottlenecks; what the batch and another
    precision mean. Every layout is the proven fastest of its search, and the best one is that of `plan`.

    Exit code 1: no layout is feasible. The answer has the reasons and the devices that would be enough. An
    --output whose name ends in .html is the answer as a page that loads nothing, written beside the table.
    """
    from autoplan.answers.guide.ask import guided_job
    from autoplan.answers.guide.blocks import guide_blocks, guide_document

    of_model, on = _one_of(model, named_model, "MODEL"), _one_of(hardware, named_hardware, "HARDWARE")
    limit = command_deadline(deadline)
    with stopped_by_signals(limit):
        job, assumed = guided_job(
            of_model,
            on,
            devices=devices,
            sequence_length=sequence_length,
            global_batch_size=global_batch_size,
            precision=precision,
            stack=stack,
            optimizer=optimizer,
        )
        if deadline is None:
            limit.seconds = job.deadline
        answer = _answer(job, assumed, critical_batch, limit)
        where, page = Destination(form, output, typed_command(context)), page_of("guide", "guide_page")
        present(where, answer, document=guide_document, table=guide_blocks, page=page)
    if answer.best is None:
        raise typer.Exit(NOTHING_FEASIBLE)


def _one_of(argument_value: str | None, option_value: str | None, name: str) -> str:
    """Return what is said in one of two places; refuses none and both."""
    if (argument_value is None) == (option_value is None):
        wanted = "is missing, such as" if argument_value is None else "is said twice: write"
        raise typer.BadParameter(f"{wanted} autoplan guide llama3.1-8b dgx-h100", param_hint=name)
    return argument_value or option_value or ""


def _answer(
    job: Job, assumed: tuple[str, ...], critical_tokens: float | None, deadline: Deadline
) -> TrainingGuide:
    from autoplan.answers.guide import ask

    with Bar("guide:") as bar:
        load_solver()
        return ask.guide(
            job, critical_tokens=critical_tokens, assumed=assumed, progress=bar, deadline=deadline
        )
