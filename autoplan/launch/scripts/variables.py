"""Variables of a shell script while it is read, and what becomes of them where a condition is not known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from autoplan.launch.scripts.pieces import Piece, Text, Unknown, text_of, unknown_of
from autoplan.launch.scripts.syntax.syntax_tree import Statement

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
    """Return the variables where one of several states holds: what they agree in is known.

    So is a value of one of them that is said from ``outside``.
    """
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
