"""Blocks as elements of a page: what an answer shows in a terminal, with the same numbers.

A page has every column, as on a terminal wide enough for all. Tones become classes. Bars of characters are
hidden from screen readers, since the numbers next to them say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from autoplan.report.pages.page_frame import (
    bar_cell,
    code_cell,
    element,
    fact_table,
    layout_line,
    number_cell,
    plan_number,
    preformatted,
    row_head,
    sentences_list,
    table,
    text_cell,
)
from autoplan.report.render.blocks import (
    NOTHING,
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
from autoplan.report.render.terminal import bar

_CLASSES: Final = {"": "", "good": "yes", "bad": "no", "warning": "", "quiet": "quiet"}


def html_of(blocks: Iterable[Block], title: str = "h2") -> list[str]:
    """Return ``blocks`` as HTML; headings become elements of the name ``title``."""
    html: list[str] = []
    label, tables = "answer", 0
    for block in blocks:
        if isinstance(block, Heading):
            label, tables = block.text, 0
            html.append(element(title, f"{label[:1].upper()}{label[1:]}"))
            continue
        if isinstance(block, Beside):
            html += [x for part in block.parts for x in html_of(part, title)]
            continue
        tables += isinstance(block, DataTable) and not block.label
        html += _WRITERS[type(block)](block, label if tables < 2 else f"{label}, {tables}")
    return html


def _facts(block: Facts, label: str) -> list[str]:
    rows = [(fact.name, "".join(map(text_cell, fact.texts))) for fact in block.rows]
    return [fact_table(f"facts of {label}", rows)]


def _bars(block: ShareBars, label: str) -> list[str]:
    rows = [
        (x.name, "".join(map(text_cell, x.numbers)) + bar_cell(bar(x.share, block.columns)))
        for x in block.bars
    ]
    return [fact_table(f"facts of {label}", rows)]


def _table(block: DataTable, label: str) -> list[str]:
    heads = [(_head(column.head), "number" if column.kind == "number" else "") for column in block.columns]
    columns = [_cells(column) for column in block.columns]
    names = block.columns[0].cells
    if block.named:
        columns[0] = list(map(row_head, names))
    for row in block.detailed:
        columns[0][row] = plan_number(names[row], linked=True)
    texts = zip(*(column.cells for column in block.columns), strict=True)
    # A row of nothing parts others in a terminal.
    rows = (
        "".join(cells) for said, cells in zip(texts, zip(*columns, strict=True), strict=True) if any(said)
    )
    ids = [f"{block.anchors}-{name}" for name in names] if block.anchors else []
    chosen = ids[block.strong] if ids and block.strong is not None else ""
    frame = "table long" if block.anchors else "table"
    return [table(block.label or label, heads, rows, frame, ids=ids, chosen=chosen)]


def _cells(column: Column) -> list[str]:
    """Return the cells of a column, those with exact values as numbers for programs."""
    if column.values:
        return [number_cell(*cell) for cell in zip(column.values, column.cells, strict=True)]
    return list(map(_CELLS[column.kind], column.cells))


def _head(text: str) -> str:
    r"""Return a head on one line; a word that was broken for a narrow column is joined.

    >>> _head("zero_\nstage"), _head("peak\n(GiB)")
    ('zero_stage', 'peak (GiB)')
    """
    return text.replace("_\n", "_").replace(".\n", ".").replace("-\n", "").replace("\n", " ").strip()


def _unbroken(text: str) -> str:
    return text.replace("\n", " ")


_CELLS: Final[dict[str, Callable[[str], str]]] = {
    "number": lambda text: text_cell(_unbroken(text), "number"),
    "text": lambda text: text_cell(_unbroken(text)),
    "layout": lambda text: text_cell(text) if text in {"", NOTHING} else code_cell(text),
    "verdict": lambda text: text_cell(text, {"yes": "yes", "": "", NOTHING: ""}.get(text, "no")),
    "bar": bar_cell,
}
_WRITERS: Final[dict[type, Callable[[Any, str], list[str]]]] = {
    Gap: lambda _block, _label: [],
    Sentence: lambda block, _: [element("p", line, _CLASSES[block.tone]) for line in block.text.splitlines()],
    LayoutLine: lambda block, _: [layout_line(block.layout, block.label)],
    TypedLines: lambda block, label: (
        [preformatted(f"lines of {label}", "\n".join(block.lines))] if block.lines else []
    ),
    Items: lambda block, _: [sentences_list(block.sentences)] if block.sentences else [],
    Facts: _facts,
    DataTable: _table,
    ShareBars: _bars,
    Picture: lambda block, label: [
        preformatted(label, "\n".join("".join(text for text, _ in row) for row in block.rows))
    ],
}
