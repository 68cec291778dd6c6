"""Tests of shell scripts: ``[ ... ]``, ``[[ ... ]]`` and ``test``. None: the outcome is not known."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from typing import Final

from autoplan.launch.scripts.pieces import Word

__all__ = ["COMPARISONS", "outcome_of_test"]

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
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
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
        if not (_INTEGER.fullmatch(left) and _INTEGER.fullmatch(right)):
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
