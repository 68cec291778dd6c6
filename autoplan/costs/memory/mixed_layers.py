"""Memory of pipeline stages with layers of several types.

Notation (this file only)::

    n_k     layers of type k in a stage                                                [1]
    x_k     bytes of a layer of type k                                                 [byte]
    x_last  bytes of a layer of the type that is last in the stage                     [byte]

Bytes that add up over layers use the coefficients of the last layer's type; the constants of the stage add
the difference sum n_k (x_k - x_last). Workspaces do not add up: an event has the largest one among the types
in the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.core.layer_types import StageLayers
from autoplan.costs.memory.event import PHASES
from autoplan.costs.memory.footprint import Footprint, first_layer_bytes, next_layer_workspace

__all__ = [
    "difference_from_last_type",
    "largest_of_types",
    "mixed_footprint",
    "mixed_workspace_correction",
    "value_of_type",
]


def value_of_type(layer_type: Ints, values: Sequence[Array]) -> Array:
    """Return for each stage the value of its layer type ``layer_type``, in its unit.

    >>> value_of_type(np.array([1, 0]), [np.array(3.0), np.array(4.0)]).tolist()
    [4.0, 3.0]
    """
    chosen = values[0]
    for index, value in enumerate(values[1:], start=1):
        chosen = np.where(layer_type == index, value, chosen)
    return chosen


def largest_of_types(stage_layers: StageLayers, values: Sequence[Array]) -> Array:
    """Return the largest value among the layer types in each stage, in their unit.

    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> two = Prefixes.of([(0, 0), (0, 1)], 2).held(np.arange(2), np.zeros(2), np.zeros(2))
    >>> largest_of_types(two, [np.array(1.0), np.array(5.0)]).tolist()
    [1.0, 5.0]
    """
    present = [np.where(n > 0, value, -np.inf) for n, value in zip(stage_layers.layers, values, strict=True)]
    largest: Array = reduce(np.maximum, present)
    return largest


def difference_from_last_type(counts: Array, values: Sequence[Array], last: Array) -> Array:
    """Return sum n_k (x_k - x_last) for n = ``counts`` and x = ``values``, in their unit.

    >>> values = [np.array(3.0), np.array(5.0)]
    >>> float(difference_from_last_type(np.array([2.0, 1.0]), values, values[1]))  # 2 (3 - 5)
    -4.0
    """
    return sum((n * (value - last) for n, value in zip(counts, values, strict=True)), np.zeros(()))


def mixed_footprint(footprints: Sequence[Footprint], stage_layers: StageLayers) -> Footprint:
    """Return the memory coefficients of stages that mix layer types, from those of each type [byte].

    Saved activations and persistent memory are sums over layers; tensors of the last, the next-to-last and
    the first layer are those of their own type; other transient memory of an event is the maximum over types.

    >>> from autoplan.costs.memory.footprint import stage_memory
    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> small = Footprint(**dict.fromkeys(Footprint.__slots__, np.ones(1)))
    >>> large = replace(small, persistent_layer=np.full(1, 7.0), none=np.full(1, 4.0))
    >>> stages = Prefixes.of([(0, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.zeros(1))
    >>> stage_memory(mixed_footprint([small, large], stages), 2, 0, 0).tolist()  # 9 + (6 + 3) + 1
    [19.0]

    Leaves out: a peak at a change of layer type inside the stage, where gradients are allocated while saved
    activations are freed.
    Source: derived from the coefficients of one layer type in ``footprint``.
    """
    if len(footprints) == 1:
        return footprints[0]

    def values_of(name: str) -> list[Array]:
        return [getattr(footprint, name) for footprint in footprints]

    def saved(mode: str) -> list[Array]:
        return [
            none - mode_bytes for none, mode_bytes in zip(values_of("none"), values_of(mode), strict=True)
        ]

    def last(values: Sequence[Array]) -> Array:
        return value_of_type(stage_layers.last, values)

    mixed = {
        name: last(values_of(name)) for name in ("none", "selective", "full", "block", "persistent_layer")
    }
    mixed["persistent_fixed"] = values_of("persistent_fixed")[0] + difference_from_last_type(
        stage_layers.layers, values_of("persistent_layer"), mixed["persistent_layer"]
    )
    entry = values_of("entry")[0] + difference_from_last_type(
        stage_layers.layers, values_of("none"), mixed["none"]
    )
    entry = entry - difference_from_last_type(
        stage_layers.selective, saved("selective"), last(saved("selective"))
    )
    mixed["entry"] = entry - difference_from_last_type(stage_layers.full, saved("full"), last(saved("full")))
    for phase in PHASES:
        layer = mixed[f"{phase}_layer"] = last(values_of(f"{phase}_layer"))
        difference = difference_from_last_type(stage_layers.layers, values_of(f"{phase}_layer"), layer)
        mixed[f"{phase}_fixed"] = largest_of_types(stage_layers, values_of(f"{phase}_fixed")) + difference
    next_correction, first_correction = mixed_workspace_correction(footprints, stage_layers)
    mixed["next_fixed"] = mixed["next_fixed"] + next_correction
    mixed["second_fixed"] = mixed["second_fixed"] + first_correction
    for name in ("framework", "high_framework"):
        mixed[name] = reduce(np.maximum, values_of(name))
    return replace(footprints[0], **mixed)


def mixed_workspace_correction(
    footprints: Sequence[Footprint], stage_layers: StageLayers
) -> tuple[Array, Array]:
    """Return the workspace of two layers less that of a layer of the last layer's type [byte].

    The recomputed activations of the next-to-last layer, and the saved activations of the first layer.

    >>> from autoplan.costs.core.layer_types import Prefixes
    >>> small = Footprint(**dict.fromkeys(Footprint.__slots__, np.ones(1)))
    >>> stages = Prefixes.of([(0, 1)], 2).held(np.zeros(1, int), np.zeros(1), np.zeros(1))
    >>> large = replace(small, none=np.full(1, 4.0))
    >>> [x.tolist() for x in mixed_workspace_correction([small, large], stages)]  # 1 - 4
    [[0.0], [-3.0]]
    """
    counts = stage_layers.counts
    workspaces = [next_layer_workspace(footprint, *counts) for footprint in footprints]
    first_saved = [first_layer_bytes(footprint, *counts[1:]) for footprint in footprints]
    return (
        value_of_type(stage_layers.next, workspaces) - value_of_type(stage_layers.last, workspaces),
        value_of_type(stage_layers.first, first_saved) - value_of_type(stage_layers.last, first_saved),
    )
