"""What the user's own rules say about a candidate's stages, and the mixes of recompute that they distinguish.

What is left of the rules for a candidate is a conjunction. A part about one stage filters that stage's
options. A part about several stages becomes constraints of the solver's model; of each number of layers a
stage then has to offer the fastest mix for every value of what such a part can see: mixes that no rule tells
apart are as good as the fastest of them, and all others are kept apart. So the removal of dominated mixes is
as safe as without rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.schema.user_rules.expression import TRUE, Entry, Known, Logic, Node, Place, decided

__all__ = ["StageRules", "across", "keeps", "parts_of", "places_of", "stage_rules", "stages_of"]


@dataclass(frozen=True, slots=True)
class StageRules:
    """Rules on the options of one stage: those about it alone, and what rules across stages see of it."""

    stage: int
    stages: int
    alone: tuple[Node, ...]
    seen: frozenset[str]

    @property
    def of_recompute(self) -> bool:
        """Whether mixes of the same layers differ by the rules."""
        return bool(self.seen - {"layers"}) or any(
            quantity != "layers" for node in self.alone for quantity, _ in places_of(node)
        )

    def allows(self, layers: int, selective: Array, full: Array) -> NDArray[np.bool_]:
        """Return which mixes of a stage of ``layers`` keep the rules about this stage alone."""
        allowed = np.ones(len(selective), dtype=bool)
        for node in self.alone:
            table = _table(node, self.stage, self.stages, layers)
            allowed &= np.array(
                [table(int(s), int(f)) for s, f in zip(selective, full, strict=True)], dtype=bool
            )
        return allowed

    def alike(self, selective: Array, full: Array, one: tuple[int, int]) -> NDArray[np.bool_]:
        """Return which mixes rules across stages cannot tell from ``one``, selective and full layers."""
        same = np.ones(len(selective), dtype=bool)
        if "selective" in self.seen:
            same &= selective == one[0]
        if "full" in self.seen:
            same &= full == one[1]
        return same


class _Table:
    """Whether a rule about one stage holds for a mix, by the counts that it names."""

    def __init__(self, node: Node, stage: int, stages: int, layers: int) -> None:
        self.node, self.stages = node, stages
        self.named = {quantity for quantity, _ in places_of(node)}
        self.stage, self.layers = stage, layers
        self.found: dict[tuple[int, int], bool] = {}

    def __call__(self, selective: int, full: int) -> bool:
        key = (selective if "selective" in self.named else 0, full if "full" in self.named else 0)
        if key not in self.found:
            counts = {"layers": self.layers, "selective": key[0], "full": key[1]}
            entries = {(name, self.stage): n for name, n in counts.items()}
            self.found[key] = decided(self.node, Known({}, self.stages, entries))
        return self.found[key]


@lru_cache(maxsize=4096)
def _table(node: Node, stage: int, stages: int, layers: int) -> _Table:
    return _Table(node, stage, stages, layers)


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
    """Yield what ``nodes`` say together, as parts that all have to hold."""
    for node in nodes:
        if isinstance(node, Logic) and node.every:
            yield from parts_of(node.parts)
        elif node != TRUE:
            yield node


def across(parts: Sequence[Node]) -> tuple[Node, ...]:
    """Return the parts that are about more than one stage."""
    return tuple(node for node in parts if len(stages_of(node)) > 1)


def stage_rules(parts: Sequence[Node], stages: int) -> tuple[StageRules, ...]:
    """Return what ``parts`` say about each stage."""
    seen: list[set[str]] = [set() for _ in range(stages)]
    for node in across(parts):
        for quantity, stage in places_of(node):
            seen[stage].add(quantity)
    alone = [tuple(node for node in parts if stages_of(node) == {i}) for i in range(stages)]
    return tuple(StageRules(i, stages, alone[i], frozenset(seen[i])) for i in range(stages))


def keeps(parts: Sequence[Node], entries: Mapping[Place, int], stages: int) -> bool:
    """Return whether a layout with these layers and recompute counts keeps all of ``parts``."""
    known = Known({}, stages, entries)
    return all(decided(node, known) for node in parts)
