"""Text of which parts may be unknown, with the line of each part, its words, and variables that have it.

Variables are those of a shell script while it is read, also where a condition is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, TypeGuard

from autoplan.launch.scripts.word_parser import Statement


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


#: Files that set up a shell, and no arguments of a program.
_SETUP: Final = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|\.?bashrc|\.?(?:bash_)?profile|setvars\.sh|env_?vars?\.sh)$"
)
#: The items of an array by index or key.
Array = dict[str, Text]
Value = Text | Array


@dataclass(slots=True)
class ShellScope:
    """Variables and functions; ``positional`` are the arguments of a function, None of the script itself.

    ``outside`` are the variables that the script is started with. ``sourced`` is the last file that the
    script reads, with its line: what is not set here may be set there. Of its own
    arguments, the script has ``shifted`` so many away. While it is ``bare`` it has none besides those that
    are given from outside; ``assumed`` says that this was asked.
    """

    outside: Mapping[str, str]
    values: dict[str, Value] = field(default_factory=dict)
    functions: dict[str, Statement] = field(default_factory=dict)
    positional: tuple[Text, ...] | None = None
    sourced: tuple[str, int] | None = None
    shifted: int = 0
    bare: bool = False
    assumed: bool = False

    def get(self, name: str, line: int) -> Value | None:
        """Return the value of ``name``; None where it is not set."""
        if name.isdigit() and name != "0" and self.positional is not None:
            at = int(name) - 1
            return self.positional[at] if at < len(self.positional) else self._missing(line)
        if name.isdigit() and name != "0":
            name = str(int(name) + self.shifted)
        if name in self.values:
            return self.values[name]
        if name in self.outside:
            return (Piece(self.outside[name], line),)
        return self._missing(line) if name.isdigit() and name != "0" else None

    def _missing(self, line: int) -> Value | None:
        """Return an argument that is not given: nothing where the script has no others."""
        self.assumed |= self.bare
        return (Piece("", line),) if self.bare else None

    def count(self) -> int | None:
        """Return the number of arguments; None where it is not known."""
        if self.positional is not None:
            unknown = any(piece.unknown for text in self.positional for piece in text)
            return None if unknown else len(self.positional)
        given = 0
        while self.positional is None and str(given + 1) in self.outside:
            given += 1
        if given:
            return max(given - self.shifted, 0)
        self.assumed |= self.bare
        return 0 if self.bare else None

    def arguments(self, line: int) -> Sequence[Text]:
        """Return the arguments of a function, or those of the script that are given from outside."""
        if self.positional is not None:
            return self.positional
        names = (str(self.shifted + at) for at in range(1, (self.count() or 0) + 1))
        return [(Piece(self.outside.get(name, ""), line),) for name in names]

    def may_be_set(self, name: str) -> bool:
        """Return whether a file that is read, and not followed, may set ``name``: no setup of a shell."""
        return self.sourced is not None and name.isidentifier() and not _SETUP.search(self.sourced[0])

    def unset(self, name: str, line: int) -> Unknown:
        """Return why ``name`` is not known where nothing sets it."""
        if name.isdigit():
            name = str(int(name) + self.shifted)
        reason = f"the script's argument ${name}" if name.isdigit() else f"{name}, which is not set here"
        elsewhere = self.may_be_set(name)
        if self.sourced is not None and elsewhere:
            reason += f" unless {self.sourced[0]} does, which line {self.sourced[1]} reads"
        return Unknown(reason, line, name, elsewhere)


def in_line(value: Value, line: int) -> Value:
    """Return a value whose words all stand in ``line``, as those of another file that is read there."""
    if isinstance(value, dict):
        return {key: tuple(replace(piece, line=line) for piece in text) for key, text in value.items()}
    return tuple(replace(piece, line=line) for piece in value)


def _doubtful(text: Text, reason: str, line: int) -> Text:
    unknown = Unknown(reason, line)
    return tuple(replace(p, unknown=p.unknown or unknown) for p in text) or (
        Piece("", line, unknown=unknown),
    )


def joined(
    states: Sequence[dict[str, Value]], reason: str, line: int, outside: Mapping[str, str] | None = None
) -> dict[str, Value]:
    """Return the variables of one of several states, known where they agree or are said from ``outside``."""
    names = list(dict.fromkeys(name for state in states for name in state))
    said = outside or {}
    return {
        name: next(
            (value for state in states if _is(value := state.get(name), said.get(name))),
            _joined([state.get(name) for state in states], reason, line),
        )
        for name in names
    }


def _is(value: Value | None, text: str | None) -> TypeGuard[Value]:
    """Return whether a value is known, and this text."""
    if text is None or not isinstance(value, tuple):
        return False
    return text_of(value) == text and unknown_of(value) is None


def _joined(values: Sequence[Value | None], reason: str, line: int) -> Value:
    first = values[0]
    if first is not None and all(value == first for value in values):
        return first
    arrays = [value for value in values if isinstance(value, dict)]
    if arrays:
        keys = list(dict.fromkeys(key for array in arrays for key in array))
        every = len(arrays) == len(values)
        return {
            key: _texts([a.get(key) for a in arrays] if every else [None], arrays, key, reason, line)
            for key in keys
        }
    return _tails([value for value in values if isinstance(value, tuple)], len(values), reason, line)


def _texts(items: Sequence[Text | None], arrays: Sequence[Array], key: str, reason: str, line: int) -> Text:
    """Return the item of an array that some states do not have, or have otherwise."""
    texts = [array[key] for array in arrays if key in array]
    if all(item == texts[0] for item in items):
        return texts[0]
    return _tails(texts, len(texts) + 1, reason, line)


def _tails(texts: Sequence[Text], states: int, reason: str, line: int) -> Text:
    """Return what texts begin with alike, and the rest of each as doubtful."""
    shared = 0
    if len(texts) == states:
        while all(shared < len(text) for text in texts) and len({text[shared] for text in texts}) == 1:
            shared += 1
    rest: list[Piece] = []
    for text in texts:
        # Options of one branch and those of another are words of their own.
        apart = bool(rest) and "".join(piece.text for piece in text[shared:]).startswith("-")
        rest += [*([Piece(" ", line)] if apart else []), *_doubtful(text[shared:], reason, line)]
    return (*texts[0][:shared], *rest)
