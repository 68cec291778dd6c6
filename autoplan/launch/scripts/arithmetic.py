"""Integer arithmetic of shell scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

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
    simple: dict[str, Callable[[], int]] = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "**": lambda: left**right,
        "<<": lambda: left << right,
        ">>": lambda: left >> right,
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "&&": lambda: int(bool(left and right)),
        "||": lambda: int(bool(left or right)),
        "<": lambda: int(left < right),
        "<=": lambda: int(left <= right),
        ">": lambda: int(left > right),
        ">=": lambda: int(left >= right),
        "==": lambda: int(left == right),
        "!=": lambda: int(left != right),
    }
    value = simple[sign]()
    if not -_LARGEST <= value < _LARGEST:
        raise NotArithmeticError("a number is too large")
    return value
