"""``autoplan gemm``: what one matrix product takes, on one device or split over several."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from autoplan.commands.output import (
    NOTHING_FEASIBLE,
    Format,
    FormatOption,
    OutputOption,
    present,
    typed_command,
)

__all__ = ["gemm"]


class NumberFormat(StrEnum):
    """Formats of operands and results."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"
    fp8 = "fp8"
    mxfp8 = "mxfp8"
    nvfp4 = "nvfp4"


class Sought(StrEnum):
    """What is solved for where an extent is left out."""

    largest = "largest"
    compute_bound = "compute-bound"


class Start(StrEnum):
    """Where operands are at the start."""

    one_copy = "one-copy"
    in_place = "in-place"


class ResultPlace(StrEnum):
    """Where the result is at the end."""

    sharded = "sharded"
    replicated = "replicated"


class Scheme(StrEnum):
    """The schemes of distributed products."""

    batch = "batch"
    rows = "rows"
    columns = "columns"
    inner = "inner"
    summa = "summa"
    cannon = "cannon"
    two_and_a_half_d = "2.5d"
    three_d = "3d"


class OptimizerName(StrEnum):
    """Optimizers."""

    adamw = "adamw"
    adam = "adam"
    sgd = "sgd"
    adamw_8bit = "adamw-8bit"
    adamw_bf16 = "adamw-bf16"
    lion = "lion"
    muon = "muon"


Rows = Annotated[int | None, typer.Option("--m", help="Rows of A and Y, such as tokens.", show_default=False)]
Columns = Annotated[
    int | None, typer.Option("--n", help="Columns of W and Y, the output features.", show_default=False)
]
Inner = Annotated[
    int | None,
    typer.Option("--k", help="Columns of A and rows of W, the input features.", show_default=False),
]
Batch = Annotated[int, typer.Option("--batch", help="Independent products of these extents.")]
Operands = Annotated[NumberFormat, typer.Option("--dtype", metavar="FORMAT", help="Format of A and W.")]
Output = Annotated[
    NumberFormat | None,
    typer.Option(
        "--output-dtype",
        metavar="FORMAT",
        help="Format of Y; left out: that of A and W, bf16 where they are narrower.",
        show_default=False,
    ),
]
Partial = Annotated[
    NumberFormat | None,
    typer.Option(
        "--partial-dtype",
        metavar="FORMAT",
        help="Format of partial sums between panels and devices; left out: that of Y.",
        show_default=False,
    ),
]
DeviceName = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="One device, by its name.", show_default=False)
]
HardwareName = Annotated[
    str | None,
    typer.Option(
        "--hardware", metavar="NAME", help="A node or a cluster, by its name or file.", show_default=False
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices", metavar="N", help="Devices to split the product over; left out: one.", show_default=False
    ),
]
Headroom = Annotated[
    str | None,
    typer.Option(
        "--headroom", metavar="SHARE", help='Share of memory to leave free: "5 %".', show_default=False
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="SIZE", help='Most memory of a device to use: "20 GiB".', show_default=False
    ),
]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME",
        help="Software stack of context, fragmentation and optimizer states; left out: the node's usual one.",
        show_default=False,
    ),
]
Optimizer = Annotated[
    OptimizerName, typer.Option("--optimizer", metavar="NAME", help="Optimizer of training.")
]
Bias = Annotated[bool, typer.Option("--bias", help="Add a bias to Y.")]
Residual = Annotated[bool, typer.Option("--residual", help="Add a residual to Y.")]
SplitParts = Annotated[int, typer.Option("--split-k", metavar="N", help="Parts of a split-k kernel.")]
Find = Annotated[
    Sought,
    typer.Option(
        "--find",
        metavar="WHAT",
        help="Of the extent that is left out: the largest that fits, or the smallest compute-bound.",
    ),
]
StartState = Annotated[
    Start,
    typer.Option(
        "--start",
        metavar="STATE",
        help="Operands before, on several devices: one-copy of each over all, or in-place, where needed.",
    ),
]
ResultState = Annotated[
    ResultPlace,
    typer.Option(
        "--result", metavar="STATE", help="Y afterwards: sharded over all devices, or replicated on each."
    ),
]
Schemes = Annotated[
    list[Scheme] | None,
    typer.Option(
        "--scheme",
        metavar="SCHEME",
        help="A scheme that may be chosen; may be repeated. Left out: all of batch, rows, columns, inner,"
        " summa, cannon, 2.5d, 3d.",
        show_default=False,
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
    dtype: Operands = NumberFormat.bf16,
    output_dtype: Output = None,
    partial_dtype: Partial = None,
    device: DeviceName = None,
    hardware: HardwareName = None,
    devices: Devices = None,
    headroom: Headroom = None,
    memory: Memory = None,
    stack: Stack = None,
    optimizer: Optimizer = OptimizerName.adamw,
    bias: Bias = False,
    residual: Residual = False,
    split_k: SplitParts = 1,
    find: Find = Sought.largest,
    start: StartState = Start.one_copy,
    result: ResultState = ResultPlace.sharded,
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
    from autoplan import planning
    from autoplan.answers.gemm.single_product import GemmQuestion, ProductSettings

    settings = ProductSettings(
        operands=dtype.value,
        output=output_dtype.value if output_dtype else None,
        partial=partial_dtype.value if partial_dtype else None,
        bias=bias,
        residual=residual,
        split_k=split_k,
        optimizer=optimizer.value,
        stack=stack,
        headroom=headroom,
        memory=memory,
    )
    answer = planning.gemm(
        GemmQuestion(
            m=m,
            n=n,
            k=k,
            batch=batch,
            device=device,
            hardware=hardware,
            devices=devices,
            settings=settings,
            find=find.value,
            start=start.value,
            result=result.value,
            schemes=tuple(name.value for name in scheme or ()),
            overlap=overlap,
        )
    )

    from autoplan.answers.gemm.blocks import gemm_document, gemm_table

    def page() -> str:
        from autoplan.answers.gemm.page import gemm_page

        return gemm_page(answer, typed_command(context))

    present(
        form,
        output,
        document=lambda: gemm_document(answer),
        table=lambda terminal: gemm_table(answer, terminal),
        page=page,
    )
    if not answer.feasible:
        raise typer.Exit(NOTHING_FEASIBLE)
