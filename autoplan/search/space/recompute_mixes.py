"""User rules on the stages of a candidate, and the recompute mixes that they distinguish.

The residual rules of a candidate are a conjunction. A conjunct about one stage filters the alternatives of
that stage. A conjunct about several stages becomes a constraint of the solver's model; a stage then offers,
for every number of layers, the fastest mix for each value of the quantities in such conjuncts. Dominated
mixes are removed only among those that no rule distinguishes, so the removal loses no optimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import inf
from operator import and_, or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import ByMode, Ints
from autoplan.schema.recompute import MODES
from autoplan.schema.user_rules.expression import (
    COMPARED,
    COMPUTED,
    DIVIDED,
    TRUE,
    Comparison,
    Constant,
    Entry,
    Known,
    Logic,
    Node,
    Not,
    Operation,
    Place,
    at_stage,
    decided,
)


@dataclass(frozen=True, slots=True)
class StageRules:
    """Rules on the alternatives of one stage: ``of_stage`` are those about this stage alone, as of the first.

    ``seen`` are the quantities of the stage that occur in rules about several stages.
    """

    stage: int
    stages: int
    of_stage: tuple[Node, ...]
    seen: frozenset[str]

    @property
    def of_recompute(self) -> bool:
        """Whether some rule distinguishes recompute mixes of the same number of layers."""
        return bool(self.seen - {"layers"}) or any(
            quantity != "layers" for node in self.of_stage for quantity, _ in places_of(node)
        )

    def allows(self, layers: Ints | int, recomputed: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Return which mixes of a stage of ``layers`` satisfy the rules about this stage alone.

        Arrays are broadcast against each other. Modes that are left out have no layers.
        """
        layers, named = np.atleast_1d(layers), _quantities_in(self.of_stage)
        counts = {mode: n.astype(np.int64, copy=False) for mode, n in recomputed.items() if mode in named}
        counts["layers"] = layers
        allowed = np.ones(np.broadcast(layers, *recomputed.values()).shape, dtype=bool)
        for node in self.of_stage:
            allowed &= _holds(node, counts) if _bounded(node) else _holds_by_row(node, self.stages, counts)
        return allowed

    def indistinguishable(self, recomputed: ByMode, reference: Mapping[str, int]) -> NDArray[np.bool_]:
        """Return which mixes no rule on several stages distinguishes from the counts ``reference``."""
        same = np.ones(len(next(iter(recomputed.values()))), dtype=bool)
        for mode, counts in recomputed.items():
            if mode in self.seen:
                same &= counts == reference[mode]
        return same


#: No number within a comparison that is evaluated in 64 bits is as large; a stage has fewer layers than this.
_LARGEST, _MOST_LAYERS = 2**62, 2**9


@lru_cache(maxsize=4096)
def _bounded(node: Node) -> bool:
    """Return whether a rule about the first stage can be evaluated exactly in 64-bit integers.

    No sum, product, quotient or remainder exceeds the product of its parts, each counted as 2 or more.
    """
    if isinstance(node, Comparison):
        return _most(node.left) < _LARGEST and _most(node.right) < _LARGEST
    return isinstance(node, Logic | Not | Constant) and all(map(_bounded, node.below()))


def _most(node: Node) -> float:
    """Return a bound on the absolute value of an integer; infinite for what is no integer."""
    if isinstance(node, Operation) and node.symbol != "/":
        return _most(node.left) * _most(node.right)
    if isinstance(node, Constant) and type(node.value) is int:
        return max(2, abs(node.value))
    return _MOST_LAYERS if isinstance(node, Entry) else inf


def _holds(node: Node, counts: Mapping[str, Ints]) -> NDArray[np.bool_] | bool:
    """Return where a ``_bounded`` rule about the first stage holds for the counts of a stage."""
    if isinstance(node, Comparison):
        (left, defined), (right, also) = _number(node.left, counts), _number(node.right, counts)
        holds: NDArray[np.bool_] = COMPARED[node.symbol](left, right) & defined & also
        return holds
    if isinstance(node, Not):
        return np.logical_not(_holds(node.part, counts))
    if isinstance(node, Logic):
        parts = [_holds(part, counts) for part in node.parts]
        return reduce(and_ if node.every else or_, parts)
    assert isinstance(node, Constant)  # noqa: S101 - see ``_bounded``
    return bool(node.value)


def _number(node: Node, counts: Mapping[str, Ints]) -> tuple[Any, Any]:
    """Return a number of each row, and where it is defined: not behind a division by zero."""
    if isinstance(node, Operation):
        (left, defined), (right, also) = _number(node.left, counts), _number(node.right, counts)
        defined &= also
        if node.symbol in DIVIDED:
            defined, right = defined & (right != 0), np.where(right == 0, 1, right)
        return COMPUTED[node.symbol](left, right), defined
    if isinstance(node, Entry):
        return counts.get(node.quantity, 0), True
    assert isinstance(node, Constant)  # noqa: S101 - see ``_bounded``
    return node.value, True


def _holds_by_row(node: Node, stages: int, counts: Mapping[str, Ints]) -> NDArray[np.bool_]:
    """Return where a rule about the first of ``stages`` holds, by exact fractions, row by row."""
    nothing = {(mode.name, 0): 0 for mode in MODES}
    columns = np.broadcast_arrays(*counts.values())
    rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
    entries = (nothing | {(name, 0): n for name, n in zip(counts, row, strict=True)} for row in rows)
    holds = [decided(node, Known({}, stages, known)) for known in entries]
    return np.array(holds, dtype=bool).reshape(columns[0].shape)


@lru_cache(maxsize=256)
def _quantities_in(rules: tuple[Node, ...]) -> frozenset[str]:
    """Return the quantities of a stage that ``rules`` name."""
    return frozenset(quantity for node in rules for quantity, _ in places_of(node))


@lru_cache(maxsize=4096)
def places_of(node: Node) -> frozenset[Place]:
    """Return the quantities of stages that ``node`` depends on."""
    if isinstance(node, Entry):
        return frozenset({(node.quantity, node.stage)})
    return frozenset(place for part in node.below() for place in places_of(part))


@lru_cache(maxsize=4096)
def stages_of(node: Node) -> frozenset[int]:
    """Return the stages that ``node`` depends on."""
    return frozenset(stage for _, stage in places_of(node))


@lru_cache(maxsize=4096)
def _of_first(node: Node) -> Node:
    """Return a rule about one stage as one about the first: most stages have the same ones."""
    return _one_object(at_stage(node, 0, of=Entry))


@lru_cache(maxsize=4096)
def _one_object(node: Node) -> Node:
    """Return the first node that is equal to ``node``: comparing trees by value is slow."""
    return node


def parts_of(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the conjuncts of ``nodes``."""
    for node in nodes:
        if isinstance(node, Logic) and node.every:
            yield from parts_of(node.parts)
        elif node != TRUE:
            yield node


def across(parts: Sequence[Node]) -> tuple[Node, ...]:
    """Return the conjuncts that depend on more than one stage."""
    return tuple(node for node in parts if len(stages_of(node)) > 1)


@lru_cache(maxsize=256)
def stage_rules(parts: tuple[Node, ...], stages: int) -> tuple[StageRules, ...]:
    """Return the rules on each stage that follow from the conjuncts ``parts``."""
    seen: list[set[str]] = [set() for _ in range(stages)]
    for node in across(parts):
        for quantity, stage in places_of(node):
            seen[stage].add(quantity)
    of_stage: list[list[Node]] = [[] for _ in range(stages)]
    for node in parts:
        if len(about := stages_of(node)) == 1:
            of_stage[min(about)].append(_of_first(node))
    return tuple(StageRules(i, stages, tuple(of_stage[i]), frozenset(seen[i])) for i in range(stages))


def keeps(parts: Sequence[Node], entries: Mapping[Place, int], stages: int) -> bool:
    """Return whether a layout with these layers and recompute counts satisfies all of ``parts``."""
    values = Known({}, stages, entries)
    return all(decided(node, values) for node in parts)
