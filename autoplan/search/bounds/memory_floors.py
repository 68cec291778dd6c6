"""Floors of a stage's memory, linear in its layers, and the candidates that they prove not to fit.

They cost a few operations a stage, whatever the number of layers: most candidates that need too much memory
are found by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.memory.footprint import Footprint
from autoplan.schema.recompute import FULL
from autoplan.search.bounds.contents_bound import layers_by_type
from autoplan.search.space.stage_contents import Places

#: Share by which rounding may make a bound too large.
ROUNDING = 1e-9

#: A layer whose states are on the host may take no bytes of the device; divisors are no less than this.
_LEAST_BYTES = 1e-9

#: Limits that candidates are compared with: shares of the largest.
_SHARES = 4096

#: The index of all candidates.
_ALL: Final = slice(None)

#: Bytes outside layers and of a layer of each type, [C, p].
Floor: TypeAlias = tuple[Array, list[Array]]


class _WithFootprints(Protocol):
    """Candidates with the memory of their stages."""

    @property
    def layers(self) -> int: ...
    @property
    def modes(self) -> frozenset[str]: ...
    @property
    def v(self) -> Array: ...
    @property
    def fewest(self) -> Array: ...
    @property
    def places(self) -> Places | None: ...
    @property
    def footprints(self) -> tuple[Footprint, ...]: ...


class TooSmallLimits:
    """Limits within which candidates do not fit, by the floors of memory; each is compared with few limits.

    All candidates may fit into ``most`` bytes.
    """

    def __init__(self, groups: Sequence[_WithFootprints], most: float) -> None:
        self._groups = groups
        self._most = most
        self._floors: dict[int, Sequence[Floor]] = {}
        #: The largest share of ``most`` that is too small for a candidate, and the smallest that may not be.
        self._shares: dict[int, tuple[Ints, Ints]] = {}

    def exclude(self, group: int, limit: float, bounds: Array, index: Ints | None = None) -> bool:
        """Set the ``bounds`` of candidates of a group that do not fit into ``limit`` to infinity.

        They are those at ``index``, of all without. Return whether any does not fit. The limit is rounded up
        to shares of ``most``.
        """
        share = int(np.ceil(limit / self._most * _SHARES))
        if share >= _SHARES:
            return False
        index = np.arange(len(bounds)) if index is None else index
        if group not in self._shares:
            self._floors[group] = memory_floors(self._groups[group], central=True)
            self._shares[group] = np.zeros(len(bounds), np.int64), np.full(len(bounds), _SHARES)
        short, enough = self._shares[group]
        unknown = index[(short[index] < share) & (share < enough[index])]
        if len(unknown):
            fits = floors_fit(self._groups[group], self._floors[group], self._most * share / _SHARES, unknown)
            enough[unknown[fits]], short[unknown[~fits]] = share, share
        excluded = index[short[index] >= share]
        bounds[excluded] = np.inf
        return bool(len(excluded))


def floors_fit(
    group: _WithFootprints, floors: Sequence[Floor], limit: Array | float, index: Ints | slice = _ALL
) -> NDArray[np.bool_]:
    """Return whether lower bounds of memory leave the stages at ``index`` space for all layers, shape [C].

    A bound is a + sum n_k b_k for n_k layers of type k, so a stage has at most (limit - a) / min b_k layers,
    a multiple of its virtual stages. Each stage must take the fewest layers of a stage, at least one, and all
    together all layers. With several types, a stage has at most (limit - a) / b_k layers of a type, and all
    together must take those of each type, and their bytes. ``limit`` is a number, or [C, 1].
    """
    v, fewest, places = group.v[index], group.fewest[index, None], group.places
    enough = np.ones(len(v), dtype=bool)
    # Where embedding and head count as layers, the first and the last chunk have one layer less.
    unit = np.where(group.layers % v > 0, 1.0, v)[:, None]
    several_chunks = bool((unit > 1).any())
    for fixed, of_layers in floors:
        space = limit - _rows(fixed, index)
        of_layer = [_rows(layer, index) for layer in of_layers]
        most = space / reduce(np.minimum, of_layer)
        most = np.floor(most / unit + ROUNDING) * unit if several_chunks else np.floor(most + ROUNDING)
        enough &= (most >= fewest).all(axis=1) & (most.sum(axis=1) >= group.layers)
        if places is not None:
            enough &= _types_fit(layers_by_type(places), space, of_layer)
    return enough


def _rows(values: Array, index: Ints | slice) -> Array:
    # Numpy takes rows faster than it indexes them.
    return values[index] if isinstance(index, slice) else values.take(index, axis=0)


def _types_fit(numbers: NDArray[Any], space: Array, of_layer: Sequence[Array]) -> NDArray[np.bool_]:
    """Return whether ``space`` [C, p] has room for so many layers of each type, and for their bytes, [C]."""
    layers_bytes = sum(n * layer.min(axis=1) for n, layer in zip(numbers, of_layer, strict=True))
    enough: NDArray[np.bool_] = layers_bytes <= space.sum(axis=1) * (1 + ROUNDING)
    for count, layer in zip(numbers, of_layer, strict=True):
        enough &= np.floor(space / layer + ROUNDING).sum(axis=1) >= count
    return enough


def memory_floors(group: _WithFootprints, *, central: bool = False) -> list[Floor]:
    """Return lower bounds of a stage's memory: bytes outside layers and of a layer of each type, [C, p].

    They are of three events (``stage_dynamic``): before the backward and at the last layer, both with the
    smallest activations of each layer, and at the optimizer's update. Where a phase has the largest workspace
    of the types in a stage, the bounds have the smallest of those that it may have; a layer of another type
    is infinite. They are for the job's own limit, which the upper ends of ranges have to keep where there
    is one; with ``central``, for a tighter one of the sweep, for the central value.
    """
    kinds = group.footprints
    upper = np.isfinite(kinds[0].high_limit) & (not central)
    share, framework = (
        np.minimum.reduce([np.where(upper, high, central) for high, central in both])
        for both in (
            [(kind.high_fragmentation, kind.share) for kind in kinds],
            [(kind.high_framework, kind.framework) for kind in kinds],
        )
    )
    any_layer, last_layer = _types_of_stages(group)
    outside = kinds[0].persistent.fixed + framework
    entry = kinds[0].in_flight * kinds[0].entry
    saved = [kind.in_flight * _smallest_activations(kind, group.modes) for kind in kinds]
    events: list[tuple[Array, list[Array]]] = [
        (
            _least(any_layer, [kind.before.fixed for kind in kinds]) + entry,
            [x + kind.before.layer for x, kind in zip(saved, kinds, strict=True)],
        ),
        (
            _least(last_layer, [_least_at_last_layer(kind, group.modes) for kind in kinds]) + entry,
            [x + kind.last.layer for x, kind in zip(saved, kinds, strict=True)],
        ),
        (_least(any_layer, [kind.update.fixed for kind in kinds]), [kind.update.layer for kind in kinds]),
    ]
    persistent = [kind.persistent.layer for kind in kinds]
    return [
        (
            outside + share * fixed,
            _of_types(
                any_layer,
                [np.maximum(s + share * x, _LEAST_BYTES) for s, x in zip(persistent, of_layer, strict=True)],
            ),
        )
        for fixed, of_layer in events
    ]


#: Which stages may have a layer of each type: one mask a type, shape [p].
_Masks: TypeAlias = Sequence[NDArray[np.bool_]]


def _types_of_stages(group: _WithFootprints) -> tuple[_Masks, _Masks]:
    """Return for each layer type which stages may have a layer of it, and which may have it as their last."""
    places = group.places
    if places is None:
        every = [np.ones(1, dtype=bool)]
        return every, every
    prefixes, orders = places.prefixes, places.orders
    counts, last = prefixes.table[:, orders, prefixes.layers[orders]], prefixes.last[orders]
    return (
        [np.logical_or.reduceat(of_type > 0, places.starts) for of_type in counts],
        [np.logical_or.reduceat(last == layer_type, places.starts) for layer_type in range(len(counts))],
    )


def _of_types(possible: _Masks, values: Sequence[Array]) -> list[Array]:
    """Return the values of each type, infinite on stages that cannot have it, shape [C, p]."""
    return [np.where(mask, value, np.inf) for mask, value in zip(possible, values, strict=True)]


def _least(possible: _Masks, values: Sequence[Array]) -> Array:
    """Return the least of the values of the types that a stage may have, shape [C, p]."""
    least: Array = np.minimum.reduce(_of_types(possible, values))
    return least


def _least_at_last_layer(kind: Footprint, modes: frozenset[str]) -> Array:
    """Return the least transient memory of the last layer's backward but for other layers, [C, p] [byte].

    The last layer has the activations of a mode, which may exceed the smallest, in all microbatches in
    flight. Where its mode is a recomputed one, all layers before it are recomputed, and so are its own
    activations at this event.
    """
    smallest = _smallest_activations(kind, modes)
    by_mode = {"none": kind.in_flight * (kind.none - smallest)}
    for mode, saved in kind.recomputed.items():
        by_mode[mode] = kind.in_flight * (saved - smallest) + kind.none - saved
    by_mode[FULL] = kind.in_flight * (kind.recomputed[FULL] - smallest) + kind.block
    least: Array = kind.last.fixed + np.minimum.reduce([by_mode[mode] for mode in sorted(modes)])
    return least


def _smallest_activations(kind: Footprint, modes: frozenset[str]) -> Array:
    """Return the least saved activations of a layer over recompute modes, shape [C, p] [byte]."""
    recomputed = [saved for mode, saved in kind.recomputed.items() if mode in modes]
    least: Array = np.minimum.reduce([kind.none, *recomputed])
    return least
