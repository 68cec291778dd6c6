"""The syntax of shell scripts, as far as it is read: words, assignments, commands and compound commands."""

from __future__ import annotations

from dataclasses import dataclass, field


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
