"""``autoplan diagnose``: why a run is slower than its plan."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.commands.options import takes_job_options
from autoplan.commands.output import (
    Destination,
    Format,
    FormatOption,
    JobArgument,
    OutputOption,
    checked_output,
    option,
    page_of,
    present,
    typed_command,
    write,
)

if TYPE_CHECKING:
    from autoplan.answers.diagnose.value import Diagnosis


LayoutOption = Annotated[
    str,
    option("--layout", "LAYOUT", "The layout that ran, such as tp=2,pp=2,mbs=1,recompute=selective.", "-l"),
]

TraceOption = Annotated[
    list[Path],
    option(
        "--trace",
        "FILE",
        "Trace of PyTorch Profiler (JSON, plain or gzip) or of Nsight Systems exported as SQLite, of one"
        " rank or several, or a folder of traces. May be repeated.",
        "-t",
    ),
]

MemoryOption = Annotated[
    list[Path] | None,
    option(
        "--memory",
        "FILE",
        "Memory snapshot of torch.cuda.memory (pickle, which is not executed, or JSON), or memory"
        " timeline of torch.profiler. May be repeated.",
        "-m",
    ),
]

StepsOption = Annotated[
    int | None,
    option("--steps", "N", "How many steps a trace covers that has none annotated.", min=1, max=100_000),
]

RunsOutputOption = Annotated[
    Path | None,
    option(
        "--runs-output",
        "FILE",
        "Also write the measured step as a file for `autoplan calibrate --runs FILE --machine`.",
        callback=checked_output,
    ),
]


@takes_job_options
def diagnose(  # noqa: PLR0913, PLR0917 - a parameter for each option
    context: typer.Context,
    job: JobArgument,
    layout: LayoutOption,
    trace: TraceOption,
    memory: MemoryOption = None,
    steps: StepsOption = None,
    runs_output: RunsOutputOption = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say where a run of JOB is slower than the plan of its layout, by how much, and what that usually means.

    The step of median length of each trace is attributed to the parts of the prediction: kernels that
    compute, communication that no compute hides by process group, the pipeline's bubble, copies, and idle
    time that waits for the host or for data. Files are read as data and never executed. An --output whose
    name ends in .html is the answer as a page that loads nothing, written beside the table.
    """
    from autoplan.answers.diagnose import ask
    from autoplan.catalog import load_job
    from autoplan.commands.lean import collect_again
    from autoplan.planning.plan_and_evaluate import chosen

    collect_again()
    loaded = chosen(load_job(job), layout)
    answer = ask.diagnose(loaded, layout, trace, memory=memory or (), steps=steps)
    run = _record(job, answer, runs_output)
    if runs_output is not None:
        write(run, runs_output)

    from autoplan.answers.diagnose.blocks import diagnosis_blocks, diagnosis_document

    present(
        Destination(form, output, typed_command(context)),
        document=lambda: diagnosis_document(loaded, answer, run),
        table=lambda terminal: diagnosis_blocks(loaded, answer, terminal),
        page=partial(page_of("diagnose", "diagnosis_page"), loaded, answer, run),
    )


def _record(job: str, answer: Diagnosis, output: Path | None) -> str:
    """Return the run as a file; a job that is a file is named relative to it."""
    from autoplan.answers.diagnose.ask import run_record
    from autoplan.catalog import is_path

    if is_path(job):
        job = os.path.relpath(job, output.parent if output else None)
        job = job if is_path(job) else f"./{job}"
    return run_record(job, answer)
