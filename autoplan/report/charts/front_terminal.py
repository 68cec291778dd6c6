"""The plans of a front as a plot of step time and memory for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.report.charts.axis import Axis, round_values
from autoplan.report.render.blocks import Block, Heading, Picture
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB
from autoplan.results import Front
from autoplan.units import format_bytes, format_seconds

__all__ = ["front_plot"]

_ROWS: Final = 14
_WIDEST: Final = 100
_LABEL: Final = 8
_TICKS: Final = 5


def front_plot(front: Front, terminal: Terminal) -> Iterator[Block]:
    """Yield the plans of ``front`` as marks on rows of text, with the limit; it must have a plan."""
    predicted = [plan.predicted for plan in front.plans]
    steps = [p.step_seconds for p in predicted]
    columns = min(_WIDEST, terminal.width - _LABEL - 2)
    limit = predicted[0].memory_limit_bytes
    room = 0.03 * (max(steps) - min(steps)) or 0.1 * steps[0]
    x = Axis(min(steps) - room, max(steps) + room, 0.0, columns - 1.0)
    highest = max(limit, *(p.peak_memory_bytes_per_device for p in predicted))
    y = Axis(0.0, 1.05 * highest, _ROWS - 1.0, 0.0)
    cells = [[" "] * columns for _ in range(_ROWS)]
    cells[round(y.at(limit))] = [terminal.rule] * columns
    for plan in (*front.plans, front.fastest):
        row = round(y.at(plan.predicted.peak_memory_bytes_per_device))
        cells[row][round(x.at(plan.predicted.step_seconds))] = terminal.point
    chosen = front.fastest.predicted
    place = (round(y.at(chosen.peak_memory_bytes_per_device)), round(x.at(chosen.step_seconds)))
    cells[place[0]][place[1]] = terminal.chosen_point
    yield Heading("the front: peak memory of a device (GiB) over step time")
    ticks = {round(y.at(size * GIB)): f"{size:g}" for size in round_values(0.0, y.high / GIB, _TICKS)}
    rows = [
        f"{ticks.get(row, ''):>{_LABEL - 1}} {terminal.wall}{''.join(line)}".rstrip()
        for row, line in enumerate(cells)
    ]
    key = (
        f"{terminal.chosen_point} the fastest   {terminal.point} other plans"
        f"   {terminal.rule * 2} limit {format_bytes(limit)}"
    )
    yield Picture((*(((row, ""),) for row in (*rows, _axis(x, columns))), ((key, "dim"),)))


def _axis(x: Axis, columns: int) -> str:
    """Return the marked step times below their places; one that would touch another is left out."""
    line = [" "] * (columns + _LABEL + 1)
    free = 0
    for seconds in round_values(x.low, x.high, _TICKS):
        words = format_seconds(seconds)
        start = _LABEL + 1 + round(x.at(seconds)) - len(words) // 2
        if start >= free and start + len(words) <= len(line):
            line[start : start + len(words)] = words
            free = start + len(words) + 2
    return "".join(line).rstrip()
