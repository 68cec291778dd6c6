"""Blocks: each is shown by a terminal and by a page, which say the same and escape what they are given."""

import html
import re
from dataclasses import fields, is_dataclass
from typing import get_args

import pytest

from autoplan.report.pages import html as elements
from autoplan.report.pages.html import html_of
from autoplan.report.render import blocks
from autoplan.report.render.terminal import Terminal, render

HOSTILE = '<b>"x"</b>&\u202e'
ARRANGEMENT = {"anchors", "detailed", "kind", "look", "name_tone", "tone"}


def one_of_each(text):
    """Return a block of each kind that has ``text`` in every place of a text."""
    columns = [blocks.Column(text, (text,), kind) for kind in ("number", "text", "layout", "bar")]
    bars = (blocks.ShareBar(text, (text,), 0.5), blocks.ShareBar(text, (), 0.2, free=True))
    return (
        blocks.Gap(),
        blocks.Heading(text),
        blocks.Sentence(text, "bad", indent=4, strong=True),
        blocks.LayoutLine(text, text, indent=2),
        blocks.TypedLines((text, text), "quiet"),
        blocks.Items((text, text)),
        blocks.Facts((blocks.FactRow(text, (text, text), "good"),)),
        blocks.DataTable(tuple(columns), anchors="row", detailed=(0,), strong=0),
        blocks.ShareBars(bars, 10),
        blocks.Beside(((blocks.Sentence(text),), (blocks.Items((text,)),))),
        blocks.Picture((((text, "bold"), (text, "")),)),
    )


def texts_of(value, name=""):
    """Return every text that a block holds, but how it is arranged."""
    if isinstance(value, str):
        return [] if name in ARRANGEMENT else [value]
    if isinstance(value, tuple):
        return [text for one in value for text in texts_of(one, name)]
    if not is_dataclass(value):
        return []
    return [text for x in fields(value) for text in texts_of(getattr(value, x.name), x.name)]


def read(page):
    """Return what a reader of HTML sees."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_there_is_an_example_of_each_block():
    """A new kind of block is added to these tests, and so to both renderers."""
    assert {type(block) for block in one_of_each("x")} == set(get_args(blocks.Block))


@pytest.mark.parametrize("block", one_of_each("word"), ids=lambda block: type(block).__name__)
@pytest.mark.parametrize("width", [72, 200])
def test_a_terminal_and_a_page_say_the_same(block, width):
    """Each text of a block is in both as often as the block holds it."""
    wanted = texts_of(block).count("word")

    assert render([block], Terminal(width)).count("word") == wanted
    assert read("\n".join(html_of([block]))).lower().count("word") == wanted


@pytest.mark.parametrize("block", one_of_each(HOSTILE), ids=lambda block: type(block).__name__)
def test_no_text_becomes_part_of_a_page(block):
    """Texts come from files and networks: they are shown as they are, and never read as HTML."""
    page = "\n".join(html_of([block]))

    assert "<b>" not in page
    assert "\u202e" not in page
    assert read(page).count('<b>"x"</b>&?') == texts_of(block).count(HOSTILE)


def test_a_column_says_whether_it_is_of_layouts():
    """What looks like a layout is not one, and what is one need not look like it."""
    cells = ("a=1,b=2", "tp=1", blocks.NOTHING, "")
    text, layout = (
        "".join(html_of([blocks.data_table([blocks.Column("x", cells, kind)])]))
        for kind in ("text", "layout")
    )

    assert "<code>" not in text
    assert re.findall(r"<code>(.*?)</code>", layout) == ["a=1,<wbr>b=2", "tp=1"]
    assert "<code>" not in "\n".join(html_of([blocks.Sentence("a=1,b=2"), blocks.facts([("x", "a=1,b=2")])]))


def test_regions_are_named_by_the_heading_above():
    """Whoever jumps from region to region hears what each is of; two below one heading differ."""
    table, named = (blocks.data_table([blocks.Column("x", ("1",))], label) for label in ("", "a name"))
    page = "\n".join(
        html_of([table, blocks.Heading("first"), table, table, blocks.Heading("last"), table, named])
    )

    assert re.findall(r'aria-label="([^"]*)"', page) == ["answer", "first", "first, 2", "last", "a name"]


def test_rows_can_be_linked_to_where_the_table_says_so():
    """Points of a picture lead to the row of their plan."""
    columns = (blocks.Column("#", ("1", "2")),)

    assert re.findall(r'id="([^"]*)"', "".join(html_of([blocks.DataTable(columns, anchors="plan")]))) == [
        "plan-1",
        "plan-2",
    ]
    assert 'id="' not in "".join(html_of([blocks.DataTable(columns)]))


def test_every_element_of_the_template_is_made_by_a_function():
    """The template of elements and the functions that call it are the same list."""
    template = elements._static("elements.html")
    made = set(re.findall(r'_made\("(\w+)"', elements.__loader__.get_source(elements.__name__)))

    assert made == set(re.findall(r"macro (\w+)\(", template))
