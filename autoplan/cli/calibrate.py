"""``autoplan calibrate``: coefficients and kernel curves from a user's own measurements."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoplan.cli.shared.output import Format, FormatOption, present, write
from autoplan.cli.shared.progress import Bar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["calibrate"]


class TorchDevice(StrEnum):
    """Where PyTorch runs what is measured."""

    cuda = "cuda"
    cpu = "cpu"


def _named(name: str, metavar: str, text: str, *names: str) -> Any:  # noqa: ANN401 - typer's own word
    """Return an option that names something, and is left out by default."""
    return typer.Option(name, *names, metavar=metavar, help=text, show_default=False)


RunsOption = Annotated[
    Path | None,
    _named(
        "--runs",
        "FILE",
        "Measured steps, a YAML file of kind `runs`: fit the coefficients of their stack and device.",
    ),
]

FolderOption = Annotated[
    Path | None,
    _named(
        "--output",
        "DIR",
        "Folder for the cost model files that follow, each written whole or not at all."
        " Left out: only the answer is printed.",
        "-o",
    ),
]

MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Time kernels on this machine's accelerator, through PyTorch.")
]

HardwareOption = Annotated[
    str | None,
    _named(
        "--hardware",
        "NAME",
        "With --measure: what this machine is, a device of the catalogue or the node that holds it.",
    ),
]

PointsOption = Annotated[
    Path | None,
    _named(
        "--points",
        "FILE",
        "With --measure: where each measurement is added as it comes; those that are there already are"
        " not measured again. Left out: NAME-points.jsonl.",
    ),
]

QuickOption = Annotated[bool, typer.Option("--quick", help="With --measure: a small grid, a few minutes.")]

DeviceOption = Annotated[
    TorchDevice,
    typer.Option("--device", metavar="DEVICE", help="With --measure: cuda (also ROCm's), or cpu to try it."),
]


def calibrate(  # noqa: PLR0913, PLR0917 - each argument is an option
    runs: RunsOption = None,
    measure: MeasureOption = False,
    hardware: HardwareOption = None,
    points: PointsOption = None,
    quick: QuickOption = False,
    device: DeviceOption = TorchDevice.cuda,
    form: FormatOption = Format.table,
    output: FolderOption = None,
) -> None:
    """Fit a cost model to what was measured: your runs, or the kernels of your accelerator.

    Needs SciPy (`pip install 'autoplan[calibrate]'`), and --measure PyTorch too.

    With --runs, the few coefficients that mechanisms leave open move as far as three or more measured steps
    say, and no further than their priors allow. Where fits to the other runs predict the runs worse than the
    shipped values do, those are kept.

    With --measure, matrix products, attention and memory traffic are timed, and the curves of a kernels file
    fitted to them; under `torchrun --nproc-per-node N -m autoplan`, the collectives between N devices.
    It may be stopped at any moment and started again.
    """
    if (runs is None) == (not measure):
        raise typer.BadParameter("one of --runs FILE and --measure is needed", param_hint="--runs")
    if runs is not None:
        _runs(runs, form, output)
        return
    if hardware is None:
        raise typer.BadParameter("--measure needs the name of this machine's device", param_hint="--hardware")
    file = points or Path(f"{Path(hardware).stem}-points.jsonl")
    _measure(hardware, file, quick=quick, device=device, form=form, output=output)


def _runs(runs: Path, form: Format, output: Path | None) -> None:
    from autoplan import planning

    answer = planning.calibrate(runs)
    files = _written(planning.calibrated_files(answer), output)

    from autoplan.report.calibration_report import calibration_document, calibration_table

    present(
        form,
        None,
        document=lambda: calibration_document(answer, files),
        table=lambda terminal: calibration_table(answer, files, terminal),
    )


def _measure(
    hardware: str, points: Path, *, quick: bool, device: TorchDevice, form: Format, output: Path | None
) -> None:
    from autoplan import planning

    with Bar("measuring") as bar:
        answer = planning.measure(hardware, points, device=device.value, quick=quick, progress=bar)
    if answer is None:  # another rank answers
        return
    files = _written(planning.measured_file(answer), output)

    from autoplan.report.calibration_report import measured_document, measured_table

    present(
        form,
        None,
        document=lambda: measured_document(answer, files),
        table=lambda terminal: measured_table(answer, files, terminal),
    )


def _written(texts: Mapping[str, str], folder: Path | None) -> list[str]:
    """Write each text to its file in ``folder``, and return their paths; without a folder, none."""
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
