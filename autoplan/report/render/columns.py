"""Text tables: columns of numbers that are never cut, and columns of text that may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.table import Table
from rich.text import Text

from autoplan.report.render.terminal import Terminal

__all__ = ["GAP", "Column", "columns_table", "fitted", "plain_table", "total_width"]

#: Terminal columns between two table columns.
GAP: Final = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One table column: head and cells, each of one line or more."""

    head: str
    cells: tuple[str, ...]
    justify: Literal["left", "right"] = "right"
    style: str = ""

    @property
    def width(self) -> int:
        """Terminal columns of the longest line."""
        lines = [line for text in (self.head, *self.cells) for line in text.split("\n")]
        return max(len(line) for line in lines)


def total_width(columns: Sequence[Column]) -> int:
    """Return the terminal columns of ``columns`` side by side."""
    return sum(column.width + GAP for column in columns) - GAP


def fitted(column: Column, width: int, terminal: Terminal) -> Column:
    """Return ``column`` with its cells cut to ``width``."""

    def cut(text: str) -> str:
        more = terminal.ellipsis
        return text if len(text) <= width else text[: width - len(more)].rstrip() + more

    return Column(column.head, tuple(map(cut, column.cells)), column.justify, column.style)


def plain_table(terminal: Terminal) -> Table:
    """Return an empty table with a line below its head and gaps between cells."""
    return Table(box=terminal.box, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))


def columns_table(columns: Sequence[Column], terminal: Terminal) -> Table:
    """Return ``columns`` as a table; left-aligned cells may be folded, numbers never."""
    table = plain_table(terminal)
    for column in columns:
        table.add_column(
            Text(column.head),
            justify=column.justify,
            no_wrap=column.justify == "right",
            overflow="fold",
            style=column.style,
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
    return table
