"""Words of a shell script: quotes and expansions."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from autoplan.errors import Problem, SpecError
from autoplan.launch.scripts.syntax.syntax_tree import (
    Arithmetic,
    CommandText,
    Literal,
    Parameter,
    ShellWord,
    WordPart,
)

__all__ = ["BLANKS", "METACHARACTERS", "Source"]

BLANKS: Final = " \t\r"
METACHARACTERS: Final = f"{BLANKS}\n;&|<>()"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_OPERATOR: Final = re.compile(r":[-=+?]|[-=+?]|##|#|%%|%|//|/#|/%|/|\^\^|\^|,,|,|:|@")
_TEST_GAP: Final = re.compile(r"(?:\s|\\\n)*")
_TEST_SIGN: Final = re.compile(r"&&|\|\||[()<>](?=\s)")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=,+@%^*?~!#-]+")
_QUOTED: Final = re.compile(r"[^\"$`\\\n]+")
_DEEPEST: Final = 60


class Source:
    """The text of a script and a position in it."""

    def __init__(self, text: str, file: str, line: int = 1) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.line = line
        self._depth = 0

    def peek(self, length: int = 1) -> str:
        """Return the next characters; empty at the end."""
        return self.text[self.at : self.at + length]

    def take(self, length: int = 1) -> str:
        """Return the next characters and move behind them."""
        taken = self.text[self.at : self.at + length]
        self.at += length
        self.line += taken.count("\n")
        return taken

    def accept(self, text: str) -> bool:
        """Move behind ``text`` if it is next."""
        if not self.text.startswith(text, self.at):
            return False
        self.take(len(text))
        return True

    def refuse(self, message: str, line: int | None = None) -> NoReturn:
        """Raise SpecError with the line."""
        raise SpecError([Problem(message, "script", self.file, line or self.line)])

    def match(self, pattern: re.Pattern[str]) -> str:
        """Return what ``pattern`` matches here, and move behind it; empty where it does not."""
        match = pattern.match(self.text, self.at)
        return self.take(match.end() - self.at) if match else ""

    def word(self, stops: str = METACHARACTERS) -> ShellWord:
        """Return the word that begins here; it ends at one of ``stops`` outside of quotes."""
        parts: list[WordPart] = []
        while (character := self.peek()) and (character not in stops or self.peek(2) in {"<(", ">("}):
            self._part(parts, stops)
        return tuple(parts)

    def condition_words(self) -> list[ShellWord]:
        """Return the words of a test up to ``]]``, in which signs are words of their own."""
        words: list[ShellWord] = []
        begin = self.line
        while True:
            self.match(_TEST_GAP)
            sign = self.match(_TEST_SIGN)
            word = (Literal(sign, self.line, quoted=False),) if sign else self.word(f"{BLANKS}\n;")
            if not word:
                self.refuse("']]' is missing", begin)
            words.append(word)
            if _closes(word):
                return words

    def _part(self, parts: list[WordPart], stops: str) -> None:
        character = self.peek()
        if character == "\\":
            self.take()
            following = self.take()
            if following != "\n":
                parts.append(Literal(following, self.line, quoted=True))
        elif character == "'":
            self._single_quoted(parts)
        elif character == '"':
            self.take()
            self.quoted(parts, '"')
        elif self.peek(2) in {"$'", '$"'}:
            self.take()
            self._part(parts, stops)
        elif character in "$`":
            parts.append(self.expansion(quoted=False))
        elif self.peek(2) in {"<(", ">("}:
            parts.append(self._command(self.line, 2, quoted=False))
        else:
            text = self.match(_PLAIN) or self.take()
            parts.append(Literal(text, self.line, quoted=False))

    def _single_quoted(self, parts: list[WordPart]) -> None:
        begin = self.line
        self.take()
        end = self.text.find("'", self.at)
        if end < 0:
            self.refuse("a quote ' is not closed", begin)
        parts.extend(_lines(self.text[self.at : end], self.line))
        self.take(end - self.at + 1)

    def quoted(self, parts: list[WordPart], end: str) -> None:
        """Add what stands up to ``end`` in double quotes; an empty ``end`` is that of the text."""
        begin = self.line
        parts.append(Literal("", self.line, quoted=True))
        while (character := self.peek()) != end or not end:
            if not character:
                if end:
                    self.refuse(f"a quote {end} is not closed", begin)
                return
            if character == "\\" and self.peek(2)[1:] in {"$", "`", '"', "\\", "\n"}:
                self.take()
                escaped = self.take()
                if escaped != "\n":
                    parts.append(Literal(escaped, self.line, quoted=True))
            elif character in "$`":
                parts.append(self.expansion(quoted=True))
            else:
                line = self.line
                parts.append(Literal(self.match(_QUOTED) or self.take(), line, quoted=True))
        self.take()

    def expansion(self, *, quoted: bool) -> WordPart:
        """Return the expansion that begins here with a dollar sign or a backquote."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self.refuse("nested too deeply")
        try:
            return self._expansion(quoted=quoted)
        finally:
            self._depth -= 1

    def _expansion(self, *, quoted: bool) -> WordPart:
        line = self.line
        if self.peek() == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                self.refuse("a backquote is not closed")
            return CommandText(self.take(end - self.at + 1), line, quoted)
        if self.peek(3) == "$((":
            arithmetic = self._arithmetic(quoted=quoted)
            if arithmetic is not None:
                return arithmetic
        if self.peek(2) == "$(":
            return self._command(line, 2, quoted=quoted)
        if self.peek(2) == "${":
            return self._braced(quoted=quoted)
        self.take()
        name = self.match(_NAME) if self.peek() != "-" else ""
        if not name:
            return Literal("$", line, quoted)
        if len(name) > 1 and name.isdigit():  # $10 is $1 and a 0
            self.at -= len(name) - 1
            name = name[0]
        every = name if name in "@*" else ""
        return Parameter(name, line, quoted, every=every)

    def _arithmetic(self, *, quoted: bool) -> Arithmetic | None:
        """Return the arithmetic expansion here; None where the parentheses are those of a subshell."""
        end = self.closing(self.at + 3, "))")
        if end is None:
            return None
        line = self.line
        self.take(3)
        inner = Source(self.text[self.at : end], self.file, self.line)
        self.take(end - self.at + 2)
        return Arithmetic(inner.complete_word(), line, quoted)

    def complete_word(self) -> ShellWord:
        """Return all that is left as one word in double quotes."""
        parts: list[WordPart] = []
        self.quoted(parts, "")
        return tuple(parts)

    def closing(self, start: int, end: str) -> int | None:
        """Return where ``end`` closes what began before ``start``; None where the parentheses differ."""
        depth, at = 0, start
        while at < len(self.text):
            character = self.text[at]
            if character == "(":
                depth += 1
            elif character == ")" and depth:
                depth -= 1
            elif character == ")":
                return at if self.text.startswith(end, at) else None
            at += 1
        return None

    def _command(self, line: int, opening: int, *, quoted: bool) -> CommandText:
        start = self.at
        self.take(opening)
        depth = 1
        while depth:
            character = self.peek()
            if not character:
                self.refuse("a command substitution is not closed", line)
            if character == "'":
                self._single_quoted([])
                continue
            if character == "\\":
                self.take()
            depth += {"(": 1, ")": -1}.get(self.take(), 0)
        return CommandText(self.text[start : self.at], line, quoted)

    def _braced(self, *, quoted: bool) -> Parameter:
        line = self.line
        self.take(2)
        length = self.peek() == "#" and self.peek(2) not in {"#}", "#:"} and self.accept("#")
        indirect = self.peek() == "!" and self.peek(2) != "!}" and self.accept("!")
        name = self.match(_NAME)
        if not name:
            self.refuse(f"{self.text[self.at - 2 : self.at + 20]!r} is no expansion", line)
        index, every = None, name if name in "@*" else ""
        if self.accept("["):
            if self.peek(2) in {"@]", "*]"}:
                every = self.take()
            else:
                index = self.word("]")
            if not self.accept("]"):
                self.refuse("an index is not closed", line)
        operator = self.match(_OPERATOR)
        argument = self.word("}") if operator else ()
        if not self.accept("}"):
            self.refuse(f"the expansion of {name} is not closed", line)
        return Parameter(name, line, quoted, index, every, operator, argument, length, indirect)


def _closes(word: ShellWord) -> bool:
    """Return whether a word is ``]]``."""
    return "".join(part.text for part in word if isinstance(part, Literal) and not part.quoted) == "]]"


def _lines(text: str, line: int) -> list[WordPart]:
    """Return quoted ``text`` as one literal for each of its lines."""
    pieces = text.split("\n")
    last = len(pieces) - 1
    return [Literal(p if i == last else f"{p}\n", line + i, quoted=True) for i, p in enumerate(pieces)]
