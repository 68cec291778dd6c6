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
from autoplan.schema.user_rules.expression import TRUE, Entry, Known, Logic, Node, Place, at_stage, decided

__all__ = ["StageRules", "across", "keeps", "parts_of", "places_of", "stage_rules", "stages_of"]


@dataclass(frozen=True, slots=True)
class StageRules:
    """Rules on the alternatives of one stage: ``own`` are those about this stage alone, as of the first.

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
        return np.array(
            [self.allows_one(layers, dict(zip(recomputed, row, strict=True))) for row in rows], dtype=bool
        )

    def allows_one(self, layers: int, recomputed: Mapping[str, int]) -> bool:
        """Return whether a stage of ``layers`` with these recompute counts satisfies the rules about it."""
        named = _modes_in(self.own)
        return _hold(self.own, self.stages, layers, tuple(n for n in recomputed.items() if n[0] in named))

    def indistinguishable(self, recomputed: ByMode, reference: Mapping[str, int]) -> NDArray[np.bool_]:
        """Return which mixes no rule on several stages distinguishes from the counts ``reference``."""
        same = np.ones(len(next(iter(recomputed.values()))), dtype=bool)
        for mode, counts in recomputed.items():
            if mode in self.seen:
                same &= counts == reference[mode]
        return same


@lru_cache(maxsize=256)
def _modes_in(rules: tuple[Node, ...]) -> frozenset[str]:
    """Return the quantities that ``rules`` name."""
    return frozenset(quantity for node in rules for quantity, _ in places_of(node))


@lru_cache(maxsize=2**16)
def _hold(rules: tuple[Node, ...], stages: int, layers: int, recomputed: tuple[tuple[str, int], ...]) -> bool:
    """Return whether rules about the first of ``stages`` hold for its layers and counts; others are 0."""
    counts = {"layers": layers, **dict.fromkeys((mode.name for mode in MODES), 0), **dict(recomputed)}
    known = Known({}, stages, {(name, 0): n for name, n in counts.items()})
    return all(decided(node, known) for node in rules)


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
    return at_stage(node, 0, of=Entry)


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
    of_stage: list[list[Node]] = [[] for _ in range(stages)]
    for node in parts:
        if len(about := stages_of(node)) == 1:
            of_stage[min(about)].append(_of_first(node))
    return tuple(StageRules(i, stages, tuple(of_stage[i]), frozenset(seen[i])) for i in range(stages))


def keeps(parts: Sequence[Node], entries: Mapping[Place, int], stages: int) -> bool:
    """Return whether a layout with these layers and recompute counts satisfies all of ``parts``."""
    known = Known({}, stages, entries)
    return all(decided(node, known) for node in parts)
