"""The user's rules across stages as constraints of the CP-SAT model.

An expression of one stage is linear in the literals of its alternatives, whatever its form. Sums of these
stay linear; products, quotients and extremes of several stages get a variable. Numbers are exact fractions,
scaled to integers for the solver.
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

Literal: TypeAlias = cp_model.IntVar  # or the negation of one

_OPPOSITE: Final = {"<=": ">", ">": "<=", ">=": "<", "<": ">=", "==": "!=", "!=": "=="}
_LARGEST: Final = 2**45


def impose(
    cp: cp_model.CpModel, alternatives: Alternatives, pick: Literal, hold: Sequence[Sequence[Literal]]
) -> None:
    """Add the rules across stages of the candidate of ``alternatives``, enforced where it is picked.

    ``hold`` has a literal for each alternative of each stage. Raises UnsupportedError for numbers beyond the
    solver's range.
    """
    writer = _ConstraintWriter(cp, alternatives, pick, hold)
    for node in alternatives.rules:
        writer.require(node)


@dataclass(frozen=True, slots=True)
class _Number:
    """A linear expression with its range, and the literals for which it is undefined."""

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
        """Least common denominator of the coefficients."""
        return lcm(self.constant.denominator, *(weight.denominator for _, weight in self.terms))

    def scaled(self, denominator: int) -> tuple[cp_model.LinearExprT, int, int]:
        """Return ``denominator`` times this as an integer expression of the solver, and its range."""
        low, high = int(self.low * denominator), int(self.high * denominator)
        if max(abs(low), abs(high)) > _LARGEST:
            raise UnsupportedError("a rule of the job leads to numbers that are too large: divide both sides")
        literals = [literal for literal, _ in self.terms]
        weights = [int(weight * denominator) for _, weight in self.terms]
        total = cp_model.LinearExpr.weighted_sum(literals, weights) + int(self.constant * denominator)
        return total, low, high


@dataclass(frozen=True, slots=True)
class _ConstraintWriter:
    """Translates the rules of one candidate to constraints."""

    cp: cp_model.CpModel
    alternatives: Alternatives
    pick: Literal
    hold: Sequence[Sequence[Literal]]

    def require(self, node: Node) -> None:
        """Add the constraint that ``node`` is true where the candidate is picked."""
        if isinstance(node, Logic) and node.every:
            for part in node.parts:
                self.require(part)
        elif isinstance(node, Comparison):
            difference = self._difference(node)
            total, _, _ = difference.scaled(difference.denominator)
            self.cp.add(COMPARED[node.symbol](total, 0)).only_enforce_if(self.pick)
            for literal in difference.undefined:
                self.cp.add(literal == 0)
        elif isinstance(node, Logic):
            self.cp.add_bool_or([self.truth(part) for part in node.parts]).only_enforce_if(self.pick)
        else:
            self.cp.add_implication(self.pick, self.truth(node))

    def truth(self, node: Node) -> Literal:
        """Return a literal that is true if and only if ``node`` is, where the candidate is picked."""
        stages = stages_of(node)
        if len(stages) <= 1:
            return self._truth_in_stage(node, min(stages, default=0))
        if isinstance(node, Not):
            return _negation(self.truth(node.part))
        if isinstance(node, Logic):
            return self._combined([self.truth(part) for part in node.parts], every=node.every)
        assert isinstance(node, Comparison)  # noqa: S101 - ensured by the parser
        return self._compared(node)

    def _truth_in_stage(self, node: Node, stage: int) -> Literal:
        values = self._values(node, stage)
        satisfying = [x for x, value in zip(self.hold[stage], values, strict=True) if value is True]
        literal = self.cp.new_bool_var("")
        self.cp.add(cp_model.LinearExpr.sum(satisfying) == literal)
        return literal

    def _combined(self, parts: Sequence[Literal], *, every: bool) -> Literal:
        """Return the conjunction (``every``) or disjunction of literals, as a literal."""
        literal = self.cp.new_bool_var("")
        literals, conjunction = (parts, literal) if every else ([~part for part in parts], ~literal)
        self.cp.add_bool_and(literals).only_enforce_if(conjunction)
        self.cp.add_bool_or([~part for part in literals]).only_enforce_if(~conjunction)
        return literal

    def _compared(self, node: Comparison) -> Literal:
        difference = self._difference(node)
        total, _, _ = difference.scaled(difference.denominator)
        literal = self.cp.new_bool_var("")
        self.cp.add(COMPARED[node.symbol](total, 0)).only_enforce_if(literal)
        self.cp.add(COMPARED[_OPPOSITE[node.symbol]](total, 0)).only_enforce_if(~literal)
        if not difference.undefined:
            return literal
        return self._combined([literal, *map(_negation, difference.undefined)], every=True)

    def _difference(self, node: Comparison) -> _Number:
        return self.number(node.left).plus(self.number(node.right), Fraction(-1))

    def number(self, node: Node) -> _Number:
        """Return ``node`` as a linear expression, zero where it is undefined."""
        stages = stages_of(node)
        if not stages:
            assert isinstance(node, Constant)  # noqa: S101 - every name is known
            value = Fraction(_known(node.value))
            return _Number((), value, value, value)
        if len(stages) == 1:
            return self._number_in_stage(node, min(stages))
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

    def _number_in_stage(self, node: Node, stage: int) -> _Number:
        values, literals = self._values(node, stage), self.hold[stage]
        terms = [(x, Fraction(_known(v))) for x, v in zip(literals, values, strict=True) if v is not None]
        undefined = tuple(x for x, v in zip(literals, values, strict=True) if v is None)
        low = min((v for _, v in terms), default=Fraction(0))
        high = max((v for _, v in terms), default=Fraction(0))
        zero = Fraction(0)
        return _Number(tuple(terms), zero, min(low, zero), max(high, zero), undefined)

    def _values(self, node: Node, stage: int) -> list[Value]:
        """Return the value of ``node`` for each alternative of ``stage``; None where it is undefined."""
        names = {quantity for quantity, _ in places_of(node)}
        return [
            _value(node, stage, len(self.hold), _counts(o, names)) for o in self.alternatives.stages[stage]
        ]

    def _variable(self, number: _Number, denominator: int) -> tuple[Literal, int, int]:
        """Return a variable equal to ``denominator`` times ``number``, and its range."""
        total, low, high = number.scaled(denominator)
        variable = self.cp.new_int_var(low, high, "")
        self.cp.add(variable == total)
        return variable, low, high

    def _product(self, left: _Number, right: _Number) -> _Number:
        scale = left.denominator * right.denominator
        one, *ends = self._variable(left, left.denominator)
        other, *others = self._variable(right, right.denominator)
        corners = [a * b for a in ends for b in others]
        product = self._new_variable(min(corners), max(corners))
        self.cp.add_multiplication_equality(product, [one, other])
        return _of_variable(product, corners, scale, left.undefined + right.undefined)

    def _quotient(self, left: _Number, divisor: Fraction) -> _Number:
        """Return ``left`` divided by ``divisor``, rounded down."""
        ratio = left.times(1 / divisor)
        denominator = ratio.denominator
        total, low, high = ratio.scaled(denominator)
        ends = [low // denominator, high // denominator]
        quotient, remainder = self._new_variable(*ends), self._new_variable(0, denominator - 1)
        self.cp.add(total == denominator * quotient + remainder)
        return _of_variable(quotient, ends, 1, left.undefined)

    def _extreme(self, node: Extreme) -> _Number:
        parts = [self.number(part) for part in node.parts]
        scale = lcm(*(part.denominator for part in parts))
        variables, lows, highs = zip(*(self._variable(part, scale) for part in parts), strict=True)
        pick = max if node.function == "max" else min
        ends = [pick(lows), pick(highs)]
        extreme = self._new_variable(*ends)
        add = self.cp.add_max_equality if node.function == "max" else self.cp.add_min_equality
        add(extreme, variables)
        return _of_variable(extreme, ends, scale, tuple(x for part in parts for x in part.undefined))

    def _new_variable(self, low: int, high: int) -> Literal:
        if max(abs(low), abs(high)) > _LARGEST:
            raise UnsupportedError("a rule of the job leads to numbers that are too large: divide both sides")
        return self.cp.new_int_var(low, high, "")


def _of_variable(
    variable: Literal, ends: Sequence[int], scale: int, undefined: tuple[Literal, ...]
) -> _Number:
    """Return ``variable`` divided by ``scale``."""
    low, high = Fraction(min(ends), scale), Fraction(max(ends), scale)
    return _Number(((variable, Fraction(1, scale)),), Fraction(0), low, high, undefined)


def _negation(literal: Literal) -> Literal:
    negated: Any = ~literal
    return cast("Literal", negated)


def _counts(alternative: Alternative, names: set[str]) -> Mapping[str, int]:
    return {name: alternative.count(name) for name in names}


def _value(node: Node, stage: int, stages: int, counts: Mapping[str, int]) -> Value:
    folded = left_of(node, Known({}, stages, {(name, stage): n for name, n in counts.items()}))
    assert isinstance(folded, Constant)  # noqa: S101 - the stage's counts are all it depends on
    return folded.value


def _known(value: Value) -> int | Fraction:
    assert isinstance(value, int | Fraction)  # noqa: S101 - ensured by the parser
    return value
