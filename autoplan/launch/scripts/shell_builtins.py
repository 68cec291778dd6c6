"""Builtins and conditions of a shell, as they are followed: what they set, test or end.

Tests are ``[ ... ]``, ``[[ ... ]]`` and ``test``; one that depends on what is unknown has no outcome (None).
"""

from __future__ import annotations

import contextlib
import fnmatch
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.scripts import word_parser as syntax
from autoplan.launch.scripts.expansion import Expander
from autoplan.launch.scripts.pieces import Piece, ShellScope, Text, Unknown, Word, in_line
from autoplan.launch.scripts.script import Command, Directive
from autoplan.launch.scripts.shell_parser import parse_script

#: Most statements within each other.
DEEPEST = 40


class EndedError(Exception):
    """The script ends here."""


class DoubtfulError(Exception):
    """It depends on a condition whether a round of a loop ends here."""


class LeftError(Exception):
    """A round of a loop ends here, and the loop where ``last``."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last


@dataclass(slots=True)
class ReaderState(ABC):
    """What is known of a script so far; what follows it adds to that."""

    file: str
    scope: ShellScope
    sibling: Callable[[str], str | None] = lambda _: None
    commands: list[Command] = field(default_factory=list)
    directives: dict[str, Directive] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    #: Texts of the files that the script has written so far, by name.
    written: dict[str, Text] = field(default_factory=dict)
    doubt: str = ""
    depth: int = 0
    steps: int = 0
    #: Whether the loop that is followed is so round by round, and the scripts that are followed now.
    rounds: bool = False
    called: tuple[str, ...] = ()
    exported: set[str] = field(default_factory=set)

    @property
    def expander(self) -> Expander:
        """What expands words with the variables of now."""
        return Expander(self.scope, self.file)

    @abstractmethod
    def script(self, text: str, line: int) -> bool | None:
        """Follow a whole script, that begins at ``line``."""

    @abstractmethod
    def group(self, group: syntax.StatementList) -> bool | None:
        """Follow statements in order, and return the outcome of the last one."""

    @abstractmethod
    def statement(self, statement: syntax.Statement) -> bool | None:
        """Follow one statement, and return its outcome where that is known."""

    def hint(self, words: Sequence[Word], line: int) -> None:
        """Note that a condition is decided by a variable that is not set."""
        for word in words:
            if word.unknown is not None and word.unknown.name:
                reason = f"the condition in line {line} is decided by {word.unknown.reason}"
                self.hints.append(f"{reason}: give --set {word.unknown.name}=VALUE")


def _test(reader: ReaderState, words: Sequence[Word], line: int) -> bool | None:
    """Return the outcome of a test."""
    end = {"[": "]", "[[": "]]"}.get(words[0].text)
    inner = words[1:-1] if end and words[-1].text == end else words[1:]
    if any(word.text in COMPARISONS for word in inner):
        reader.hint(inner, line)
    return outcome_of_test(inner)


def _end(reader: ReaderState, words: Sequence[Word], _line: int) -> bool | None:
    """End the script, or what is certain of it."""
    if words[0].text == "return" and reader.scope.positional is not None:
        return None
    raise EndedError


def _source(reader: ReaderState, words: Sequence[Word], line: int) -> bool | None:
    """Follow a file that is read where it lies there; else note that it may set anything."""
    name = words[1].text if len(words) > 1 else "a file"
    # Of a folder that is not known, what lies beside this script is read.
    below = name.startswith("/") and "//" not in name
    asked = name.removeprefix("./") if len(words) > 1 and words[1].unknown is None else name[1:]
    text = reader.sibling(asked) if len(words) > 1 and (below or words[1].unknown is None) else None
    if text is not None and reader.depth < DEEPEST // 2:
        reader.notes.append(f"line {line} reads {name}, which is followed")
        return _sourced(reader, text, line)
    reader.scope.sourced = (name or "a file", line)
    reader.notes.append(f"line {line} reads {name or 'a file'}, which is not read here")
    return None


def _sourced(reader: ReaderState, text: str, line: int) -> bool | None:
    """Follow the text of a file that the script reads in ``line``, which all of its words have."""
    first = len(reader.commands)
    before = dict(reader.scope.values)
    with contextlib.suppress(EndedError):
        reader.script(text, 1)
    for at, command in enumerate(reader.commands[first:], first):
        words = tuple(replace(word, line=line) for word in command.words)
        reader.commands[at] = replace(command, words=words, line=line)
    for name, value in reader.scope.values.items():
        if value is not before.get(name):
            reader.scope.values[name] = in_line(value, line)
    return None


def _executed(reader: ReaderState, words: Sequence[Word], line: int) -> bool | None:
    """Follow what ``exec`` runs, which is nothing where it redirects alone."""
    if len(words) > 1:
        reader.commands.append(Command(tuple(words[1:]), line, reader.doubt))
    return None


def _unset(reader: ReaderState, words: Sequence[Word], _line: int) -> bool | None:
    """Remove variables."""
    for word in words[1:]:
        reader.scope.values.pop(word.text, None)
    return True


def _read(reader: ReaderState, words: Sequence[Word], line: int) -> bool | None:
    """Note that variables are read from somewhere."""
    if words[0].text == "getopts" and reader.scope.bare and reader.scope.count() == 0:
        return False
    for word in words[1:]:
        if not word.text.startswith("-") and word.text:
            unknown = Unknown(f"what {words[0].text} reads in line {line}", line)
            reader.scope.values[word.text] = (Piece("", line, unknown=unknown),)
    return None


def _let(reader: ReaderState, words: Sequence[Word], line: int) -> bool | None:
    """Follow assignments of arithmetic."""
    for word in words[1:]:
        reader.group(parse_script(f"(({word.text}))", reader.file, line))
    return True


def _leave(reader: ReaderState, *, last: bool) -> None:
    """End a round of a loop that is followed round by round, unless that depends on a condition."""
    if reader.rounds:
        raise LeftError(last=last)


def _shift(reader: ReaderState, words: Sequence[Word], line: int) -> bool | None:
    """Move the arguments of a function or of the script."""
    count = words[1].text if len(words) > 1 else "1"
    if not count.isdigit() or len(count) > 3:
        raise SpecError([Problem(f"shift {count!r} is not read", "script", reader.file, line)])
    if reader.scope.positional is not None:
        reader.scope.positional = reader.scope.positional[int(count) :]
    else:
        reader.scope.shifted += int(count)
    return None


BUILTINS: Final[dict[str, Callable[[ReaderState, Sequence[Word], int], bool | None]]] = {
    "[": _test,
    "[[": _test,
    "test": _test,
    ":": lambda *_: True,
    "true": lambda *_: True,
    "false": lambda *_: False,
    "exit": _end,
    "return": _end,
    "source": _source,
    ".": _source,
    "exec": _executed,
    "unset": _unset,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "getopts": _read,
    "let": _let,
    "shift": _shift,
    "break": lambda reader, *_: _leave(reader, last=True),
    "continue": lambda reader, *_: _leave(reader, last=False),
}


def asks_unset(condition: syntax.StatementList, scope: ShellScope) -> bool:
    """Return whether a condition asks for a variable that nothing sets: the environment may have it.

    An argument of the script, and a default that stands beside the variable, are no such question.
    """
    return any(
        not name.isdigit() and name.isidentifier() and name not in scope.values and name not in scope.outside
        for word in _words(condition)
        for name in _names(word)
    )


def _words(condition: syntax.StatementList) -> Iterator[syntax.ShellWord]:
    for statement in condition.statements:
        if isinstance(statement, syntax.SimpleCommand):
            yield from statement.words


def _names(word: syntax.ShellWord) -> Iterator[str]:
    for part in word:
        if isinstance(part, syntax.Parameter) and not part.length and not _defaulted(part):
            yield part.name


def _defaulted(part: syntax.Parameter) -> bool:
    return bool(part.operator) and bool(part.argument)


#: Tests of two numbers.
_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
#: Signs between two words, whose outcome a variable may decide.
COMPARISONS: Final = frozenset({"=", "==", "!=", "=~", "<", ">", *_NUMBERS})
_OPERAND: Final = re.compile(r"-?[0-9]{1,18}")
#: Tests of files and descriptors, which are not made.
_FILES: Final = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")


def outcome_of_test(words: Sequence[Word]) -> bool | None:
    """Return the outcome of a test, without its brackets.

    >>> outcome_of_test([Word(text, 1) for text in ("7B", "==", "7B", "-a", "8", "-gt", "9")])
    False
    """
    return _Test(words).outcome()


class _Test:
    """The words of a test, and a position among them."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.words = list(words)
        self.at = 0

    def outcome(self) -> bool | None:
        result = self.alternatives()
        return result if self.at == len(self.words) else None

    def peek(self, ahead: int = 0) -> str:
        return self.words[self.at + ahead].text if self.at + ahead < len(self.words) else ""

    def alternatives(self) -> bool | None:
        result = self.conjunction()
        while self.peek() in {"-o", "||"}:
            self.at += 1
            result = _either(result, self.conjunction())
        return result

    def conjunction(self) -> bool | None:
        result = self.negation()
        while self.peek() in {"-a", "&&"}:
            self.at += 1
            other = self.negation()
            result = _negated(_either(_negated(result), _negated(other)))
        return result

    def negation(self) -> bool | None:
        if self.peek() == "!" and self.at + 1 < len(self.words):
            self.at += 1
            return _negated(self.negation())
        if self.peek() == "(" and ")" in [word.text for word in self.words[self.at :]]:
            self.at += 1
            result = self.alternatives()
            self.at += 1
            return result
        return self.comparison()

    def comparison(self) -> bool | None:
        left, sign = self.peek(), self.peek(1)
        if sign in COMPARISONS:
            right = self.peek(2)
            known = self.known(0) and (self.known(2) or self.at + 2 >= len(self.words))
            self.at = min(self.at + 3, len(self.words))
            return _compared(left, sign, right) if known else None
        if left in {"-z", "-n"} and self.at + 1 < len(self.words):
            known, empty = self.known(1), self.peek(1) == ""
            self.at += 2
            return (empty if left == "-z" else not empty) if known else None
        if left in _FILES or left in {"-v", "-t"}:
            self.at = min(self.at + 2, len(self.words))
            return None
        known = self.known(0)
        self.at = min(self.at + 1, len(self.words))
        return left != "" if known else None

    def known(self, ahead: int) -> bool:
        """Return whether a word is known; a variable that is not set is empty."""
        if self.at + ahead >= len(self.words):
            return True
        unknown = self.words[self.at + ahead].unknown
        return unknown is None or bool(unknown.name)


def _compared(left: str, sign: str, right: str) -> bool | None:
    if sign in _NUMBERS:
        if not (_OPERAND.fullmatch(left) and _OPERAND.fullmatch(right)):
            return None if left and right else False
        return _NUMBERS[sign](int(left), int(right))
    if sign in {"=", "=="}:
        return fnmatch.fnmatchcase(left, right)
    if sign == "!=":
        return not fnmatch.fnmatchcase(left, right)
    if sign in {"<", ">"}:
        return left < right if sign == "<" else left > right
    return None


def _either(first: bool | None, second: bool | None) -> bool | None:  # noqa: FBT001 - outcomes
    if first or second:
        return True
    return None if None in (first, second) else False


def _negated(outcome: bool | None) -> bool | None:  # noqa: FBT001 - an outcome
    return None if outcome is None else not outcome
