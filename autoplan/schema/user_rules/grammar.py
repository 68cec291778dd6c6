"""Parser of users' rules: ``tp * pp <= 8`` to an expression tree. Nothing is evaluated.

Python's grammar gives the structure (see ``relation_tokens``). Of its nodes these are read, and no others::

    relation    or, and, not        of relations
                <= < == != >= >     between numbers, also in chains; == and != also between words
                in {...}            and not in {...}: of numbers or words
                divides             between numbers
                is uniform          of a list
    number      + - * / // %        of numbers
                sum(list)           and min, max: over the stages
                list[n]             of the stage n, from the last where n is negative
                list[each]          of each stage: the rule holds for all of them
    name        of a number, a word or a list; or a whole number

Users' rules as text of Python's grammar, with unchanged columns.

``ast`` gives the text its structure, and sees nothing else: names and numbers are masked, and what is no
word, number or symbol of a rule is refused before. Each of these is replaced by text of the same length:

- a name, a word or a number, such as tp, zero-bubble, 1f1b or 007, by underscores
- ``divides`` by ``|``, which binds weaker than sums and stronger than comparisons
- white space by blanks, since a rule may take several lines

The names that users' rules may use; ``specs/jobs/README.md`` defines each.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from autoplan.schema.layout import LAYOUT_KEYS
from autoplan.schema.recompute import MODES
from autoplan.schema.renamed_keys import RENAMED_KEYS
from autoplan.schema.user_rules.expression import (
    UNDEFINED,
    Comparison,
    Constant,
    Each,
    Entry,
    Every,
    Logic,
    Name,
    Node,
    Not,
    Operation,
    Over,
    Uniform,
)

#: Numbers that a rule may name: of a layout, of the job and of its model.
NAMES: Final = (
    *(key.name for key in LAYOUT_KEYS if key.kind == "number"),
    *("microbatches", "devices", "devices_per_node", "nodes", "sequence_length", "global_batch_size"),
    *("heads", "kv_heads", "hidden_size", "ffn_size", "vocabulary"),
)
#: Words that a rule may name, with their values.
WORDS: Final[dict[str, tuple[str, ...]]] = {key.name: key.words for key in LAYOUT_KEYS if key.words}
#: Numbers with one entry per stage: its layers, and those with each recompute mode.
LISTS: Final = ("layers", *(mode.name for mode in MODES))


_MOST_CHARACTERS: Final = 300
_MOST_DIGITS: Final = 12
_FUNCTIONS: Final = ("sum", "min", "max")
_UNIFORM: Final = (*LISTS, "recompute")
_SIGNS: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARED: Final = {ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.Gt: ">"}
_NO_NUMBERS: Final = {
    **{x: f"{x} has one number for each stage: write {x}[0], sum({x}), min({x}) or max({x})" for x in LISTS},
    **{word: f"{word} is not a number: it is one of {', '.join(may)}" for word, may in WORDS.items()},
    **{name: f"{name} is of a list: write {name}(layers)" for name in _FUNCTIONS},
    "recompute": "recompute is not a number: write full[0], selective[0], or recompute is uniform",
}


class RelationError(ValueError):
    """An invalid rule, with the columns of its problems."""


class _Part(NamedTuple):
    """A tree (UNDEFINED if invalid) with its text and its column, counted from 0."""

    node: Node
    said: str
    at: int


@lru_cache(maxsize=512)
def parse_relation(text: str) -> Node:
    """Return the relation of ``text``; raises RelationError with all problems.

    >>> parse_relation("pp in {1, 2}")
    Logic(every=False, parts=(Comparison(symbol='==', left=Name(name='pp'), right=Constant(value=1)), \
Comparison(symbol='==', left=Name(name='pp'), right=Constant(value=2))))
    >>> parse_relation("tpp <= 8 and layers < 4")
    Traceback (most recent call last):
    ...
    autoplan.schema.user_rules.grammar.RelationError: column 1: unknown name 'tpp' - did you mean 'tp'?; \
column 14: layers has one number for each stage: write layers[0], sum(layers), min(layers) or max(layers)
    """
    if len(text) > _MOST_CHARACTERS:
        message = f"a rule has at most {_MOST_CHARACTERS} characters"
        raise RelationError(f"column {_MOST_CHARACTERS + 1}: {message}")
    reader = _Reader(text.strip())
    try:
        node = reader.truth(shape_of(reader.text))
    except RuleSyntaxError as error:
        node = reader.wrong(*error.problem)
    except (RecursionError, MemoryError):
        node = reader.wrong(0, "the relation has too many levels")
    if reader.problems:
        first = len(text) - len(text.lstrip()) + 1
        raise RelationError("; ".join(f"column {first + at}: {what}" for at, what in sorted(reader.problems)))
    return Every(node) if "each" in _stages(node) else node


class _Reader:
    """Parser of one rule; ``problems`` are distinct pairs of a column, counted from 0, and a message."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: set[tuple[int, str]] = set()

    def wrong(self, at: int, message: str) -> Node:
        self.problems.add((at, message))
        return UNDEFINED

    def truth(self, shape: ast.expr) -> Node:
        node, _, at = self._part(shape)
        if isinstance(node, Comparison | Logic | Not | Uniform) or node == UNDEFINED:
            return node
        return self.wrong(at, "a relation is needed, such as tp * pp <= 8")

    def _part(self, shape: ast.expr) -> _Part:
        match shape:
            case (
                ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=part))
                | ast.UnaryOp(op=ast.USub(), operand=ast.UnaryOp(op=ast.USub(), operand=part))
            ):
                return self._part(part)
        return _Part(self._node(shape), self._said(shape), shape.col_offset)

    def _said(self, shape: ast.expr) -> str:
        return self.text[shape.col_offset : shape.end_col_offset]

    def _node(self, shape: ast.expr) -> Node:  # noqa: PLR0911 - one for each kind of node
        match shape:
            case ast.BoolOp(op=op, values=parts):
                return Logic(isinstance(op, ast.And), tuple(self.truth(part) for part in parts))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return Not(self.truth(part))
            case ast.UnaryOp(op=ast.USub(), operand=part):
                return Operation("-", Constant(0), self._number(self._part(part)))
            case ast.BinOp(op=op):
                return self._operation(op, self._part(shape.left), self._part(shape.right))
            case ast.Compare():
                return self._relation(shape)
            case ast.Call(func=ast.Name() as function, args=[listed]):
                return self._over(self._said(function), listed, shape.col_offset)
            case ast.Subscript(value=ast.Name() as listed, slice=stage):
                return self._entry(self._said(listed), stage, shape.col_offset)
            case ast.Name():
                return self._leaf(self._said(shape), shape.col_offset)
        return self.wrong(shape.col_offset, f"{self._said(shape)!r} is not a relation, number or name")

    def _operation(self, op: ast.operator, left: _Part, right: _Part) -> Node:
        if isinstance(op, ast.BitOr):
            # The divisor stands on the left; zero divides nothing.
            return Comparison("==", self._operation(ast.Mod(), right, left), Constant(0))
        if type(op) not in _SIGNS:
            return self.wrong(right.at, f"the operators are {', '.join(_SIGNS.values())}")
        divisor = _stages(right.node) if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) else set()
        if divisor and len(divisor | _stages(left.node)) > 1:
            self.wrong(right.at, "what divides is the same for all stages, or of the one stage it divides")
        return Operation(_SIGNS[type(op)], self._number(left), self._number(right))

    def _relation(self, shape: ast.Compare) -> Node:
        match shape:
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Set(elts=items)]):
                first = self._part(shape.left)
                equal = tuple(self._compared("==", first, self._part(item)) for item in items)
                member = Logic(every=False, parts=equal)
                return member if isinstance(shape.ops[0], ast.In) else Not(member)
            case ast.Compare(ops=[ast.Is()], comparators=[word]) if self._said(word) == "uniform":
                return self._uniform(self._part(shape.left))
        for op, other in zip(shape.ops, shape.comparators, strict=True):
            if type(op) not in _COMPARED:
                sentence = (
                    "in takes {...}, is takes uniform, and neither stands in a chain: join relations by and"
                )
                return self.wrong(other.col_offset, sentence)
        parts = [self._part(part) for part in (shape.left, *shape.comparators)]
        pairs = zip(shape.ops, pairwise(parts), strict=True)
        relations = tuple(self._compared(_COMPARED[type(op)], *pair) for op, pair in pairs)
        return relations[0] if len(relations) == 1 else Logic(every=True, parts=relations)

    def _compared(self, symbol: str, left: _Part, right: _Part) -> Node:
        word, other = (left, right) if left.said in WORDS else (right, left)
        if word.said not in WORDS:
            return Comparison(symbol, self._number(left), self._number(right))
        if symbol not in ("==", "!="):
            self.wrong(word.at, f"{word.said} is compared with == or !=")
        elif other.said not in WORDS[word.said] and other.node != UNDEFINED:
            self.wrong(other.at, f"{word.said} is {_one_of(other.said, WORDS[word.said])}")
        return Comparison(symbol, left.node, right.node)

    def _uniform(self, first: _Part) -> Node:
        if first.said not in _UNIFORM and first.node != UNDEFINED:
            return self.wrong(first.at, f"only {', '.join(_UNIFORM)} can be uniform over the stages")
        return Uniform(first.said)

    def _over(self, function: str, listed: ast.expr, at: int) -> Node:
        quantity = self._said(listed)
        if function not in _FUNCTIONS:
            return self.wrong(at, _unknown("function", function, _FUNCTIONS))
        if quantity not in LISTS:
            return self.wrong(listed.col_offset, f"{function} takes {_one_of(quantity, LISTS)}")
        return Over(function, quantity)

    def _entry(self, listed: str, stage: ast.expr, at: int) -> Node:
        number = "".join(self._said(stage).split())
        if listed not in LISTS:
            return self.wrong(at, _not_a_list(listed))
        if number == "each":
            return Each(listed)
        if not re.fullmatch(rf"-?[0-9]{{1,{_MOST_DIGITS}}}", number):
            sentence = "a stage is needed: 0 for the first, -1 for the last, or each"
            return self.wrong(stage.col_offset, sentence)
        return Entry(listed, int(number))

    def _leaf(self, problem: str, at: int) -> Node:
        """Return a number, a name, or a word or list as a constant."""
        if problem.isdigit() and len(problem) > _MOST_DIGITS:
            return self.wrong(at, f"a number has at most {_MOST_DIGITS} digits")
        if problem in NAMES or problem in WORDS:
            return Name(problem)
        return Constant(int(problem) if problem.isdigit() else problem)

    def _number(self, part: _Part) -> Node:
        match part.node:
            case Comparison() | Logic() | Not() | Uniform():
                return self.wrong(part.at, "a number is needed, not a relation")
            case Name(name=name) | Constant(value=str(name)) if name not in NAMES:
                unknown = _unknown("name", name, (*NAMES, *WORDS, *LISTS))
                return self.wrong(part.at, _NO_NUMBERS.get(name, unknown))
        return part.node


def _not_a_list(name: str) -> str:
    if name == "recompute":
        return "recompute has two numbers for each stage: write full[0] or selective[0]"
    if name in NAMES or name in WORDS:
        return f"{name} is the same for all stages: write it without brackets"
    return _unknown("list", name, LISTS)


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f" - did you mean {near[0]!r}?" if near else ""


def _unknown(what: str, name: str, names: Iterable[str]) -> str:
    if name in RENAMED_KEYS:
        return f"{name}: is called {RENAMED_KEYS[name]} now"
    return f"unknown {what} {name!r}" + (_near(name, names) or f": known are {', '.join(names)}")


def _one_of(name: str, names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}{_near(name, names)}"


def _stages(node: Node) -> set[int | str]:
    """Return the stages that ``node`` names: by number, or all."""
    if isinstance(node, Entry):
        return {node.stage}
    if isinstance(node, Each):
        return {"each"}
    if isinstance(node, Over | Uniform):
        return {"all"}
    return {stage for part in node.below() for stage in _stages(part)}


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
