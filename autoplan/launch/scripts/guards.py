"""Conditions of a script that ask whether a variable is set."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.launch.scripts.syntax.syntax_tree import Parameter, ShellWord, SimpleCommand, StatementList
from autoplan.launch.scripts.variables import ShellScope


def asks_unset(condition: StatementList, scope: ShellScope) -> bool:
    """Return whether a condition asks for a variable that nothing sets: the environment may have it.

    An argument of the script, and a default that stands beside the variable, are no such question.
    """
    return any(
        not name.isdigit() and name.isidentifier() and name not in scope.values and name not in scope.outside
        for word in _words(condition)
        for name in _names(word)
    )


def _words(condition: StatementList) -> Iterator[ShellWord]:
    for statement in condition.statements:
        if isinstance(statement, SimpleCommand):
            yield from statement.words


def _names(word: ShellWord) -> Iterator[str]:
    for part in word:
        if isinstance(part, Parameter) and not part.length and not _defaulted(part):
            yield part.name


def _defaulted(part: Parameter) -> bool:
    return bool(part.operator) and bool(part.argument)
