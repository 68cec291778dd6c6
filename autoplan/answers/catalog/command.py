"""``autoplan catalog``: what is known about hardware, models and software."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

import typer

from autoplan.catalog.roots import KINDS, EntryKind
from autoplan.commands.options import TorchDevice, TorchDeviceOption
from autoplan.commands.output import (
    BAD_INPUT,
    DataFormat,
    DataFormatOption,
    Destination,
    Format,
    FormatOption,
    OutputOption,
    argument,
    escaped,
    option,
    present,
    write,
)

#: Kinds of files: catalogue entries, measured runs, and saved answers of ``plan``.
FileKind: TypeAlias = Literal[EntryKind, "runs", "plan"]
_SCHEMAS = ", ".join((*KINDS, "runs", "plan"))


def schema(
    kind: Annotated[
        FileKind, typer.Argument(metavar="[KIND]", help=f"Kind of file: one of {_SCHEMAS}.")
    ] = "job",
    form: DataFormatOption = DataFormat.json,
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of file; `plan` is the answer of plan --format json."""
    from autoplan.catalog import FILES
    from autoplan.report.render.serialization import dump
    from autoplan.schema.run_files import RunsSpec
    from autoplan.schema.saved_front import SavedFront
    from autoplan.schema.yaml.loader import json_schema

    others: dict[str, object] = {"runs": RunsSpec, "plan": SavedFront}
    read = others[kind] if kind in others else FILES[cast("EntryKind", kind)]
    write(dump(json_schema(read), form.value), output)


_NAMES = ", ".join(KINDS)

KindArgument = Annotated[EntryKind | None, argument("[KIND]", f"One of {_NAMES}. Default: all.")]

KindOption = Annotated[EntryKind | None, option("--kind", "KIND", f"One of {_NAMES}. Default: any.")]

catalog = typer.Typer(
    help="List, show and check the entries on hardware, models and software.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@catalog.command("list", short_help="List entries with their key facts.")
def list_entries(
    kind: KindArgument = None, form: FormatOption = Format.table, output: OutputOption = None
) -> None:
    """List the entries of one kind or of all, with their key facts."""
    from autoplan.answers.catalog.blocks import catalog_blocks, catalog_document
    from autoplan.catalog import entry_names
    from autoplan.planning.communicating import parameter_counts

    kinds = [name for name in KINDS if kind in (None, name)]
    parameters = parameter_counts(entry_names("model") if "model" in kinds else ())
    present(Destination(form, output), kinds, parameters, document=catalog_document, table=catalog_blocks)


@catalog.command(short_help="Print one entry.")
def show(
    name: Annotated[str, argument("NAME", "The name of an entry.")],
    kind: KindOption = None,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Print the entry NAME: its file, or its values as json or yaml.

    A stack is printed with its inherited values, each with a comment that names the stack that it comes from;
    defaults have the comment "default". If entries of several kinds have this name, all of them are printed.
    """
    from autoplan.answers.catalog.blocks import entries_document, entries_text
    from autoplan.catalog import find_entries
    from autoplan.planning.communicating import parameter_counts

    entries = find_entries(name, kind)
    parameters = parameter_counts(entry for of_kind, entry in entries if of_kind == "model")
    present(
        Destination(form, output),
        document=lambda: entries_document(entries, parameters),
        table=lambda _: entries_text(entries, parameters),
    )


@catalog.command(short_help="Check every entry.")
def check() -> None:
    """Check every entry of every catalogue; exit code 2 if one is invalid."""
    from autoplan.catalog import catalog_problems

    problems, entries = catalog_problems()
    if problems:
        write(escaped("\n".join(problems) + "\n"))
        raise typer.Exit(BAD_INPUT)
    write(f"{entries} entries, all valid\n")


MeasureOption = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Time the links between the devices in seconds, and print a node's file with their rates.",
    ),
]

NodeOption = Annotated[
    str | None,
    option(
        "--hardware",
        "NAME",
        "With --measure: the node of the catalogue that this machine is. Default: the one found.",
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
        Destination(form, output),
        document=lambda: hardware_document(machine),
        table=lambda _: hardware_table(machine),
    )


def _measured(node: str | None, device: TorchDevice, form: Format, output: Path | None) -> None:
    """Write the measured node's file; nothing on other ranks than the first."""
    from autoplan.answers.calibrate.ask import measured_hardware

    if form is Format.json:
        raise typer.BadParameter("a measured node is a YAML file", param_hint="--format")
    text = measured_hardware(node, device=device.value)
    if text is not None:
        write(text, output)
