"""Answers of ``gemm`` as documents, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from autoplan.answers.gemm.value import (
    DistributedAnswer,
    ProductAnswer,
    ProductFacts,
    PurposeMemory,
    SchemeRow,
    TransferRow,
)
from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Heading,
    Sentence,
    data_table,
    facts,
    heading,
    items,
    total_width,
)
from autoplan.report.render.terminal import Terminal
from autoplan.results.job_summary import provenance
from autoplan.units import format_bytes, format_count, format_rate, format_seconds, format_share

# One product on one device, as text for a terminal.


def product_blocks(answer: ProductAnswer, terminal: Terminal) -> list[Block]:
    """Return the answer as blocks."""
    parts: list[Block] = [
        *heading((product_line(answer.facts, terminal), product_where(answer, terminal))),
        _verdict(answer),
        facts([*_free(answer), *facts_table(answer.facts), *_roofline(answer)]),
        GAP,
        _memory(answer),
        GAP,
        _time(answer, terminal),
    ]
    if answer.changes:
        parts += [GAP, Heading("what would help, smallest change first")]
        parts.append(items(answer.changes, ""))
    parts += [GAP, items([*answer.notes, *_split_k(answer)])]
    parts += [GAP, Heading("where numbers come from")]
    parts.append(items([f"{name}: {source}" for name, source in answer.sources]))
    return parts


def product_line(facts: ProductFacts, terminal: Terminal) -> str:
    """Return the title line of a product."""
    times = f" {terminal.times} "
    batch = f"{facts.batch:,}{times}" if facts.batch > 1 else ""
    added = "".join(f" + {word}" for word in ("bias", "residual") if getattr(facts, word))
    formats = facts.operands if facts.output == facts.operands else f"{facts.operands}, Y in {facts.output}"
    a, w = f"[{facts.m:,}, {facts.k:,}]", f"[{facts.k:,}, {facts.n:,}]"
    return f"{batch}Y [{facts.m:,}, {facts.n:,}] = A {a}{times}W {w}{added}, {formats}"


def product_where(answer: ProductAnswer, terminal: Terminal) -> str:
    """Return where a product on one device runs."""
    job = answer.job
    return f"on one {job.cluster.device.title} {terminal.dot} {job.stack.title}"


def _verdict(answer: ProductAnswer) -> Sentence:
    if not answer.feasible:
        return Sentence("\n".join(answer.reasons), "bad")
    inference, training = answer.memory
    if training.fits:
        return Sentence("fits for inference and for training", "good")
    return Sentence("fits for inference, not for training", "warning" if inference.fits else "bad")


def facts_table(facts: ProductFacts) -> Iterator[tuple[str, str]]:
    """Yield bytes of the operands and FLOPs, as rows."""
    for name, size, kind in (
        ("A", facts.a_bytes, facts.operands),
        ("W", facts.w_bytes, facts.operands),
        ("Y", facts.y_bytes, facts.output),
    ):
        yield name, f"{format_bytes(size)} in {kind}"
    yield (
        "work",
        f"{format_count(facts.flops)} FLOP, {format_bytes(facts.hbm_bytes)} to and from memory at least",
    )


def _free(answer: ProductAnswer) -> Iterator[tuple[str, str]]:
    free = answer.free
    if free is None:
        return
    name = free.extent
    yield (
        f"largest {name}",
        f"{free.largest_inference:,} for inference, {free.largest_training:,} for training",
    )
    smallest = free.smallest_compute_bound
    bound = f"intensity stays below {free.most_intensity:,.1f} FLOP/byte"
    yield f"compute-bound {name}", f"from {smallest:,} on" if smallest is not None else f"none: {bound}"
    yield "this answer", f"{name} = {free.used:,}"


def _roofline(answer: ProductAnswer) -> Iterator[tuple[str, str]]:
    roof = answer.roofline
    rates = f"{format_rate(roof.peak_flops, 'FLOP/s')} over {format_rate(roof.hbm_bandwidth, 'B/s')}"
    yield "intensity", f"{roof.intensity:,.1f} FLOP/byte"
    yield "ridge point", f"{roof.ridge:,.1f} FLOP/byte: {rates}"
    yield "bound by", roof.bound


def _memory(answer: ProductAnswer) -> DataTable:
    purposes = answer.memory
    names = list(dict.fromkeys(tensor.name for purpose in purposes for tensor in purpose.tensors))
    rows = [
        *names,
        "rounded by the allocator",
        "with context",
        "needed to fit",
        "usable, less headroom",
        "fits",
    ]
    columns = [Column("memory of a device", tuple(rows), "text")]
    for purpose in purposes:
        sizes = {tensor.name: tensor.bytes for tensor in purpose.tensors}
        cells = [format_bytes(sizes[name]) if name in sizes else "" for name in names]
        columns.append(
            Column(
                purpose.purpose if purpose.purpose == "inference" else f"training, {purpose.event}",
                (*cells, *_totals(purpose)),
            )
        )
    return data_table(columns)


def _totals(purpose: PurposeMemory) -> tuple[str, ...]:
    sizes = (purpose.reserved_bytes, purpose.total_bytes, purpose.needed_bytes, purpose.limit_bytes)
    return (*(format_bytes(size) for size in sizes), "yes" if purpose.fits else "no")


def _time(answer: ProductAnswer, terminal: Terminal) -> DataTable:
    times = answer.time
    names = list(dict.fromkeys(name for time in times for name, _ in time.parts))
    rows = [*names, "in total", "90 % interval", "least (roofline)", "rate", "of peak"]
    columns = [Column("predicted time", tuple(rows), "text")]
    for time in times:
        parts = dict(time.parts)
        cells = [format_seconds(parts[name]) if name in parts else "" for name in names]
        low, high = format_seconds(time.seconds_low), format_seconds(time.seconds_high)
        totals = (
            format_seconds(time.seconds),
            f"{low} {terminal.to} {high}",
            format_seconds(time.least_seconds),
            format_rate(time.flops_per_second, "FLOP/s"),
            format_share(time.peak_share),
        )
        columns.append(Column(time.purpose, (*cells, *totals)))
    return data_table(columns)


def _split_k(answer: ProductAnswer) -> Iterator[str]:
    split = answer.split_k
    workspace = format_bytes(split.workspace_bytes)
    if split.parts > 1:
        where = (
            f"in the workspace of {split.library}"
            if split.in_workspace
            else "in a buffer of the kernel's own"
        )
        size = format_bytes(split.bytes)
        yield f"Split-k in {split.parts} parts keeps {size} of partial sums in fp32, {where}."
    if split.workspace_bytes:
        most = f"split-k in up to {split.most_parts:,} parts" if split.most_parts > 1 else "no split-k"
        provided = f"The workspace that PyTorch gives {split.library}, {workspace}"
        yield f"{provided}, holds the partial sums of {most}."
    share = answer.time[0].modelled_share
    table = "inside" if share == 0 else "outside"
    yield f"This shape is {table} the measured table of the device ({answer.job.kernels.name})."


# One product on several devices, as text for a terminal.


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


def distributed_blocks(answer: DistributedAnswer, terminal: Terminal) -> list[Block]:
    """Return the answer as blocks."""
    parts: list[Block] = [
        *heading((product_line(answer.facts, terminal), distributed_where(answer, terminal))),
        _scheme_verdict(answer),
        facts([*facts_table(answer.facts), *_facts(answer, terminal)]),
    ]
    tables = (
        ("schemes, the best of each", _schemes(answer, terminal)),
        ("what each splits, and the collectives that it needs", _needs(answer)),
        ("what the chosen one sends from a device", _transfers(answer.transfers, terminal)),
        ("panel widths of the chosen grid", _panels(answer)),
        ("where the choice flips: all candidates priced on both sides", _flips(answer)),
    )
    for title, table in tables:
        if table is not None:
            parts += [GAP, Heading(title), table]
    if answer.changes:
        parts += [GAP, Heading("what would help"), items(answer.changes, "")]
    parts += [GAP, items(answer.notes)]
    return parts


def distributed_where(answer: DistributedAnswer, terminal: Terminal) -> str:
    """Return where a product on several devices runs."""
    cluster = answer.job.cluster
    return f"on {cluster.devices} {terminal.times} {cluster.device.title} of {cluster.node.title}"


def _scheme_verdict(answer: DistributedAnswer) -> Sentence:
    if answer.chosen is None:
        return Sentence("\n".join(answer.reasons), "bad")
    row, verdict = answer.chosen, answer.certificate
    proof = f"{verdict.status}, proven by {verdict.method} of {verdict.candidates:,} candidates"
    return Sentence(f"{row.text}: {_SPLITS[row.scheme]} ({proof})", "good")


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


def _schemes(answer: DistributedAnswer, terminal: Terminal) -> DataTable:
    rows = answer.schemes
    columns = [
        Column("scheme", tuple(row.text for row in rows), "text"),
        Column("panels", tuple(str(row.steps) for row in rows)),
        Column("sent", tuple(format_bytes(row.sent_bytes) for row in rows)),
        Column("bound", tuple(_ratio(row, terminal) for row in rows)),
        Column("messages", tuple(f"{row.sent_messages:,.0f}" for row in rows)),
        Column("memory", tuple(format_bytes(row.needed_bytes) for row in rows)),
        Column("no overlap", tuple(format_seconds(row.serial_seconds) for row in rows)),
        Column("overlap", tuple(format_seconds(row.overlapped_seconds) for row in rows)),
        Column("fits", tuple("yes" if row.fits else "no" for row in rows), "verdict"),
    ]
    columns = [column for column in columns if any(column.cells)]
    return _within(columns, ("panels", "messages", "bound", "no overlap"), terminal)


def _within(columns: list[Column], spare: tuple[str, ...], terminal: Terminal) -> DataTable:
    """Return a table; on a narrow terminal ``spare`` columns are left out until it fits."""
    for head in spare:
        if total_width(columns) > terminal.width:
            columns = [column for column in columns if column.head != head]
    return data_table(columns)


def _needs(answer: DistributedAnswer) -> DataTable:
    rows = answer.schemes
    return data_table(
        [
            Column("scheme", tuple(row.text for row in rows), "text"),
            Column("splits", tuple(_SPLITS[row.scheme] for row in rows), "text"),
            Column("collectives", tuple(_collectives(row) for row in rows), "text"),
        ]
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


def _transfers(rows: tuple[TransferRow, ...], terminal: Terminal) -> DataTable | None:
    if not rows:
        return None
    return _within(
        [
            Column("tensor", tuple(row.tensor for row in rows), "text"),
            Column("operation", tuple(_OPERATIONS[row.operation] for row in rows), "text"),
            Column("ranks", tuple(str(row.ranks) for row in rows)),
            Column("stride", tuple(str(row.stride) for row in rows)),
            Column("over", tuple("network" if row.crosses_nodes else "fabric" for row in rows), "text"),
            Column("calls", tuple(f"{row.calls:,.0f}" for row in rows)),
            Column("of", tuple(format_bytes(row.message_bytes) for row in rows)),
            Column("sent", tuple(format_bytes(row.sent_bytes) for row in rows)),
            Column("time", tuple(format_seconds(row.seconds) for row in rows)),
        ],
        ("stride", "ranks", "of"),
        terminal,
    )


def _panels(answer: DistributedAnswer) -> DataTable | None:
    rows = answer.panels
    if len(rows) < 2:
        return None
    return data_table(
        [
            Column("width", tuple(f"{row.width:,}" for row in rows)),
            Column("panels", tuple(str(row.panels) for row in rows)),
            Column("no overlap", tuple(format_seconds(row.serial_seconds) for row in rows)),
            Column("overlap", tuple(format_seconds(row.overlapped_seconds) for row in rows)),
            Column("memory", tuple(format_bytes(row.needed_bytes) for row in rows)),
            Column("fits", tuple("yes" if row.fits else "no" for row in rows), "verdict"),
        ]
    )


def _flips(answer: DistributedAnswer) -> DataTable | None:
    rows = answer.flips
    if not rows:
        return None
    return data_table(
        [
            Column("at", tuple(row.text for row in rows), "text"),
            Column("from", tuple(row.near_choice for row in rows), "text"),
            Column("to", tuple(row.far_choice for row in rows), "text"),
            Column("time there", tuple(format_seconds(row.near_seconds) for row in rows)),
        ]
    )


def gemm_document(answer: ProductAnswer | DistributedAnswer) -> Document:
    """Return the answer as a document, with where its numbers come from."""
    fields: dict[str, Any] = {
        name: plain(getattr(answer, name)) for name in answer.__dataclass_fields__ if name != "job"
    }
    cluster = answer.job.cluster
    return {
        "schema": SCHEMA,
        "kind": "gemm" if isinstance(answer, ProductAnswer) else "distributed gemm",
        "hardware": {"node": cluster.node.name, "device": cluster.device.name, "devices": cluster.devices},
        "feasible": answer.feasible,
        **fields,
        "provenance": provenance(answer.job),
    }


def gemm_blocks(answer: ProductAnswer | DistributedAnswer, terminal: Terminal) -> list[Block]:
    """Return the answer as blocks."""
    if isinstance(answer, ProductAnswer):
        return product_blocks(answer, terminal)
    return distributed_blocks(answer, terminal)
