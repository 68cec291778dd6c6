"""The syntax of shell scripts, as far as it is read, and its words: quotes and expansions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from autoplan.errors import Problem, SpecError


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as written, on one line; ``quoted`` text is not split into words."""

    text: str
    line: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """An expansion ``${name[index]operator argument}``; ``length`` stands for ``${#name}``."""

    name: str
    line: int
    quoted: bool
    index: ShellWord | None = None
    every: str = ""
    operator: str = ""
    argument: ShellWord = ()
    length: bool = False
    indirect: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An arithmetic expansion ``$((text))``, whose text has expansions of its own."""

    text: ShellWord
    line: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class CommandText:
    """A substitution of a command or a process, which is never executed."""

    text: str
    line: int
    quoted: bool


WordPart = Literal | Parameter | Arithmetic | CommandText
ShellWord = tuple[WordPart, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name=value`` or ``name[index]=value``, of a word or of an array; ``append`` stands for ``+=``."""

    name: str
    line: int
    value: ShellWord = ()
    items: tuple[tuple[ShellWord | None, ShellWord], ...] | None = None
    index: ShellWord | None = None
    append: bool = False


@dataclass(slots=True)
class HereDocument:
    """The text that a command gets on its standard input, known once its line has ended.

    It reads up to a line ``end``; tabs at the beginning of lines are ``stripped``, and ``literal`` text has
    no expansions.
    """

    end: str
    stripped: bool
    literal: bool
    text: ShellWord = ()


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A command: assignments before it, its words, its here-document, and the file that it writes."""

    line: int
    assignments: tuple[Assignment, ...] = ()
    words: tuple[ShellWord, ...] = ()
    document: HereDocument | None = None
    output: ShellWord = ()
    appends: bool = False


@dataclass(frozen=True, slots=True)
class ArithmeticCommand:
    """``((text))``."""

    line: int
    text: ShellWord


@dataclass(frozen=True, slots=True)
class StatementList:
    """Statements in order; ``joints`` says what stands before each: ``;``, ``&&``, ``||`` or ``|``.

    ``negated`` has the places of statements behind ``!``.
    """

    line: int
    statements: tuple[Statement, ...]
    joints: tuple[str, ...]
    negated: frozenset[int] = frozenset()
    subshell: bool = False


@dataclass(frozen=True, slots=True)
class IfClause:
    """Conditions with what follows each, and what follows where none holds."""

    line: int
    branches: tuple[tuple[StatementList, StatementList], ...]
    otherwise: StatementList | None


@dataclass(frozen=True, slots=True)
class Case:
    """A word, and statements by patterns."""

    line: int
    word: ShellWord
    branches: tuple[tuple[tuple[ShellWord, ...], StatementList], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over words, or as long as a condition holds; ``name`` is its variable.

    The body of one with a condition begins with that; ``until`` one runs while it fails.
    """

    line: int
    body: StatementList
    name: str = ""
    words: tuple[ShellWord, ...] | None = None
    condition: StatementList | None = None
    until: bool = False


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """A function."""

    line: int
    name: str
    body: Statement = field(repr=False)


Statement = SimpleCommand | ArithmeticCommand | StatementList | IfClause | Case | Loop | FunctionDefinition


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
        #: Expansions that are being read, one in the other.
        self.depth = 0

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


def shell_word(source: Source, stops: str = METACHARACTERS) -> ShellWord:
    """Return the word that begins here; it ends at one of ``stops`` outside of quotes."""
    parts: list[WordPart] = []
    while (character := source.peek()) and (character not in stops or source.peek(2) in {"<(", ">("}):
        _part(source, parts, stops)
    return tuple(parts)


def condition_words(source: Source) -> list[ShellWord]:
    """Return the words of a test up to ``]]``, in which signs are words of their own."""
    words: list[ShellWord] = []
    begin = source.line
    while True:
        source.match(_TEST_GAP)
        sign = source.match(_TEST_SIGN)
        word = (Literal(sign, source.line, quoted=False),) if sign else shell_word(source, f"{BLANKS}\n;")
        if not word:
            source.refuse("']]' is missing", begin)
        words.append(word)
        # Whether a word is ``]]``.
        if "".join(part.text for part in word if isinstance(part, Literal) and not part.quoted) == "]]":
            return words


def _part(source: Source, parts: list[WordPart], stops: str) -> None:
    character = source.peek()
    if character == "\\":
        source.take()
        following = source.take()
        if following != "\n":
            parts.append(Literal(following, source.line, quoted=True))
    elif character == "'":
        _single_quoted(source, parts)
    elif character == '"':
        source.take()
        _quoted(source, parts, '"')
    elif source.peek(2) in {"$'", '$"'}:
        source.take()
        _part(source, parts, stops)
    elif character in "$`":
        parts.append(_expansion(source, quoted=False))
    elif source.peek(2) in {"<(", ">("}:
        parts.append(_command(source, source.line, 2, quoted=False))
    else:
        text = source.match(_PLAIN) or source.take()
        parts.append(Literal(text, source.line, quoted=False))


def _single_quoted(source: Source, parts: list[WordPart]) -> None:
    begin = source.line
    source.take()
    end = source.text.find("'", source.at)
    if end < 0:
        source.refuse("a quote ' is not closed", begin)
    parts.extend(_lines(source.text[source.at : end], source.line))
    source.take(end - source.at + 1)


def _quoted(source: Source, parts: list[WordPart], end: str) -> None:
    """Add what stands up to ``end`` in double quotes; an empty ``end`` is that of the text."""
    begin = source.line
    parts.append(Literal("", source.line, quoted=True))
    while (character := source.peek()) != end or not end:
        if not character:
            if end:
                source.refuse(f"a quote {end} is not closed", begin)
            return
        if character == "\\" and source.peek(2)[1:] in {"$", "`", '"', "\\", "\n"}:
            source.take()
            escaped = source.take()
            if escaped != "\n":
                parts.append(Literal(escaped, source.line, quoted=True))
        elif character in "$`":
            parts.append(_expansion(source, quoted=True))
        else:
            line = source.line
            parts.append(Literal(source.match(_QUOTED) or source.take(), line, quoted=True))
    source.take()


def _expansion(source: Source, *, quoted: bool) -> WordPart:
    """Return the expansion that begins here with a dollar sign or a backquote."""
    source.depth += 1
    if source.depth > _DEEPEST:
        source.refuse("nested too deeply")
    try:
        return _read_expansion(source, quoted=quoted)
    finally:
        source.depth -= 1


def _read_expansion(source: Source, *, quoted: bool) -> WordPart:
    line = source.line
    if source.peek() == "`":
        end = source.text.find("`", source.at + 1)
        if end < 0:
            source.refuse("a backquote is not closed")
        return CommandText(source.take(end - source.at + 1), line, quoted)
    if source.peek(3) == "$((":
        arithmetic = _arithmetic(source, quoted=quoted)
        if arithmetic is not None:
            return arithmetic
    if source.peek(2) == "$(":
        return _command(source, line, 2, quoted=quoted)
    if source.peek(2) == "${":
        return _braced(source, quoted=quoted)
    source.take()
    name = source.match(_NAME) if source.peek() != "-" else ""
    if not name:
        return Literal("$", line, quoted)
    if len(name) > 1 and name.isdigit():  # $10 is $1 and a 0
        source.at -= len(name) - 1
        name = name[0]
    every = name if name in "@*" else ""
    return Parameter(name, line, quoted, every=every)


def _arithmetic(source: Source, *, quoted: bool) -> Arithmetic | None:
    """Return the arithmetic expansion here; None where the parentheses are those of a subshell."""
    end = source.closing(source.at + 3, "))")
    if end is None:
        return None
    line = source.line
    source.take(3)
    inner = Source(source.text[source.at : end], source.file, source.line)
    source.take(end - source.at + 2)
    return Arithmetic(complete_word(inner), line, quoted)


def complete_word(source: Source) -> ShellWord:
    """Return all that is left as one word in double quotes."""
    parts: list[WordPart] = []
    _quoted(source, parts, "")
    return tuple(parts)


def _command(source: Source, line: int, opening: int, *, quoted: bool) -> CommandText:
    start = source.at
    source.take(opening)
    depth = 1
    while depth:
        character = source.peek()
        if not character:
            source.refuse("a command substitution is not closed", line)
        if character == "'":
            _single_quoted(source, [])
            continue
        if character == "\\":
            source.take()
        depth += {"(": 1, ")": -1}.get(source.take(), 0)
    return CommandText(source.text[start : source.at], line, quoted)


def _braced(source: Source, *, quoted: bool) -> Parameter:
    line = source.line
    source.take(2)
    length = source.peek() == "#" and source.peek(2) not in {"#}", "#:"} and source.accept("#")
    indirect = source.peek() == "!" and source.peek(2) != "!}" and source.accept("!")
    name = source.match(_NAME)
    if not name:
        source.refuse(f"{source.text[source.at - 2 : source.at + 20]!r} is no expansion", line)
    index, every = None, name if name in "@*" else ""
    if source.accept("["):
        if source.peek(2) in {"@]", "*]"}:
            every = source.take()
        else:
            index = shell_word(source, "]")
        if not source.accept("]"):
            source.refuse("an index is not closed", line)
    operator = source.match(_OPERATOR)
    argument = shell_word(source, "}") if operator else ()
    if not source.accept("}"):
        source.refuse(f"the expansion of {name} is not closed", line)
    return Parameter(name, line, quoted, index, every, operator, argument, length, indirect)


def _lines(text: str, line: int) -> list[WordPart]:
    """Return quoted ``text`` as one literal for each of its lines."""
    pieces = text.split("\n")
    last = len(pieces) - 1
    return [Literal(p if i == last else f"{p}\n", line + i, quoted=True) for i, p in enumerate(pieces)]
