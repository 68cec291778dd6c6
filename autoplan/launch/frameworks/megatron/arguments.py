"""The arguments that Megatron-LM knows, and words of a command as such arguments with their values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from autoplan.errors import Problem
from autoplan.launch.bindings.deciding_names import extends, may_decide, misnamed
from autoplan.launch.bindings.interface import interface, listed_data
from autoplan.launch.configuration import Fields, ReadFile, Written
from autoplan.launch.scripts.pieces import Unknown, Word

TABLE: Final = interface("megatron-lm")
#: Arguments by the names of their bindings.
FLAGS: Final = TABLE.keys
#: Arguments whose values are read.
READ_FLAGS: Final = frozenset(binding.key for binding in TABLE if binding.read)
_SIMILAR: Final = 0.9


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument with the words of its value, its line, and why it may not be given.

    ``written`` is how a file has it that is no command, such as ``tensor_model_parallel_size: 4``.
    """

    flag: str
    values: tuple[Word, ...]
    line: int
    unknown: Unknown | None = None
    written: str = ""

    @property
    def words(self) -> str:
        """The argument as a command or a file has it."""
        return self.written or " ".join([self.flag, *(word.text for word in self.values)])


@dataclass(slots=True)
class Arguments(ReadFile):
    """The arguments of a command by flag; look-ups by binding add problems of what is not of its kind."""

    given: dict[str, Argument] = field(default_factory=dict)

    def refuse(self, sentence: str, name: str, line: int | None = None) -> None:
        """Add a problem of an argument."""
        entry = self.given.get(FLAGS[name])
        line = line or (entry.line if entry else None) or None
        self.problems.append(Problem(sentence, FLAGS[name], self.file, line))

    def leave_open(self, fields: Iterable[str], words: str, line: int | None) -> None:
        """Leave fields open that an argument which is not read may decide, and say so."""
        self.opened |= set(fields)
        where = f" (line {line})" if line else ""
        self.notes.append(f"{words}{where} is not read and may decide {', '.join(fields)}: left open")

    def has(self, name: str) -> bool:
        """Return whether an argument is given, with whatever value."""
        return FLAGS[name] in self.given

    def flag(self, name: str) -> Written | None:
        """Return True with its line where an argument without a value is given."""
        written = self._certain(name)
        return Written(value=True, line=written.line, words=written.words) if written else None

    def text(self, name: str) -> Written | None:
        """Return the value of an argument; None where it is not given, or not known."""
        written = self._certain(name)
        if written is None:
            return None
        for word in written.values:
            if word.unknown is not None:
                self.refuse(f"its value depends on {_reason(word.unknown)}", name, word.line or written.line)
                return None
        if not written.values:
            self.refuse("its value is missing", name)
            return None
        return Written(written.values[0].text, written.values[0].line or written.line, written.words)

    def number(self, name: str, least: int = 1) -> Written | None:
        """Return the value of an argument as an integer of at least ``least``."""
        written = self.text(name)
        if written is None:
            return None
        # Python's int takes single underscores between digits.
        text = re.sub(r"(?<=\d)_(?=\d)", "", written.value)
        if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) < least:
            self.refuse(f"{written.value[:40]!r} is not an integer of at least {least}", name, written.line)
            return None
        return written.of(int(text))

    def present(self, *names: str) -> Fields:
        """Return the values of the numbers and switches among ``names`` that are given, or have a default."""
        values = {}
        for binding in map(TABLE.__getitem__, names):
            written = self.flag(binding.name) if binding.kind == "switch" else self.number(binding.name)
            if written is None and binding.default is not None:
                written = Written(binding.default, default=True)
            if written is not None:
                values[binding.name] = written
        return values

    def every(self, name: str) -> tuple[str, ...]:
        """Return all words of the value of an argument."""
        written = self._certain(name)
        return tuple(word.text for word in written.values) if written else ()

    def _certain(self, name: str) -> Argument | None:
        """Return an argument; where it is not sure to be given, that is a problem."""
        entry = self.given.get(FLAGS[name])
        if entry is not None and entry.unknown is not None:
            self.refuse(f"whether it is given depends on {_reason(entry.unknown)}", name)
            return None
        return entry


def _reason(unknown: Unknown) -> str:
    """Return why something is not known, and what to do."""
    do = f": give --set {unknown.name}=VALUE" if unknown.name else ": give the argument with --arg"
    return f"{unknown.reason} (line {unknown.line}){do}"


@cache
def arities() -> Mapping[str, str]:
    """Return the number of values of each argument, as ``nargs`` of argparse, earlier arguments included."""
    data = listed_data(TABLE.data["arguments"])
    values: dict[str, str] = {}
    for table in (data["megatron-deepspeed"], data["earlier"], data):
        for arity, names in table.items():
            if isinstance(names, list):
                values.update(dict.fromkeys(names, arity))
    return values


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
            foreign += _foreign(name, word.line, wanted, result, " ".join(value.text for value in values))
        else:
            _undecided(name, word.line, result)
        unknown = word.unknown if not inline else None
        present = tuple(value for value in values if not _vanishes(value) or known.get(name) == "1")
        result.given[name] = Argument(name, present, word.line, unknown)
    if foreign:
        listed = ", ".join(dict.fromkeys(foreign))
        result.notes.append(f"not arguments of Megatron-LM, not read: {listed}")
    return result


def _undecided(name: str, line: int, result: Arguments) -> None:
    """Leave the fields open that an argument decides which is known and not read."""
    fields = TABLE.data["undecided"].get(name)
    if fields:
        result.leave_open(fields, name, line)


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
    if unknown.name and not unknown.elsewhere:
        result.notes.append(f"{unknown.reason} (line {unknown.line}), is read as empty")
    else:
        message = f"arguments depend on {unknown.reason}"
        result.problems.append(Problem(message, "script", result.file, word.line or unknown.line))


def _foreign(name: str, line: int, wanted: frozenset[str], result: Arguments, value: str = "") -> list[str]:
    """Return the name of an argument that Megatron-LM does not have; refuse it where it is a misspelling.

    One that speaks of parallelism, batches or sequences leaves the fields open that it may decide.
    """
    known = arities()
    dashed = name.replace("_", "-")
    near = [dashed] if dashed in known else [other for other in known if one_letter_off(name, other)]
    fields = may_decide(name, value or "true")
    near += (
        misnamed(name, wanted, _SIMILAR) if fields else difflib.get_close_matches(name, wanted, 2, _SIMILAR)
    )
    first = name.lstrip("-")[:1]
    near = [other for other in near if not extends(name, other) and other.lstrip("-")[:1] == first]
    if not near:
        if fields:
            result.leave_open(fields, f"{name} {value}".strip(), line)
        return [name]
    listed = " or ".join(dict.fromkeys(near[:3]))
    problem = Problem(f"Megatron-LM has no such argument: did you mean {listed}?", name, result.file, line)
    result.problems.append(problem)
    return []


def one_letter_off(one: str, other: str) -> bool:
    """Return whether a letter more, less, changed or swapped with the next makes two names equal.

    >>> [one_letter_off("--bf16", name) for name in ("--fp16", "--bf1", "--bf61", "--bfl6", "--bf16")]
    [False, True, True, True, False]
    >>> one_letter_off("--patch-size", "--batch-size")
    False

    Another first letter of the same number makes another word.
    """
    first, second = one.lstrip("-")[:1], other.lstrip("-")[:1]
    if one == other or abs(len(one) - len(other)) > 1 or (len(one) == len(other) and first != second):
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    a, b = one[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[2:] == b[2:] and a[:2] == b[1::-1])
