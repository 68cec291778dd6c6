"""The frame of every page: head, style sheet, script, and elements whose text is escaped.

A page loads nothing: a content security policy forbids every request, and any script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from autoplan.report.render.svg import printable

__all__ = [
    "code_cell",
    "element",
    "number_cell",
    "page",
    "preformatted",
    "region",
    "safe",
    "script_of",
    "table",
    "text_cell",
]

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
    return _static("page.html").format(
        policy=policy,
        title=safe(title),
        style=f"\n{_static('page.css')}",
        body=html,
        script=f"\n<script>{script}</script>" if script else "",
    )


def safe(text: str) -> str:
    """Return ``text`` for the content of an element or an attribute.

    >>> safe('<a href="x">') + safe(chr(0x202E))
    '&lt;a href=&quot;x&quot;&gt;?'
    """
    return escape(printable(text))


def element(name: str, text: str, kind: str = "") -> str:
    """Return an element of the class ``kind`` that holds ``text``."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{attribute}>{safe(text)}</{name}>"


def text_cell(text: str, kind: str = "") -> str:
    """Return a cell of a table that holds ``text``; a sentence gets a wide one."""
    return element("td", text, kind or ("sentence" if len(text) > _SENTENCE else ""))


def code_cell(text: str) -> str:
    """Return a cell that holds what is typed, such as a layout; lines break after commas.

    >>> code_cell("tp=2,pp=1")
    '<td><code>tp=2,<wbr>pp=1</code></td>'
    """
    return f"<td><code>{safe(text).replace(',', ',<wbr>')}</code></td>"


def number_cell(value: float | None, text: str) -> str:
    """Return a cell that shows a number as ``text`` and holds its exact ``value`` for programs.

    >>> number_cell(0.25, "25 %")
    '<td class="number"><data value="0.25">25 %</data></td>'
    """
    return f'<td class="number"><data value="{json.dumps(value)}">{safe(text)}</data></td>'


def preformatted(label: str, text: str) -> str:
    """Return the lines of ``text`` as they are, to be copied."""
    lines = "\n".join(escape(printable(line), quote=False) for line in text.splitlines())
    return f'<pre role="region" aria-label="{safe(label)}" tabindex="0">{lines}</pre>'


def region(label: str, html: str, kind: str) -> str:
    """Return what may be wider than a phone in a frame of its own, which the keyboard scrolls."""
    return f'<div class="{kind}" role="region" aria-label="{safe(label)}" tabindex="0">\n{html}</div>'


def table(label: str, heads: Sequence[tuple[str, str]], rows: Iterable[str], frame: str = "table") -> str:
    """Return a table; ``heads`` are texts with their classes, ``rows`` the cells of a row or whole rows."""
    cells = "".join(f'<th scope="col" class="{kind}">{safe(text)}</th>' for text, kind in heads)
    body = "\n".join(row if row.startswith("<tr") else f"<tr>{row}</tr>" for row in rows)
    html = f"<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return region(label, html, frame)
