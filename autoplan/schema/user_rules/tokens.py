"""Users' rules as text of Python's grammar, with unchanged columns.

``ast`` gives the text its structure, and sees nothing else: names and numbers are masked, and what is no
word, number or symbol of a rule is refused before. Each of these is replaced by text of the same length:

- a name, a word or a number, such as tp, zero-bubble, 1f1b or 007, by underscores
- ``divides`` by ``|``, which binds weaker than sums and stronger than comparisons
- white space by blanks, since a rule may take several lines
"""

from __future__ import annotations

import ast
import re
from itertools import accumulate
from typing import Final

from autoplan.schema.user_rules.vocabulary import WORDS

__all__ = ["RuleSyntaxError", "shape_of"]

_MOST_NESTED: Final = 20
#: Words with a minus or a plus sign.
_JOINED: Final = "|".join(re.escape(word) for words in WORDS.values() for word in words if {*word} & {*"-+"})
_TOKEN: Final = re.compile(
    rf"""(?P<blank>\s+) | (?P<operator>(?:and|or|not|in|is)(?![0-9A-Za-z_]) | [<>=!]=|//|[-+*/%<>(){{}}\[\],])
    | (?P<divides>divides(?![0-9A-Za-z_])) | (?P<masked>[0-9]+(?![0-9A-Za-z_.])
    | (?:{_JOINED})(?![\w-]) | [0-9]*[A-Za-z_][0-9A-Za-z_]*) | (?P<stray>.)""",
    re.VERBOSE,
)
#: Two operands side by side: within brackets Python points at the first, and asks for a comma.
_NEIGHBOURS: Final = re.compile(r"(?:_ |[)\]}]) *(?=[_{])")


class RuleSyntaxError(Exception):
    """A syntax error: column, counted from 0, and message."""

    def __init__(self, at: int, message: str) -> None:
        self.problem = (at, message)
        super().__init__(message)


def shape_of(text: str) -> ast.expr:
    """Return the structure of ``text`` with its columns; raises RuleSyntaxError if it is invalid.

    >>> ast.unparse(shape_of("not tp divides 8 or order == tp-cp-dp-pp"))
    'not __ | _ or _____ == ___________'
    """
    levels = list(accumulate((sign == "(") - (sign == ")") for sign in text))
    if max(levels, default=0) > _MOST_NESTED:
        raise RuleSyntaxError(levels.index(_MOST_NESTED + 1), f"at most {_MOST_NESTED} levels are allowed")
    code = _TOKEN.sub(_masked, text)
    try:
        return ast.parse(code, mode="eval").body
    except SyntaxError as error:
        raise _misplaced(text, code, error) from None


def _masked(token: re.Match[str]) -> str:
    """Return the replacement of a token in Python's grammar."""
    if token.lastgroup == "stray":
        raise RuleSyntaxError(token.start(), _stray(token.string[token.start() :]))
    signs = {"operator": token[0], "divides": "|", "masked": "_" * len(token[0])}
    return signs.get(str(token.lastgroup), "").ljust(len(token[0]))


def _misplaced(text: str, code: str, error: SyntaxError) -> RuleSyntaxError:
    """Return the problem at the position of Python's syntax error."""
    at = (error.offset or len(code) + 1) - 1
    if "invalid syntax" not in error.msg and code[at : at + 1] in {*"([{"}:
        return RuleSyntaxError(at, f"{code[at]!r} is not closed")
    ended = code[:at].rstrip().endswith(("_", ")", "]", "}"))
    if not ended and "comma" in error.msg and (neighbour := _NEIGHBOURS.search(code, at)):
        at, ended = neighbour.end(), True
    token = _TOKEN.match(text, at)
    needed = "nothing is expected after the relation" if ended else "a number or a name is needed"
    return RuleSyntaxError(at, f"{needed} {f'before {token[0]!r}' if token else 'at the end'}")


def _stray(text: str) -> str:
    if re.match(r"[0-9]+\.|\.[0-9]", text):
        return "numbers are integers: write 1/2 for a half"
    if text[0] == "=":
        return "'=' is not a comparison: write =="
    point = "" if text[0].isascii() else f" (U+{ord(text[0]):04X})"
    return f"{text[0]!r}{point} is not allowed"
