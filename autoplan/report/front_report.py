"""The plans of a front as a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Final

from autoplan.costs.core.prediction import Prediction
from autoplan.report.choices_report import question_columns
from autoplan.report.render.bars import bar
from autoplan.report.render.blocks import (
    Column,
    DataTable,
    data_table,
)
from autoplan.report.render.columns import COLUMN_GAP, total_width
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import (
    CENTRE_ONLY,
    layout_parts,
    only_at_centre,
    wrap_parts,
)
from autoplan.results import Plan
from autoplan.schema.job import Job

__all__ = ["MOST_ROWS", "plans_table"]

#: Plans of a front that a table shows unless all are asked for.
MOST_ROWS: Final = 12

#: Columns below which a table leaves out what is least asked for, and all that other columns say, too.
_ROOMY: Final = 100
_WIDE: Final = 140
_BAR: Final = 10


def plans_table(job: Job, plans: Sequence[tuple[int, Plan]], terminal: Terminal) -> DataTable:
    """Return plans and their numbers as a table, with as many columns as ``terminal`` has room for."""
    extra = question_columns(job, [plan for _, plan in plans])
    columns = [*extra, *_columns([plan for _, plan in plans], terminal, brief=bool(extra))]
    numbers = Column("#", tuple(str(number) for number, _ in plans))
    taken = total_width((numbers, *columns)) + COLUMN_GAP
    layouts = tuple(
        wrap_parts(layout_parts(plan.layout, terminal), max(16, terminal.width - taken), terminal)
        for _, plan in plans
    )
    return data_table((numbers, Column("layout", layouts, "text"), *columns))


def _columns(plans: Sequence[Plan], terminal: Terminal, *, brief: bool) -> list[Column]:
    predictions = [plan.predicted for plan in plans]
    step, within = _step_columns(predictions, terminal)
    tokens = Column("tokens/s\n/device", tuple(f"{p.tokens_per_second_per_device:,.0f}" for p in predictions))
    use = Column("MFU\n(%)", tuple(_percent(p.model_flops_utilization) for p in predictions))
    memory = _memory_columns(predictions, terminal)
    bubble = Column("bubble\n(%)", tuple(_percent(p.bubble_share) for p in predictions))
    if brief or terminal.width < _ROOMY:
        return [step, use, *memory[:2]]
    if terminal.width < _WIDE:
        return [step, within, use, *memory[:2]]
    return [step, within, tokens, use, *memory, bubble]


def _step_columns(predictions: Sequence[Prediction], terminal: Terminal) -> tuple[Column, Column]:
    """Return the columns of step time and its interval, in seconds or milliseconds."""
    first = predictions[0].step_seconds
    scale, unit = (1.0, "s") if first >= 1 else (1e3, "ms")
    digits = 2 if first * scale < 100 else 1

    def show(seconds: float) -> str:
        return f"{seconds * scale:,.{digits}f}"

    steps = tuple(show(p.step_seconds) for p in predictions)
    within = tuple(
        f"{show(p.step_seconds_low)} {terminal.to} {show(p.step_seconds_high)}" for p in predictions
    )
    return Column(f"step\n({unit})", steps, look="strong"), Column(f"90 % interval\n({unit})", within)


def _memory_columns(predictions: Sequence[Prediction], terminal: Terminal) -> list[Column]:
    limit = predictions[0].memory_limit_bytes
    shares = [p.peak_memory_bytes_per_device / limit for p in predictions]
    sizes = tuple(f"{p.peak_memory_bytes_per_device / GIB:.1f}" for p in predictions)
    bars = tuple(bar(share, _BAR, unicode=terminal.unicode) for share in shares)
    return [
        Column("memory\n(GiB)", sizes),
        Column("of limit\n(%)", tuple(starmap(_share, zip(shares, predictions, strict=True)))),
        Column("", bars, "bar", "memory"),
    ]


def _share(share: float, predicted: Prediction) -> str:
    mark = CENTRE_ONLY if only_at_centre(predicted) else ""
    return f"{share * 100:.0f}{mark}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"
