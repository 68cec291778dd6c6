"""The answer to a grid of jobs, as table and document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.blocks import (
    COLUMN_GAP,
    GAP,
    Block,
    Column,
    DataTable,
    Sentence,
    heading,
    items,
    total_width,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.serving_words import common_parts, engine_layout_parts, time_words
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import layout_parts, wrap_parts
from autoplan.results.sweep import AnyCellAnswer, CellAnswer, ServingCellAnswer, Sweep, SweepRow
from autoplan.schema.grid_spec import text_of
from autoplan.schema.layout import parse_layout
from autoplan.schema.serving.engine_layout import engines_of
from autoplan.version import __version__

#: Cells that a table shows unless all are asked for.
MOST_CELLS_SHOWN: Final = 50

#: Columns below which a table leaves out what is least asked for.
_ROOMY: Final = 120

#: Smallest width of the layout column.
_LEAST_LAYOUT: Final = 18


def sweep_document(sweep: Sweep) -> Document:
    """Return ``sweep`` as a document, in base units."""
    return {
        "schema": SCHEMA,
        "sweep": {
            "name": sweep.name,
            "kind": sweep.kind,
            "keys": list(sweep.keys),
            "cells": len(sweep.rows),
            "counts": sweep.counts(),
            "reused": sweep.reused,
            "output": sweep.output,
            "altered": sweep.altered,
        },
        "rows": [
            {"cell": row.cell.number, "settings": plain(dict(row.cell.settings)), **plain(row.answer)}
            for row in sweep.rows
        ],
        "provenance": {"autoplan": __version__},
    }


def sweep_blocks(sweep: Sweep, terminal: Terminal, *, all_cells: bool = False) -> list[Block]:
    """Return the cells as blocks."""
    rows = sweep.rows if all_cells else sweep.rows[:MOST_CELLS_SHOWN]
    common = _common(rows)
    parts: list[Block] = [*heading([*_head(sweep)])]
    if common:
        parts.append(Sentence(f"every engine: {f' {terminal.dot} '.join(common)}", "quiet"))
    parts.append(_table(sweep.keys, rows, common, terminal))
    if len(rows) < len(sweep.rows):
        parts.append(Sentence(f"({len(sweep.rows) - len(rows)} more: --all or --format json)", "quiet"))
    return [*parts, *_reasons(sweep.rows)]


def _head(sweep: Sweep) -> Iterator[str]:
    counts = sweep.counts()
    by_status = ", ".join(f"{count} {status}" for status, count in counts.items())
    yield f"{sweep.name}: {len(sweep.rows)} cells, {by_status}"
    if sweep.output:
        reused = f", {sweep.reused} of them from its journal" if sweep.reused else ""
        yield f"all rows are in {sweep.output}{reused}"


def _common(rows: Sequence[SweepRow]) -> list[str]:
    """Return what the engines of all cells with a plan have in common; nothing of training."""
    plans = [
        [list(engine_layout_parts(engine)) for engine in engines_of(answer.layout)]
        for answer in (row.answer for row in rows)
        if isinstance(answer, ServingCellAnswer) and answer.layout is not None
    ]
    return common_parts(plans) if plans else []


def _table(
    keys: Sequence[str], rows: Sequence[SweepRow], common: Sequence[str], terminal: Terminal
) -> DataTable:
    numbers = Column("cell", tuple(str(row.cell.number) for row in rows))
    settings = [_setting(key, rows) for key in keys]
    figures = _figures(rows, terminal)
    taken = total_width([numbers, *settings, *figures]) + COLUMN_GAP
    width = max(_LEAST_LAYOUT, terminal.width - taken)
    layouts = tuple(_folded(row.answer, common, width, terminal) for row in rows)
    columns = (numbers, *settings, Column("best layout", layouts, "text"), *figures)
    return DataTable(columns, anchors="cell")


def _setting(key: str, rows: Sequence[SweepRow]) -> Column:
    values = [row.cell.settings[key] for row in rows]
    number = all(isinstance(value, int) for value in values)
    head = key.replace(".", ".\n").replace("_", "_\n") if len(key) > 12 else key
    return Column(
        head, tuple("-" if v is None else text_of(v) for v in values), "number" if number else "text"
    )


def _folded(answer: AnyCellAnswer, common: Sequence[str], width: int, terminal: Terminal) -> str:
    """Return a layout without ``common`` parts in lines of ``width``, or the status of a cell without one."""
    if answer.layout is None:
        return answer.status
    if isinstance(answer, ServingCellAnswer):
        engines = (engine_layout_parts(engine) for engine in engines_of(answer.layout))
        told = ([part for part in parts if part not in common] for parts in engines)
        return "\n".join(wrap_parts(parts, width, terminal) for parts in told)
    if answer.layers is None or answer.devices_used is None:
        return answer.status
    layout = parse_layout(answer.layout, layers=answer.layers, devices=answer.devices_used)
    return wrap_parts(layout_parts(layout, terminal), width, terminal)


def _figures(rows: Sequence[SweepRow], terminal: Terminal) -> list[Column]:
    """Return the columns of the plans of jobs, which are all of one kind."""
    answers = [row.answer for row in rows]
    serving = [answer for answer in answers if isinstance(answer, ServingCellAnswer)]
    if serving:
        return _serving_figures(serving, terminal)
    return _training_figures([answer for answer in answers if isinstance(answer, CellAnswer)], terminal)


def _training_figures(answers: Sequence[CellAnswer], terminal: Terminal) -> list[Column]:
    step = Column("step\n(s)", tuple(_number(a.step_seconds, ".2f") for a in answers), look="strong")
    within = Column("90 % interval\n(s)", tuple(_interval(a, terminal) for a in answers))
    tokens = Column(
        "tokens/s\n/device", tuple(_number(a.tokens_per_second_per_device, ",.0f") for a in answers)
    )
    use = Column("MFU\n(%)", tuple(_number(a.model_flops_utilization, ".1f", 100.0) for a in answers))
    memory = Column(
        "memory\n(GiB)", tuple(_number(a.peak_memory_bytes_per_device, ".1f", 1 / GIB) for a in answers)
    )
    fits = Column(
        "fits", tuple("-" if a.fits is None else "yes" if a.fits else "no" for a in answers), "verdict"
    )
    planned = Column("planned\nin (s)", tuple(f"{a.planning_seconds:.2f}" for a in answers), look="quiet")
    if terminal.width < _ROOMY:
        return [step, tokens, use, memory]
    return [step, within, tokens, use, memory, fits, planned]


def _serving_figures(answers: Sequence[ServingCellAnswer], terminal: Terminal) -> list[Column]:
    token = Column(
        "time\n/token",
        tuple(time_words(a.time_per_output_token_seconds) for a in answers),
        look="strong",
    )
    first = Column("first\ntoken", tuple(time_words(a.time_to_first_token_seconds) for a in answers))
    each = Column(
        "tokens/s\n/device", tuple(_number(a.output_tokens_per_second_per_device, ",.0f") for a in answers)
    )
    rate = Column("tokens/s", tuple(_number(a.output_tokens_per_second, ",.0f") for a in answers))
    memory = Column(
        "memory\n(GiB)", tuple(_number(a.peak_memory_bytes_per_device, ".1f", 1 / GIB) for a in answers)
    )
    planned = Column("planned\nin (s)", tuple(f"{a.planning_seconds:.2f}" for a in answers), look="quiet")
    columns = [token, first, each, rate]
    return columns if terminal.width < _ROOMY else [*columns, memory, planned]


def _interval(answer: CellAnswer, terminal: Terminal) -> str:
    if answer.step_seconds_low is None or answer.step_seconds_high is None:
        return "-"
    return f"{answer.step_seconds_low:.2f} {terminal.to} {answer.step_seconds_high:.2f}"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)


def _reasons(rows: Sequence[SweepRow]) -> Iterator[Block]:
    """Yield each reason for cells without a plan once, with its cells."""
    cells: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.answer.status != "planned":
            reason = row.answer.reasons[0] if row.answer.reasons else "unknown reason"
            cells.setdefault((row.answer.status, reason), []).append(row.cell.number)
    if cells:
        yield GAP
    yield items([f"{_cells(numbers)} {status}: {reason}" for (status, reason), numbers in cells.items()])


def _cells(numbers: Sequence[int]) -> str:
    """Return cell numbers, with consecutive ones as ranges.

    >>> _cells([1, 2, 3, 7]), _cells([4])
    ('cells 1-3, 7', 'cell 4')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    ranges = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"cell{'s' if len(numbers) > 1 else ''} {ranges}"
