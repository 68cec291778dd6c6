"""Widths of table columns side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from autoplan.report.render.blocks import Column
from autoplan.report.render.terminal import Terminal

__all__ = ["COLUMN_GAP", "fitted", "total_width"]

#: Terminal columns between two table columns.
COLUMN_GAP: Final = 2


def total_width(columns: Sequence[Column]) -> int:
    """Return the terminal columns of ``columns`` side by side."""
    return sum(column.width + COLUMN_GAP for column in columns) - COLUMN_GAP


def fitted(column: Column, width: int, terminal: Terminal) -> Column:
    """Return ``column`` with its cells cut to ``width``."""

    def cut(text: str) -> str:
        more = terminal.ellipsis
        return text if len(text) <= width else text[: width - len(more)].rstrip() + more

    return replace(column, cells=tuple(map(cut, column.cells)))
