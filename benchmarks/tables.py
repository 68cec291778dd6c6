"""Plain text tables for people; programs read the JSON."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Cell", "percent", "table"]

Cell = str | int | float | None


def percent(share: float | None, *, signed: bool = False) -> str:
    """Return ``share`` in per cent, "-" for None.

    >>> percent(0.1234), percent(-0.02, signed=True), percent(None)
    ('12.3 %', '-2.0 %', '-')
    """
    if share is None:
        return "-"
    return f"{100 * share:+.1f} %" if signed else f"{100 * share:.1f} %"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return an aligned table: text to the left, numbers to the right.

    >>> print(table("Runs", ["stack", "n"], [["ddp", 2], ["fsdp2", 13]]))
    Runs
      stack   n
      ddp     2
      fsdp2  13
    """
    body = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    columns = list(zip(*[list(head), *body], strict=True))
    widths = [max(map(len, column)) for column in columns]
    numbers = [all(_is_number(cell) for cell in column[1:]) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in [list(head), *body]
    ]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.removesuffix(" %").lstrip("+-").replace(".", "", 1).isdigit()
