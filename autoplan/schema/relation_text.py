"""Reading the user's own rules: ``tp * pp <= 8`` to a tree. Nothing is evaluated.

::

    rule        any ("or" any)*            any      each ("and" each)*       each   "not" each | relation
    relation    sum (("<=" | "<" | "==" | "!=" | ">=" | ">") sum)+
                sum ["not"] "in" "{" sum ("," sum)* "}"      sum "divides" sum      list "is" "uniform"
    sum         product (("+" | "-") product)*
    product     factor (("*" | "/" | "//" | "%") factor)*
    factor      "-" factor | number | name | word | list "[" ["-"] number "]" | "(" rule ")"
                ("sum" | "min" | "max") "(" list ")"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from autoplan.schema.relation import (
    COMPARED,
    TRUE,
    Comparison,
    Constant,
    Entry,
    Logic,
    Name,
    Node,
    Not,
    Operation,
    Over,
    Uniform,
)
from autoplan.schema.relation_names import LISTS, NAMES, WORDS

__all__ = ["RelationError", "parse_relation"]

_FUNCTIONS: Final = ("sum", "min", "max")
_KEYWORDS: Final = ("and", "or", "not", "in", "is", "divides", "uniform")
_MOST_CHARACTERS: Final = 300
_MOST_DIGITS: Final = 12
_MOST_NESTED: Final = 20
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?![\w.]))|(?P<word>[0-9]*[A-Za-z_][\w-]*?(?![\w]))"
    r"|(?P<symbol><=|>=|==|!=|//|[-+*/%<>(){}\[\],]))"
)

Kind: TypeAlias = Literal["number", "truth", "word", "text", "list", "wrong"]


class RelationError(ValueError):
    """A rule that cannot be read; says at which columns, and what would be right."""


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A tree, what kind of value it has, the name behind a word, and the column where it begins."""

    node: Node
    kind: Kind
    column: int
    name: str = ""


class _SyntaxError(Exception):
    def __init__(self, column: int, message: str) -> None:
        self.said = f"column {column}: {message}"
        super().__init__(self.said)


@lru_cache(maxsize=512)
def parse_relation(text: str) -> Node:
    """Return the relation that ``text`` says; raises RelationError with everything wrong with it.

    >>> parse_relation("pp in {1, 2}")
    Logic(every=False, parts=(Comparison(symbol='==', left=Name(name='pp'), right=Constant(value=1)), \
Comparison(symbol='==', left=Name(name='pp'), right=Constant(value=2))))
    >>> parse_relation("tpp <= 8 and layers < 4")
    Traceback (most recent call last):
    ...
    autoplan.schema.relation_text.RelationError: column 1: unknown name 'tpp' - did you mean 'tp'?; \
column 14: layers has one number for each stage: write layers[0], sum(layers), min(layers) or max(layers)
    """
    parser = _Parser(text)
    try:
        part = parser.rule()
        parser.end()
    except _SyntaxError as error:
        raise RelationError("; ".join([*parser.problems, error.said])) from None
    if part.kind not in ("truth", "wrong"):
        parser.problem(part, "a relation is needed, such as tp * pp <= 8")
    if parser.problems:
        raise RelationError("; ".join(parser.problems))
    return part.node


def _tokens(text: str) -> list[_Token]:
    if len(text) > _MOST_CHARACTERS:
        raise _SyntaxError(_MOST_CHARACTERS + 1, f"a rule has at most {_MOST_CHARACTERS} characters")
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise _SyntaxError(at + 1, _stray(text[at:]))
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*found, _Token("end", "", end + 1)]


def _stray(text: str) -> str:
    if re.match(r"[0-9]*\.[0-9]", text):
        return "only whole numbers are read: write 1/2 for a half"
    if text[0] == "=":
        return "'=' is not a comparison: write =="
    return f"{text[0]!r} means nothing here"


class _Parser:
    """Reads one rule; ``problems`` holds what is wrong with its names and kinds."""

    def __init__(self, text: str) -> None:
        self.problems: list[str] = []
        self.text = text
        self.tokens: list[_Token] = []
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def problem(self, part: _Part, message: str) -> None:
        self.problems.append(f"column {part.column}: {message}")

    def takes(self, *texts: str) -> _Token | None:
        token = self.next
        if token.kind == "end" or token.text not in texts:
            return None
        self.at += 1
        return token

    def expect(self, text: str) -> None:
        if self.takes(text) is None:
            raise _SyntaxError(self.next.column, f"{text!r} is needed {self._before()}")

    def end(self) -> None:
        if self.next.kind != "end":
            raise _SyntaxError(self.next.column, f"nothing is expected after the relation {self._before()}")

    def _before(self) -> str:
        return f"before {self.next.text!r}" if self.next.text else "at the end"

    def rule(self) -> _Part:
        if not self.tokens:
            self.tokens = _tokens(self.text)
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise _SyntaxError(self.next.column, f"at most {_MOST_NESTED} levels are read")
        part = self._joined("or", lambda: self._joined("and", self._negated))
        self.depth -= 1
        return part

    def _joined(self, word: str, below: Callable[[], _Part]) -> _Part:
        parts = [below()]
        while self.takes(word):
            parts.append(below())
        if len(parts) == 1:
            return parts[0]
        nodes = tuple(self._truth(part) for part in parts)
        return _Part(Logic(every=word == "and", parts=nodes), "truth", parts[0].column)

    def _negated(self) -> _Part:
        nots = 0
        column = self.next.column
        while self.takes("not"):
            nots += 1
        part = self._relation()
        if not nots:
            return part
        truth = self._truth(part)
        return _Part(Not(truth) if nots % 2 else truth, "truth", column)

    def _relation(self) -> _Part:
        first = self._sum()
        if self.takes("is"):
            return self._uniform(first)
        if self.takes("divides"):
            # The divisor stands on the left; zero divides nothing.
            rest = self._divided("%", self._sum(), first)
            return _Part(Comparison("==", rest.node, Constant(0)), "truth", first.column)
        negated = self.next.text == "not" and self.tokens[self.at + 1].text == "in"
        if negated:
            self.at += 1
        if self.takes("in"):
            found = self._membership(first)
            return _Part(Not(found.node), "truth", found.column) if negated else found
        return self._chain(first)

    def _chain(self, first: _Part) -> _Part:
        relations: list[Node] = []
        left = first
        while token := self.takes(*COMPARED):
            right = self._sum()
            relations.append(self._compared(token.text, left, right))
            left = right
        if not relations:
            return first
        node = relations[0] if len(relations) == 1 else Logic(every=True, parts=tuple(relations))
        return _Part(node, "truth", first.column)

    def _membership(self, first: _Part) -> _Part:
        self.expect("{")
        items = [self._sum()]
        while self.takes(","):
            items.append(self._sum())
        self.expect("}")
        parts = tuple(self._compared("==", first, item) for item in items)
        return _Part(Logic(every=False, parts=parts), "truth", first.column)

    def _uniform(self, first: _Part) -> _Part:
        self.expect("uniform")
        if first.kind != "list":
            listed = ", ".join((*LISTS, "recompute"))
            self.problem(first, f"only {listed} can be uniform over the stages")
            return _Part(TRUE, "wrong", first.column)
        return _Part(Uniform(first.name), "truth", first.column)

    def _sum(self) -> _Part:
        part = self._product()
        while token := self.takes("+", "-"):
            part = self._operation(token.text, part, self._product())
        return part

    def _product(self) -> _Part:
        part = self._factor()
        while token := self.takes("*", "/", "//", "%"):
            other = self._factor()
            combine = self._operation if token.text == "*" else self._divided
            part = combine(token.text, part, other)
        return part

    def _divided(self, symbol: str, left: _Part, right: _Part) -> _Part:
        of_divisor = _stages(right.node)
        if of_divisor and len(of_divisor | _stages(left.node)) > 1:
            self.problem(right, "what divides is the same for all stages, or of the one stage it divides")
        return self._operation(symbol, left, right)

    def _operation(self, symbol: str, left: _Part, right: _Part) -> _Part:
        return _Part(Operation(symbol, self._number(left), self._number(right)), "number", left.column)

    def _factor(self) -> _Part:
        signs, column = 0, self.next.column
        while self.takes("-"):
            signs += 1
        part = self._atom()
        if signs % 2 == 0:
            return part
        return _Part(Operation("-", Constant(0), self._number(part)), "number", column)

    def _atom(self) -> _Part:
        token = self.next
        if self.takes("("):
            part = self.rule()
            self.expect(")")
            return part
        if token.kind == "number":
            return self._constant()
        if token.kind == "word" and token.text not in _KEYWORDS:
            self.at += 1
            return self._named(token)
        raise _SyntaxError(token.column, f"a number or a name is needed {self._before()}")

    def _constant(self) -> _Part:
        token = self.next
        if len(token.text) > _MOST_DIGITS:
            raise _SyntaxError(token.column, f"a number has at most {_MOST_DIGITS} digits")
        self.at += 1
        return _Part(Constant(int(token.text)), "number", token.column, token.text)

    def _named(self, token: _Token) -> _Part:
        name, column = token.text, token.column
        if name in _FUNCTIONS:
            return self._over(token)
        if name in LISTS and self.takes("["):
            return self._entry(token)
        if name in NAMES:
            return _Part(Name(name), "number", column, name)
        if name in WORDS:
            return _Part(Name(name), "word", column, name)
        if name in LISTS or name == "recompute":
            return _Part(TRUE, "list", column, name)
        return _Part(Constant(name), "text", column, name)

    def _entry(self, token: _Token) -> _Part:
        back = self.takes("-")
        index = self.next
        if index.kind != "number":
            raise _SyntaxError(index.column, "a stage is needed, such as 0 for the first or -1 for the last")
        count = int(self._constant().name)
        self.expect("]")
        return _Part(Entry(token.text, -count if back else count), "number", token.column)

    def _over(self, token: _Token) -> _Part:
        self.expect("(")
        listed = self.next
        if listed.text not in LISTS:
            raise _SyntaxError(listed.column, f"{token.text} is of {', '.join(LISTS)}")
        self.at += 1
        self.expect(")")
        return _Part(Over(token.text, listed.text), "number", token.column)

    def _truth(self, part: _Part) -> Node:
        if part.kind not in ("truth", "wrong"):
            self.problem(part, "a relation is needed here, such as tp <= 8")
        return part.node

    def _number(self, part: _Part) -> Node:
        """Return the tree of a number; the problem is noted where it is none."""
        if part.kind in ("number", "wrong"):
            return part.node
        self.problem(part, _not_a_number(part))
        return Constant(0)

    def _compared(self, symbol: str, left: _Part, right: _Part) -> Node:
        word = next((part for part in (left, right) if part.kind == "word"), None)
        if word is None:
            return Comparison(symbol, self._number(left), self._number(right))
        other = right if word is left else left
        allowed = WORDS[word.name]
        if symbol not in ("==", "!="):
            self.problem(word, f"{word.name} is compared with == or !=")
        elif other.kind != "text" or other.name not in allowed:
            near = difflib.get_close_matches(other.name, allowed, 1)
            hint = f" - did you mean {near[0]!r}?" if near else ""
            self.problem(other, f"{word.name} is one of {', '.join(allowed)}{hint}")
        return Comparison(symbol, left.node, right.node)


def _not_a_number(part: _Part) -> str:
    name = part.name
    if part.kind == "list":
        if name == "recompute":
            return "recompute is not a number: write full[0], selective[0], or recompute is uniform"
        return (
            f"{name} has one number for each stage: write {name}[0], sum({name}), min({name}) or max({name})"
        )
    if part.kind == "word":
        return f"{name} is not a number: it is one of {', '.join(WORDS[name])}"
    if part.kind == "truth":
        return "a number is needed here, not a relation"
    known: Sequence[str] = (*NAMES, *WORDS, *LISTS)
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"unknown name {name!r} - did you mean {near[0]!r}?"
    return f"unknown name {name!r}: known names are {', '.join(known)}"


def _stages(node: Node) -> set[int | str]:
    """Return the stages that ``node`` names: by number, or all."""
    if isinstance(node, Entry):
        return {node.stage}
    if isinstance(node, Over | Uniform):
        return {"all"}
    return {stage for part in node.below() for stage in _stages(part)}
