"""``autoplan calibrate``: coefficients and kernel curves from a user's measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.commands.lean import collect_again
from autoplan.commands.options import TorchDevice, TorchDeviceOption
from autoplan.commands.output import (
    Destination,
    Format,
    FormatOption,
    argument,
    option,
    present,
    standard_output,
    write,
)
from autoplan.commands.planned import Bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoplan.results.calibration import Calibrated


RunsOption = Annotated[
    Path | None,
    option(
        "--runs",
        "FILE",
        "Measured steps, a YAML file of kind `runs`: fit the coefficients of their stack and device.",
    ),
]

JobToCalibrate = Annotated[
    str | None,
    argument("[JOB]", "With --log: the job that ran, a path to its file or the name of a shipped one."),
]

LayoutsOption = Annotated[
    list[str] | None,
    option("--layout", "LAYOUT", "With --log: the layout that ran. Once for each log.", "-l"),
]

LogsOption = Annotated[
    list[Path] | None,
    option(
        "--log",
        "FILE",
        "Log of a few steps of JOB, as Megatron-LM, NeMo, nanotron, torchtitan, DeepSpeed or the Hugging Face"
        " Trainer prints it: fit host launch, clock and network of the machine. May be repeated.",
    ),
]

MachineOption = Annotated[
    bool,
    typer.Option(
        "--machine", help="With --runs: fit host launch, clock and network only; one run is enough."
    ),
]

FolderOption = Annotated[
    Path | None,
    option(
        "--output",
        "DIR",
        "Folder for the resulting cost model files, each written atomically. Default: none are written.",
        "-o",
    ),
]

MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Time kernels on this machine's accelerator, through PyTorch.")
]

HardwareOption = Annotated[
    str | None,
    option(
        "--hardware",
        "NAME",
        "With --measure: the device or node of the catalogue that this machine is.",
    ),
]

PointsOption = Annotated[
    Path | None,
    option(
        "--points",
        "FILE",
        "With --measure: file to which measurements are appended; points in it are not measured twice."
        " Default: NAME-points.jsonl.",
    ),
]

QuickOption = Annotated[bool, typer.Option("--quick", help="With --measure: a small grid, a few minutes.")]


def calibrate(  # noqa: PLR0913, PLR0917 - each argument is an option
    job: JobToCalibrate = None,
    layout: LayoutsOption = None,
    log: LogsOption = None,
    runs: RunsOption = None,
    machine: MachineOption = False,
    measure: MeasureOption = False,
    hardware: HardwareOption = None,
    points: PointsOption = None,
    quick: QuickOption = False,
    device: TorchDeviceOption = TorchDevice.cuda,
    form: FormatOption = Format.table,
    output: FolderOption = None,
) -> None:
    """Fit a cost model to measurements: steps in your logs, step times of runs, or kernels.

    Needs SciPy (`pip install 'autoplan[calibrate]'`), and --measure PyTorch too.

    With --log, three numbers that differ between machines (host time of a launch, sustained clock, share of
    the network's bandwidth) are fitted to the steps of JOB in the log of your run, with priors around the
    shipped values. The first third of the steps, from one to five, is warm-up; of the others the median
    counts. The files written narrow the interval of predictions. --runs FILE --machine does the same for
    step times in a file.

    Of a serving JOB, a log is the result of `vllm bench serve --save-result`, of SGLang's bench_serving, or
    an export of GenAI-Perf or AIPerf: step scale and host time of its engine are fitted, and an engine's file
    for `stack:` is written.

    With --runs, the free coefficients of the cost model are fitted to three or more measured step times, with
    priors around the shipped values. If leave-one-out predictions of the fit are worse than those of the
    shipped values, the shipped values remain.

    With --measure, GEMMs, attention and memory-bound kernels are timed, and the curves of a kernels file are
    fitted to them; under `torchrun --nproc-per-node N -m autoplan`, the collectives between N devices are
    timed. An interrupted measurement can be resumed with the same command.
    """
    if [bool(log), runs is not None, measure].count(True) != 1:
        raise typer.BadParameter(
            "one of --log FILE, --runs FILE and --measure is needed", param_hint="--runs"
        )
    if (job is not None or layout) and not log:
        raise typer.BadParameter("JOB and --layout go with --log FILE", param_hint="--log")
    if machine and runs is None:
        raise typer.BadParameter("it goes with --runs FILE", param_hint="--machine")
    if output is not None and standard_output(output) is None:
        raise typer.BadParameter(
            "cost model files need a folder: name one, or leave --output out", param_hint="--output"
        )
    collect_again()
    if log:
        _logs(job, layout or [], log, form, output)
        return
    if runs is not None:
        from autoplan.answers.calibrate import ask

        _present(ask.calibrate_machine(runs) if machine else ask.calibrate(runs), form, output)
        return
    if hardware is None:
        raise typer.BadParameter("--measure needs the name of this machine", param_hint="--hardware")
    file = points or Path(f"{Path(hardware).stem}-points.jsonl")
    _measure(hardware, file, quick=quick, device=device, form=form, output=output)


def _logs(job: str | None, layouts: list[str], logs: list[Path], form: Format, output: Path | None) -> None:
    if job is None:
        raise typer.BadParameter("--log needs the job that ran: autoplan calibrate JOB", param_hint="JOB")
    if len(layouts) != len(logs):
        counted = f"{len(layouts)} and {len(logs)}"
        raise typer.BadParameter(f"each --log needs its --layout: there are {counted}", param_hint="--layout")
    from autoplan.kinds import kind_of

    _present(kind_of(job).calibrate(job, layouts, logs), form, output)


def _measure(
    hardware: str, points: Path, *, quick: bool, device: TorchDevice, form: Format, output: Path | None
) -> None:
    from autoplan.answers.calibrate.ask import measure

    with Bar("measuring") as bar:
        answer = measure(hardware, points, device=device.value, quick=quick, progress=bar)
    if answer is not None:  # else another rank writes the answer
        _present(answer, form, output)


def _present(answer: Calibrated, form: Format, output: Path | None) -> None:
    """Write the files of what was fitted, and show it."""
    from autoplan.answers.calibrate.ask import calibrated_files
    from autoplan.answers.calibrate.blocks import FORMS

    document, table = FORMS[type(answer)]
    present(
        Destination(form), answer, _written(calibrated_files(answer), output), document=document, table=table
    )


def _written(texts: Mapping[str, str], folder: Path | None) -> list[str]:
    """Write each text to its file in ``folder`` and return the paths; none without a folder."""
    if folder is None:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise typer.BadParameter(
            f"cannot write to {str(folder)!r}: {reason}", param_hint="--output"
        ) from error
    for name, text in texts.items():
        write(text, folder / name)
    return [str(folder / name) for name in texts]
