"""The user's own rules as trees: what a relation says, and what is left of it once some names are known.

Numbers are whole or exact fractions, so no rule is decided by rounding. Where a divisor is zero the value is
``UNDEFINED``, and a comparison of it does not hold. ``layers``, ``selective`` and ``full`` have an entry for
each stage; a relation that names a stage which a layout lacks says nothing about that layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, sub, truediv
from typing import Any, Final, TypeAlias

__all__ = [
    "COMPARED",
    "FALSE",
    "TRUE",
    "UNDEFINED",
    "Comparison",
    "Constant",
    "Entry",
    "Extreme",
    "Known",
    "Logic",
    "Name",
    "Node",
    "Not",
    "Operation",
    "Over",
    "Place",
    "Uniform",
    "Value",
    "decided",
    "left_of",
]

Value: TypeAlias = "int | Fraction | str | bool | None"
#: A quantity and the stage it is of, counted from 0; as written, negative from the last.
Place: TypeAlias = "tuple[str, int]"
Number: TypeAlias = "int | Fraction"

COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<=": le,
    ">=": ge,
    "==": eq,
    "!=": ne,
    "<": lt,
    ">": gt,
}
_OPERATIONS: Final[Mapping[str, Callable[[Number, Number], Number]]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": lambda a, b: truediv(Fraction(a), b),
    "//": floordiv,
    "%": mod,
}
_DIVISIONS: Final = frozenset({"/", "//", "%"})


class NoSuchStageError(Exception):
    """The relation names a stage that there is not."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a layout: values of names, its number of stages, and entries of some of them."""

    names: Mapping[str, Value]
    stages: int
    entries: Mapping[Place, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value."""

    value: Value

    def folded(self, known: Known) -> Node:  # noqa: ARG002
        """Return what is left of it."""
        return self

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return ()


TRUE: Final = Constant(True)  # noqa: FBT003
FALSE: Final = Constant(False)  # noqa: FBT003
UNDEFINED: Final = Constant(None)


@dataclass(frozen=True, slots=True)
class Name:
    """A number or word of the job or of a candidate."""

    name: str

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        return Constant(known.names[self.name]) if self.name in known.names else self

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A quantity of one stage."""

    quantity: str
    stage: int

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        if not -known.stages <= self.stage < known.stages:
            raise NoSuchStageError
        stage = self.stage % known.stages
        if (self.quantity, stage) in known.entries:
            return Constant(known.entries[self.quantity, stage])
        return Entry(self.quantity, stage)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return ()


@dataclass(frozen=True, slots=True)
class Over:
    """The sum, least or most of a quantity over all stages."""

    function: str
    quantity: str

    def folded(self, known: Known) -> Node:
        """Return what is left of it, spread over the stages."""
        entries = tuple(Entry(self.quantity, stage) for stage in range(known.stages))
        if self.function != "sum":
            return Extreme(self.function, entries).folded(known)
        total: Node = entries[0]
        for entry in entries[1:]:
            total = Operation("+", total, entry)
        return total.folded(known)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return ()


@dataclass(frozen=True, slots=True)
class Extreme:
    """The least or most of several numbers."""

    function: str
    parts: tuple[Node, ...]

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        parts = tuple(part.folded(known) for part in self.parts)
        values = [part.value for part in parts if isinstance(part, Constant)]
        if len(values) < len(parts):
            return Extreme(self.function, parts)
        return Constant(max(values) if self.function == "max" else min(values))  # type: ignore[type-var]

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return self.parts


@dataclass(frozen=True, slots=True)
class Operation:
    """Arithmetic with two numbers."""

    symbol: str
    left: Node
    right: Node

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        left, right = self.left.folded(known), self.right.folded(known)
        if UNDEFINED in (left, right) or (self.symbol in _DIVISIONS and right == Constant(0)):
            return UNDEFINED
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(_OPERATIONS[self.symbol](_number(left), _number(right)))
        return Operation(self.symbol, left, right)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two numbers, or two words, stand in a relation."""

    symbol: str
    left: Node
    right: Node

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        left, right = self.left.folded(known), self.right.folded(known)
        if UNDEFINED in (left, right):
            return FALSE
        if isinstance(left, Constant) and isinstance(right, Constant):
            return TRUE if COMPARED[self.symbol](left.value, right.value) else FALSE
        return Comparison(self.symbol, left, right)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class Logic:
    """Whether ``every`` part holds, or else any."""

    every: bool
    parts: tuple[Node, ...]

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        neutral, settled = (TRUE, FALSE) if self.every else (FALSE, TRUE)
        parts = [part.folded(known) for part in self.parts]
        if settled in parts:
            return settled
        left = tuple(dict.fromkeys(part for part in parts if part != neutral))
        if not left:
            return neutral
        return left[0] if len(left) == 1 else Logic(self.every, left)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return self.parts


@dataclass(frozen=True, slots=True)
class Not:
    """Whether a relation does not hold."""

    part: Node

    def folded(self, known: Known) -> Node:
        """Return what is left of it."""
        part = self.part.folded(known)
        if isinstance(part, Constant):
            return FALSE if part.value else TRUE
        return Not(part)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return (self.part,)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Whether a quantity is the same on every stage.

    Recompute is uniform where every stage recomputes the same numbers of layers, or all of its layers in the
    same way.
    """

    quantity: str

    def folded(self, known: Known) -> Node:
        """Return what is left of it, spread over the stages."""
        stages = range(known.stages)
        if self.quantity != "recompute":
            return _alike(self.quantity, stages).folded(known)
        counts = Logic(every=True, parts=(_alike("selective", stages), _alike("full", stages)))
        whole = (
            Logic(every=True, parts=tuple(_same(Entry(kind, i), Entry("layers", i)) for i in stages))
            for kind in ("full", "selective")
        )
        return Logic(every=False, parts=(*whole, counts)).folded(known)

    def below(self) -> Iterable[Node]:
        """Return its parts."""
        return ()


Node: TypeAlias = Constant | Name | Entry | Over | Extreme | Operation | Comparison | Logic | Not | Uniform


def _number(constant: Constant) -> Number:
    assert isinstance(constant.value, int | Fraction)  # noqa: S101 - the parser has looked
    return constant.value


def _same(one: Node, other: Node) -> Node:
    return Comparison("==", one, other)


def _alike(quantity: str, stages: range) -> Node:
    first = Entry(quantity, 0)
    return Logic(every=True, parts=tuple(_same(first, Entry(quantity, i)) for i in stages[1:]))


def left_of(relation: Node, known: Known) -> Node:
    """Return what is left of ``relation``: TRUE, FALSE, or a relation between entries not yet known.

    >>> rule = Comparison("<=", Operation("*", Name("mbs"), Entry("layers", -1)), Constant(16))
    >>> left_of(rule, Known({"mbs": 2}, stages=4)).left
    Operation(symbol='*', left=Constant(value=2), right=Entry(quantity='layers', stage=3))
    >>> left_of(rule, Known({"mbs": 2}, stages=4, entries={("layers", 3): 9}))
    Constant(value=False)
    """
    try:
        return relation.folded(known)
    except NoSuchStageError:
        return TRUE


def decided(relation: Node, known: Known) -> bool:
    """Return whether ``relation`` holds, where everything in it is known."""
    left = left_of(relation, known)
    assert isinstance(left, Constant)  # noqa: S101 - the caller knows every name
    return bool(left.value)
