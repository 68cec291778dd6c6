"""What an answer shows, once: headings, sentences, lists, facts, tables, bars and pictures, as values.

A block says what a text is, not how it looks: ``render.text`` shows it in a terminal, and ``pages.html`` on a
page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from autoplan.report.render.terminal import Terminal

#: What a text says of what it is about: it is well, it is not, it is to be noted, or it is an aside.
Tone = Literal["", "good", "bad", "warning", "quiet"]
#: How a column stands out from its neighbours: it is what matters, names the rows, or is an aside; or what a
#: bar is of.
Look = Literal["", "strong", "name", "quiet", "time", "memory"]
#: What the cells of a column are.
ColumnKind = Literal["number", "text", "layout", "verdict", "bar"]

#: Cell of a table that has nothing to show.
NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class Gap:
    """An empty line of a terminal; pages space by themselves."""


#: The empty line.
GAP: Final = Gap()


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or several of which each begins a line; ``label`` stands before its lines."""

    text: str
    tone: Tone = ""
    indent: int = 0
    strong: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class LayoutLine:
    """A layout on one line at any width, so that it can be copied; ``label`` says what it is."""

    layout: str
    label: str = ""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class TypedLines:
    """Lines as they are typed or stand in a file, such as a command: never broken."""

    lines: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences."""

    sentences: tuple[str, ...]
    tone: Tone = "quiet"


@dataclass(frozen=True, slots=True)
class FactRow:
    """A name with its value, one text or several side by side."""

    name: str
    texts: tuple[str, ...]
    tone: Tone = ""
    name_tone: Tone = "quiet"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and texts side by side."""

    rows: tuple[FactRow, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One table column: head and cells, each of one line or more, and what the cells are.

    Numbers stand to the right and are never cut, texts may be folded, a layout is what can be typed, a
    verdict is yes or no, a bar says again what the number next to it says. A page holds the exact ``values``
    of numbers for the programs that read it.
    """

    head: str
    cells: tuple[str, ...]
    kind: ColumnKind = "number"
    look: Look = ""
    values: tuple[float | None, ...] = ()

    @property
    def width(self) -> int:
        """Terminal columns of the longest line."""
        lines = [line for text in (self.head, *self.cells) for line in text.split("\n")]
        return max(len(line) for line in lines)


@dataclass(frozen=True, slots=True)
class DataTable:
    """Columns side by side; row ``strong`` stands out, and the first column names rows that are ``named``.

    The ``label`` is what it is called where nobody sees what is above it; left out: the heading. Where
    ``anchors`` names the rows, a page can link to each by that name and its first cell; the first cells of
    the rows ``detailed`` lead to the sections that show more of them.
    """

    columns: tuple[Column, ...]
    label: str = ""
    anchors: str = ""
    detailed: tuple[int, ...] = ()
    strong: int | None = None
    named: bool = False


@dataclass(frozen=True, slots=True)
class ShareBar:
    """A share as a bar after its name and numbers; what is ``free`` is shaded."""

    name: str
    numbers: tuple[str, ...]
    share: float
    free: bool = False


@dataclass(frozen=True, slots=True)
class ShareBars:
    """Bars below each other, of which the whole takes ``columns`` of a terminal."""

    bars: tuple[ShareBar, ...]
    columns: int
    look: Look = ""
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class Beside:
    """Blocks beside others where the terminal is wide enough, else below them."""

    parts: tuple[tuple[Block, ...], ...]


#: A piece of text and the colours that a terminal gives it.
Piece = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture made of letters, row by row; pages draw the same as SVG (``report.pages.pictures``)."""

    rows: tuple[tuple[Piece, ...], ...]


Block = (
    Gap
    | Heading
    | Sentence
    | LayoutLine
    | TypedLines
    | Items
    | Facts
    | DataTable
    | ShareBars
    | Beside
    | Picture
)


def heading(lines: Sequence[str]) -> Iterator[Block]:
    """Yield the title lines of an answer and an empty line."""
    first, *rest = lines
    yield Heading(first)
    for line in rest:
        yield Sentence(line, "quiet")
    yield GAP


def items(sentences: Iterable[str], tone: Tone = "quiet") -> Items:
    """Return ``sentences`` as a list."""
    return Items(tuple(sentences), tone)


def facts(rows: Iterable[tuple[str, str]]) -> Facts:
    """Return names and texts side by side."""
    return Facts(tuple(FactRow(name, (text,)) for name, text in rows))


def data_table(columns: Iterable[Column], label: str = "") -> DataTable:
    """Return ``columns`` as a table."""
    return DataTable(tuple(columns), label)


def columns_of(
    heads: Sequence[str], rows: Iterable[Sequence[str]], kinds: Mapping[str, ColumnKind]
) -> list[Column]:
    """Return ``rows`` as columns under ``heads``; cells are numbers unless ``kinds`` says what they are.

    >>> for column in columns_of(("axis", "ranks"), [("tp", "4"), ("pp", "2")], {"axis": "text"}):
    ...     print(column.head, column.cells, column.kind)
    axis ('tp', 'pp') text
    ranks ('4', '2') number
    """
    cells = [*zip(*rows, strict=True)] or [()] * len(heads)
    return [Column(head, texts, kinds.get(head, "number")) for head, texts in zip(heads, cells, strict=True)]


def below_heading(blocks: Iterable[Block]) -> list[Block]:
    """Return what follows the title lines of an answer, which pages show in their own way."""
    return list(dropwhile(lambda block: block is not GAP, blocks))


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
