"""Text of which parts may be unknown, with the line of each part, and its words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Piece", "Text", "Unknown", "Word", "fields_of", "plain", "text_of", "unknown_of"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a value is not known; ``name`` is the variable to set, where one is not set."""

    reason: str
    line: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Known text of one line, or an unknown part. ``quoted`` pieces are not split into words."""

    text: str
    line: int
    quoted: bool = False
    unknown: Unknown | None = None


#: A value of a variable, or a word before it is split.
Text = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text as far as it is known, its line, and why it is not known."""

    text: str
    line: int
    unknown: Unknown | None = None


def text_of(pieces: Iterable[Piece]) -> str:
    """Return the known text."""
    return "".join(piece.text for piece in pieces)


def unknown_of(pieces: Iterable[Piece]) -> Unknown | None:
    """Return the first unknown part that no empty text stands for; None where all is known."""
    return next((piece.unknown for piece in pieces if piece.unknown), None)


def plain(pieces: Sequence[Piece]) -> str | None:
    """Return the text; None where a part is unknown. A variable that is not set is empty."""
    if any(piece.unknown and not piece.unknown.name for piece in pieces):
        return None
    return text_of(pieces)


def fields_of(pieces: Sequence[Piece]) -> list[Word]:
    """Return the words that ``pieces`` are split into at blanks outside of quotes.

    >>> [word.text for word in fields_of((Piece("--tp 2 --pp", 3), Piece(" 4", 3, quoted=True)))]
    ['--tp', '2', '--pp 4']
    """
    words: list[Word] = []
    current: list[Piece] = []

    def close() -> None:
        if current:
            line = next((p.line for p in current if p.text or p.unknown), current[0].line)
            words.append(Word(text_of(current), line, unknown_of(current)))
            current.clear()

    for piece in pieces:
        if piece.quoted or piece.unknown:
            current.append(piece)
            continue
        chunks = piece.text.split()
        if piece.text[:1].isspace():
            close()
        for i, chunk in enumerate(chunks):
            if i:
                close()
            current.append(Piece(chunk, piece.line))
        if chunks and piece.text[-1:].isspace():
            close()
    close()
    return words
