"""Least memory of a candidate over all splits and recompute mixes, and whether it fits.

Floors of a stage's memory, linear in its layers, come first: they cost a few operations a stage, whatever the
number of layers, and exclude most candidates that need too much memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints, distinct
from autoplan.costs.memory.footprint import Footprint, stage_needed
from autoplan.deadline import check_deadline
from autoplan.schema.recompute import FULL
from autoplan.schema.stage_layers import even_stages
from autoplan.search.bounds.contents_bound import (
    contents_memory,
    even_memory,
    layers_by_type,
    most_recompute,
)
from autoplan.search.bounds.step_bound import k_th_stage, most_layers_of_stages
from autoplan.search.space.priced_candidates import SizedCandidates
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
    is infinite. They are for the job's limit, which the upper ends of ranges have to keep where there
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
    flight. Where its mode is a recomputed one, all layers before it are recomputed, and so are its
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


def least_memory(group: SizedCandidates) -> Array:
    """Return the least peak memory of each candidate over all splits and mixes, shape [C] [byte]."""
    if group.places is not None:
        of_contents = (contents_memory(part, group.places) for part in _blocks(group))
        return np.concatenate([group.places.least_peak(memory) for memory in of_contents])
    return np.concatenate([_least_peaks(part) for part in _blocks(group)])


def _least_peaks(group: SizedCandidates) -> Array:
    """Return the least peak memory of each candidate of one layer type, shape [C] [byte]."""
    least = least_stage_memory(group)
    peaks = k_th_stage(least, group.layers / group.v)
    several = group.candidates.recompute_num_layers > 1
    if several.any() and not group.even:
        peaks[several] = least_peak_of_splits(least[several], group.layers)
    return peaks


def least_peak_of_splits(memory: Array, layers: int) -> Array:
    """Return the least over all splits of the largest stage of ``memory`` [C, p, L], shape [C] [byte].

    By dynamic programming over stages: with recompute units of several layers, memory does not grow with
    layers, and some numbers of layers have no mix at all.
    """
    peaks = np.full((len(memory), layers + 1), np.inf)
    peaks[:, 0] = 0.0
    for stage in range(memory.shape[1]):
        check_deadline()
        longer = np.full_like(peaks, np.inf)
        for n in np.flatnonzero(np.isfinite(memory[:, stage]).any(axis=0)) + 1:
            with_n = np.maximum(peaks[:, : layers + 1 - n], memory[:, stage, n - 1, None])
            np.minimum(longer[:, n:], with_n, out=longer[:, n:])
        peaks = longer
    least: Array = peaks[:, layers]
    return least


def can_fit(group: SizedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return which candidates have a split and recompute mixes within ``limit`` bytes, shape [C].

    The floors of memory exclude most candidates.
    """
    if group.places is not None:
        return _places_fit(group, group.places, limit)
    fits = floors_fit(group, memory_floors(group), limit)
    if fits.any():
        fits[fits] = _layers_fit(group.take(np.flatnonzero(fits)), limit)
    return fits


def _layers_fit(group: SizedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return which candidates of one layer type fit into ``limit`` bytes, shape [C].

    Two tests decide most: the even split fits; or no stage fits with its even share of the layers, which some
    stage must have at least. Only the others are evaluated for every number of layers.
    """
    c = group.candidates
    even_splits = {v: even_stages(group.layers, group.pp, v) for v in distinct(c.vpp).tolist()}
    even_layers = np.array([even_splits[v] for v in c.vpp.tolist()], dtype=np.float64)
    fits = _each_stage_fits(group, even_layers, limit)
    if group.even:
        return fits
    # With recompute units of several layers, more layers may need less memory.
    units_of_several = c.recompute_num_layers > 1
    for undecided, decide in (
        (~fits & units_of_several, _split_fits),
        (~fits & ~units_of_several, _fits_with_share),
    ):
        if undecided.any():
            fits[undecided] = decide(group.take(np.flatnonzero(undecided)), limit)
    return fits


def _each_stage_fits(group: SizedCandidates, layers: Array, limit: float) -> NDArray[np.bool_]:
    """Return whether each stage with its number of ``layers`` [C, p] fits with some recompute, shape [C].

    Most that fit do so with the last mix, which recomputes most: the other mixes are for the rest.
    """
    mixes = most_recompute(layers, group.candidates.recompute_num_layers[:, None], group.modes)
    fits = np.zeros(len(layers), dtype=bool)
    least = np.full(layers.shape, np.inf)
    rows = np.arange(len(layers))
    for mix, allowed in reversed(mixes):
        needed = stage_needed(group.footprints[0], layers[rows], {mode: x[rows] for mode, x in mix.items()})
        least = np.minimum(least, np.where(allowed[rows], needed, np.inf))
        fitting = least.max(axis=1) <= limit
        fits[rows[fitting]] = True
        if fitting.all():
            break
        if fitting.any():
            others = np.flatnonzero(~fitting)
            group, least, rows = group.take(others), least[others], rows[others]
    return fits


def _fits_with_share(group: SizedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return which candidates fit: their stages with some split, one of them with its even share, [C]."""
    share = np.ceil(group.layers / group.v / group.pp) * group.v
    of_share = _least_at(group, np.broadcast_to(share[:, None], (len(share), group.pp)))
    fits: NDArray[np.bool_] = of_share.min(axis=1) <= limit
    if fits.any():
        fits[fits] = _fits_by_bisection(group.take(np.flatnonzero(fits)), limit)
    return fits


def _split_fits(group: SizedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return whether numbers of layers that fit on the stages add up to all layers, shape [C]."""
    fitting = (least_stage_memory(part) <= limit for part in _blocks(group))
    return np.concatenate([_some_split(fits, group.layers) for fits in fitting])


def _some_split(fits: NDArray[np.bool_], layers: int) -> NDArray[np.bool_]:
    """Return whether numbers of layers that ``fits`` [C, p, L] allows add up to ``layers``, shape [C]."""
    split: NDArray[np.bool_] = most_layers_of_stages(fits) >= layers
    split[split] = [bool(reachable_sums(rows)[0] >> layers & 1) for rows in fits[split]]
    return split


def reachable_sums(fits: NDArray[np.bool_]) -> list[int]:
    """Return the numbers of layers that each stage and those after it may have in all, as bits.

    ``fits`` says which numbers of layers (1 to L) a stage may have, shape [p, L].

    >>> [bin(sums) for sums in reachable_sums(np.array([[True, False, True], [False, True, False]]))]
    ['0b101000', '0b100', '0b1']
    """
    sums = [1]
    for row in fits[::-1]:
        sums.append(reduce(or_, (sums[-1] << n for n in (np.flatnonzero(row) + 1).tolist()), 0))
    return sums[::-1]


def _fits_by_bisection(group: SizedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return whether the largest numbers of layers that fit on the stages add up to all layers, shape [C].

    Memory grows with layers, so bisection gives the largest number of each stage.
    """
    v = group.v[:, None]
    chunks = group.layers / v
    # Every other stage has at least one layer of each virtual stage.
    most = np.broadcast_to(chunks - (group.pp - 1), (len(v), group.pp))
    fewest = np.zeros_like(most)
    while (fewest < most).any():
        middle = np.ceil((fewest + most) / 2)
        fit = _least_at(group, middle * v) <= limit
        fewest, most = np.where(fit, middle, fewest), np.where(fit, most, middle - 1)
    fits: NDArray[np.bool_] = (fewest.min(axis=1) > 0) & (fewest.sum(axis=1) >= chunks[:, 0])
    return fits


def _places_fit(group: SizedCandidates, places: Places, limit: float) -> NDArray[np.bool_]:
    fits = np.zeros(len(group.candidates), dtype=bool)
    possible = np.flatnonzero(floors_fit(group, memory_floors(group), limit))
    fits[possible] = even_memory(group.take(possible), places) <= limit
    undecided = np.flatnonzero(~fits[possible])
    if len(undecided) and not group.even:
        open_group = group.take(possible[undecided])
        # Larger places fit nowhere.
        reachable = places.up_to(_most_layers_within(open_group, limit))
        fits[possible[undecided]] = _some_path_fits(replace(open_group, places=reachable), reachable, limit)
    return fits


def _some_path_fits(group: SizedCandidates, places: Places, limit: float) -> NDArray[np.bool_]:
    """Return which candidates have a path of places within ``limit`` bytes, shape [C].

    Where the mix that recomputes most fits, no other one needs to be sized.
    """
    with_last_mix = (contents_memory(part, places, last_mix=True) for part in _blocks(group))
    fits: NDArray[np.bool_] = np.concatenate([places.least_peak(memory) <= limit for memory in with_last_mix])
    others = np.flatnonzero(~fits)
    if len(others):
        fits[others] = least_memory(group.take(others)) <= limit
    return fits


def _most_layers_within(group: SizedCandidates, limit: float) -> int:
    """Return an upper bound on the layers that a stage of any candidate has within ``limit`` bytes."""
    layers = [(limit - fixed) / np.minimum.reduce(of_layer) for fixed, of_layer in memory_floors(group)]
    return int(np.clip(np.minimum.reduce(layers).max() + ROUNDING, 1, group.layers))


def _least_at(group: SizedCandidates, layers: Array) -> Array:
    """Return the least memory of each stage with ``layers`` over recompute mixes, shape [C, p] [byte]."""
    mixes = most_recompute(layers, group.candidates.recompute_num_layers[:, None], group.modes)
    chosen = [
        np.where(allowed, stage_needed(group.footprints[0], layers, mix), np.inf) for mix, allowed in mixes
    ]
    least: Array = np.minimum.reduce(chosen)
    return least


def _blocks(group: SizedCandidates) -> Iterator[SizedCandidates]:
    return (group.take(block) for block in group.blocks())


def least_stage_memory(group: SizedCandidates) -> Array:
    """Return the least memory of each stage for each number of layers, shape [C, p, L] [byte].

    Memory does not grow with recompute of one mode, so the extreme mixes suffice.
    """
    footprint = group.footprints[0].take((..., None))
    layers = np.arange(1.0, group.layers + 1)
    chosen = [
        np.where(allowed, stage_needed(footprint, layers, mix), np.inf)
        for mix, allowed in most_recompute(
            layers, group.candidates.recompute_num_layers[:, None, None], group.modes
        )
    ]
    least: Array = np.where(group.allowed(), np.minimum.reduce(chosen), np.inf)
    return least
