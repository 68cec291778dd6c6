"""Shell scripts to syntax trees. A construct that is not read is an error with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from autoplan.launch.scripts import word_parser as syntax

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?=\[|\+?=)")
_KEYWORD: Final = re.compile(r"[a-z]+(?=[\s;&|<>()]|$)|\[\[(?=\s)|[{}!](?=\s|;|$)")
#: Commands whose words are assignments.
_DECLARING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
_REDIRECTION: Final = re.compile(r"[0-9]*(?:<<<|<<-?|<>|>\||>>|>&|<&|&>>|&>|<|>)")
#: Signs of redirections of standard output to a file.
_OUTPUTS: Final = frozenset({">", ">>", ">|", "1>", "1>>", "&>", "&>>"})


class CommandParser:
    """Reads one simple command after the other."""

    def __init__(self, source: syntax.Source) -> None:
        self.source = source
        self.documents: list[syntax.HereDocument] = []

    def blanks(self, *, lines: bool = False) -> None:
        """Move behind blanks, comments and continued lines, and behind line ends where ``lines``."""
        source = self.source
        while True:
            character = source.peek()
            if character and character in syntax.BLANKS:
                source.take()
            elif source.peek(2) == "\\\n":
                source.take(2)
            elif character == "#":
                end = source.text.find("\n", source.at)
                source.take((end if end >= 0 else len(source.text)) - source.at)
            elif character == "\n" and lines:
                self.line_end()
            else:
                return

    def line_end(self) -> None:
        """Move behind the end of a line, and behind the here-documents that follow it."""
        self.source.take()
        for document in self.documents:
            document.text = self._document_text(document)
        self.documents = []

    def _document_text(self, document: syntax.HereDocument) -> syntax.ShellWord:
        source, begin, lines = self.source, self.source.line, []
        while True:
            if not source.peek():
                source.refuse(f"the here-document is not closed by {document.end}", begin)
            stop = source.text.find("\n", source.at)
            line = source.take((stop + 1 if stop >= 0 else len(source.text)) - source.at)
            shown = line.lstrip("\t") if document.stripped else line
            if shown.rstrip("\n") == document.end:
                break
            lines.append(shown)
        text = "".join(lines)
        if document.literal:
            return (syntax.Literal(text, begin, quoted=True),)
        return syntax.complete_word(syntax.Source(text, source.file, begin))

    def keyword(self) -> str:
        """Return the reserved word or the closing sign that is next; empty where there is none."""
        if self.source.peek(2) in {";;", ";&"}:
            return self.source.peek(2)
        if self.source.peek() == ")":
            return ")"
        match = _KEYWORD.match(self.source.text, self.source.at)
        return match.group() if match else ""

    def expect(self, word: str) -> None:
        """Move behind ``word``; raises SpecError where something else is next."""
        self.blanks(lines=True)
        if not self.source.accept(word):
            self.source.refuse(f"{word!r} is missing")

    def redirections(self) -> None:
        """Move behind the redirections of a compound command."""
        while True:
            self.blanks()
            if not self.redirection([], []):
                return

    def arithmetic(self) -> syntax.ArithmeticCommand:
        """Return the ``((...))`` that is next."""
        source = self.source
        line = source.line
        end = source.closing(source.at + 2, "))")
        if end is None:
            source.refuse("'))' is missing")
        source.take(2)
        text = syntax.complete_word(syntax.Source(source.text[source.at : end], source.file, source.line))
        source.take(end - source.at + 2)
        return syntax.ArithmeticCommand(line, text)

    def words(self) -> tuple[syntax.ShellWord, ...]:
        """Return the words up to the end of the line, or of the command."""
        words: list[syntax.ShellWord] = []
        while True:
            self.blanks()
            if not (word := syntax.shell_word(self.source)):
                return tuple(words)
            words.append(word)

    def simple(self) -> syntax.SimpleCommand:
        """Return the command that is next: its assignments, words and here-document."""
        source = self.source
        line = source.line
        assignments: list[syntax.Assignment] = []
        outputs: list[tuple[syntax.ShellWord, bool]] = []
        words: list[syntax.ShellWord] = []
        body: list[syntax.HereDocument] = []
        declaring = True
        while True:
            self.blanks()
            if self.redirection(body, outputs):
                continue
            match = _ASSIGNMENT.match(source.text, source.at) if declaring else None
            if match and (assignment := self._assignment(match.group())):
                assignments.append(assignment)
                continue
            if not (word := syntax.shell_word(source)):
                break
            words.append(word)
            if literal_text(word) == "[[" and len(words) == 1:
                words += syntax.condition_words(source)
            declaring = literal_text(words[0]) in _DECLARING
        if not words and not assignments and not body:
            source.refuse(f"{source.peek() or 'the end of the file'!r} is not expected here")
        written, appends = outputs[-1] if outputs else ((), False)
        document = body[0] if body else None
        return syntax.SimpleCommand(line, tuple(assignments), tuple(words), document, written, appends)

    def redirection(
        self, body: list[syntax.HereDocument], outputs: list[tuple[syntax.ShellWord, bool]]
    ) -> bool:
        """Move behind a redirection, if one is next; a here-document is added to ``body``.

        A file that standard output goes to is added to ``outputs``, with whether it is appended there.
        """
        source = self.source
        if source.peek(2) in {"<(", ">("}:
            return False
        whole = source.match(_REDIRECTION)
        sign = whole.lstrip("0123456789")
        if not sign:
            return False
        self.blanks()
        if not sign.startswith("<<") or sign == "<<<":
            source.accept("-")
            word = syntax.shell_word(source)
            if whole in _OUTPUTS:
                outputs.append((word, whole.endswith(">>")))
            return True
        end = syntax.shell_word(source)
        literal = any(isinstance(part, syntax.Literal) and part.quoted for part in end)
        document = syntax.HereDocument(literal_text(end), sign == "<<-", literal)
        self.documents.append(document)
        body.append(document)
        return True

    def _assignment(self, name: str) -> syntax.Assignment | None:
        """Return the assignment that is next; None where the word is none."""
        source = self.source
        start, line = source.at, source.line
        source.take(len(name))
        index = None
        if source.accept("["):
            index = syntax.shell_word(source, "]\n")
            if not source.accept("]"):
                source.at, source.line = start, line
                return None
        append = source.accept("+=")
        if not append and not source.accept("="):
            source.at, source.line = start, line
            return None
        if source.peek() == "(":
            return syntax.Assignment(name, line, items=self._items(), append=append)
        return syntax.Assignment(name, line, syntax.shell_word(source), index=index, append=append)

    def _items(self) -> tuple[tuple[syntax.ShellWord | None, syntax.ShellWord], ...]:
        """Return the items of an array, each with its index where it has one."""
        source = self.source
        line = source.line
        items: list[tuple[syntax.ShellWord | None, syntax.ShellWord]] = []
        source.take()
        while True:
            self.blanks(lines=True)
            if source.accept(")"):
                return tuple(items)
            match = re.compile(r"\[[^\]\n]*\]=").match(source.text, source.at)
            key = None
            if match:
                source.take()
                key = syntax.shell_word(source, "]")
                source.take(2)
            word = syntax.shell_word(source)
            if not word and key is None:
                source.refuse(
                    "an array is not closed" if not source.peek() else "an array has no such item", line
                )
            items.append((key, word))


def literal_text(word: syntax.ShellWord) -> str:
    """Return the text of a word without expansions."""
    return "".join(part.text for part in word if isinstance(part, syntax.Literal))


_FUNCTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*[ \t]*\([ \t]*\)")
_CLOSING: Final = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}", ";;", ";&", ")"})
_DEEPEST: Final = 60

#: Patterns of a case, and what follows them.
_Branch = tuple[tuple[syntax.ShellWord, ...], syntax.StatementList]


def parse_script(text: str, file: str, line: int = 1) -> syntax.StatementList:
    """Return the statements of ``text``; raises SpecError with the line of what cannot be read."""
    parser = _ScriptParser(syntax.Source(text.replace("\r\n", "\n"), file, line))
    statements = parser.group(frozenset())
    if parser.source.peek():
        parser.source.refuse(f"{parser.source.peek(20).splitlines()[0]!r} is not expected here")
    return statements


class _ScriptParser(CommandParser):
    """Reads statements one after the other."""

    def __init__(self, source: syntax.Source) -> None:
        super().__init__(source)
        self._depth = 0

    def group(self, ends: frozenset[str]) -> syntax.StatementList:
        """Return the statements up to one of ``ends``, which is next then."""
        line = self.source.line
        statements: list[syntax.Statement] = []
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
        return syntax.StatementList(line, tuple(statements), tuple(joints), frozenset(negated))

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

    def statement(self) -> syntax.Statement:
        """Return the statement that is next."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self.source.refuse("nested too deeply")
        statement = self._statement()
        self._depth -= 1
        return statement

    def _statement(self) -> syntax.Statement:
        source = self.source
        if source.peek(2) == "((" and source.closing(source.at + 2, "))") is not None:
            return self.arithmetic()
        readers: dict[str, Callable[[], syntax.Statement]] = {
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
            statement: syntax.Statement = self._braces(")", subshell=True)
        elif word in readers:
            statement = readers[word]()
        elif match := _FUNCTION.match(source.text, source.at):
            name = source.take(match.end() - source.at).split("(")[0].strip()
            return self._function_body(name)
        else:
            return self.simple()
        self.redirections()
        return statement

    def _braces(self, end: str = "}", *, subshell: bool = False) -> syntax.StatementList:
        self.source.take()
        group = self.group(frozenset({end}))
        self.expect(end)
        if not subshell:
            return group
        return syntax.StatementList(group.line, group.statements, group.joints, group.negated, subshell=True)

    def _if(self) -> syntax.IfClause:
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
        return syntax.IfClause(line, tuple(branches), otherwise)

    def _case(self) -> syntax.Case:
        source = self.source
        line = source.line
        source.take(4)
        self.blanks()
        word = syntax.shell_word(source)
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
        return syntax.Case(line, word, tuple(_with_falls(branches, falling))[::-1])

    def _patterns(self) -> tuple[syntax.ShellWord, ...]:
        self.source.accept("(")
        patterns = []
        while True:
            self.blanks()
            patterns.append(syntax.shell_word(self.source))
            self.blanks()
            if not self.source.accept("|"):
                break
        if not self.source.accept(")"):
            self.source.refuse("')' is missing after a pattern of case")
        return tuple(patterns)

    def _for(self) -> syntax.Loop:
        source = self.source
        line = source.line
        syntax.shell_word(source)
        self.blanks()
        name, words = "", None
        if source.peek(2) == "((":
            self.arithmetic()
        else:
            name = literal_text(syntax.shell_word(source))
            self.blanks(lines=True)
            if self.keyword() == "in":
                source.take(2)
                words = self.words()
        self.blanks()
        source.accept(";")
        return syntax.Loop(line, self._do(), name, words)

    def _while(self) -> syntax.Loop:
        line = self.source.line
        until = self.source.take(5) == "until"
        condition = self.group(frozenset({"do"}))
        body = self._do()
        inner = (*condition.statements, *body.statements)
        both = syntax.StatementList(line, inner, (";",) * len(inner))
        return syntax.Loop(line, both, condition=condition, until=until)

    def _do(self) -> syntax.StatementList:
        self.expect("do")
        body = self.group(frozenset({"done"}))
        self.expect("done")
        return body

    def _function(self) -> syntax.FunctionDefinition:
        self.source.take(len("function"))
        self.blanks()
        name = literal_text(syntax.shell_word(self.source))
        self.blanks()
        if self.source.accept("("):
            self.expect(")")
        return self._function_body(name)

    def _function_body(self, name: str) -> syntax.FunctionDefinition:
        line = self.source.line
        self.blanks(lines=True)
        return syntax.FunctionDefinition(line, name, self.statement())


def _with_falls(branches: Sequence[_Branch], falling: Sequence[bool]) -> Iterator[_Branch]:
    """Yield branches, last one first, each with the one after it where it ends in ``;&``."""
    below: syntax.StatementList | None = None
    for (patterns, body), falls in zip(reversed(branches), reversed(falling), strict=True):
        bodies = (body, below) if falls and below else (body,)
        below = syntax.StatementList(body.line, bodies, (";",) * len(bodies)) if len(bodies) > 1 else body
        yield patterns, below
