"""Three-valued evaluation of the user's own rules on partial layouts, vectorised over layouts.

The evaluation is independent of the search. A relation that depends on stages that are not listed yet is
open; it fails only where no completion satisfies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.rules.user_constraints import names_of, own_rules
from autoplan.schema.job import Job
from autoplan.schema.recompute import MODES
from autoplan.schema.user_rules.expression import (
    COMPARED,
    Comparison,
    Constant,
    Entry,
    Every,
    Logic,
    Name,
    Node,
    Not,
    Operation,
    Over,
    Uniform,
    Value,
)

__all__ = ["Listed", "OwnRules"]

Integers: TypeAlias = "NDArray[np.int64] | NDArray[np.object_]"
Mask: TypeAlias = NDArray[np.bool_]
#: Layers, and those with each recompute mode, of the listed stages, by stage; one entry per layout.
Listed: TypeAlias = Mapping[int, Mapping[str, NDArray[np.int64]]]

_OVER: Final = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_MODES: Final = tuple(mode.name for mode in MODES)
#: Products up to this bound use numpy's integers, larger ones Python's.
_SAFE: Final = float(2**62)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Exact fractions with positive denominators; ``defined`` is false after a division by zero."""

    numerator: Integers
    denominator: Integers
    defined: Mask


@dataclass(frozen=True, slots=True)
class _Truth:
    """Where a relation holds and where it fails for every completion; neither where it is open."""

    holds: Mask
    fails: Mask


@dataclass(frozen=True, slots=True)
class OwnRules:
    """User rules that a choice of degrees leaves open, with the values of all names."""

    relations: tuple[Node, ...]
    names: Mapping[str, Value]
    stages: int

    @staticmethod
    def of(job: Job, one: Candidates) -> OwnRules:
        """Return the rules of ``job`` that depend on the stages of a single choice."""
        (names,) = names_of(job, one)
        relations = [
            rule.relation.of_stages(one.pp) if isinstance(rule.relation, Every) else rule.relation
            for rule in own_rules(job)
        ]
        unreduced = OwnRules(tuple(r for r in relations if _applies(r, one.pp)), names, one.pp)
        open_relations = tuple(r for r in unreduced.relations if not unreduced.truth(r, {}).holds.all())
        return OwnRules(open_relations, names, one.pp)

    @property
    def distinguishing(self) -> frozenset[str]:
        """Quantities of a stage by which some rule may distinguish layouts."""
        return frozenset(quantity for relation in self.relations for quantity in _quantities_of(relation))

    def satisfiable(self, listed: Listed, size: int) -> Mask:
        """Return which of ``size`` partial layouts may still satisfy every rule."""
        satisfiable = np.ones(size, dtype=bool)
        for relation in self.relations:
            satisfiable &= ~self.truth(relation, listed).fails
        return satisfiable

    def truth(self, node: Node, listed: Listed) -> _Truth:
        """Return where ``node`` holds and where it fails."""
        if isinstance(node, Constant):
            return _decided(np.array(bool(node.value)))
        if isinstance(node, Not):
            inner = self.truth(node.part, listed)
            return _Truth(inner.fails, inner.holds)
        if isinstance(node, Uniform):
            return self._uniform(node.quantity, listed)
        if isinstance(node, Comparison):
            return self._compared(node, listed)
        assert isinstance(node, Logic)  # noqa: S101 - nothing else is true or false
        parts = [self.truth(part, listed) for part in node.parts]
        conjunction, disjunction = np.logical_and.reduce, np.logical_or.reduce
        if not node.every:
            conjunction, disjunction = disjunction, conjunction
        return _Truth(
            np.asarray(conjunction(np.broadcast_arrays(*(part.holds for part in parts)))),
            np.asarray(disjunction(np.broadcast_arrays(*(part.fails for part in parts)))),
        )

    def _uniform(self, quantity: str, listed: Listed) -> _Truth:
        stages = list(listed.values())
        if not stages:
            return _decided(np.ones((), dtype=bool)) if self.stages == 1 else _OPEN
        first, complete = stages[0], len(stages) == self.stages
        if quantity != "recompute":
            uniform = _all(stage[quantity] == first[quantity] for stage in stages)
        else:
            uniform = _all(stage[mode] == first[mode] for stage in stages for mode in _MODES)
            for mode in _MODES:
                uniform = uniform | _all(stage[mode] == stage["layers"] for stage in stages)
        return _Truth(uniform if complete else np.zeros_like(uniform), ~uniform)

    def _compared(self, node: Comparison, listed: Listed) -> _Truth:
        words = [self._word(side) for side in (node.left, node.right)]
        if None not in words:
            return _decided(np.array(bool(COMPARED[node.symbol](*words))))
        left, right = self._numbers(node.left, listed), self._numbers(node.right, listed)
        if left is None or right is None:
            return _OPEN
        holds = COMPARED[node.symbol](
            _times(left.numerator, right.denominator), _times(right.numerator, left.denominator)
        )
        return _decided(np.asarray(holds, dtype=bool) & left.defined & right.defined)

    def _word(self, node: Node) -> str | None:
        value = self.names.get(node.name) if isinstance(node, Name) else getattr(node, "value", None)
        return value if isinstance(value, str) else None

    def _numbers(self, node: Node, listed: Listed) -> _Numbers | None:
        """Return the values of ``node``; None where they depend on stages that are not listed."""
        if isinstance(node, Constant | Name):
            value = node.value if isinstance(node, Constant) else self.names[node.name]
            return _integer(np.array(value))
        if isinstance(node, Entry):
            stage = node.stage % self.stages
            return _integer(listed[stage][node.quantity]) if stage in listed else None
        if isinstance(node, Over):
            if len(listed) < self.stages:
                return None
            columns = np.stack([stage[node.quantity] for stage in listed.values()])
            return _integer(_OVER[node.function].reduce(columns, axis=0))
        assert isinstance(node, Operation)  # noqa: S101 - nothing else is a number
        left, right = self._numbers(node.left, listed), self._numbers(node.right, listed)
        return None if left is None or right is None else _combined(node.symbol, left, right)


_OPEN: Final = _Truth(np.zeros((), dtype=bool), np.zeros((), dtype=bool))


def _decided(holds: Mask) -> _Truth:
    return _Truth(holds, ~holds)


def _all(masks: object) -> Mask:
    conjunction: Mask = np.logical_and.reduce(list(cast("list[Mask]", masks)))
    return conjunction


def _integer(values: Integers) -> _Numbers:
    return _Numbers(values, np.array(1), np.ones(np.shape(values), dtype=bool))


def _combined(symbol: str, left: _Numbers, right: _Numbers) -> _Numbers:
    """Return ``left`` and ``right`` added, multiplied, divided ..., as exact fractions."""
    defined = left.defined & right.defined
    if symbol == "*":
        return _Numbers(
            _times(left.numerator, right.numerator), _times(left.denominator, right.denominator), defined
        )
    if symbol in ("+", "-"):
        first, second = _times(left.numerator, right.denominator), _times(right.numerator, left.denominator)
        total = first + second if symbol == "+" else first - second
        return _Numbers(total, _times(left.denominator, right.denominator), defined)
    # A quotient by zero is undefined; a divisor of 1 stands in for it.
    defined = defined & (right.numerator != 0)
    divisor = np.where(right.numerator == 0, 1, right.numerator)
    numerator = _times(left.numerator, right.denominator) * np.where(divisor < 0, -1, 1)
    denominator = _times(left.denominator, np.abs(divisor))
    if symbol == "/":
        return _Numbers(numerator, denominator, defined)
    quotient = _Numbers(numerator // denominator, np.array(1), defined)
    if symbol == "//":
        return quotient
    return _combined("-", left, _combined("*", quotient, _Numbers(divisor, right.denominator, defined)))


def _times(one: Integers, other: Integers) -> Integers:
    """Return the product, by Python's integers where numpy's would overflow."""
    if _largest(one) * _largest(other) >= _SAFE / 4:
        one, other = one.astype(object), other.astype(object)
    product: Integers = np.asarray(one * other)
    return product


def _largest(values: Integers) -> float:
    return float(max(abs(values.max()), abs(values.min()))) if values.size else 0.0


def _applies(relation: Node, stages: int) -> bool:
    """Return whether all stages that ``relation`` names exist; elsewhere the relation has no effect."""
    if isinstance(relation, Entry):
        return -stages <= relation.stage < stages
    return all(_applies(part, stages) for part in relation.below())


def _quantities_of(relation: Node) -> frozenset[str]:
    if isinstance(relation, Uniform) and relation.quantity == "recompute":
        return frozenset(("layers", *_MODES))
    if isinstance(relation, Entry | Over | Uniform):
        return frozenset({relation.quantity})
    return frozenset(name for part in relation.below() for name in _quantities_of(part))
