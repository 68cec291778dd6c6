"""One product on several devices, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.report.front_report import heading, listed
from autoplan.report.matmul.product_tables import fact_rows, facts_table, product_line
from autoplan.report.render.columns import Column, columns_table, total_width
from autoplan.report.render.terminal import Terminal, render
from autoplan.results.matmul.distributed_answer import DistributedAnswer, SchemeRow, TransferRow
from autoplan.units import format_bytes, format_seconds

__all__ = ["distributed_parts", "distributed_table"]

#: What each scheme splits.
_SPLITS: Final = {
    "batch": "products of the batch",
    "rows": "m: rows of A and Y",
    "columns": "n: columns of W and Y (column-parallel)",
    "inner": "k: rows of W (row-parallel)",
    "summa": "m and n, panels of k gathered",
    "cannon": "m and n, blocks of k shifted",
    "2.5d": "m, n and k, blocks shifted, A and W copied",
    "3d": "m, n and k, panels gathered, Y summed",
}
_OPERATIONS: Final = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "shift": "send/recv",
}


def distributed_table(answer: DistributedAnswer, terminal: Terminal) -> str:
    """Return the answer as text: the choice, the other schemes, its transfers, and where it flips."""
    return render(Group(*distributed_parts(answer, terminal)), terminal)


def distributed_parts(answer: DistributedAnswer, terminal: Terminal) -> list[RenderableType]:
    """Return the answer as what is rendered one below the other."""
    cluster = answer.job.cluster
    where = f"on {cluster.devices} {terminal.times} {cluster.device.title} of {cluster.node.title}"
    parts: list[RenderableType] = [
        *heading((product_line(answer.facts, terminal), where)),
        _verdict(answer),
        fact_rows([*facts_table(answer.facts), *_facts(answer, terminal)]),
    ]
    tables = (
        ("schemes, the best of each", _schemes(answer, terminal)),
        ("what each splits, and the collectives that it needs", _needs(answer, terminal)),
        ("what the chosen one sends from a device", _transfers(answer.transfers, terminal)),
        ("panel widths of the chosen grid", _panels(answer, terminal)),
        ("where the choice flips: all candidates priced on both sides", _flips(answer, terminal)),
    )
    for title, table in tables:
        if table is not None:
            parts += [Text(""), Text(title, style="bold"), table]
    if answer.changes:
        parts += [Text(""), Text("what would help", style="bold"), *listed(answer.changes, style="")]
    parts += [Text(""), *listed(answer.notes)]
    return parts


def _verdict(answer: DistributedAnswer) -> Text:
    if answer.chosen is None:
        return Text("\n".join(answer.reasons), style="bold red")
    row, verdict = answer.chosen, answer.certificate
    proof = f"{verdict.status}, proven by {verdict.method} of {verdict.candidates:,} candidates"
    return Text(f"{row.text}: {_SPLITS[row.scheme]} ({proof})", style="green")


def _facts(answer: DistributedAnswer, terminal: Terminal) -> Iterator[tuple[str, str]]:
    row = answer.chosen
    if row is not None and answer.seconds_low is not None and answer.seconds_high is not None:
        low, high = format_seconds(answer.seconds_low), format_seconds(answer.seconds_high)
        at_limits = format_seconds(answer.least_seconds)
        yield (
            "time",
            f"{format_seconds(row.seconds)}, 90 % from {low} to {high}; {at_limits} at the machine's limits",
        )
        alone = format_seconds(row.serial_seconds)
        yield (
            "without overlap",
            (
                f"{alone}: compute {format_seconds(row.compute_seconds)},"
                f" communication {format_seconds(row.communication_seconds)}"
            ),
        )
        if row.steps > 1:
            overlap = (
                "each moved while the one before is multiplied" if row.overlapped else "one after the other"
            )
            yield "panels", f"{row.steps} of {row.panel_width:,} along k, {overlap}"
        if row.aggregated and row.sent_messages:
            yield "batch", "the products of a group of devices communicate in one message"
        yield (
            "memory",
            (
                f"{format_bytes(row.needed_bytes)} needed of {format_bytes(answer.limit_bytes)} a device:"
                f" tensors {format_bytes(row.tensor_bytes)},"
                f" communicators {format_bytes(row.communicator_bytes)}"
            ),
        )
    if answer.one_device_seconds is not None:
        ratio = f", {answer.one_device_seconds / row.seconds:.2f} {terminal.times} as long" if row else ""
        yield "one device", f"{format_seconds(answer.one_device_seconds)}{ratio}{_pays(answer)}"
    else:
        yield "one device", "does not hold it"
    if answer.least is not None:
        least = answer.least
        yield (
            "lower bound",
            (
                f"{format_bytes(least.bytes)} sent by some device (with any memory"
                f" {format_bytes(least.any_memory_bytes)}, with this {format_bytes(least.this_memory_bytes)})"
            ),
        )


def _pays(answer: DistributedAnswer) -> str:
    """Return from which number of rows on several devices pay."""
    even = answer.break_even
    return f"; several devices pay from m = {even.several_devices:,}" if even else ""


def _schemes(answer: DistributedAnswer, terminal: Terminal) -> Table:
    rows = answer.schemes
    columns = [
        Column("scheme", tuple(row.text for row in rows), "left"),
        Column("panels", tuple(str(row.steps) for row in rows)),
        Column("sent", tuple(format_bytes(row.sent_bytes) for row in rows)),
        Column("bound", tuple(_ratio(row, terminal) for row in rows)),
        Column("messages", tuple(f"{row.sent_messages:,.0f}" for row in rows)),
        Column("memory", tuple(format_bytes(row.needed_bytes) for row in rows)),
        Column("no overlap", tuple(format_seconds(row.serial_seconds) for row in rows)),
        Column("overlap", tuple(format_seconds(row.overlapped_seconds) for row in rows)),
        Column("fits", tuple("yes" if row.fits else "no" for row in rows), "left"),
    ]
    columns = [column for column in columns if any(column.cells)]
    return _within(columns, ("panels", "messages", "bound", "no overlap"), terminal)


def _within(columns: list[Column], spare: tuple[str, ...], terminal: Terminal) -> Table:
    """Return a table, on a narrow terminal without as many of the ``spare`` columns as it has to spare."""
    for head in spare:
        if total_width(columns) > terminal.width:
            columns = [column for column in columns if column.head != head]
    return columns_table(columns, terminal)


def _needs(answer: DistributedAnswer, terminal: Terminal) -> Table:
    rows = answer.schemes
    return columns_table(
        [
            Column("scheme", tuple(row.text for row in rows), "left"),
            Column("splits", tuple(_SPLITS[row.scheme] for row in rows), "left"),
            Column("collectives", tuple(_collectives(row) for row in rows), "left"),
        ],
        terminal,
    )


def _collectives(row: SchemeRow) -> str:
    """Return the operations of a scheme, each with its tensors."""
    tensors: dict[str, list[str]] = {}
    for operation, tensor in row.collectives:
        names = tensors.setdefault(_OPERATIONS[operation], [])
        matrix = tensor.rpartition(" ")[2]
        if matrix not in names:
            names.append(matrix)
    return (
        ", ".join(f"{operation} of {' and '.join(names)}" for operation, names in tensors.items()) or "none"
    )


def _ratio(row: SchemeRow, terminal: Terminal) -> str:
    if row.communication_ratio is None:
        return ""
    return f"{row.communication_ratio:.2f} {terminal.times}"


def _transfers(rows: tuple[TransferRow, ...], terminal: Terminal) -> Table | None:
    if not rows:
        return None
    return _within(
        [
            Column("tensor", tuple(row.tensor for row in rows), "left"),
            Column("operation", tuple(_OPERATIONS[row.operation] for row in rows), "left"),
            Column("ranks", tuple(str(row.ranks) for row in rows)),
            Column("stride", tuple(str(row.stride) for row in rows)),
            Column("over", tuple("network" if row.crosses_nodes else "fabric" for row in rows), "left"),
            Column("calls", tuple(f"{row.calls:,.0f}" for row in rows)),
            Column("of", tuple(format_bytes(row.message_bytes) for row in rows)),
            Column("sent", tuple(format_bytes(row.sent_bytes) for row in rows)),
            Column("time", tuple(format_seconds(row.seconds) for row in rows)),
        ],
        ("stride", "ranks", "of"),
        terminal,
    )


def _panels(answer: DistributedAnswer, terminal: Terminal) -> Table | None:
    rows = answer.panels
    if len(rows) < 2:
        return None
    return columns_table(
        [
            Column("width", tuple(f"{row.width:,}" for row in rows)),
            Column("panels", tuple(str(row.panels) for row in rows)),
            Column("no overlap", tuple(format_seconds(row.serial_seconds) for row in rows)),
            Column("overlap", tuple(format_seconds(row.overlapped_seconds) for row in rows)),
            Column("memory", tuple(format_bytes(row.needed_bytes) for row in rows)),
            Column("fits", tuple("yes" if row.fits else "no" for row in rows), "left"),
        ],
        terminal,
    )


def _flips(answer: DistributedAnswer, terminal: Terminal) -> Table | None:
    rows = answer.flips
    if not rows:
        return None
    return columns_table(
        [
            Column("at", tuple(row.text for row in rows), "left"),
            Column("from", tuple(row.near_choice for row in rows), "left"),
            Column("to", tuple(row.far_choice for row in rows), "left"),
            Column("time there", tuple(format_seconds(row.near_seconds) for row in rows)),
        ],
        terminal,
    )
