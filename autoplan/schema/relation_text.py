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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

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
from autoplan.schema.relation_tokens import RuleSyntaxError, Token, tokens_of

__all__ = ["RelationError", "parse_relation"]

_FUNCTIONS: Final = ("sum", "min", "max")
_KEYWORDS: Final = ("and", "or", "not", "in", "is", "divides", "uniform")
_MOST_DIGITS: Final = 12
_MOST_NESTED: Final = 20

Kind: TypeAlias = Literal["number", "truth", "word", "text", "list", "wrong"]


class RelationError(ValueError):
    """A rule that cannot be read; says at which columns, and what would be right."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A tree, what kind of value it has, the name behind a word, and the column where it begins."""

    node: Node
    kind: Kind
    column: int
    name: str = ""


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
        if part.kind not in ("truth", "wrong"):
            parser.problem(part.column, "a relation is needed, such as tp * pp <= 8")
    except RuleSyntaxError as error:
        parser.problem(*error.problem)
    if parser.problems:
        said = (f"column {column}: {message}" for column, message in sorted(parser.problems))
        raise RelationError("; ".join(said))
    return part.node


class _Parser:
    """Reads one rule; ``problems`` holds columns and what is wrong there, each once."""

    def __init__(self, text: str) -> None:
        self.problems: set[tuple[int, str]] = set()
        self.text = text
        self.tokens: list[Token] = []
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def problem(self, column: int, message: str) -> None:
        self.problems.add((column, message))

    def takes(self, *texts: str) -> Token | None:
        token = self.next
        if token.kind == "end" or token.text not in texts:
            return None
        self.at += 1
        return token

    def expect(self, text: str) -> None:
        if self.takes(text) is None:
            raise RuleSyntaxError(self.next.column, f"{text!r} is needed {self._before()}")

    def end(self) -> None:
        if self.next.kind != "end":
            raise RuleSyntaxError(
                self.next.column, f"nothing is expected after the relation {self._before()}"
            )

    def _before(self) -> str:
        return f"before {self.next.text!r}" if self.next.text else "at the end"

    def rule(self) -> _Part:
        if not self.tokens:
            self.tokens = tokens_of(self.text)
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise RuleSyntaxError(self.next.column, f"at most {_MOST_NESTED} levels are read")
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
        if first.kind == "wrong":
            return first
        if first.kind != "list":
            listed = ", ".join((*LISTS, "recompute"))
            self.problem(first.column, f"only {listed} can be uniform over the stages")
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
            self.problem(
                right.column, "what divides is the same for all stages, or of the one stage it divides"
            )
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
        raise RuleSyntaxError(token.column, f"a number or a name is needed {self._before()}")

    def _constant(self) -> _Part:
        token = self.next
        if len(token.text) > _MOST_DIGITS:
            raise RuleSyntaxError(token.column, f"a number has at most {_MOST_DIGITS} digits")
        self.at += 1
        return _Part(Constant(int(token.text)), "number", token.column, token.text)

    def _named(self, token: Token) -> _Part:
        name, column = token.text, token.column
        if name in _FUNCTIONS:
            return self._over(token)
        if self.next.text in ("[", "("):
            return self._bracketed(token)
        if name in NAMES:
            return _Part(Name(name), "number", column, name)
        if name in WORDS:
            return _Part(Name(name), "word", column, name)
        if name in LISTS or name == "recompute":
            return _Part(TRUE, "list", column, name)
        return _Part(Constant(name), "text", column, name)

    def _bracketed(self, token: Token) -> _Part:
        """Return a quantity of one stage, or what is wrong with it."""
        if self.next.text == "(":
            message = f"unknown function {token.text!r}{_hint(token.text, _FUNCTIONS)}"
            return self._wrong(token.column, message)
        if token.text not in LISTS:
            return self._wrong(token.column, _not_a_list(token.text))
        before = self.at
        self.expect("[")
        back = self.takes("-")
        if self.next.kind != "number" or self.tokens[self.at + 1].text != "]":
            column, self.at = self.next.column, before
            return self._wrong(column, "a stage is needed, such as 0 for the first or -1 for the last")
        count = int(self._constant().name)
        self.expect("]")
        return _Part(Entry(token.text, -count if back else count), "number", token.column)

    def _over(self, token: Token) -> _Part:
        before = self.at
        self.expect("(")
        listed = self.next
        if listed.text not in LISTS:
            self.at = before
            return self._wrong(listed.column, f"{token.text} takes {_one_of(listed.text, tuple(LISTS))}")
        self.at += 1
        self.expect(")")
        return _Part(Over(token.text, listed.text), "number", token.column)

    def _wrong(self, column: int, message: str) -> _Part:
        """Note what is wrong with a name, and pass over the brackets that follow it."""
        self.problem(column, message)
        depth = 0
        while self.next.kind != "end":
            depth += (self.next.text in ("(", "[", "{")) - (self.next.text in (")", "]", "}"))
            self.at += 1
            if depth == 0:
                return _Part(TRUE, "wrong", column)
        raise RuleSyntaxError(self.next.column, "a bracket is not closed")

    def _truth(self, part: _Part) -> Node:
        if part.kind not in ("truth", "wrong"):
            self.problem(part.column, "a relation is needed here, such as tp <= 8")
        return part.node

    def _number(self, part: _Part) -> Node:
        """Return the tree of a number; the problem is noted where it is none."""
        if part.kind in ("number", "wrong"):
            return part.node
        self.problem(part.column, _not_a_number(part))
        return Constant(0)

    def _compared(self, symbol: str, left: _Part, right: _Part) -> Node:
        word = next((part for part in (left, right) if part.kind == "word"), None)
        if word is None:
            return Comparison(symbol, self._number(left), self._number(right))
        other = right if word is left else left
        allowed = WORDS[word.name]
        if symbol not in ("==", "!="):
            self.problem(word.column, f"{word.name} is compared with == or !=")
        elif other.kind != "wrong" and (other.kind != "text" or other.name not in allowed):
            self.problem(other.column, f"{word.name} is {_one_of(other.name, allowed)}")
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
    return f"unknown name {name!r}{_hint(name, (*NAMES, *WORDS, *LISTS))}"


def _not_a_list(name: str) -> str:
    if name == "recompute":
        return "recompute has two numbers for each stage: write full[0] or selective[0]"
    if name in NAMES or name in WORDS:
        return f"{name} is the same for all stages: write it without brackets"
    return f"unknown list {name!r}{_hint(name, tuple(LISTS))}"


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" - did you mean {near[0]!r}?" if near else f": known are {', '.join(known)}"


def _one_of(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"one of {', '.join(known)}" + (f" - did you mean {near[0]!r}?" if near else "")


def _stages(node: Node) -> set[int | str]:
    """Return the stages that ``node`` names: by number, or all."""
    if isinstance(node, Entry):
        return {node.stage}
    if isinstance(node, Over | Uniform):
        return {"all"}
    return {stage for part in node.below() for stage in _stages(part)}
