"""User rules on the stages of a candidate, and the recompute mixes that they distinguish.

The residual rules of a candidate are a conjunction. A conjunct about one stage filters the alternatives of
that stage. A conjunct about several stages becomes a constraint of the solver's model; a stage then offers,
for every number of layers, the fastest mix for each value of the quantities in such conjuncts. Dominated
mixes are removed only among those that no rule distinguishes, so the removal loses no optimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import ByMode
from autoplan.schema.recompute import MODES
from autoplan.schema.user_rules.expression import TRUE, Entry, Known, Logic, Node, Place, decided

__all__ = ["StageRules", "across", "keeps", "parts_of", "places_of", "stage_rules", "stages_of"]


@dataclass(frozen=True, slots=True)
class StageRules:
    """Rules on the alternatives of one stage: ``own`` are those about this stage alone.

    ``seen`` are the quantities of the stage that occur in rules about several stages.
    """

    stage: int
    stages: int
    own: tuple[Node, ...]
    seen: frozenset[str]

    @property
    def of_recompute(self) -> bool:
        """Whether some rule distinguishes recompute mixes of the same number of layers."""
        return bool(self.seen - {"layers"}) or any(
            quantity != "layers" for node in self.own for quantity, _ in places_of(node)
        )

    def allows(self, layers: int, recomputed: ByMode) -> NDArray[np.bool_]:
        """Return which mixes of a stage of ``layers`` satisfy the rules about this stage alone.

        Without counts, it is whether a stage without recompute does.
        """
        columns = [counts.astype(np.int64).tolist() for counts in recomputed.values()]
        rows = list(zip(*columns, strict=True)) if columns else [()]
        allowed = np.ones(len(rows), dtype=bool)
        for node in self.own:
            table = _table(node, self.stage, self.stages, layers)
            allowed &= np.array([table(tuple(zip(recomputed, row, strict=True))) for row in rows], dtype=bool)
        return allowed

    def indistinguishable(self, recomputed: ByMode, reference: Mapping[str, int]) -> NDArray[np.bool_]:
        """Return which mixes no rule on several stages distinguishes from the counts ``reference``."""
        same = np.ones(len(next(iter(recomputed.values()))), dtype=bool)
        for mode, counts in recomputed.items():
            if mode in self.seen:
                same &= counts == reference[mode]
        return same


class _RuleTable:
    """Memo of whether a mix satisfies a rule about one stage, by the counts that the rule names."""

    def __init__(self, node: Node, stage: int, stages: int, layers: int) -> None:
        self.node, self.stages = node, stages
        self.named = {quantity for quantity, _ in places_of(node)}
        self.stage, self.layers = stage, layers
        self.decisions: dict[tuple[tuple[str, int], ...], bool] = {}

    def __call__(self, recomputed: tuple[tuple[str, int], ...]) -> bool:
        key = tuple((mode, count) for mode, count in recomputed if mode in self.named)
        if key not in self.decisions:
            none = {mode.name: 0 for mode in MODES}
            counts = {"layers": self.layers} | none | dict(key)
            entries = {(name, self.stage): n for name, n in counts.items()}
            self.decisions[key] = decided(self.node, Known({}, self.stages, entries))
        return self.decisions[key]


@lru_cache(maxsize=4096)
def _table(node: Node, stage: int, stages: int, layers: int) -> _RuleTable:
    return _RuleTable(node, stage, stages, layers)


@lru_cache(maxsize=4096)
def places_of(node: Node) -> frozenset[Place]:
    """Return the quantities of stages that ``node`` depends on."""
    if isinstance(node, Entry):
        return frozenset({(node.quantity, node.stage)})
    return frozenset(place for part in node.below() for place in places_of(part))


def stages_of(node: Node) -> frozenset[int]:
    """Return the stages that ``node`` depends on."""
    return frozenset(stage for _, stage in places_of(node))


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


def stage_rules(parts: Sequence[Node], stages: int) -> tuple[StageRules, ...]:
    """Return the rules on each stage that follow from the conjuncts ``parts``."""
    seen: list[set[str]] = [set() for _ in range(stages)]
    for node in across(parts):
        for quantity, stage in places_of(node):
            seen[stage].add(quantity)
    own = [tuple(node for node in parts if stages_of(node) == {i}) for i in range(stages)]
    return tuple(StageRules(i, stages, own[i], frozenset(seen[i])) for i in range(stages))


def keeps(parts: Sequence[Node], entries: Mapping[Place, int], stages: int) -> bool:
    """Return whether a layout with these layers and recompute counts satisfies all of ``parts``."""
    known = Known({}, stages, entries)
    return all(decided(node, known) for node in parts)
