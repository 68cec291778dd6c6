"""Memory of stages that hold layers of several types: what adds up, and the neediest of them.

Notation (this file only)::

    n_k     layers of type k that a stage holds                                        [1]
    x_k     bytes of a layer of type k                                                 [byte]
    x_last  bytes of a layer of the type that is last in the stage                     [byte]

A stage that mixes types has the coefficients of its last layer's type, and in its constants what the others
differ by: sum n_k (x_k - x_last). Beside what adds up, an event of the step has the working memory of the
neediest type in the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.core.layer_types import HeldLayers
from autoplan.costs.memory.event import PHASES
from autoplan.costs.memory.footprint import Footprint, first_layer_bytes, next_layer_workspace

__all__ = ["beyond_last", "chosen_of", "mixed_footprint", "most_of", "workspace_differences"]


def chosen_of(kind: Ints, values: Sequence[Array]) -> Array:
    """Return the value that belongs to each stage's ``kind``, in its unit.

    >>> chosen_of(np.array([1, 0]), [np.array(3.0), np.array(4.0)]).tolist()
    [4.0, 3.0]
    """
    chosen = values[0]
    for k, value in enumerate(values[1:], start=1):
        chosen = np.where(kind == k, value, chosen)
    return chosen


def most_of(held: HeldLayers, values: Sequence[Array]) -> Array:
    """Return the largest value of the kinds that each stage holds, in their unit.

    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> two = Prefixes.of([(0, 0), (0, 1)], 2).held(np.arange(2), np.zeros(2), np.zeros(2))
    >>> most_of(two, [np.array(1.0), np.array(5.0)]).tolist()
    [1.0, 5.0]
    """
    some = [np.where(n > 0, value, -np.inf) for n, value in zip(held.layers, values, strict=True)]
    most: Array = reduce(np.maximum, some)
    return most


def beyond_last(counts: Array, values: Sequence[Array], last: Array) -> Array:
    """Return what ``counts`` of each kind cost beyond as many of the last layer's kind, in their unit.

    >>> float(beyond_last(np.array([2.0, 1.0]), [np.array(3.0), np.array(5.0)], np.array(5.0)))  # 2 (3 - 5)
    -4.0

    Leaves out: nothing. Source: a definition.
    """
    return sum((n * (value - last) for n, value in zip(counts, values, strict=True)), np.zeros(()))


def mixed_footprint(kinds: Sequence[Footprint], held: HeldLayers) -> Footprint:
    """Return the memory [byte] of stages with the layers of ``held``, by that of each kind.

    What is kept and what stands is the sum over layers; the last layer's, the next one's and the first one's
    tensors are their own; what else is alive at a moment is that of the neediest kind of the stage.

    >>> from autoplan.costs.memory.footprint import stage_memory
    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> small = Footprint(**dict.fromkeys(Footprint.__slots__, np.ones(1)))
    >>> large = replace(small, persistent_layer=np.full(1, 7.0), none=np.full(1, 4.0))
    >>> held = Prefixes.of([(0, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.zeros(1))
    >>> stage_memory(mixed_footprint([small, large], held), 2, 0, 0).tolist()  # 9 stand, 6 + 3 move, 1
    [19.0]

    Leaves out: a moment between two changes of kind at which more may be alive than at the ends of the stage,
    where gradients come as layers go.
    """
    if len(kinds) == 1:
        return kinds[0]

    def of(name: str) -> list[Array]:
        return [getattr(kind, name) for kind in kinds]

    def saved(mode: str) -> list[Array]:
        return [none - kept for none, kept in zip(of("none"), of(mode), strict=True)]

    def last(values: Sequence[Array]) -> Array:
        return chosen_of(held.last, values)

    changed = {name: last(of(name)) for name in ("none", "selective", "full", "block", "persistent_layer")}
    changed["persistent_fixed"] = of("persistent_fixed")[0] + beyond_last(
        held.layers, of("persistent_layer"), changed["persistent_layer"]
    )
    entry = of("entry")[0] + beyond_last(held.layers, of("none"), changed["none"])
    entry = entry - beyond_last(held.selective, saved("selective"), last(saved("selective")))
    changed["entry"] = entry - beyond_last(held.full, saved("full"), last(saved("full")))
    for phase in PHASES:
        layer = changed[f"{phase}_layer"] = last(of(f"{phase}_layer"))
        more = beyond_last(held.layers, of(f"{phase}_layer"), layer)
        changed[f"{phase}_fixed"] = most_of(held, of(f"{phase}_fixed")) + more
    following, first = workspace_differences(kinds, held)
    changed["next_fixed"] = changed["next_fixed"] + following
    changed["second_fixed"] = changed["second_fixed"] + first
    for name in ("framework", "high_framework"):
        changed[name] = reduce(np.maximum, of(name))
    return replace(kinds[0], **changed)


def workspace_differences(kinds: Sequence[Footprint], held: HeldLayers) -> tuple[Array, Array]:
    """Return by how much two layers' tensors are above what the last layer's kind has [byte].

    What recompute brings back of the next-to-last layer, and what the first layer keeps.

    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> small = Footprint(**dict.fromkeys(Footprint.__slots__, np.ones(1)))
    >>> held = Prefixes.of([(0, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.zeros(1))
    >>> large = replace(small, none=np.full(1, 4.0))
    >>> [x.tolist() for x in workspace_differences([small, large], held)]  # 1 - 4
    [[0.0], [-3.0]]
    """
    counts = held.counts
    rooms = [next_layer_workspace(kind, *counts) for kind in kinds]
    firsts = [first_layer_bytes(kind, *counts[1:]) for kind in kinds]
    return (
        chosen_of(held.next, rooms) - chosen_of(held.last, rooms),
        chosen_of(held.first, firsts) - chosen_of(held.last, firsts),
    )
