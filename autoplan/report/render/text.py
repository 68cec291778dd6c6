"""Blocks as the text of a terminal.

Everything is laid out before anything is printed, so that output is complete or absent, and the same on a
terminal of some width and in a file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rich.box import Box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoplan.report.render.blocks import (
    COLUMN_GAP,
    Beside,
    Block,
    Column,
    DataTable,
    Facts,
    Gap,
    Heading,
    Items,
    LayoutLine,
    Picture,
    Sentence,
    ShareBars,
    TypedLines,
)
from autoplan.report.render.terminal import SIDE_BY_SIDE_WIDTH, Terminal, bar

_TONES: Final = {"": "", "good": "green", "bad": "bold red", "warning": "yellow", "quiet": "dim"}
_LOOKS: Final = {
    "": "",
    "strong": "bold",
    "name": "green",
    "quiet": "dim",
    "time": "cyan",
    "memory": "magenta",
}
_LAYOUT: Final = "green"
_BOX: Final = "    \n    \n {0}{0} \n    \n    \n {0}{0} \n    \n    \n"


def laid_out(blocks: Iterable[Block], terminal: Terminal) -> str:
    """Return ``blocks`` one below the other as text for ``terminal``, without trailing spaces."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=terminal.width,
        force_terminal=terminal.colour,
        force_jupyter=False,
        color_system="standard" if terminal.colour else None,
        no_color=not terminal.colour,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(_group(blocks, terminal), crop=False, end="")
    lines = (line.rstrip() for line in file.getvalue().splitlines())
    return "\n".join(lines).strip("\n") + "\n"


def _group(blocks: Iterable[Block], terminal: Terminal) -> Group:
    return Group(*(part for block in blocks for part in _WRITERS[type(block)](block, terminal)))


def _line(text: str = "", style: str = "") -> Text:
    """Return a line that is never broken."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _gap(_: Gap, _terminal: Terminal) -> Iterator[Text]:
    yield Text("")


def _heading(block: Heading, _: Terminal) -> Iterator[Text]:
    yield Text(block.text, style="bold")


def _sentence(block: Sentence, _: Terminal) -> Iterator[RenderableType]:
    style = _TONES[block.tone]
    text = Text(block.text, style=f"bold {style}" if block.strong and "bold" not in style else style)
    if block.label:
        beside = Table.grid()
        beside.add_row(Text(block.label, style=style), text)
        yield beside
    else:
        yield Padding(text, (0, 0, 0, block.indent)) if block.indent else text


def _layout_line(block: LayoutLine, _: Terminal) -> Iterator[Text]:
    indent = " " * block.indent
    if block.label:
        yield _line(indent + block.label).append(block.layout, style=_LAYOUT)
    else:
        yield _line(indent + block.layout, _LAYOUT)


def _lines(block: TypedLines, _: Terminal) -> Iterator[Text]:
    for line in block.lines:
        yield _line(line, _TONES[block.tone])


def _items(block: Items, _: Terminal) -> Iterator[Table]:
    """Yield a table for each sentence, which gives it a hanging indent."""
    style = _TONES[block.tone]
    for sentence in block.sentences:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_row(Text("-", style=style), Text(sentence, style=style))
        yield table


def _facts(block: Facts, _: Terminal) -> Iterator[Table]:
    table = Table.grid(padding=(0, 2, 0, 0))
    for fact in block.rows:
        texts = (Text(text, style=_TONES[fact.tone]) for text in fact.texts)
        table.add_row(Text(fact.name, style=_TONES[fact.name_tone]), *texts)
    yield table


def _table(block: DataTable, terminal: Terminal) -> Iterator[Table]:
    """Yield a table with a line below its head; texts may be folded, numbers never."""
    rule = "─" if terminal.unicode else "-"
    box = Box(_BOX.format(rule), ascii=not terminal.unicode)
    table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, COLUMN_GAP - 1, 0, 0))
    for column in block.columns:
        _add_column(table, column)
    for number, cells in enumerate(zip(*(column.cells for column in block.columns), strict=True)):
        style = "bold" if number == block.strong else ""
        table.add_row(*(Text(cell, style=style) for cell in cells))
    yield table


def _add_column(table: Table, column: Column) -> None:
    number = column.kind == "number"
    table.add_column(
        Text(column.head),
        justify="right" if number else "left",
        no_wrap=number,
        overflow="fold",
        style=_LOOKS[column.look],
    )


def _bars(block: ShareBars, terminal: Terminal) -> Iterator[Table]:
    table = Table.grid(padding=(0, 2, 0, 0))
    numbers = max((len(x.numbers) for x in block.bars), default=0)
    for place in range(numbers + 2):
        right = block.aligned and 0 < place <= numbers
        table.add_column(justify="right" if right else "left", no_wrap=True)
    for x in block.bars:
        picture, look = bar(x.share, block.columns, unicode=terminal.unicode), _LOOKS[block.look]
        if x.free:
            picture, look = terminal.shade * max(1, len(picture)), _LOOKS["quiet"]
        table.add_row(Text(x.name), *map(Text, x.numbers), Text(picture, style=look))
    yield table


def _beside(block: Beside, terminal: Terminal) -> Iterator[RenderableType]:
    parts = [_group(part, terminal) for part in block.parts]
    if terminal.width < SIDE_BY_SIDE_WIDTH:
        for part in parts:
            yield Text("")
            yield part
        return
    grid = Table.grid(padding=(0, 4, 0, 0))
    for _ in parts:
        grid.add_column()
    grid.add_row(*parts)
    yield Text("")
    yield grid


def _picture(block: Picture, _: Terminal) -> Iterator[Text]:
    for row in block.rows:
        yield Text.assemble(*row)


_WRITERS: Final[dict[type, Callable[[Any, Terminal], Iterator[RenderableType]]]] = {
    Gap: _gap,
    Heading: _heading,
    Sentence: _sentence,
    LayoutLine: _layout_line,
    TypedLines: _lines,
    Items: _items,
    Facts: _facts,
    DataTable: _table,
    ShareBars: _bars,
    Beside: _beside,
    Picture: _picture,
}
