"""``autoplan gemm``: what one matrix product takes, on one device or split over several."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer

from autoplan.commands.output import (
    NOTHING_FEASIBLE,
    Destination,
    Format,
    FormatOption,
    OutputOption,
    option,
    page_of,
    present,
    typed_command,
)
from autoplan.schema.precision import Optimizer, Precision, ResultState, StartState


class Scheme(StrEnum):
    """The schemes of distributed products: typer has no list of a Literal's words."""

    batch = "batch"
    rows = "rows"
    columns = "columns"
    inner = "inner"
    summa = "summa"
    cannon = "cannon"
    two_and_a_half_d = "2.5d"
    three_d = "3d"


Rows = Annotated[int | None, typer.Option("--m", help="Rows of A and Y, such as tokens.", show_default=False)]
Columns = Annotated[
    int | None, typer.Option("--n", help="Columns of W and Y, the output features.", show_default=False)
]
Inner = Annotated[
    int | None,
    typer.Option("--k", help="Columns of A and rows of W, the input features.", show_default=False),
]
Batch = Annotated[int, typer.Option("--batch", help="Independent products of these extents.")]
Operands = Annotated[Precision, typer.Option("--dtype", metavar="FORMAT", help="Format of A and W.")]
Output = Annotated[
    Precision | None,
    option(
        "--output-dtype", "FORMAT", "Format of Y; left out: that of A and W, bf16 where they are narrower."
    ),
]
Partial = Annotated[
    Precision | None,
    option(
        "--partial-dtype", "FORMAT", "Format of partial sums between panels and devices; left out: that of Y."
    ),
]
DeviceName = Annotated[str | None, option("--device", "NAME", "One device, by its name.")]
HardwareName = Annotated[
    str | None, option("--hardware", "NAME", "A node or a cluster, by its name or file.")
]
Devices = Annotated[int | None, option("--devices", "N", "Devices to split the product over; left out: one.")]
Headroom = Annotated[str | None, option("--headroom", "SHARE", 'Share of memory to leave free: "5 %".')]
Memory = Annotated[str | None, option("--memory", "SIZE", 'Most memory of a device to use: "20 GiB".')]
Stack = Annotated[
    str | None,
    option(
        "--stack",
        "NAME",
        "Software stack of context, fragmentation and optimizer states; left out: the node's usual one.",
    ),
]
OptimizerOption = Annotated[
    Optimizer, typer.Option("--optimizer", metavar="NAME", help="Optimizer of training.")
]
Bias = Annotated[bool, typer.Option("--bias", help="Add a bias to Y.")]
Residual = Annotated[bool, typer.Option("--residual", help="Add a residual to Y.")]
SplitParts = Annotated[int, typer.Option("--split-k", metavar="N", help="Parts of a split-k kernel.")]
Find = Annotated[
    Literal["largest", "compute-bound"],
    typer.Option(
        "--find",
        metavar="WHAT",
        help="Of the extent that is left out: the largest that fits, or the smallest compute-bound.",
    ),
]
StartOption = Annotated[
    StartState,
    typer.Option(
        "--start",
        metavar="STATE",
        help="Operands before, on several devices: one-copy of each over all, or in-place, where needed.",
    ),
]
ResultOption = Annotated[
    ResultState,
    typer.Option(
        "--result", metavar="STATE", help="Y afterwards: sharded over all devices, or replicated on each."
    ),
]
Schemes = Annotated[
    list[Scheme] | None,
    option(
        "--scheme",
        "SCHEME",
        "A scheme that may be chosen; may be repeated. Left out: all of batch, rows, columns, inner,"
        " summa, cannon, 2.5d, 3d.",
    ),
]
Overlap = Annotated[
    bool, typer.Option("--overlap/--no-overlap", help="Move a panel while the one before is multiplied.")
]


def gemm(  # noqa: PLR0913, PLR0917 - one argument for each option
    context: typer.Context,
    m: Rows = None,
    n: Columns = None,
    k: Inner = None,
    batch: Batch = 1,
    dtype: Operands = "bf16",
    output_dtype: Output = None,
    partial_dtype: Partial = None,
    device: DeviceName = None,
    hardware: HardwareName = None,
    devices: Devices = None,
    headroom: Headroom = None,
    memory: Memory = None,
    stack: Stack = None,
    optimizer: OptimizerOption = "adamw",
    bias: Bias = False,
    residual: Residual = False,
    split_k: SplitParts = 1,
    find: Find = "largest",
    start: StartOption = "one-copy",
    result: ResultOption = "sharded",
    scheme: Schemes = None,
    overlap: Overlap = True,
    form: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:  # fmt: skip
    """Say what the product Y [m, n] = A [m, k] W [k, n] takes: bytes, memory, roofline and time.

    One of m, n and k may be left out on one device: it is solved for. On several devices the scheme that
    splits the product is chosen and proven. Exit code 1: it does not fit, or no extent is compute-bound; the
    answer has the reason and the smallest changes that help. An --output whose name ends in .html is the
    answer as a page that loads nothing, written beside the table.
    """
    from autoplan.answers.gemm import ask
    from autoplan.answers.gemm.single_product import GemmQuestion, ProductSettings

    settings = ProductSettings(
        operands=dtype,
        output=output_dtype,
        partial=partial_dtype,
        bias=bias,
        residual=residual,
        split_k=split_k,
        optimizer=optimizer,
        stack=stack,
        headroom=headroom,
        memory=memory,
    )
    answer = ask.gemm(
        GemmQuestion(
            m=m,
            n=n,
            k=k,
            batch=batch,
            device=device,
            hardware=hardware,
            devices=devices,
            settings=settings,
            find=find,
            start=start,
            result=result,
            schemes=tuple(name.value for name in scheme or ()),
            overlap=overlap,
        )
    )

    from autoplan.answers.gemm.blocks import gemm_blocks, gemm_document

    where, page = Destination(form, output, typed_command(context)), page_of("gemm", "gemm_page")
    present(where, answer, document=gemm_document, table=gemm_blocks, page=page)
    if not answer.feasible:
        raise typer.Exit(NOTHING_FEASIBLE)
