"""The user's own rules on layouts that are listed stage by stage: many at once, known as far as listed.

A relation is read anew here, over columns of whole numbers, and not by what the search makes of it. What is
said of stages that are not listed yet is open; a rule is broken only where nothing that may follow mends it.
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
from autoplan.schema.user_rules.expression import (
    COMPARED,
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
    Value,
)

__all__ = ["Listed", "OwnRules"]

Whole: TypeAlias = "NDArray[np.int64] | NDArray[np.object_]"
Mask: TypeAlias = NDArray[np.bool_]
#: Layers, selective and full of each stage that is listed, by its number; one entry a layout.
Listed: TypeAlias = Mapping[int, Mapping[str, NDArray[np.int64]]]

_OVER: Final = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_QUANTITIES: Final = ("layers", "selective", "full")
#: Products up to here are those of numpy's integers; above, Python's take over.
_SAFE: Final = float(2**62)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Fractions ``above`` / ``below``, the latter positive; ``defined`` is false where zero divided."""

    above: Whole
    below: Whole
    defined: Mask


@dataclass(frozen=True, slots=True)
class _Truth:
    """Where a relation holds and where it fails, whatever follows; neither where that is open."""

    holds: Mask
    fails: Mask


@dataclass(frozen=True, slots=True)
class OwnRules:
    """The rules that a choice of degrees leaves open, with the values of all names."""

    relations: tuple[Node, ...]
    names: Mapping[str, Value]
    stages: int

    @staticmethod
    def of(job: Job, one: Candidates) -> OwnRules:
        """Return what the rules of ``job`` leave to the stages of a single choice."""
        (names,) = names_of(job, one)
        said = [rule.relation for rule in own_rules(job)]
        every = OwnRules(tuple(r for r in said if _speaks(r, one.pp)), names, one.pp)
        left = tuple(r for r in every.relations if not every.truth(r, {}).holds.all())
        return OwnRules(left, names, one.pp)

    @property
    def told_apart(self) -> frozenset[str]:
        """The quantities of a stage by which some rule may tell layouts apart."""
        return frozenset(quantity for relation in self.relations for quantity in _named(relation))

    def kept(self, listed: Listed, size: int) -> Mask:
        """Return which of ``size`` layouts may still keep every rule, as far as they are ``listed``."""
        kept = np.ones(size, dtype=bool)
        for relation in self.relations:
            kept &= ~self.truth(relation, listed).fails
        return kept

    def truth(self, node: Node, listed: Listed) -> _Truth:
        """Return where ``node`` holds and fails."""
        if isinstance(node, Constant):
            return _sure(np.array(bool(node.value)))
        if isinstance(node, Not):
            inner = self.truth(node.part, listed)
            return _Truth(inner.fails, inner.holds)
        if isinstance(node, Uniform):
            return self._uniform(node.quantity, listed)
        if isinstance(node, Comparison):
            return self._compared(node, listed)
        assert isinstance(node, Logic)  # noqa: S101 - nothing else is true or false
        parts = [self.truth(part, listed) for part in node.parts]
        every, some = np.logical_and.reduce, np.logical_or.reduce
        if not node.every:
            every, some = some, every
        return _Truth(
            np.asarray(every(np.broadcast_arrays(*(part.holds for part in parts)))),
            np.asarray(some(np.broadcast_arrays(*(part.fails for part in parts)))),
        )

    def _uniform(self, quantity: str, listed: Listed) -> _Truth:
        stages = list(listed.values())
        if not stages:
            return _sure(np.ones((), dtype=bool)) if self.stages == 1 else _OPEN
        first, everything = stages[0], len(stages) == self.stages
        if quantity != "recompute":
            may = _all(stage[quantity] == first[quantity] for stage in stages)
        else:
            counts = (
                (stage["full"] == first["full"]) & (stage["selective"] == first["selective"])
                for stage in stages
            )
            whole = _all(stage["full"] == stage["layers"] for stage in stages)
            partly = _all(stage["selective"] == stage["layers"] for stage in stages)
            may = _all(counts) | whole | partly
        return _Truth(may if everything else np.zeros_like(may), ~may)

    def _compared(self, node: Comparison, listed: Listed) -> _Truth:
        words = [self._word(side) for side in (node.left, node.right)]
        if None not in words:
            return _sure(np.array(bool(COMPARED[node.symbol](*words))))
        left, right = self._numbers(node.left, listed), self._numbers(node.right, listed)
        if left is None or right is None:
            return _OPEN
        holds = COMPARED[node.symbol](_times(left.above, right.below), _times(right.above, left.below))
        return _sure(np.asarray(holds, dtype=bool) & left.defined & right.defined)

    def _word(self, node: Node) -> str | None:
        value = self.names.get(node.name) if isinstance(node, Name) else getattr(node, "value", None)
        return value if isinstance(value, str) else None

    def _numbers(self, node: Node, listed: Listed) -> _Numbers | None:
        """Return the values of ``node``; None where they depend on stages that are not listed."""
        if isinstance(node, Constant | Name):
            value = node.value if isinstance(node, Constant) else self.names[node.name]
            return _whole(np.array(value))
        if isinstance(node, Entry):
            stage = node.stage % self.stages
            return _whole(listed[stage][node.quantity]) if stage in listed else None
        if isinstance(node, Over):
            if len(listed) < self.stages:
                return None
            columns = np.stack([stage[node.quantity] for stage in listed.values()])
            return _whole(_OVER[node.function].reduce(columns, axis=0))
        assert isinstance(node, Operation)  # noqa: S101 - nothing else is a number
        left, right = self._numbers(node.left, listed), self._numbers(node.right, listed)
        return None if left is None or right is None else _combined(node.symbol, left, right)


_OPEN: Final = _Truth(np.zeros((), dtype=bool), np.zeros((), dtype=bool))


def _sure(holds: Mask) -> _Truth:
    return _Truth(holds, ~holds)


def _all(masks: object) -> Mask:
    found: Mask = np.logical_and.reduce(list(cast("list[Mask]", masks)))
    return found


def _whole(values: Whole) -> _Numbers:
    return _Numbers(values, np.array(1), np.ones(np.shape(values), dtype=bool))


def _combined(symbol: str, left: _Numbers, right: _Numbers) -> _Numbers:
    """Return ``left`` and ``right`` added, multiplied, divided ..., as exact fractions."""
    defined = left.defined & right.defined
    if symbol == "*":
        return _Numbers(_times(left.above, right.above), _times(left.below, right.below), defined)
    if symbol in ("+", "-"):
        first, second = _times(left.above, right.below), _times(right.above, left.below)
        total = first + second if symbol == "+" else first - second
        return _Numbers(total, _times(left.below, right.below), defined)
    # Divided by zero it is undefined, whatever is computed in its place.
    defined = defined & (right.above != 0)
    divisor = np.where(right.above == 0, 1, right.above)
    above = _times(left.above, right.below) * np.where(divisor < 0, -1, 1)
    below = _times(left.below, np.abs(divisor))
    if symbol == "/":
        return _Numbers(above, below, defined)
    quotient = _Numbers(above // below, np.array(1), defined)
    if symbol == "//":
        return quotient
    return _combined("-", left, _combined("*", quotient, _Numbers(divisor, right.below, defined)))


def _times(one: Whole, other: Whole) -> Whole:
    """Return the product, by Python's whole numbers where numpy's are too short."""
    if _largest(one) * _largest(other) >= _SAFE / 4:
        one, other = one.astype(object), other.astype(object)
    product: Whole = np.asarray(one * other)
    return product


def _largest(values: Whole) -> float:
    return float(max(abs(values.max()), abs(values.min()))) if values.size else 0.0


def _speaks(relation: Node, stages: int) -> bool:
    """Return false where ``relation`` names a stage that there is not: then it says nothing."""
    if isinstance(relation, Entry):
        return -stages <= relation.stage < stages
    return all(_speaks(part, stages) for part in relation.below())


def _named(relation: Node) -> frozenset[str]:
    if isinstance(relation, Uniform) and relation.quantity == "recompute":
        return frozenset(_QUANTITIES)
    if isinstance(relation, Entry | Over | Uniform):
        return frozenset({relation.quantity})
    return frozenset(name for part in relation.below() for name in _named(part))
