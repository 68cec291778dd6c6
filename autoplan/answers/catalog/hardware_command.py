"""``autoplan hardware``: what this machine has, and the catalogue entry for it."""

from __future__ import annotations

from autoplan.commands.output import Format, FormatOption, OutputOption, present

__all__ = [
    "hardware",
]


def hardware(form: FormatOption = Format.table, output: OutputOption = None) -> None:
    """Find the devices of this machine and the nodes of its job, and the catalogue entry for them.

    Devices come from NVML (the package nvidia-ml-py) or AMD SMI (amdsmi), nodes from the environment of
    torchrun, Kubernetes, Slurm or Open MPI. A job with `hardware: auto` is planned for the same.
    """
    from autoplan.answers.catalog.blocks import hardware_document, hardware_table
    from autoplan.catalog import detected

    machine = detected()
    present(
        form,
        output,
        document=lambda: hardware_document(machine),
        table=lambda _: hardware_table(machine),
    )
