"""One choice of degrees with the prices of every number of layers of a stage and every recompute mix.

The evaluation is independent of the search. A relation that depends on stages that are not listed yet is
open; it fails only where no completion satisfies it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints, ScheduleCode, recompute_mode
from autoplan.costs.core.layer_types import Prefixes, StageLayers, layer_types_of
from autoplan.costs.core.scope import microbatches
from autoplan.costs.device.machine import Machine
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.mixed_stages import mixed_stages_of, price_layer_types
from autoplan.costs.stage.stage_times import Stages, end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.rules.user_constraints import embedding_and_loss_counted, names_of, user_rules_of
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.recompute import FULL, MODES, listed_modes
from autoplan.schema.stage_layers import even_stages, order_of
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
from autoplan.verification.enumeration import even_only, modes_of


@dataclass(frozen=True, slots=True)
class Rows:
    """Layers before a stage (-1 with one layer type), layers of the stage, and their recompute counts, [X].

    ``starts`` are the rows at which the layer range changes. ``representatives`` has one of the rows with the
    same sequence of layer types and the same recompute, ``layers_by_type`` their layers; ``inverse`` [X] is
    the index of the representative of each row.
    """

    before: Ints
    layers: Ints
    recomputed: Mapping[str, Ints]
    starts: Ints
    representatives: Ints
    layers_by_type: StageLayers | None
    inverse: Ints


def rows_of(
    job: Job,
    pp: int,
    v: int,
    unit: int,
    only: str | None = None,
    *,
    most: int | None = None,
    among: Collection[int] | None = None,
) -> Rows | None:
    """Return all rows of ``pp`` stages of ``v`` chunks, with ``unit`` layers per recompute unit.

    With ``only``, all layers have that recompute mode; with ``most``, no stage has more layers; with
    ``among``, each has one of these numbers of layers. None where no row is left.
    """
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    modes = tuple(modes_of(job)) if only is None else (only,)
    total = job.model.layers
    counts = tuple(range(v, total - (pp - 1) * v + 1, v))
    if embedding_and_loss_counted(job, pp, v):
        counts = tuple(sorted(set(even_stages(total, pp, v))))
    if most is not None:
        counts = tuple(count for count in counts if count <= most)
    if among is not None:
        counts = tuple(count for count in counts if count in among)
    return None if not counts else _rows(kinds.sequence, len(kinds.models), modes, counts, v, unit)


@lru_cache(maxsize=64)
def _rows(
    sequence: tuple[int, ...],
    kinds: int,
    modes: tuple[str, ...],
    counts: tuple[int, ...],
    v: int,
    unit: int,
) -> Rows:
    total = len(sequence)
    listed = listed_modes(modes)
    table = [
        (before, count, *mix)
        for before, count in product(range(0, total - v + 1, v) if kinds > 1 else [-1], counts)
        if max(before, 0) + count <= total
        for mix in _mixes_of(count, listed, modes, unit)
        if "none" in modes or sum(mix) == count
    ]
    before, layers, *columns = np.array(table, dtype=np.int64).T
    recomputed = dict(zip(listed, columns, strict=True))
    range_key = before * (total + 1) + layers
    starts = np.flatnonzero(np.diff(range_key, prepend=range_key[0] - 1))
    if kinds == 1:
        every = np.arange(len(layers))
        return Rows(before, layers, recomputed, starts, every, None, every)
    numbers: dict[tuple[int, ...], int] = {}
    orders = [
        numbers.setdefault(order_of(sequence, a, n, v), len(numbers))
        for a, n in zip(before[starts].tolist(), layers[starts].tolist(), strict=True)
    ]
    order = np.repeat(orders, np.diff(starts, append=len(layers)))
    keys = np.stack([order, *columns])
    _, representatives, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    layers_by_type = Prefixes.of(list(numbers), kinds).layer_counts(
        order[representatives], {mode: column[representatives] for mode, column in recomputed.items()}
    )
    return Rows(before, layers, recomputed, starts, representatives, layers_by_type, inverse.ravel())


def _mixes_of(
    layers: int, listed: Sequence[str], modes: Collection[str], unit: int
) -> Iterator[tuple[int, ...]]:
    """Yield the counts of the ``listed`` modes in a stage of at most ``layers`` layers, one by one."""
    if not listed:
        yield ()
        return
    mode, *others = listed
    for count in range(0, layers + 1 if mode in modes else 1, unit if mode == FULL else 1):
        yield from ((count, *mix) for mix in _mixes_of(layers - count, others, modes, unit))


def row_prices(job: Job, kinds: Sequence[Stages], rows: Rows) -> tuple[Array, ...]:
    """Return forward, backward, split weight gradient and end of step [s], memory [byte], whether it fits.

    All of shape [p, X]; ``kinds`` are the coefficients of the choice's stages by layer type.
    """
    stages = [kind.take((0, slice(None), None)) for kind in kinds]
    if rows.layers_by_type is None:
        return _prices(job, stages[0], rows)
    return tuple(x[:, rows.inverse] for x in _prices(job, mixed_stages_of(stages, rows.layers_by_type), rows))


def _prices(job: Job, stages: Stages, rows: Rows) -> tuple[Array, ...]:
    n = rows.layers[rows.representatives].astype(float)
    mix = {mode: column[rows.representatives].astype(float) for mode, column in rows.recomputed.items()}
    prices = (
        stage_forward(stages, n),
        stage_backward(stages, n, mix),
        stage_weight(stages, n),
        end_of_step(stages, n, mix).total,
        *stage_fits(stages.memory, n, mix, memory_limit_bytes(job)),
    )
    shape = np.broadcast_shapes(*(x.shape for x in prices))
    return tuple(np.broadcast_to(x, shape) for x in prices)


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
            for rule in user_rules_of(job)
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


@dataclass(frozen=True, slots=True)
class Listing:
    """One choice with the prices of every number of layers and mix of recompute, shape [p, X].

    ``starts`` are the indices at which the number of layers changes, ``counts`` the numbers of layers there.
    With several layer types a stage is listed once for each number of layers ``before`` it; with one type
    ``before`` is -1. ``satisfied`` says which mixes of a stage the user's ``rules`` allow for some mixes
    of the other stages.
    """

    candidates: Candidates
    schedule: int
    m: int
    v: int
    total: int
    before: Ints
    layers: Ints
    recomputed: Mapping[str, Ints]
    starts: Ints
    counts: Ints
    forward: Array
    backward: Array
    weight: Array
    tail: Array
    memory: Array
    fits: NDArray[np.bool_]
    rules: OwnRules
    satisfied: NDArray[np.bool_]

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return self.candidates.pp

    @property
    def layer_ranges(self) -> list[tuple[int, int]]:
        """Pairs of the layers before a stage (or -1) and the layers of the stage."""
        return list(zip(self.before[self.starts].tolist(), self.counts.tolist(), strict=True))

    @property
    def gpipe(self) -> bool:
        """Whether the schedule is GPipe."""
        return self.schedule == ScheduleCode.GPIPE

    @property
    def split_backward(self) -> bool:
        """Whether the backward is split: the schedule is zero-bubble."""
        return self.schedule == ScheduleCode.ZERO_BUBBLE

    @property
    def recompute_num_layers(self) -> int:
        """Layers per recompute unit."""
        return int(self.candidates.recompute_num_layers[0])

    @staticmethod
    def of(
        job: Job, candidates: Candidates, position: int, machine: Machine, longest: float = np.inf
    ) -> Listing | None:
        """Return the choice at ``position`` with the times [s] and memory [byte] of all mixes.

        Numbers of layers with which a stage alone takes ``longest`` seconds are left out. None where none is
        left.
        """
        one = candidates.take(np.array([position]))
        pp, v, m = one.pp, int(one.vpp[0]), int(microbatches(job, one)[0])
        kinds = price_layer_types(job, one, machine)
        rows = rows_of(
            job,
            pp,
            v,
            int(one.recompute_num_layers[0]),
            recompute_mode(int(one.uniform_recompute[0])),
            most=_most_layers(kinds, longest / m),
        )
        if rows is None:
            return None
        forward, backward, weight, tail, memory, fits = row_prices(job, kinds, rows)
        starts, layers = rows.starts, rows.layers
        rules = OwnRules.of(job, one)
        recomputed = {mode.name: np.zeros_like(layers) for mode in MODES} | {**rows.recomputed}
        mixes = {"layers": layers, **recomputed}
        return Listing(
            candidates=one,
            schedule=int(one.schedule[0]),
            m=m,
            v=v,
            total=job.model.layers,
            before=rows.before,
            layers=layers,
            recomputed=recomputed,
            starts=starts,
            counts=layers[starts],
            forward=forward,
            backward=backward,
            weight=weight,
            tail=tail,
            memory=memory,
            fits=(fits > 0) & _allowed(job, rows, pp, v),
            rules=rules,
            satisfied=np.stack([rules.satisfiable({s: mixes}, len(layers)) for s in range(pp)]),
        )

    def steady_passes(self, s: int) -> int:
        """Return M - 2 - w: how many chunks stage ``s`` alternates, w being its warm-up; none if negative."""
        warmup = self.pp - 1 - s if self.v == 1 else 2 * (self.pp - 1 - s) + (self.v - 1) * self.pp
        return self.m * self.v - 2 - warmup

    def returns(self, s: int, both: Array, before: Array) -> tuple[Array, Array]:
        """Return parts of the bounds through stage ``s`` [s]: of the return path, and of its own rounds.

        ``both`` is t of the stage, ``before`` the sum of t before it.
        """
        never = np.full_like(both, -np.inf)
        if self.v == 1:
            return ((self.m - 1 - self.pp + s) * both - before if self.m > self.pp - s else never), never
        if self.steady_passes(s) < 0:
            return never, never
        own_passes = self.m * self.v - (self.v - 1) * self.pp
        return self.steady_passes(s) * both - before, before + own_passes * both

    def satisfiable(self, mixes: Ints) -> NDArray[np.bool_]:
        """Return which partial layouts may still satisfy the user's rules; ``mixes`` has shape [S, k]."""
        counts = {"layers": self.layers, **self.recomputed}
        listed = {
            s: {name: column[mixes[:, s]] for name, column in counts.items()} for s in range(mixes.shape[1])
        }
        return self.rules.satisfiable(listed, len(mixes))

    def layout(self, mixes: Sequence[int]) -> Layout:
        """Return the layout whose stages have ``mixes``."""
        at = list(mixes)
        recomputed = {mode.name: self.recomputed[mode.name][at].tolist() for mode in MODES}
        return self.candidates.layout(0, self.layers[at].tolist(), recomputed)


def _most_layers(kinds: Sequence[Stages], longest: float) -> int | None:
    """Return the most layers with which some stage may take less than ``longest`` seconds; None for any.

    A stage takes the time of what is outside its layers and of as many of the cheapest layers, or more.
    """
    if not np.isfinite(longest):
        return None
    fixed = np.min([kind.forward.fixed + kind.backward.fixed for kind in kinds], axis=(0, 1))
    recompute = [np.minimum(np.minimum.reduce(list(kind.recompute.values())), 0.0) for kind in kinds]
    layer = [kind.forward.layer + kind.backward.layer + r for kind, r in zip(kinds, recompute, strict=True)]
    least: Array = np.min(layer, axis=(0, 1))
    return int(np.max(np.floor((longest - fixed) / least))) + 1


def _allowed(job: Job, rows: Rows, pp: int, v: int) -> NDArray[np.bool_]:
    """Return which rows are possible on which stage, shape [p, X]."""
    layers, total = rows.layers, job.model.layers
    allowed = np.ones((pp, len(layers)), dtype=bool)
    if pp == 1:
        allowed &= layers == total
    if even_only(job, pp, v):
        allowed &= layers[None] == np.array(even_stages(total, pp, v))[:, None]
    if rows.layers_by_type is not None:
        # Every stage before and after this one has at least one layer per chunk.
        stage, after = np.arange(pp)[:, None], total - rows.before - layers
        allowed &= np.where(stage == 0, rows.before == 0, rows.before >= stage * v)
        allowed &= np.where(stage == pp - 1, after == 0, after >= (pp - 1 - stage) * v)
    return allowed
