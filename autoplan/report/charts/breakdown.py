"""Breakdown of step time and of device memory, as rows with bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.costs.core.prediction import MemoryPrediction, Prediction, StageMemory, TimePrediction
from autoplan.report.render.bars import bar
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS, TIME_NAMES
from autoplan.units import format_seconds

__all__ = [
    "SIDE_BY_SIDE_WIDTH",
    "fullest_stage",
    "memory_rows",
    "memory_table",
    "side_by_side",
    "time_rows",
    "time_table",
]

#: Terminal width from which two charts are shown side by side.
SIDE_BY_SIDE_WIDTH: Final = 110

#: Parts of the step below this share of its time are not shown.
_NEGLIGIBLE: Final = 5e-5

_FREE: Final = "free"

_JUSTIFY: Final[tuple[JustifyMethod, ...]] = ("left", "right", "right", "left")

Row = tuple[str, float]


def time_rows(time: TimePrediction) -> list[Row]:
    """Return the parts of a step [s] by name, in order, without negligible ones."""
    rows = [(name, float(getattr(time, field))) for field, name in TIME_NAMES.items()]
    step = sum(seconds for _, seconds in rows)
    return [(name, seconds) for name, seconds in rows if seconds > _NEGLIGIBLE * step]


def memory_rows(memory: MemoryPrediction | StageMemory) -> list[Row]:
    """Return the memory of a device [byte] by category, without empty categories."""
    rows = ((name, float(getattr(memory, name))) for name in MEMORY_PARTS)
    return [(name, size) for name, size in rows if size > 0]


def fullest_stage(predicted: Prediction) -> StageMemory:
    """Return the stage with the largest peak memory."""
    return max(predicted.memory.stages, key=lambda stage: stage.total)


def time_table(predicted: Prediction, terminal: Terminal) -> Group:
    """Return the breakdown of step time; overlapped communication is not part of it."""
    step = predicted.step_seconds
    title = f"step time: {format_seconds(step)}"
    rows = time_rows(predicted.time)
    scale, unit = (1.0, "s") if step >= 1 else (1e3, "ms")
    cells = [(name, f"{seconds * scale:,.2f} {unit}", seconds / step) for name, seconds in rows]
    return _picture(title, cells, terminal, "cyan")


def memory_table(predicted: Prediction, terminal: Terminal) -> Group:
    """Return the breakdown of peak memory of the fullest stage, as shares of the memory limit."""
    stage, limit = fullest_stage(predicted), predicted.memory_limit_bytes
    where = f" of stage {stage.stage}" if len(predicted.memory.stages) > 1 else ""
    title = f"peak memory of a device{where} (in {stage.event})"
    cells = [(name, f"{size / GIB:,.1f} GiB", size / limit) for name, size in memory_rows(stage)]
    free = limit - stage.total
    if free > 0:
        cells.append((_FREE, f"{free / GIB:,.1f} GiB", free / limit))
    return _picture(title, cells, terminal, "magenta")


def _picture(title: str, cells: Sequence[tuple[str, str, float]], terminal: Terminal, colour: str) -> Group:
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in _JUSTIFY:
        table.add_column(justify=justify, no_wrap=True)
    columns = _bar_columns(cells, terminal)
    for name, amount, share in cells:
        picture = bar(share, columns, unicode=terminal.unicode)
        if name == _FREE:
            picture, colour = terminal.shade * max(1, len(picture)), "dim"
        texts = (name, amount, f"{share * 100:.1f} %")
        table.add_row(*(Text(text) for text in texts), Text(picture, style=colour))
    return Group(Text(title, style="bold"), table)


def _bar_columns(cells: Sequence[tuple[str, str, float]], terminal: Terminal) -> int:
    """Return the width of a full bar."""
    width = (terminal.width - 4) // 2 if terminal.width >= SIDE_BY_SIDE_WIDTH else terminal.width
    texts = max(len(name) for name, _, _ in cells) + max(len(amount) for _, amount, _ in cells)
    return max(6, min(40, width - texts - 16))


def side_by_side(pictures: Sequence[Group], terminal: Terminal) -> Iterator[RenderableType]:
    """Yield ``pictures`` side by side if the terminal is wide enough, else one below the other."""
    if terminal.width < SIDE_BY_SIDE_WIDTH:
        for picture in pictures:
            yield Text("")
            yield picture
        return
    grid = Table.grid(padding=(0, 4, 0, 0))
    for _ in pictures:
        grid.add_column()
    grid.add_row(*pictures)
    yield Text("")
    yield grid
