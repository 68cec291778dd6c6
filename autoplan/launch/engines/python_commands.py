"""Serve commands that a Python program starts as a list of words, as those of Modal do. It is never run.

Followed are constants of the module and of the function, ``str`` and f-strings of them, variables of the
environment with their defaults, and words that are added to the list. What else decides a word is unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from autoplan.launch.scripts.pieces import Unknown, Word
from autoplan.launch.scripts.script import Command, Script

_SIGNS: Final = re.compile(
    r"[\"']vllm[\"']\s*,\s*[\"']serve[\"']|[\"'](?:vllm\.entrypoints\.\w[\w.]*|sglang\.launch_server)[\"']"
    r"|[\"']trtllm-serve[\"']"
)
_UNKNOWN: Final = object()
_ENVIRONMENT: Final = frozenset({"get", "getenv"})


def starts_engine(text: str) -> bool:
    """Return whether a Python program has the words of a serve command as a list.

    >>> starts_engine('cmd = ["vllm", "serve", MODEL]'), starts_engine("import vllm")
    (True, False)
    """
    return _SIGNS.search(text) is not None


def python_script(text: str, name: str, variables: Mapping[str, str]) -> Script:
    """Return the commands that a Python program starts; none of a text that is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Script(name, (), {}, {})
    reader = _Program(variables)
    reader.block(tree.body, doubt=False)
    commands = [Command(tuple(words), words[0].line) for words in reader.lists if _serves(words)]
    return Script(name, tuple(commands), {}, {})


def _serves(words: Sequence[Word]) -> bool:
    return _SIGNS.search(", ".join(f'"{word.text}"' for word in words)) is not None


@dataclass(slots=True)
class _Program:
    """Values of names so far, and the lists of words, of which some have a name."""

    variables: Mapping[str, str]
    values: dict[str, Any] = field(default_factory=dict)
    lists: list[list[Word]] = field(default_factory=list)
    named: dict[str, list[Word]] = field(default_factory=dict)

    def block(self, body: Sequence[ast.stmt], *, doubt: bool) -> None:
        """Follow statements in order; those under a condition that is not known are in ``doubt``."""
        for statement in body:
            self._statement(statement, doubt=doubt)

    def _statement(self, statement: ast.stmt, *, doubt: bool) -> None:
        if isinstance(statement, ast.If):
            test = self.value(statement.test)
            if test is _UNKNOWN:
                self.block(statement.body, doubt=True)
                self.block(statement.orelse, doubt=True)
            else:
                self.block(statement.body if test else statement.orelse, doubt=doubt)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            self._assign(statement, doubt=doubt)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            self._extend(statement.target.id, statement.value, doubt=doubt)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(statement.value, doubt=doubt)
        else:
            for inner in ("body", "orelse", "finalbody"):
                nested = getattr(statement, inner, None)
                if isinstance(nested, list):
                    loops = isinstance(statement, ast.For | ast.While)
                    self.block(nested, doubt=doubt or loops)

    def _assign(self, statement: ast.Assign | ast.AnnAssign, *, doubt: bool) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        for target in targets:
            if not isinstance(target, ast.Name) or value is None:
                continue
            if isinstance(value, ast.List | ast.Tuple):
                words = list(self.words(value))
                self.lists.append(words)
                self.named[target.id] = words
            self.values[target.id] = _UNKNOWN if doubt else self.value(value)

    def _call(self, call: ast.Call, *, doubt: bool) -> None:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and call.args
            and function.attr in {"extend", "append"}
        ):
            added = call.args[0]
            if function.attr == "append":
                added = ast.copy_location(ast.List(elts=[added], ctx=ast.Load()), added)
            self._extend(function.value.id, added, doubt=doubt)
            return
        for argument in call.args:
            if isinstance(argument, ast.List | ast.Tuple):
                self.lists.append(list(self.words(argument)))

    def _extend(self, name: str, value: ast.expr, *, doubt: bool) -> None:
        words = self.named.get(name)
        if words is None:
            return
        known = isinstance(value, ast.List | ast.Tuple) and not doubt
        words += self.words(value) if known else [_word(_UNKNOWN, value.lineno)]

    def words(self, node: ast.expr) -> Iterator[Word]:
        """Yield the words of a list."""
        for item in node.elts if isinstance(node, ast.List | ast.Tuple) else ():
            inner = item.value if isinstance(item, ast.Starred) else None
            if isinstance(inner, ast.Name) and inner.id in self.named:
                yield from self.named[inner.id]
            else:
                yield _word(self.value(item), item.lineno)

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of an expression; the mark of an unknown one where it is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.values.get(node.id, _UNKNOWN)
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(part) for part in node.values]
            return _UNKNOWN if _UNKNOWN in parts else "".join(map(str, parts))
        return self._called(node) if isinstance(node, ast.Call) else self._chosen(node)

    def _chosen(self, node: ast.expr) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of a part of an f-string, of a choice, or of what is negated."""
        if isinstance(node, ast.FormattedValue):
            return self.value(node.value) if node.format_spec is None else _UNKNOWN
        if isinstance(node, ast.IfExp):
            test = self.value(node.test)
            return _UNKNOWN if test is _UNKNOWN else self.value(node.body if test else node.orelse)
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        inner = self.value(node.operand) if isinstance(node, ast.UnaryOp) and negated else _UNKNOWN
        return _UNKNOWN if inner is _UNKNOWN else not inner

    def _called(self, call: ast.Call) -> Any:  # noqa: ANN401 - any value of a program
        """Return what ``str``, ``int`` or a look-up in the environment gives."""
        function = call.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        values = [self.value(argument) for argument in call.args]
        if name in {"str", "int"} and len(values) == 1 and values[0] is not _UNKNOWN:
            return str(values[0]) if name == "str" or not str(values[0]).isdigit() else int(values[0])
        asked = ast.unparse(function) in {"os.environ.get", "os.getenv", "getenv", "environ.get"}
        if asked and values and name in _ENVIRONMENT:
            return self.variables.get(str(values[0]), values[1] if len(values) > 1 else _UNKNOWN)
        return _UNKNOWN


def _word(value: Any, line: int) -> Word:  # noqa: ANN401 - any value of a program
    if value is _UNKNOWN:
        return Word("", line, Unknown("a value that the program computes", line))
    return Word("" if value is None else str(value), line)
