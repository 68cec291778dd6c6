"""Text of which parts may be unknown, with the line of each part, and its words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a value is not known; ``name`` is the variable to set, where one is not set.

    A file that the script reads, and that is not followed, may set it ``elsewhere``.
    """

    reason: str
    line: int
    name: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Known text of one line, or an unknown part. ``quoted`` pieces are not split into words."""

    text: str
    line: int
    quoted: bool = False
    unknown: Unknown | None = None


#: A value of a variable, or a word before it is split.
Text = tuple[Piece, ...]

_SIGN: Final = re.compile(r"\\[\s\S]|\$\([^()]*\)|`[^`]*`|&&|\|\||[;|&\n'\"]|[^\\;|&\n'\"$`]+|[\\$`]")

#: What stands between the items of an array, each of which begins a word.
BREAK: Final = Piece("", 0, quoted=True)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text as far as it is known, its line, and why it is not known.

    A word that stands in quotes is ``one`` whatever its value; other unknown text may be several or none.
    """

    text: str
    line: int
    unknown: Unknown | None = None
    one: bool = field(default=False, compare=False)


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


def joined_pieces(pieces: Iterable[Piece]) -> Text:
    """Return ``pieces`` with neighbours joined that differ in their text alone."""
    joined: list[Piece] = []
    groups = groupby(pieces, key=lambda piece: (piece.line, piece.quoted, piece.unknown))
    for (line, quoted, unknown), group in groups:
        joined.append(Piece("".join(piece.text for piece in group), line, quoted, unknown))
    return tuple(joined)


def fields_of(pieces: Sequence[Piece]) -> list[Word]:
    """Return the words that ``pieces`` are split into at blanks outside of quotes.

    >>> [word.text for word in fields_of((Piece("--tp 2 --pp", 3), Piece(" 4", 3, quoted=True)))]
    ['--tp', '2', '--pp 4']
    """
    return [_word(field) for field in split(pieces)]


def _word(pieces: Text) -> Word:
    line = next((piece.line for piece in pieces if piece.text or piece.unknown), pieces[0].line)
    return Word(text_of(pieces), line, unknown_of(pieces), all(piece.quoted for piece in pieces))


def split(pieces: Sequence[Piece]) -> list[Text]:
    """Return ``pieces`` by word."""
    words: list[Text] = []
    current: list[Piece] = []

    def close() -> None:
        if current:
            words.append(tuple(current))
            current.clear()

    for piece in pieces:
        if piece is BREAK:
            close()
            continue
        if piece.quoted or (piece.unknown and not piece.text):
            current.append(piece)
            continue
        chunks = piece.text.split()
        if piece.text[:1].isspace():
            close()
        for i, chunk in enumerate(chunks):
            if i:
                close()
            current.append(Piece(chunk, piece.line, unknown=piece.unknown))
        if chunks and piece.text[-1:].isspace():
            close()
    close()
    return words


def as_text(word: Word) -> Text:
    """Return a word as pieces."""
    return (Piece(word.text, word.line, unknown=word.unknown),)


def commands_in(pieces: Sequence[Piece]) -> list[list[Word]]:
    r"""Return the words of each command in a text that a shell would read once more, without expansions.

    >>> [[word.text for word in words] for words in commands_in([Piece(r"cd a; run 'b c' d\|e", 1)])]
    [['cd', 'a'], ['run', 'b c', 'd|e']]
    >>> [[word.text for word in words] for words in commands_in([Piece("run --rank $(a|b -c): --tp 2", 1)])]
    [['run', '--rank', '$(a|b -c):', '--tp', '2']]
    """
    commands: list[list[Piece]] = [[]]
    quote = ""
    for piece in pieces:
        if piece.unknown and not piece.text:
            commands[-1].append(piece)
        for match in _SIGN.finditer(piece.text):
            sign = match.group()
            if quote and sign == quote:
                quote = ""
            elif not quote and sign in {"'", '"'}:
                quote = sign
                commands[-1].append(Piece("", piece.line, quoted=True, unknown=piece.unknown))
            elif not quote and sign in {";", "|", "||", "&&", "&", "\n"}:
                commands.append([])
            elif sign != "\\\n":
                escaped = sign[0] == "\\" and quote != "'" and len(sign) > 1
                text = sign[1:] if escaped else sign
                whole = bool(quote) or escaped or (len(sign) > 1 and sign[0] in "$`")
                commands[-1].append(Piece(text, piece.line, whole, piece.unknown))
    return [words for command in commands if (words := fields_of(command))]
