"""``autoplan hardware``: what this machine has, and the catalogue entry for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoplan.commands.options import TorchDevice, TorchDeviceOption
from autoplan.commands.output import Format, FormatOption, OutputOption, present, write

__all__ = [
    "hardware",
]

MeasureOption = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Time the links between the devices in seconds, and print a node's file with their rates.",
    ),
]

NodeOption = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="NAME",
        help="With --measure: the node of the catalogue that this machine is. Default: the one found.",
        show_default=False,
    ),
]


def hardware(
    form: FormatOption = Format.table,
    output: OutputOption = None,
    measure: MeasureOption = False,
    node: NodeOption = None,
    device: TorchDeviceOption = TorchDevice.cuda,
) -> None:
    """Find the devices of this machine and the nodes of its job, and the catalogue entry for them.

    Devices come from NVML (the package nvidia-ml-py) or AMD SMI (amdsmi), nodes from the environment of
    torchrun, Kubernetes, Slurm or Open MPI. A job with `hardware: auto` is planned for the same.

    With --measure -o node.yaml, collectives between the devices are timed, by nccl-tests (all_reduce_perf)
    where it is installed, else by PyTorch: a job with `hardware: ./node.yaml` is planned with the measured
    rates. Under `torchrun --nnodes M --nproc-per-node N -m autoplan hardware --measure`, the network between
    nodes is timed, too.
    """
    if measure:
        _measured(node, device, form, output)
        return
    if node is not None:
        raise typer.BadParameter("it goes with --measure", param_hint="--hardware")
    from autoplan.answers.catalog.blocks import hardware_document, hardware_table
    from autoplan.catalog import detected

    machine = detected()
    present(
        form,
        output,
        document=lambda: hardware_document(machine),
        table=lambda _: hardware_table(machine),
    )


def _measured(node: str | None, device: TorchDevice, form: Format, output: Path | None) -> None:
    """Write the measured node's file; nothing on other ranks than the first."""
    from autoplan import planning

    if form is Format.json:
        raise typer.BadParameter("a measured node is a YAML file", param_hint="--format")
    text = planning.measured_hardware(node, device=device.value)
    if text is not None:
        write(text, output)
