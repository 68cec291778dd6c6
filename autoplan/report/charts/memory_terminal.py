"""Memory timeline of a few stages as bars of letters for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoplan.costs.core.prediction import Prediction, StageMemory
from autoplan.report.charts.memory_bars import EventBar, event_bars, picked_stages, scale_bytes
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS
from autoplan.report.wording.sentences import number_words

__all__ = ["MOST_STAGES", "memory_picture"]

#: Most pipeline stages in one chart.
MOST_STAGES: Final = 4

_LONGEST_BAR: Final = 100

_GAP: Final = "   "


def memory_picture(
    predicted: Prediction, fullest: StageMemory, terminal: Terminal
) -> Iterator[RenderableType]:
    """Yield the charts of at most four stages, among them ``fullest``, and the legend."""
    stages = picked_stages(predicted, fullest, MOST_STAGES)
    for stage in stages:
        yield Text(_title(stage), style="bold")
        yield _events(stage, predicted, terminal)
        yield Text("")
    left_out = len(predicted.memory.stages) - len(stages)
    if left_out:
        yield Text(f"({number_words(left_out, 'more stage')}: --format json)", style="dim")
    yield from _legend(predicted, stages, terminal)


def _title(stage: StageMemory) -> str:
    return (
        f"stage {stage.stage} ({number_words(stage.layers, 'layer')}):"
        f" {stage.total / GIB:,.1f} GiB at its peak, in {stage.event};"
        f" 90 % interval up to {stage.total_high / GIB:,.1f}"
    )


def _events(stage: StageMemory, predicted: Prediction, terminal: Terminal) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    bars, scale = event_bars(stage), scale_bytes(predicted)
    names, sizes = [bar.event for bar in bars], [f"{bar.total / GIB:,.1f}" for bar in bars]
    taken = max(map(len, names)) + max(map(len, sizes)) + 6
    columns = min(_LONGEST_BAR, terminal.width - taken)
    mark = round(predicted.memory_limit_bytes / scale * columns)
    for name, size, bar in zip(names, sizes, bars, strict=True):
        style = "" if bar.high is None else "bold"
        table.add_row(
            Text(name, style=style), Text(size, style=style), _stack(bar, columns / scale, mark, terminal)
        )
    return table


def _stack(bar: EventBar, columns_per_byte: float, mark: int, terminal: Terminal) -> Text:
    """Return ``bar`` as letters, shaded up to the upper end of the interval, with the limit at ``mark``."""
    cells: list[tuple[str, str]] = []
    reached = 0.0
    for name, size in bar.parts:
        reached += size
        # Rounds ends, not lengths, so that the length of the bar is its rounded sum.
        cells += [_looks(name)] * (round(reached * columns_per_byte) - len(cells))
    if bar.high is not None:
        cells += [(terminal.shade, "dim")] * (round(bar.high * columns_per_byte) - len(cells))
    cells += [(" ", "")] * (mark - len(cells))
    cells.insert(mark, (_mark(terminal), "bold red"))
    runs = groupby(cells, key=lambda cell: cell[1])
    return Text.assemble(*(("".join(sign for sign, _ in run), style) for style, run in runs))


def _looks(name: str) -> tuple[str, str]:
    return MEMORY_PARTS[name].letter, MEMORY_PARTS[name].style


def _mark(terminal: Terminal) -> str:
    return "┃" if terminal.unicode else "|"


def _legend(predicted: Prediction, stages: list[StageMemory], terminal: Terminal) -> Iterator[Text]:
    """Yield the legend, in lines that break between two entries."""
    bars = [bar for stage in stages for bar in event_bars(stage)]
    shown = [name for name in MEMORY_PARTS if any(dict(bar.parts)[name] > 0 for bar in bars)]
    limit = f"limit {predicted.memory_limit_bytes / GIB:,.1f} GiB"
    line = Text()
    for sign, style, name in (
        *((*_looks(name), name) for name in shown),
        (terminal.shade, "dim", "upper end of the 90 % interval"),
        (_mark(terminal), "bold red", limit),
    ):
        entry = Text.assemble((sign, style), " ", name)
        if line and len(line) + len(_GAP) + len(entry) > terminal.width:
            yield line
            line = Text()
        line = line + _GAP + entry if line else entry
    yield line
