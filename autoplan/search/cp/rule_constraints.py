"""The user's own rules across stages as constraints of the solver's model.

What depends on one stage only is a sum over the literals of its options, whatever its form. Sums of such stay
linear; products, quotients and extremes of several stages get a variable. Numbers are fractions until they
meet the solver, so nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any, Final, TypeAlias, cast

from ortools.sat.python import cp_model

from autoplan.errors import UnsupportedError
from autoplan.schema.user_rules.expression import (
    COMPARED,
    Comparison,
    Constant,
    Extreme,
    Known,
    Logic,
    Node,
    Not,
    Operation,
    Value,
    left_of,
)
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives
from autoplan.search.space.recompute_mixes import places_of, stages_of

__all__ = ["impose"]

Literal: TypeAlias = cp_model.IntVar  # or the negation of one

_OPPOSITE: Final = {"<=": ">", ">": "<=", ">=": "<", "<": ">=", "==": "!=", "!=": "=="}
_MOST: Final = 2**45


def impose(
    cp: cp_model.CpModel, alternatives: Alternatives, pick: Literal, hold: Sequence[Sequence[Literal]]
) -> None:
    """Make the candidate of ``alternatives`` keep its rules across stages where it is picked.

    ``hold`` has a literal for each option of each stage. Raises UnsupportedError for numbers that the solver
    cannot hold.
    """
    writer = _ConstraintWriter(cp, alternatives, pick, hold)
    for node in alternatives.rules:
        writer.require(node)


@dataclass(frozen=True, slots=True)
class _Number:
    """A sum of literals and variables with a constant, its range, and literals for which it is undefined."""

    terms: tuple[tuple[Literal, Fraction], ...]
    constant: Fraction
    low: Fraction
    high: Fraction
    undefined: tuple[Literal, ...] = ()

    def plus(self, other: _Number, factor: Fraction) -> _Number:
        """Return this and ``factor`` times ``other``."""
        more = other.times(factor)
        return _Number(
            self.terms + more.terms,
            self.constant + more.constant,
            self.low + more.low,
            self.high + more.high,
            self.undefined + more.undefined,
        )

    def times(self, factor: Fraction) -> _Number:
        """Return ``factor`` times this."""
        ends = self.low * factor, self.high * factor
        terms = tuple((literal, weight * factor) for literal, weight in self.terms)
        return _Number(terms, self.constant * factor, min(ends), max(ends), self.undefined)

    @property
    def denominator(self) -> int:
        """The least number that makes every weight whole."""
        return lcm(self.constant.denominator, *(weight.denominator for _, weight in self.terms))

    def whole(self, denominator: int) -> tuple[cp_model.LinearExprT, int, int]:
        """Return ``denominator`` times this as the solver's expression, and its range."""
        low, high = int(self.low * denominator), int(self.high * denominator)
        if max(abs(low), abs(high)) > _MOST:
            raise UnsupportedError("a rule of the job leads to numbers that are too large: divide both sides")
        literals = [literal for literal, _ in self.terms]
        weights = [int(weight * denominator) for _, weight in self.terms]
        total = cp_model.LinearExpr.weighted_sum(literals, weights) + int(self.constant * denominator)
        return total, low, high


@dataclass(frozen=True, slots=True)
class _ConstraintWriter:
    """Writes the rules of one candidate."""

    cp: cp_model.CpModel
    alternatives: Alternatives
    pick: Literal
    hold: Sequence[Sequence[Literal]]

    def require(self, node: Node) -> None:
        """Make ``node`` hold where the candidate is picked."""
        if isinstance(node, Logic) and node.every:
            for part in node.parts:
                self.require(part)
        elif isinstance(node, Comparison):
            difference = self._difference(node)
            total, _, _ = difference.whole(difference.denominator)
            self.cp.add(COMPARED[node.symbol](total, 0)).only_enforce_if(self.pick)
            for literal in difference.undefined:
                self.cp.add(literal == 0)
        elif isinstance(node, Logic):
            self.cp.add_bool_or([self.truth(part) for part in node.parts]).only_enforce_if(self.pick)
        else:
            self.cp.add_implication(self.pick, self.truth(node))

    def truth(self, node: Node) -> Literal:
        """Return a literal that is true where ``node`` holds, if the candidate is picked."""
        stages = stages_of(node)
        if len(stages) <= 1:
            return self._truth_of_one(node, min(stages, default=0))
        if isinstance(node, Not):
            return _negation(self.truth(node.part))
        if isinstance(node, Logic):
            return self._joined([self.truth(part) for part in node.parts], every=node.every)
        assert isinstance(node, Comparison)  # noqa: S101 - the parser has looked
        return self._compared(node)

    def _truth_of_one(self, node: Node, stage: int) -> Literal:
        values = self._values(node, stage)
        chosen = [x for x, value in zip(self.hold[stage], values, strict=True) if value is True]
        literal = self.cp.new_bool_var("")
        self.cp.add(cp_model.LinearExpr.sum(chosen) == literal)
        return literal

    def _joined(self, parts: Sequence[Literal], *, every: bool) -> Literal:
        """Return a literal that is true where ``every`` part is, or else any."""
        literal = self.cp.new_bool_var("")
        joined, met = (parts, literal) if every else ([~part for part in parts], ~literal)
        self.cp.add_bool_and(joined).only_enforce_if(met)
        self.cp.add_bool_or([~part for part in joined]).only_enforce_if(~met)
        return literal

    def _compared(self, node: Comparison) -> Literal:
        difference = self._difference(node)
        total, _, _ = difference.whole(difference.denominator)
        literal = self.cp.new_bool_var("")
        self.cp.add(COMPARED[node.symbol](total, 0)).only_enforce_if(literal)
        self.cp.add(COMPARED[_OPPOSITE[node.symbol]](total, 0)).only_enforce_if(~literal)
        if not difference.undefined:
            return literal
        return self._joined([literal, *map(_negation, difference.undefined)], every=True)

    def _difference(self, node: Comparison) -> _Number:
        return self.number(node.left).plus(self.number(node.right), Fraction(-1))

    def number(self, node: Node) -> _Number:
        """Return ``node`` as a sum; zero where it is undefined."""
        stages = stages_of(node)
        if not stages:
            assert isinstance(node, Constant)  # noqa: S101 - every name is known
            value = Fraction(_known(node.value))
            return _Number((), value, value, value)
        if len(stages) == 1:
            return self._number_of_one(node, min(stages))
        if isinstance(node, Extreme):
            return self._extreme(node)
        assert isinstance(node, Operation)  # noqa: S101 - nothing else is a number
        return self._operation(node)

    def _operation(self, node: Operation) -> _Number:
        left, right = self.number(node.left), self.number(node.right)
        if node.symbol in ("+", "-"):
            return left.plus(right, Fraction(1 if node.symbol == "+" else -1))
        if node.symbol == "*":
            if not right.terms:
                left, right = right, left
            return self._product(left, right) if left.terms else right.times(left.constant)
        # The parser lets only what is the same for all stages divide several.
        if node.symbol == "/":
            return left.times(1 / right.constant)
        quotient = self._quotient(left, right.constant)
        return quotient if node.symbol == "//" else left.plus(quotient, -right.constant)

    def _number_of_one(self, node: Node, stage: int) -> _Number:
        values, literals = self._values(node, stage), self.hold[stage]
        known = [(x, Fraction(_known(v))) for x, v in zip(literals, values, strict=True) if v is not None]
        undefined = tuple(x for x, v in zip(literals, values, strict=True) if v is None)
        low = min((v for _, v in known), default=Fraction(0))
        high = max((v for _, v in known), default=Fraction(0))
        zero = Fraction(0)
        return _Number(tuple(known), zero, min(low, zero), max(high, zero), undefined)

    def _values(self, node: Node, stage: int) -> list[Value]:
        """Return the value of ``node`` for each option of ``stage``; None where it is undefined."""
        names = {quantity for quantity, _ in places_of(node)}
        return [
            _value(node, stage, len(self.hold), _counts(o, names)) for o in self.alternatives.stages[stage]
        ]

    def _variable(self, number: _Number, denominator: int) -> tuple[Literal, int, int]:
        """Return a variable that is ``denominator`` times ``number``, and its range."""
        total, low, high = number.whole(denominator)
        variable = self.cp.new_int_var(low, high, "")
        self.cp.add(variable == total)
        return variable, low, high

    def _product(self, left: _Number, right: _Number) -> _Number:
        scale = left.denominator * right.denominator
        one, *ends = self._variable(left, left.denominator)
        other, *others = self._variable(right, right.denominator)
        boxes = [a * b for a in ends for b in others]
        product = self._new(min(boxes), max(boxes))
        self.cp.add_multiplication_equality(product, [one, other])
        return _of_variable(product, boxes, scale, left.undefined + right.undefined)

    def _quotient(self, left: _Number, divisor: Fraction) -> _Number:
        """Return the whole part of ``left`` over ``divisor``, rounded down."""
        ratio = left.times(1 / divisor)
        denominator = ratio.denominator
        total, low, high = ratio.whole(denominator)
        ends = [low // denominator, high // denominator]
        quotient, rest = self._new(*ends), self._new(0, denominator - 1)
        self.cp.add(total == denominator * quotient + rest)
        return _of_variable(quotient, ends, 1, left.undefined)

    def _extreme(self, node: Extreme) -> _Number:
        parts = [self.number(part) for part in node.parts]
        scale = lcm(*(part.denominator for part in parts))
        variables, lows, highs = zip(*(self._variable(part, scale) for part in parts), strict=True)
        pick = max if node.function == "max" else min
        ends = [pick(lows), pick(highs)]
        extreme = self._new(*ends)
        add = self.cp.add_max_equality if node.function == "max" else self.cp.add_min_equality
        add(extreme, variables)
        return _of_variable(extreme, ends, scale, tuple(x for part in parts for x in part.undefined))

    def _new(self, low: int, high: int) -> Literal:
        if max(abs(low), abs(high)) > _MOST:
            raise UnsupportedError("a rule of the job leads to numbers that are too large: divide both sides")
        return self.cp.new_int_var(low, high, "")


def _of_variable(
    variable: Literal, ends: Sequence[int], scale: int, undefined: tuple[Literal, ...]
) -> _Number:
    """Return ``variable`` over ``scale``."""
    low, high = Fraction(min(ends), scale), Fraction(max(ends), scale)
    return _Number(((variable, Fraction(1, scale)),), Fraction(0), low, high, undefined)


def _negation(literal: Literal) -> Literal:
    negated: Any = ~literal
    return cast("Literal", negated)


def _counts(option: Alternative, names: set[str]) -> Mapping[str, int]:
    return {name: getattr(option, name) for name in names}


def _value(node: Node, stage: int, stages: int, counts: Mapping[str, int]) -> Value:
    left = left_of(node, Known({}, stages, {(name, stage): n for name, n in counts.items()}))
    assert isinstance(left, Constant)  # noqa: S101 - the stage's counts are all it depends on
    return left.value


def _known(value: Value) -> int | Fraction:
    assert isinstance(value, int | Fraction)  # noqa: S101 - the parser has looked
    return value
