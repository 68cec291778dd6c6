"""Expansion of words of a shell: variables, arrays, and arithmetic of integers.

Commands are not executed: their output is unknown.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.scripts import word_parser as syntax
from autoplan.launch.scripts.pieces import (
    BREAK,
    Array,
    Piece,
    ShellScope,
    Text,
    Unknown,
    Value,
    Word,
    fields_of,
    joined_pieces,
    plain,
    split,
)
from autoplan.launch.scripts.shell_parser import parse_script

#: Operators of two numbers, besides division, by their signs.
_SUMS: Final = {"+": operator.add, "-": operator.sub, "*": operator.mul, "**": operator.pow}


_BITS: Final = {"<<": operator.lshift, ">>": operator.rshift, "&": operator.and_, "|": operator.or_}


_ORDERS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


_TRUTHS: Final[dict[str, Callable[[int, int], object]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "&&": lambda a, b: a and b,
    "||": lambda a, b: a or b,
}

_TOKEN: Final = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|[0-9]+)|([A-Za-z_][A-Za-z0-9_]*)|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>?:!~&|^]))"
)
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:([-+*/%])?=(?!=)(.*)|(\+\+|--))\s*", re.DOTALL)
_LEVELS: Final = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)
_LARGEST: Final = 2**63
_DEEPEST: Final = 50


class NotArithmeticError(Exception):
    """An expression that is not read, with the reason."""


def evaluate_arithmetic(text: str, value_of: Callable[[str], int]) -> int:
    """Return the value of ``text``; ``value_of`` returns that of a variable.

    >>> evaluate_arithmetic("(GPUS * 4) / 3 - 1", {"GPUS": 8}.__getitem__)
    9

    Raises NotArithmeticError for what is no expression, or divides by zero.
    """
    return _Expression(text, value_of).value()


def arithmetic_assignment(text: str) -> tuple[str, str] | None:
    """Return the variable that an expression assigns to, and what it becomes; None where it assigns nothing.

    >>> arithmetic_assignment("GPUS *= 2"), arithmetic_assignment("i++"), arithmetic_assignment("a == 2")
    (('GPUS', 'GPUS * (2)'), ('i', 'i + 1'), None)
    """
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        return None
    name, sign, rest, step = match.groups()
    return name, f"{name} {step[0]} 1" if step else f"{name} {sign} ({rest.strip()})" if sign else rest


class _Expression:
    """The tokens of an expression, and a position among them."""

    def __init__(self, text: str, value_of: Callable[[str], int]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        self.depth = 0
        self.value_of = value_of
        position, stripped = 0, text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise NotArithmeticError(f"{stripped[position : position + 20]!r} is no arithmetic")
            kind = "number" if match[1] else "name" if match[2] else "sign"
            self.tokens.append((kind, match[1] or match[2] or match[3]))
            position = match.end()

    def value(self) -> int:
        result = self.choice() if self.tokens else 0
        if self.at < len(self.tokens):
            raise NotArithmeticError(f"{self.tokens[self.at][1]!r} is not expected")
        return result

    def accept(self, *signs: str) -> str:
        if self.at < len(self.tokens) and self.tokens[self.at] in [("sign", sign) for sign in signs]:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return ""

    def choice(self) -> int:
        condition = self.level(0)
        if not self.accept("?"):
            return condition
        first = self.choice()
        if not self.accept(":"):
            raise NotArithmeticError("':' is missing")
        second = self.choice()
        return first if condition else second

    def level(self, number: int) -> int:
        if number == len(_LEVELS):
            return self.unary()
        left = self.level(number + 1)
        while sign := self.accept(*_LEVELS[number]):
            # Powers associate to the right.
            right = self.level(number if sign == "**" else number + 1)
            left = _applied(sign, left, right)
        return left

    def unary(self) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise NotArithmeticError("it is nested too deeply")
        sign = self.accept("-", "+", "!", "~")
        if sign:
            inner = self.unary()
            value = {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}[sign]
        else:
            value = self.operand()
        self.depth -= 1
        return value

    def operand(self) -> int:
        if self.accept("("):
            value = self.choice()
            if not self.accept(")"):
                raise NotArithmeticError("')' is missing")
            return value
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "the end")
        self.at += 1
        if kind == "number":
            if len(text) > 20:
                raise NotArithmeticError(f"{text[:20]}... is too large")
            octal = len(text) > 1 and text[0] == "0" and text[1] not in "xX"
            return int(text, 8 if octal else 0)
        if kind == "name":
            return self.value_of(text)
        raise NotArithmeticError(f"{text!r} is not expected")


def _applied(sign: str, left: int, right: int) -> int:
    """Return the result of one operator; integers that are too large for a shell are refused."""
    if sign in {"/", "%"}:
        if right == 0:
            raise NotArithmeticError("it divides by zero")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if sign == "/" else left - quotient * right
    if sign in {"**", "<<", ">>"} and not 0 <= right < 64:
        raise NotArithmeticError(f"{right} is out of range")
    numbers: dict[str, Callable[[int, int], int]] = {**_SUMS, **_BITS, "^": operator.xor}
    value = (
        numbers[sign](left, right)
        if sign in numbers
        else int(bool({**_ORDERS, **_TRUTHS}[sign](left, right)))
    )
    if not -_LARGEST <= value < _LARGEST:
        raise NotArithmeticError("a number is too large")
    return value


_LONGEST: Final = 2**20
#: Longest value whose prefixes are compared with a pattern.
_LONGEST_EDITED: Final = 2_000
_MOST_PIECES: Final = 200_000
_INTEGER: Final = re.compile(r"\s*-?[0-9]{1,18}\s*")
#: Parts of a path, by the programs that put them out.
_OF_A_PATH: Final[dict[str, Callable[[str], str]]] = {
    "dirname": lambda path: path.rstrip("/").rpartition("/")[0] or ".",
    "basename": lambda path: path.rstrip("/").rpartition("/")[2],
}
#: Words that ``echo`` hands to a filter.
_ECHOED: Final = re.compile(r"\s*(?:echo\s[^|;&]*\||(?:dir|base)name\s[^|;&]*$)")
_SHOWN: Final = 60
#: A here-document that ``cat`` alone puts out.
_SHOWN_DOCUMENT: Final = re.compile(r"\$\(\s*cat\s*<<-?\s*['\"]?\w+['\"]?\s*\n")
#: A sum that ``expr`` does, of numbers and variables.
_EXPR: Final = re.compile(r"(?:\$\(|`)\s*expr\s+((?:[\w$+%/()-]|\$\{\w+\}|\\?\*|\s)+?)\s*(?:\)|`)")
#: The folder of the script itself, by which it names files beside it: ``$(dirname "$0")``, or its full path.
_DIRNAME: Final = r"dirname\s+(?:--\s+)?\"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?\"?"
_OWN_FOLDER: Final = re.compile(
    rf"(?:\$\(|`)\s*{_DIRNAME}\s*(?:\)|`)"
    rf"|\$\(\s*pwd\s*\)|\$\(\s*cd\s+(?:--\s+)?\"?\$\(\s*{_DIRNAME}\s*\)\"?[^;]*?(?:&&|;)\s*pwd\b[^)]*\)"
)
#: The script's own path.
_OWN_PATH: Final = re.compile(
    r"(?:\$\(|`)\s*(?:realpath|readlink)\s+(?:-\w+\s+)*\"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?\"?\s*(?:\)|`)"
)


class Expander:
    """Expands words with the variables of a scope."""

    def __init__(self, scope: ShellScope, file: str) -> None:
        self.scope = scope
        self.file = file
        self._budget = 50 * _MOST_PIECES

    def text(self, word: syntax.ShellWord) -> Text:
        """Return what ``word`` expands to where it is not split, as in an assignment."""
        pieces = self._pieces(word)
        first = next((piece.line for piece in pieces if piece.line), 0)
        return joined_pieces(Piece(" ", first, quoted=True) if piece is BREAK else piece for piece in pieces)

    def fields(self, words: Sequence[syntax.ShellWord]) -> list[Word]:
        """Return the words of a command that ``words`` expand to."""
        return [field for word in words for field in _fields_of(self, word)]

    def plain(self, word: syntax.ShellWord) -> str | None:
        """Return the text of ``word``; None where it is not known."""
        return plain(self.text(word))

    def split_pieces(self, word: syntax.ShellWord) -> list[Piece]:
        """Return the pieces of a word to split; quotes around an array of no items are no word."""
        pieces = self._pieces(word)
        parts = [part for part in word if not (isinstance(part, syntax.Literal) and not part.text)]
        if len(parts) == 1 and isinstance(parts[0], syntax.Parameter) and parts[0].every == "@":
            return [piece for piece in pieces if piece.text or piece.unknown or piece is BREAK]
        return pieces

    def _pieces(self, word: syntax.ShellWord) -> list[Piece]:
        pieces = [piece for part in word for piece in self._part(part)]
        self._budget -= len(pieces)
        if self._budget < 0 or sum(len(piece.text) for piece in pieces) > _LONGEST:
            raise self._too_long(word[0].line if word else None)
        return pieces

    def _part(self, part: syntax.WordPart) -> Iterator[Piece]:
        if isinstance(part, syntax.Literal):
            yield Piece(part.text, part.line, part.quoted)
        elif isinstance(part, syntax.CommandText) and (sum_text := _EXPR.fullmatch(part.text)):
            text = sum_text[1].replace("\\*", "*").replace("$", "").replace("{", "").replace("}", "")
            yield self._arithmetic((syntax.Literal(text, part.line, quoted=True),), part.line)
        elif isinstance(part, syntax.CommandText) and _OWN_FOLDER.fullmatch(part.text):
            yield Piece(".", part.line, part.quoted)
        elif isinstance(part, syntax.CommandText) and _OWN_PATH.fullmatch(part.text):
            yield Piece(f"./{self.file.rpartition('/')[2]}", part.line, part.quoted)
        elif isinstance(part, syntax.CommandText) and (counted := _filtered(self, part)) is not None:
            yield counted
        elif isinstance(part, syntax.CommandText) and _SHOWN_DOCUMENT.match(part.text):
            yield from self._shown_document(part)
        elif isinstance(part, syntax.CommandText):
            shown = part.text if len(part.text) <= _SHOWN else f"{part.text[:_SHOWN]}..."
            reason = f"the output of {shown}, which is not executed"
            yield Piece("", part.line, part.quoted, Unknown(reason, part.line))
        elif isinstance(part, syntax.Arithmetic):
            yield self._arithmetic(part.text, part.line)
        else:
            yield from self._parameter(part)

    def _shown_document(self, part: syntax.CommandText) -> Iterator[Piece]:
        """Yield the text of a here-document that ``cat`` puts out, without the ends of its last lines."""
        group = parse_script(part.text[2:-1], self.file, part.line)
        command = group.statements[0]
        document = command.document if isinstance(command, syntax.SimpleCommand) else None
        pieces = self._pieces(document.text) if document is not None else []
        while pieces and not pieces[-1].unknown and not pieces[-1].text.rstrip("\n"):
            pieces.pop()
        last = [replace(piece, text=piece.text.rstrip("\n")) for piece in pieces[-1:]]
        yield from (replace(piece, quoted=part.quoted) for piece in (*pieces[:-1], *last))

    def _arithmetic(self, text: syntax.ShellWord, line: int) -> Piece:
        pieces = self.text(text)
        unknown = next((piece.unknown for piece in pieces if piece.unknown), None)
        if unknown is None:
            try:
                number = evaluate_arithmetic(
                    "".join(p.text for p in pieces).replace('"', ""), lambda name: self._number(name, line)
                )
                return Piece(str(number), line, quoted=True)
            except _UnknownNumberError as error:
                unknown = error.unknown
            except NotArithmeticError as error:
                unknown = Unknown(f"arithmetic that is not read: {error}", line)
        return Piece("", line, quoted=True, unknown=unknown)

    def number(self, text: syntax.ShellWord, line: int) -> int | None:
        """Return the value of an arithmetic expression; None where it is not known."""
        piece = self._arithmetic(text, line)
        return None if piece.unknown else int(piece.text)

    def _number(self, name: str, line: int) -> int:
        value = self.scope.get(name, line)
        if value is None:
            raise _UnknownNumberError(self.scope.unset(name, line))
        pieces = value if isinstance(value, tuple) else next(iter(value.values()), ())
        for piece in pieces:
            if piece.unknown:
                raise _UnknownNumberError(piece.unknown)
        text = "".join(piece.text for piece in pieces)
        if not _INTEGER.fullmatch(text):
            raise NotArithmeticError(f"{name} is {text[:20]!r}")
        return int(text)

    def _parameter(self, part: syntax.Parameter) -> Iterator[Piece]:
        value = self._value(part)
        if part.length:
            yield self._length(part, value)
            return
        if part.every and not part.operator:
            if value is None and self.scope.may_be_set(part.name):
                yield Piece("", part.line, part.quoted, self.scope.unset(part.name, part.line))
            yield from _every(value, part)
            return
        text = value if isinstance(value, tuple) else next(iter(value.values()), None) if value else None
        if part.operator in {":-", "-", ":=", "=", ":+", "+", ":?", "?"}:
            yield from self._defaulted(part, text)
            return
        if text is None:
            yield Piece("", part.line, part.quoted, self.scope.unset(part.name, part.line))
            return
        if part.operator:
            text = (self._edited(part, text),)
        yield from _as_quoted(text, quoted=part.quoted)

    def _value(self, part: syntax.Parameter) -> Value | None:
        """Return the value that an expansion is of; None where it is not set."""
        name = part.name
        if part.indirect:
            target = self.scope.get(name, part.line)
            named = plain(target) if isinstance(target, tuple) else None
            if not named:
                return (Piece("", part.line, unknown=Unknown(f"the indirect ${{!{name}}}", part.line)),)
            name = named
        if name in {"@", "*"}:
            return dict(enumerate_texts(self.scope.arguments(part.line)))
        if not name[0].isalnum() and name[0] != "_":
            count = self.scope.count() if name == "#" else None
            unknown = Unknown(f"${name} of the shell", part.line) if count is None else None
            return (Piece("" if count is None else str(count), part.line, unknown=unknown),)
        value = self.scope.get(name, part.line)
        if part.index is None or part.every:
            return value
        if value is None or isinstance(value, tuple):
            return value
        key = self.plain(part.index) or ""
        number = self.number(part.index, part.line) if key not in value and key else None
        return value.get(key, value.get(str(number)))

    def _length(self, part: syntax.Parameter, value: Value | None) -> Piece:
        if part.every and isinstance(value, dict):
            return Piece(str(len(value)), part.line, quoted=True)
        text_value = plain(value) if isinstance(value, tuple) else "" if value is None else None
        if text_value is None:
            return Piece("", part.line, quoted=True, unknown=Unknown(f"the length of {part.name}", part.line))
        return Piece(str(len(text_value)), part.line, quoted=True)

    def _defaulted(self, part: syntax.Parameter, text: Text | None) -> Iterator[Piece]:
        """Yield what an expansion with a default gives; what is unknown has its own value."""
        text_value = None if text is None else plain(text)
        is_set = text is not None and (text_value != "" or not part.operator.startswith(":"))
        sign = part.operator[-1]
        if sign == "+":
            if is_set:
                yield from self._pieces(part.argument)
        elif is_set and text is not None:
            yield from _as_quoted(text, quoted=part.quoted)
        elif sign == "?":
            yield Piece("", part.line, part.quoted, self.scope.unset(part.name, part.line))
        else:
            default = self._pieces(part.argument)
            if sign == "=":
                self.scope.values[part.name] = tuple(default)
            yield from (Piece(p.text, p.line, p.quoted or part.quoted, p.unknown) for p in default)

    def _edited(self, part: syntax.Parameter, text: Text) -> Piece:
        """Return ``text`` with a prefix or suffix removed, a part replaced, or in other letters."""
        text_value, pattern = plain(text), self.plain(part.argument)
        line = text[0].line if text else part.line
        if text_value is None or pattern is None or len(text_value) > _LONGEST_EDITED:
            return Piece("", line, unknown=Unknown(f"${{{part.name}{part.operator}...}}", part.line))
        sign = part.operator
        try:
            edited = _edited_text(text_value, sign, pattern)
        except _TooLongError as error:
            raise self._too_long(part.line) from error
        if edited is None:
            return Piece(
                "", line, unknown=Unknown(f"${{{part.name}{sign}...}}, which is not read", part.line)
            )
        return Piece(edited, line)

    def _too_long(self, line: int | None) -> SpecError:
        return SpecError([Problem("it expands to too much text", "script", self.file, line)])


def filtered_text(text: str, words: Sequence[str]) -> str | None:
    r"""Return the lines that a filter makes of the lines ``text``; None for one that is not read.

    >>> filtered_text("0,1,2\n", ["awk", "-F,", "{print NF}"]), filtered_text("0 1\n", ["wc", "-w"])
    ('3\n', '2\n')
    """
    match list(words):
        case ["tr", old, new] if len(old) == 1:
            return text.replace(old, {"\\n": "\n"}.get(new, new))
        case ["wc", "-w" | "-l" as what]:
            return f"{len(text.split()) if what == '-w' else text.count(chr(10))}\n"
        case ["awk", option, "{print NF}"] if option.startswith("-F") and option[2:]:
            return f"{len(text.rstrip().split(option[2:]))}\n"
        case ["awk", "{print NF}"]:
            return f"{len(text.split())}\n"
        case ["grep", "-o", sign] if len(sign) == 1 and sign not in ".*^$[\\":
            return f"{sign}\n" * text.count(sign)
    return None


class _TooLongError(Exception):
    """An expansion would be too much text."""


class _UnknownNumberError(Exception):
    """A variable of an arithmetic expression that is not known."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown.reason)
        self.unknown = unknown


def _filtered(expander: Expander, part: syntax.CommandText) -> Piece | None:
    """Return what ``echo`` puts out behind filters that are read, or a part of a path."""
    inner = part.text[2:-1] if part.text.startswith("$(") else part.text[1:-1]
    if not _ECHOED.match(inner):
        return None
    group = parse_script(inner, expander.file, part.line)
    commands = [one for one in group.statements if isinstance(one, syntax.SimpleCommand)]
    if len(commands) != len(group.statements) or set(group.joints[1:]) - {"|"}:
        return None
    (first, *rest) = [expander.fields(command.words) for command in commands]
    if any(word.unknown for words in (first, *rest) for word in words):
        return None
    if first[0].text in _OF_A_PATH:
        named = _OF_A_PATH[first[0].text](first[-1].text) if len(first) == 2 else None
        return None if named is None else Piece(named, part.line, part.quoted)
    end = "" if any(word.text == "-n" for word in first) else "\n"
    text: str | None = " ".join(word.text for word in first[1:] if word.text != "-n") + end
    for words in rest:
        text = filtered_text(text, [word.text for word in words]) if text is not None else None
    return None if text is None else Piece(text.strip("\n"), part.line, part.quoted)


def assign(expander: Expander, assignment: syntax.Assignment) -> None:
    """Set a variable of the expander's scope, or an item of an array."""
    values, name = expander.scope.values, assignment.name
    old = expander.scope.get(name, assignment.line)
    if assignment.items is not None:
        start = dict(old) if isinstance(old, dict) and assignment.append else {}
        if assignment.append and isinstance(old, tuple):
            start = {"0": old}
        values[name] = _array(expander, assignment, start)
        return
    text = _said_outside(expander, assignment, expander.text(assignment.value))
    if assignment.index is not None:
        array: Array = dict(old) if isinstance(old, dict) else {}
        key = expander.plain(assignment.index) or "0"
        array[key] = (*array.get(key, ()), *text) if assignment.append else text
        values[name] = array
    elif isinstance(old, dict):
        first = next(iter(old), "0")
        values[name] = {**old, first: (*old.get(first, ()), *text) if assignment.append else text}
    else:
        values[name] = (*(old or ()), *text) if assignment.append else text


def _said_outside(expander: Expander, assignment: syntax.Assignment, text: Text) -> Text:
    """Return what is said from outside of a variable whose value is the output of a command."""
    said = expander.scope.outside.get(assignment.name)
    open_pieces = [piece for piece in text if piece.unknown is not None and not piece.unknown.name]
    whole = said is not None and not assignment.append and assignment.index is None
    return (Piece(said or "", assignment.line),) if whole and open_pieces else text


def _array(expander: Expander, assignment: syntax.Assignment, start: Array) -> Array:
    array = start
    at = 1 + max((int(key) for key in start if key.isdigit()), default=-1)
    for key, item in assignment.items or ():
        if key is not None:
            array[expander.plain(key) or ""] = expander.text(item)
            continue
        for field in split(expander.split_pieces(item)):
            array[str(at)] = field
            at += 1
    if len(array) > _MOST_PIECES:
        raise SpecError([Problem("an array is too long", "script", expander.file, assignment.line)])
    return array


def _fields_of(expander: Expander, word: syntax.ShellWord) -> list[Word]:
    """Return the words of one; the items of an array that is not known may be any number of words."""
    fields = fields_of(expander.split_pieces(word))
    if any(isinstance(part, syntax.Parameter) and part.every for part in word):
        return [replace(field, one=False) for field in fields]
    return fields


def enumerate_texts(texts: Sequence[Text]) -> Iterator[tuple[str, Text]]:
    """Yield ``texts`` with their indices, as items of an array."""
    return ((str(i), text) for i, text in enumerate(texts))


def _every(value: Value | None, part: syntax.Parameter) -> Iterator[Piece]:
    """Yield the items of an array, each of which begins a word."""
    if value is None:
        return
    items = value.values() if isinstance(value, dict) else [value]
    for i, item in enumerate(items):
        if i:
            yield Piece(" ", part.line, quoted=True) if part.every == "*" and part.quoted else BREAK
        yield from _as_quoted(item, quoted=part.quoted)


def _as_quoted(text: Text, *, quoted: bool) -> Iterator[Piece]:
    """Yield ``text`` with the quotes of the expansion instead of those of the assignment."""
    return (
        piece if piece is BREAK else Piece(piece.text, piece.line, quoted, piece.unknown) for piece in text
    )


def _edited_text(text: str, operator: str, pattern: str) -> str | None:
    """Return ``text`` as ``operator`` changes it; None for what is not read. Raises _TooLongError."""
    match operator:
        case "#" | "##":
            lengths = range(len(text), -1, -1) if (operator == "##") else range(len(text) + 1)
            cut = next((n for n in lengths if fnmatch.fnmatchcase(text[:n], pattern)), 0)
            return text[cut:]
        case "%" | "%%":
            return _without_suffix(text, pattern, longest=operator == "%%")
        case "/" | "//":
            return _replaced(text, pattern, 0 if operator == "//" else 1)
        case "^^" | ",," if not pattern:
            return text.upper() if operator == "^^" else text.lower()
    return None


def _replaced(text: str, pattern: str, count: int) -> str | None:
    """Return ``text`` with an ordinary text replaced; None for patterns, which are not read."""
    old, _, new = pattern.partition("/")
    if not old or set(old) & set("*?[\\"):
        return None
    # Counted before it is made: a long replacement, many times, would fill the memory.
    if text.count(old) * len(new) > _LONGEST:
        raise _TooLongError
    return text.replace(old, new, count or -1)


def _without_suffix(text: str, pattern: str, *, longest: bool) -> str:
    starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
    cut = next((n for n in starts if fnmatch.fnmatchcase(text[n:], pattern)), len(text))
    return text[:cut]
