"""The words and symbols of a rule of the user's own, each with its column."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from autoplan.schema.layout import ORDERS

__all__ = ["RuleSyntaxError", "Token", "tokens_of"]

_MOST_CHARACTERS: Final = 300
_TOKEN: Final = re.compile(
    rf"\s*(?:(?P<number>[0-9]+(?![\w.]))|(?P<word>(?:{'|'.join(ORDERS)})(?![\w-])|[0-9]*[A-Za-z_][\w-]*?(?![\w]))"
    r"|(?P<symbol><=|>=|==|!=|//|[-+*/%<>(){}\[\],]))"
)


class Token(NamedTuple):
    """A word, a number or a symbol; the last of a rule is of the kind ``end``."""

    kind: str
    text: str
    column: int


class RuleSyntaxError(Exception):
    """What ends the reading of a rule: ``problem`` is the column, and what is wrong there."""

    def __init__(self, column: int, message: str) -> None:
        self.problem = (column, message)
        super().__init__(message)


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of ``text``; raises RuleSyntaxError for what is none."""
    if len(text) > _MOST_CHARACTERS:
        raise RuleSyntaxError(_MOST_CHARACTERS + 1, f"a rule has at most {_MOST_CHARACTERS} characters")
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise RuleSyntaxError(at + 1, _stray(text[at:]))
        kind = str(match.lastgroup)
        found.append(Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*found, Token("end", "", end + 1)]


def _stray(text: str) -> str:
    if re.match(r"[0-9]*\.[0-9]", text):
        return "only whole numbers are read: write 1/2 for a half"
    if text[0] == "=":
        return "'=' is not a comparison: write =="
    return f"{text[0]!r} means nothing here"
