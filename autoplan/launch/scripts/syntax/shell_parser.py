"""Shell scripts to syntax trees. A construct that is not read is an error with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from autoplan.launch.scripts.syntax.command_parser import CommandParser, literal_text
from autoplan.launch.scripts.syntax.syntax_tree import (
    Case,
    FunctionDefinition,
    IfClause,
    Loop,
    ShellWord,
    Statement,
    StatementList,
)
from autoplan.launch.scripts.syntax.word_parser import Source, shell_word

__all__ = ["parse_script"]

_FUNCTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*[ \t]*\([ \t]*\)")
_CLOSING: Final = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}", ";;", ";&", ")"})
_DEEPEST: Final = 60

#: Patterns of a case, and what follows them.
_Branch = tuple[tuple[ShellWord, ...], StatementList]


def parse_script(text: str, file: str, line: int = 1) -> StatementList:
    """Return the statements of ``text``; raises SpecError with the line of what cannot be read."""
    parser = _ScriptParser(Source(text.replace("\r\n", "\n"), file, line))
    statements = parser.group(frozenset())
    if parser.source.peek():
        parser.source.refuse(f"{parser.source.peek(20).splitlines()[0]!r} is not expected here")
    return statements


class _ScriptParser(CommandParser):
    """Reads statements one after the other."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._depth = 0

    def group(self, ends: frozenset[str]) -> StatementList:
        """Return the statements up to one of ``ends``, which is next then."""
        line = self.source.line
        statements: list[Statement] = []
        joints: list[str] = []
        negated: set[int] = set()
        joint = ";"
        while True:
            self.blanks(lines=True)
            word = self.keyword()
            if not self.source.peek() or word in ends or word in _CLOSING:
                break
            if word == "!":
                self.source.take()
                negated.add(len(statements))
                self.blanks()
            statements.append(self.statement())
            joints.append(joint)
            joint = self.joint()
        return StatementList(line, tuple(statements), tuple(joints), frozenset(negated))

    def joint(self) -> str:
        """Return what joins the last statement and the next."""
        self.blanks()
        source = self.source
        for sign in ("&&", "||"):
            if source.accept(sign):
                return sign
        if source.accept("|&") or source.accept("|"):
            return "|"
        if source.peek(2) not in {";;", ";&"} and source.accept(";"):
            return ";"
        if source.accept("&"):
            return ";"
        if source.peek() == "\n":
            self.line_end()
        return ";"

    def statement(self) -> Statement:
        """Return the statement that is next."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self.source.refuse("nested too deeply")
        statement = self._statement()
        self._depth -= 1
        return statement

    def _statement(self) -> Statement:
        source = self.source
        if source.peek(2) == "((" and source.closing(source.at + 2, "))") is not None:
            return self.arithmetic()
        readers: dict[str, Callable[[], Statement]] = {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "function": self._function,
            "{": self._braces,
        }
        word = self.keyword()
        if source.peek() == "(":
            statement: Statement = self._braces(")", subshell=True)
        elif word in readers:
            statement = readers[word]()
        elif match := _FUNCTION.match(source.text, source.at):
            name = source.take(match.end() - source.at).split("(")[0].strip()
            return self._function_body(name)
        else:
            return self.simple()
        self.redirections()
        return statement

    def _braces(self, end: str = "}", *, subshell: bool = False) -> StatementList:
        self.source.take()
        group = self.group(frozenset({end}))
        self.expect(end)
        if not subshell:
            return group
        return StatementList(group.line, group.statements, group.joints, group.negated, subshell=True)

    def _if(self) -> IfClause:
        line = self.source.line
        branches = []
        self.source.take(2)
        while True:
            condition = self.group(frozenset({"then"}))
            self.expect("then")
            branches.append((condition, self.group(frozenset({"elif", "else", "fi"}))))
            if not self.source.accept("elif"):
                break
        otherwise = self.group(frozenset({"fi"})) if self.source.accept("else") else None
        self.expect("fi")
        return IfClause(line, tuple(branches), otherwise)

    def _case(self) -> Case:
        source = self.source
        line = source.line
        source.take(4)
        self.blanks()
        word = shell_word(source)
        self.expect("in")
        branches: list[_Branch] = []
        falling: list[bool] = []
        while True:
            self.blanks(lines=True)
            if self.keyword() == "esac":
                break
            if not source.peek():
                source.refuse("'esac' is missing", line)
            patterns, body = self._patterns(), self.group(frozenset({";;", ";&", "esac"}))
            self.blanks(lines=True)
            falling.append(source.accept(";&"))
            branches.append((patterns, body))
            if source.accept(";;"):
                source.accept("&")
        self.expect("esac")
        return Case(line, word, tuple(_with_falls(branches, falling))[::-1])

    def _patterns(self) -> tuple[ShellWord, ...]:
        self.source.accept("(")
        patterns = []
        while True:
            self.blanks()
            patterns.append(shell_word(self.source))
            self.blanks()
            if not self.source.accept("|"):
                break
        if not self.source.accept(")"):
            self.source.refuse("')' is missing after a pattern of case")
        return tuple(patterns)

    def _for(self) -> Loop:
        source = self.source
        line = source.line
        shell_word(source)
        self.blanks()
        name, words = "", None
        if source.peek(2) == "((":
            self.arithmetic()
        else:
            name = literal_text(shell_word(source))
            self.blanks(lines=True)
            if self.keyword() == "in":
                source.take(2)
                words = self.words()
        self.blanks()
        source.accept(";")
        return Loop(line, self._do(), name, words)

    def _while(self) -> Loop:
        line = self.source.line
        self.source.take(5)
        condition = self.group(frozenset({"do"}))
        body = self._do()
        inner = (*condition.statements, *body.statements)
        return Loop(line, StatementList(line, inner, (";",) * len(inner)))

    def _do(self) -> StatementList:
        self.expect("do")
        body = self.group(frozenset({"done"}))
        self.expect("done")
        return body

    def _function(self) -> FunctionDefinition:
        self.source.take(len("function"))
        self.blanks()
        name = literal_text(shell_word(self.source))
        self.blanks()
        if self.source.accept("("):
            self.expect(")")
        return self._function_body(name)

    def _function_body(self, name: str) -> FunctionDefinition:
        line = self.source.line
        self.blanks(lines=True)
        return FunctionDefinition(line, name, self.statement())


def _with_falls(branches: Sequence[_Branch], falling: Sequence[bool]) -> Iterator[_Branch]:
    """Yield branches, last one first, each with the one after it where it ends in ``;&``."""
    below: StatementList | None = None
    for (patterns, body), falls in zip(reversed(branches), reversed(falling), strict=True):
        bodies = (body, below) if falls and below else (body,)
        below = StatementList(body.line, bodies, (";",) * len(bodies)) if len(bodies) > 1 else body
        yield patterns, below
