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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from autoplan.costs.core.candidates import Array, Ints, Linear
from autoplan.costs.core.layer_types import StageLayers
from autoplan.costs.memory.footprint import Footprint, first_layer_bytes, next_layer_workspace
from autoplan.schema.recompute import in_order


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

    >>> two = Prefixes.of([(0, 0), (0, 1)], 2).layer_counts(np.arange(2), {})
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
    >>> small = Footprint.uniform(np.ones(1))
    >>> large = replace(small, persistent=Linear(np.ones(1), np.full(1, 7.0)), none=np.full(1, 4.0))
    >>> stages = Prefixes.of([(0, 1)], 2).layer_counts(np.zeros(1, int), {})
    >>> stage_memory(mixed_footprint([small, large], stages), 2, {}).tolist()  # 9 + (6 + 3) + 1
    [19.0]

    Leaves out: a peak at a change of layer type inside the stage, where gradients are allocated while saved
    activations are freed.
    Source: derived from the coefficients of one layer type in ``footprint``.
    """
    if len(footprints) == 1:
        return footprints[0]

    def last(bytes_of: Callable[[Footprint], Array]) -> Array:
        return value_of_type(stage_layers.last, [bytes_of(x) for x in footprints])

    def difference(counts: Array, bytes_of: Callable[[Footprint], Array]) -> Array:
        return difference_from_last_type(counts, [bytes_of(x) for x in footprints], last(bytes_of))

    def largest(peak: Callable[[Footprint], Linear], correction: Array | None = None) -> Linear:
        peaks = [peak(x) for x in footprints]
        mixed = mixed_linear(peaks, stage_layers, largest_of_types(stage_layers, [x.fixed for x in peaks]))
        return mixed if correction is None else replace(mixed, fixed=mixed.fixed + correction)

    entry = footprints[0].entry + difference(stage_layers.layers, lambda x: x.none)
    for mode, counts in in_order(stage_layers.recomputed):
        entry = entry - difference(counts, lambda x, mode=mode: x.none - x.recomputed[mode])  # type: ignore[misc]
    next_correction, first_correction = mixed_workspace_correction(footprints, stage_layers)
    persistent = [x.persistent for x in footprints]
    return replace(
        footprints[0],
        persistent=mixed_linear(persistent, stage_layers, persistent[0].fixed),
        none=last(lambda x: x.none),
        recomputed={
            mode: last(lambda x, mode=mode: x.recomputed[mode])  # type: ignore[misc]
            for mode in footprints[0].recomputed
        },
        entry=entry,
        block=last(lambda x: x.block),
        before=largest(lambda x: x.before),
        last=largest(lambda x: x.last),
        next=largest(lambda x: x.next, next_correction),
        second=largest(lambda x: x.second, first_correction),
        late=largest(lambda x: x.late),
        update=largest(lambda x: x.update),
        framework=reduce(np.maximum, [x.framework for x in footprints]),
        high_framework=reduce(np.maximum, [x.high_framework for x in footprints]),
    )


def mixed_linear(costs: Sequence[Linear], stage_layers: StageLayers, fixed: Array) -> Linear:
    """Return a cost of stages that mix layer types from that of each type, in its unit.

    ``fixed`` is the constant of the stage, to which the difference sum n_k (x_k - x_last) is added.

    >>> stages = Prefixes.of([(0, 1)], 2).layer_counts(np.zeros(1, int), {})
    >>> mixed_linear([Linear(0.0, 3.0), Linear(0.0, 5.0)], stages, 10.0).at(2).tolist()  # 10 + 3 + 5
    [18.0]
    """
    per_layer = [cost.layer for cost in costs]
    last = value_of_type(stage_layers.last, per_layer)
    return Linear(fixed + difference_from_last_type(stage_layers.layers, per_layer, last), last)


def mixed_workspace_correction(
    footprints: Sequence[Footprint], stage_layers: StageLayers
) -> tuple[Array, Array]:
    """Return the workspace of two layers less that of a layer of the last layer's type [byte].

    The recomputed activations of the next-to-last layer, and the saved activations of the first layer.

    >>> small = Footprint.uniform(np.ones(1))
    >>> stages = Prefixes.of([(0, 1)], 2).layer_counts(np.zeros(1, int), {})
    >>> large = replace(small, none=np.full(1, 4.0))
    >>> [x.tolist() for x in mixed_workspace_correction([small, large], stages)]  # 1 - 4
    [[0.0], [-3.0]]
    """
    layers, recomputed = stage_layers.counts
    workspaces = [next_layer_workspace(footprint, layers, recomputed) for footprint in footprints]
    first_saved = [first_layer_bytes(footprint, recomputed) for footprint in footprints]
    return (
        value_of_type(stage_layers.next, workspaces) - value_of_type(stage_layers.last, workspaces),
        value_of_type(stage_layers.first, first_saved) - value_of_type(stage_layers.last, first_saved),
    )
