"""The frame of every page, its elements, and blocks as elements with the numbers that a terminal shows.

A page loads nothing: a content security policy forbids every request, and any script but the page's own.
Templates make its elements: each text in them is escaped.

A page has every column, as on a terminal wide enough for all. Tones become classes. Bars of characters are
hidden from screen readers, since the numbers next to them say the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

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
from autoplan.report.render.svg import printable
from autoplan.report.render.terminal import bar

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


#: Characters beyond which a text takes many lines of a narrow column.
_SENTENCE: Final = 48

#: What is in a page that a script is for, and the script: each stands on its own, in plain JavaScript. A page
#: says everything without them; they add choice, copying, reading out on hover, and zoom. None draws a number
#: that is not in the page, moves anything by itself, or asks for anything.
_SCRIPTS: Final = {
    'id="choosing"': "choosing.js",
    'class="quiet readout"': "reading.js",
    "<pre ": "copying.js",
    'class="zoom"': "zooming.js",
}


@cache
def _static(name: str) -> str:
    """Return a file of the folder ``static``: the frame of a page, its style sheet, or a script."""
    return (files("autoplan.report.pages") / "static" / name).read_text(encoding="utf-8")


def script_of(html: str) -> str:
    """Return the script of a page with the elements ``html``; empty where it needs none.

    >>> script_of("<p>text</p>"), "clipboard" in script_of("<pre class='x'>")
    ('', True)
    """
    scripts = [f"{{\n{_static(name)}}}\n" for mark, name in _SCRIPTS.items() if mark in html]
    return f'\n"use strict";\n{"".join(scripts)}' if scripts else ""


def page(title: str, body: Iterable[str]) -> str:
    """Return a page with ``title``, as text, and the elements of ``body``, as HTML."""
    html = "\n".join(body)
    script = script_of(html)
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    frame = _templates().get_template("page.html")
    return frame.render(policy=policy, title=title, style=_static("page.css"), body=html, script=script)


@cache
def _templates() -> Environment:
    """Return the templates of the folder ``static``; the engine is imported where a page is written."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    templates = Environment(
        loader=FunctionLoader(_static),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: (
            printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        ),
    )
    templates.filters["content"] = _content
    return templates


def _content(text: str) -> Markup:
    """Return lines as the content of an element, where quotes stand as they are."""
    from markupsafe import Markup

    return Markup("\n".join(escape(printable(line), quote=False) for line in text.splitlines()))  # noqa: S704


@cache
def _elements() -> Any:  # noqa: ANN401 - the macros of a template
    return _templates().get_template("elements.html").module


def _made(name: str, *values: object) -> str:
    """Return an element that the template of elements makes of ``values``."""
    return str.__str__(getattr(_elements(), name)(*values))


def element(name: str, text: str, kind: str = "") -> str:
    """Return an element of the class ``kind`` that holds ``text``.

    >>> element("p", '<a href="x">' + chr(0x202E))
    '<p>&lt;a href=&#34;x&#34;&gt;?</p>'
    """
    return _made("element", name, text, kind)


def row_head(text: str) -> str:
    """Return the cell that names a row."""
    return _made("row_head", text)


def text_cell(text: str, kind: str = "") -> str:
    """Return a cell of a table that holds ``text``; a sentence gets a wide one."""
    return element("td", text, kind or ("sentence" if len(text) > _SENTENCE else ""))


def code_cell(text: str) -> str:
    """Return a cell that holds what is typed, such as a layout; lines break after commas.

    >>> code_cell("tp=2,pp=1")
    '<td><code>tp=2,<wbr>pp=1</code></td>'
    """
    return _made("code_cell", text)


def number_cell(value: float | None, text: str) -> str:
    """Return a cell that shows a number as ``text`` and holds its exact ``value`` for programs.

    >>> number_cell(0.25, "25 %")
    '<td class="number"><data value="0.25">25 %</data></td>'
    """
    return _made("number_cell", json.dumps(value), text)


def bar_cell(bar: str) -> str:
    """Return a cell with a bar of characters, hidden from screen readers: a number says the same."""
    return _made("bar_cell", bar)


def drawn_cell(svg: str) -> str:
    """Return a cell with a picture."""
    return _made("drawn_cell", svg)


def drawn(svg: str) -> str:
    """Return a paragraph with a picture."""
    return _made("drawn", svg)


def layout_line(layout: str, label: str = "") -> str:
    """Return a layout that can be copied."""
    return _made("layout_line", layout, label)


def sentences_list(sentences: Sequence[str]) -> str:
    """Return ``sentences`` as a list."""
    return _made("sentences_list", sentences)


def preformatted(label: str, text: str) -> str:
    """Return the lines of ``text`` as they are, to be copied."""
    return _made("preformatted", label, text)


def readout(text: str) -> str:
    """Return where the script says what the pointer is on."""
    return _made("readout", text)


def region(label: str, html: str, kind: str) -> str:
    """Return what may be wider than a phone in a frame of its own, which the keyboard scrolls."""
    return _made("region", label, html, kind)


def folded(summary: str, *html: str) -> str:
    """Return what is there on demand, below its ``summary``."""
    return _made("folded", summary, "\n".join(html))


def colour_keys(names: Iterable[tuple[str, str]]) -> str:
    """Return what the colours mean."""
    return _made("colour_keys", list(names))


def table(
    label: str,
    heads: Sequence[tuple[str, str]],
    rows: Iterable[str],
    frame: str = "table",
    *,
    ids: Sequence[str] = (),
    chosen: str = "",
) -> str:
    """Return a table; ``heads`` are texts with their classes, ``rows`` the cells of each row.

    Rows have ``ids`` to link to where these are given, and that of the id ``chosen`` stands out.
    """
    named = [
        (name, "chosen" if name and name == chosen else "", cells) for name, cells in zip_longest(ids, rows)
    ]
    return _made("table", label, heads, named, frame)


def fact_table(label: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return names with cells."""
    return _made("fact_table", label, rows)


def choice_list(numbers: Iterable[int]) -> str:
    """Return the list of plans to choose from, which the script of the page shows."""
    return _made("choice_list", list(numbers))


def plan_number(number: int | str, *, linked: bool) -> str:
    """Return the cell of a plan's number, ``linked`` to the section where it is shown."""
    return _made("plan_number", number, linked)


def detail_section(number: int, html: str, *, chosen: bool) -> str:
    """Return the section of a plan that can be chosen."""
    return _made("detail_section", number, html, chosen)


def zoomable(still: str, zoom: str) -> str:
    """Return a ``still`` picture, in whose place the script shows what is in ``zoom``."""
    return _made("zoomable", still, zoom)


def zoom(data: Mapping[str, str], name: str, lines: Sequence[str], buttons: Mapping[str, str]) -> str:
    """Return where the script draws parts of a step ``name`` from ``data``, below ``lines`` of HTML."""
    return _made("zoom", data, name, lines, buttons)


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
