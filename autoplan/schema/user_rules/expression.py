"""Users' rules as expression trees, and their partial evaluation with known names.

Numbers are integers or exact fractions, so that no rule depends on rounding. Division by zero gives
``UNDEFINED``, and comparisons with it are false. ``layers`` and the layers with each recompute mode have
one entry per stage; a relation that names a stage that a layout lacks does not restrict that layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, sub
from typing import Any, Final, TypeAlias, TypeVar, dataclass_transform

from autoplan.schema.recompute import MODES

Value: TypeAlias = "int | Fraction | str | bool | None"
#: A quantity and the stage it is of, counted from 0; as written, negative from the last.
Place: TypeAlias = "tuple[str, int]"
Number: TypeAlias = "int | Fraction"
_N = TypeVar("_N", bound="_Hashed")
_Compared: TypeAlias = "Mapping[str, Callable[[Any, Any], bool]]"
_Computed: TypeAlias = "Mapping[str, Callable[[Number, Number], Number]]"

COMPARED: Final[_Compared] = {"<=": le, ">=": ge, "==": eq, "!=": ne, "<": lt, ">": gt}
DIVIDED: Final[_Computed] = {"/": lambda a, b: Fraction(a) / b, "//": floordiv, "%": mod}
COMPUTED: Final[_Computed] = {"+": add, "-": sub, "*": mul, **DIVIDED}


class NoSuchStageError(Exception):
    """The relation names a stage that does not exist."""


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts of a layout: values of names, number of stages, and entries of some stages."""

    names: Mapping[str, Value]
    stages: int
    entries: Mapping[Place, int] = field(default_factory=dict)


class _Hashed:
    """Remembers its hash."""

    __slots__ = ("_hash",)

    _hash: int


@dataclass_transform(frozen_default=True)
def _node(kind: type[_N]) -> type[_N]:
    """Return ``kind`` as a frozen dataclass that hashes its tree once: tables of trees are asked often."""
    made = dataclass(frozen=True, slots=True)(kind)
    hash_of = made.__hash__

    def remembered(self: _N) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash_of(self))
            return self._hash

    made.__hash__ = remembered  # type: ignore[assignment,method-assign]
    return made


@_node
class Node(_Hashed):
    """A number, a word or a relation."""

    def folded(self, values: Known) -> Node:  # noqa: ARG002
        """Return its remainder with ``values`` substituted."""
        return self

    def below(self) -> tuple[Node, ...]:
        """Return its parts."""
        values = (getattr(self, part.name) for part in fields(self))
        parts = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(part for group in parts for part in group if isinstance(part, Node))


@_node
class Constant(Node):
    """A value."""

    value: Value


TRUE: Final = Constant(True)  # noqa: FBT003
FALSE: Final = Constant(False)  # noqa: FBT003
UNDEFINED: Final = Constant(None)


@_node
class Name(Node):
    """A number or word of the job or of a candidate."""

    name: str

    def folded(self, values: Known) -> Node:
        """Return its value, if known."""
        return Constant(values.names[self.name]) if self.name in values.names else self


@_node
class Entry(Node):
    """A quantity of one stage."""

    quantity: str
    stage: int

    def folded(self, values: Known) -> Node:
        """Return its value, if known, with the stage counted from the first."""
        if not -values.stages <= self.stage < values.stages:
            raise NoSuchStageError
        place = (self.quantity, self.stage % values.stages)
        return Constant(values.entries[place]) if place in values.entries else Entry(*place)


@_node
class Each(Node):
    """A quantity of the stage that the relation is looked at for, one after the other."""

    quantity: str


@_node
class Every(Node):
    """Whether a relation holds for every stage in place of ``Each``."""

    part: Node

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted, expanded over the stages."""
        part = self.part.folded(values)
        return part if isinstance(part, Constant) else Every(part).of_stages(values.stages).folded(values)

    def of_stages(self, stages: int) -> Node:
        """Return the relation for each of so many stages."""
        return Logic(every=True, parts=tuple(at_stage(self.part, stage) for stage in range(stages)))


@_node
class Over(Node):
    """The sum, least or most of a quantity over all stages."""

    function: str
    quantity: str

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted, expanded over the stages."""
        entries: tuple[Node, ...] = tuple(Entry(self.quantity, stage) for stage in range(values.stages))
        if self.function != "sum":
            return Extreme(self.function, entries).folded(values)
        return _summed(entries).folded(values)


@_node
class Extreme(Node):
    """The least or most of several numbers."""

    function: str
    parts: tuple[Node, ...]

    def folded(self, known: Known) -> Node:
        """Return its remainder with ``known`` substituted."""
        parts = tuple(part.folded(known) for part in self.parts)
        values = [_number(part) for part in parts if isinstance(part, Constant)]
        if len(values) < len(parts):
            return Extreme(self.function, parts)
        return Constant(max(values) if self.function == "max" else min(values))


@_node
class Operation(Node):
    """Arithmetic with two numbers."""

    symbol: str
    left: Node
    right: Node

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted."""
        left, right = self.left.folded(values), self.right.folded(values)
        if UNDEFINED in (left, right) or (self.symbol in DIVIDED and right == Constant(0)):
            return UNDEFINED
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(COMPUTED[self.symbol](_number(left), _number(right)))
        return Operation(self.symbol, left, right)


def _summed(entries: tuple[Node, ...]) -> Node:
    """Return the sum of ``entries`` by halves, as a pipeline may have a thousand stages."""
    if len(entries) == 1:
        return entries[0]
    half = len(entries) // 2
    return Operation("+", _summed(entries[:half]), _summed(entries[half:]))


@_node
class Comparison(Node):
    """Whether two numbers, or two words, stand in a relation."""

    symbol: str
    left: Node
    right: Node

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted."""
        left, right = self.left.folded(values), self.right.folded(values)
        if UNDEFINED in (left, right):
            return FALSE
        if isinstance(left, Constant) and isinstance(right, Constant):
            return TRUE if COMPARED[self.symbol](left.value, right.value) else FALSE
        return Comparison(self.symbol, left, right)


@_node
class Logic(Node):
    """Whether ``every`` part holds, or else any."""

    every: bool
    parts: tuple[Node, ...]

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted."""
        neutral, settled = (TRUE, FALSE) if self.every else (FALSE, TRUE)
        parts = [part.folded(values) for part in self.parts]
        if settled in parts:
            return settled
        left = tuple(dict.fromkeys(part for part in parts if part != neutral))
        if not left:
            return neutral
        return left[0] if len(left) == 1 else Logic(self.every, left)


@_node
class Not(Node):
    """Whether a relation does not hold."""

    part: Node

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted."""
        part = self.part.folded(values)
        if isinstance(part, Constant):
            return FALSE if part.value else TRUE
        return Not(part)


@_node
class Uniform(Node):
    """Whether a quantity is the same on every stage.

    Recompute is uniform where every stage recomputes the same numbers of layers, or all of its layers in the
    same way.
    """

    quantity: str

    def folded(self, values: Known) -> Node:
        """Return its remainder with ``values`` substituted, expanded over the stages."""
        stages = range(values.stages)
        if self.quantity != "recompute":
            return _equal_over_stages(self.quantity, stages).folded(values)
        # A mode that no layer has is uniform.
        modes = [x.name for x in MODES if any(values.entries.get((x.name, i)) != 0 for i in stages)]
        equal = (_equal(((mode, i), ("layers", i)) for i in stages) for mode in reversed(modes))
        counts = Logic(every=True, parts=tuple(_equal_over_stages(mode, stages) for mode in modes))
        return Logic(every=False, parts=(*equal, counts)).folded(values)


def at_stage(node: Node, stage: int, of: type[Each | Entry] = Each) -> Node:
    """Return ``node`` with entries of ``stage`` in place of all ``of`` a kind."""
    if isinstance(node, of):
        return Entry(node.quantity, stage)
    changes: dict[str, Any] = {}
    for part in fields(node):
        value = getattr(node, part.name)
        if isinstance(value, Node):
            changes[part.name] = at_stage(value, stage, of)
        elif isinstance(value, tuple):
            changes[part.name] = tuple(at_stage(x, stage, of) if isinstance(x, Node) else x for x in value)
    return replace(node, **changes) if changes else node


def _number(constant: Constant) -> Number:
    assert isinstance(constant.value, int | Fraction)  # noqa: S101 - the parser has looked
    return constant.value


def _equal(pairs: Iterable[tuple[Place, Place]]) -> Node:
    return Logic(every=True, parts=tuple(Comparison("==", Entry(*x), Entry(*y)) for x, y in pairs))


def _equal_over_stages(quantity: str, stages: range) -> Node:
    return _equal(((quantity, 0), (quantity, i)) for i in stages[1:])


def left_of(relation: Node, values: Known) -> Node:
    """Return the remainder of ``relation``: TRUE, FALSE, or a relation between unknown entries.

    >>> rule = Comparison("<=", Operation("*", Name("mbs"), Entry("layers", -1)), Constant(16))
    >>> left_of(rule, Known({"mbs": 2}, stages=4)).left
    Operation(symbol='*', left=Constant(value=2), right=Entry(quantity='layers', stage=3))
    >>> left_of(rule, Known({"mbs": 2}, stages=4, entries={("layers", 3): 9}))
    Constant(value=False)
    """
    try:
        return relation.folded(values)
    except NoSuchStageError:
        return TRUE


def decided(relation: Node, values: Known) -> bool:
    """Return whether ``relation`` holds; all its names must be known."""
    left = left_of(relation, values)
    assert isinstance(left, Constant)  # noqa: S101 - the caller knows every name
    return bool(left.value)
