"""The arguments that Megatron-LM knows, and words of a command as such arguments with their values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Final

from autoplan.errors import Problem
from autoplan.launch.configuration import Written
from autoplan.launch.scripts.pieces import Unknown, Word

__all__ = ["Argument", "Arguments", "arities", "one_letter_off", "parse_arguments"]

_SIMILAR: Final = 0.9


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument with the words of its value, its line, and why it may not be given."""

    flag: str
    values: tuple[Word, ...]
    line: int
    unknown: Unknown | None = None

    @property
    def words(self) -> str:
        """The argument as a command has it."""
        return " ".join([self.flag, *(word.text for word in self.values)])


@dataclass(slots=True)
class Arguments:
    """The arguments of a command by name, and the problems and notes on them.

    Look-ups add a problem where a value is not known or not one of its kind.
    """

    file: str
    given: dict[str, Argument] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, sentence: str, flag: str, line: int | None = None) -> None:
        """Add a problem of an argument."""
        found = self.given.get(flag)
        self.problems.append(Problem(sentence, flag, self.file, line or (found.line if found else None)))

    def flag(self, name: str) -> Written | None:
        """Return True with its line where an argument without a value is given."""
        found = self._certain(name)
        return Written(value=True, line=found.line, words=found.words) if found else None

    def text(self, name: str) -> Written | None:
        """Return the value of an argument; None where it is not given, or not known."""
        found = self._certain(name)
        if found is None:
            return None
        for word in found.values:
            if word.unknown is not None:
                self.refuse(_unknown_value(found, word.unknown), name, word.line or found.line)
                return None
        if not found.values:
            self.refuse("its value is missing", name)
            return None
        return Written(found.values[0].text, found.values[0].line or found.line, found.words)

    def number(self, name: str, least: int = 1) -> Written | None:
        """Return the value of an argument as an integer of at least ``least``."""
        found = self.text(name)
        if found is None:
            return None
        text = found.value
        if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) < least:
            self.refuse(f"{text[:40]!r} is not an integer of at least {least}", name, found.line)
            return None
        return Written(int(text), found.line, found.words)

    def every(self, name: str) -> tuple[str, ...]:
        """Return all words of the value of an argument."""
        found = self._certain(name)
        return tuple(word.text for word in found.values) if found else ()

    def _certain(self, name: str) -> Argument | None:
        """Return an argument; where it is not sure to be given, that is a problem."""
        found = self.given.get(name)
        if found is not None and found.unknown is not None:
            self.refuse(f"whether it is given depends on {_reason(found.unknown)}", name)
            return None
        return found


def _unknown_value(found: Argument, unknown: Unknown) -> str:
    del found
    return f"its value depends on {_reason(unknown)}"


def _reason(unknown: Unknown) -> str:
    """Return why something is not known, and what to do."""
    do = f": give --set {unknown.name}=VALUE" if unknown.name else ": give the argument with --arg"
    return f"{unknown.reason} (line {unknown.line}){do}"


@cache
def arities() -> Mapping[str, str]:
    """Return the number of values of each argument, as ``nargs`` of argparse, earlier arguments included."""
    text = (files(__package__) / "argument_names.json").read_text(encoding="utf-8")
    data = json.loads(text)
    found: dict[str, str] = {}
    for table in (data["megatron-deepspeed"], data["earlier"], data):
        for arity, names in table.items():
            if isinstance(names, list):
                found.update(dict.fromkeys(names, arity))
    return found


def parse_arguments(words: Sequence[Word], file: str, wanted: frozenset[str]) -> Arguments:
    """Return the arguments among ``words``, those of a training program; the last of equal ones counts.

    ``wanted`` are the arguments whose values are read: others that look like them are refused as misspelt,
    and so is what is one letter off any known argument. Other unknown arguments are noted.
    """
    result, foreign = Arguments(file), []
    known = arities()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.text.startswith("--"):
            _refuse_hidden(word, result)
            continue
        name, equals, value = word.text.partition("=")
        inline = [Word(value, word.line, word.unknown)] if equals else []
        values = inline or list(_values(words[position:], known.get(name, "*")))
        position += 0 if inline else len(values)
        if name not in known:
            foreign += _foreign(name, word.line, wanted, result)
        unknown = word.unknown if not inline else None
        kept = tuple(value for value in values if not _vanishes(value) or known.get(name) == "1")
        result.given[name] = Argument(name, kept, word.line, unknown)
    if foreign:
        listed = ", ".join(dict.fromkeys(foreign))
        result.notes.append(f"not arguments of Megatron-LM, not read: {listed}")
    return result


def _vanishes(word: Word) -> bool:
    """Return whether a word is a variable that is not set, which a shell leaves out."""
    return not word.text and word.unknown is not None and bool(word.unknown.name)


def _values(words: Sequence[Word], arity: str) -> Iterator[Word]:
    """Yield the words that belong to an argument with so many values."""
    most = {"*": len(words), "+": len(words)}.get(arity, int(arity) if arity.isdigit() else 1)
    for word in words[:most]:
        if word.text.startswith("--"):
            return
        yield word


def _refuse_hidden(word: Word, result: Arguments) -> None:
    """Refuse a word that may stand for any arguments; a variable that is not set stands for none."""
    if word.text or word.unknown is None:
        return
    unknown = word.unknown
    if unknown.name:
        result.notes.append(f"{unknown.reason} (line {unknown.line}), is read as empty")
    else:
        message = f"arguments depend on {unknown.reason}"
        result.problems.append(Problem(message, "script", result.file, word.line or unknown.line))


def _foreign(name: str, line: int, wanted: frozenset[str], result: Arguments) -> list[str]:
    """Return the name of an argument that Megatron-LM does not have; refuse it where it is a misspelling."""
    known = arities()
    dashed = name.replace("_", "-")
    near = [dashed] if dashed in known else [other for other in known if one_letter_off(name, other)]
    near += difflib.get_close_matches(name, wanted, 2, _SIMILAR)
    if not near:
        return [name]
    listed = " or ".join(dict.fromkeys(near[:3]))
    problem = Problem(f"Megatron-LM has no such argument: did you mean {listed}?", name, result.file, line)
    result.problems.append(problem)
    return []


def one_letter_off(one: str, other: str) -> bool:
    """Return whether a letter more, less, changed or swapped with the next makes two names equal.

    >>> [one_letter_off("--bf16", name) for name in ("--fp16", "--bf1", "--bf61", "--bfl6", "--bf16")]
    [False, True, True, True, False]
    """
    if one == other or abs(len(one) - len(other)) > 1:
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    a, b = one[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[2:] == b[2:] and a[:2] == b[1::-1])
