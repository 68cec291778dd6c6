"""Memory timeline of a few stages as bars of letters for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from autoplan.costs.core.prediction import Prediction, StageMemory
from autoplan.report.charts.memory_bars import EventBar, event_bars, picked_stages, scale_bytes
from autoplan.report.render.blocks import GAP, Block, Heading, Picture, Piece, Sentence
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS
from autoplan.report.wording.sentences import number_words

__all__ = ["MOST_STAGES", "memory_picture"]

#: Most pipeline stages in one chart.
MOST_STAGES: Final = 4

_LONGEST_BAR: Final = 100

_GAP: Final = "   "
_BETWEEN: Final[Piece] = ("  ", "")


def memory_picture(predicted: Prediction, fullest: StageMemory, terminal: Terminal) -> Iterator[Block]:
    """Yield the charts of at most four stages, among them ``fullest``, and the legend."""
    stages = picked_stages(predicted, fullest, MOST_STAGES)
    for stage in stages:
        yield Heading(_title(stage))
        yield _events(stage, predicted, terminal)
        yield GAP
    left_out = len(predicted.memory.stages) - len(stages)
    if left_out:
        yield Sentence(f"({number_words(left_out, 'more stage')}: --format json)", "quiet")
    yield Picture(tuple(_legend(predicted, stages, terminal)))


def _title(stage: StageMemory) -> str:
    return (
        f"stage {stage.stage} ({number_words(stage.layers, 'layer')}):"
        f" {stage.total / GIB:,.1f} GiB at its peak, in {stage.event};"
        f" 90 % interval up to {stage.total_high / GIB:,.1f}"
    )


def _events(stage: StageMemory, predicted: Prediction, terminal: Terminal) -> Picture:
    bars, scale = event_bars(stage), scale_bytes(predicted)
    names, sizes = [bar.event for bar in bars], [f"{bar.total / GIB:,.1f}" for bar in bars]
    taken = max(map(len, names)) + max(map(len, sizes)) + 6
    columns = min(_LONGEST_BAR, terminal.width - taken)
    mark = round(predicted.memory_limit_bytes / scale * columns)
    widths = max(map(len, names)), max(map(len, sizes))
    rows = []
    for name, size, bar in zip(names, sizes, bars, strict=True):
        style = "" if bar.high is None else "bold"
        labels = ((f"{name:<{widths[0]}}", style), _BETWEEN, (f"{size:>{widths[1]}}", style), _BETWEEN)
        rows.append((*labels, *_stack(bar, columns / scale, mark, terminal)))
    return Picture(tuple(rows))


def _stack(bar: EventBar, columns_per_byte: float, mark: int, terminal: Terminal) -> Iterator[Piece]:
    """Yield ``bar`` as letters, shaded up to the upper end of the interval, with the limit at ``mark``."""
    cells: list[Piece] = []
    reached = 0.0
    for name, size in bar.parts:
        reached += size
        # Rounds ends, not lengths, so that the length of the bar is its rounded sum.
        cells += [_looks(name)] * (round(reached * columns_per_byte) - len(cells))
    if bar.high is not None:
        cells += [(terminal.shade, "dim")] * (round(bar.high * columns_per_byte) - len(cells))
    cells += [(" ", "")] * (mark - len(cells))
    cells.insert(mark, (_mark(terminal), "bold red"))
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        yield "".join(sign for sign, _ in run), style


def _looks(name: str) -> Piece:
    return MEMORY_PARTS[name].letter, MEMORY_PARTS[name].style


def _mark(terminal: Terminal) -> str:
    return "┃" if terminal.unicode else "|"


def _legend(
    predicted: Prediction, stages: list[StageMemory], terminal: Terminal
) -> Iterator[tuple[Piece, ...]]:
    """Yield the legend, in lines that break between two entries."""
    bars = [bar for stage in stages for bar in event_bars(stage)]
    shown = [name for name in MEMORY_PARTS if any(dict(bar.parts)[name] > 0 for bar in bars)]
    limit = f"limit {predicted.memory_limit_bytes / GIB:,.1f} GiB"
    line: tuple[Piece, ...] = ()
    taken = 0
    for sign, style, name in (
        *((*_looks(name), name) for name in shown),
        (terminal.shade, "dim", "upper end of the 90 % interval"),
        (_mark(terminal), "bold red", limit),
    ):
        entry: tuple[Piece, ...] = ((sign, style), (f" {name}", ""))
        length = len(sign) + 1 + len(name)
        if line and taken + len(_GAP) + length > terminal.width:
            yield line
            line, taken = (), 0
        if line:
            entry, length = ((_GAP, ""), *entry), len(_GAP) + length
        line, taken = (*line, *entry), taken + length
    yield line
