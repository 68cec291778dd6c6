"""Least memory of a candidate over all splits and recompute mixes, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, distinct
from autoplan.costs.memory.footprint import stage_needed
from autoplan.deadline import check_deadline
from autoplan.schema.stage_layers import even_stages
from autoplan.search.bounds.contents_bound import (
    contents_memory,
    even_memory,
    most_recompute,
)
from autoplan.search.bounds.memory_floors import ROUNDING, floors_fit, memory_floors
from autoplan.search.bounds.step_bound import k_th_stage, most_layers_of_stages
from autoplan.search.space.sized_candidates import SizedCandidates
from autoplan.search.space.stage_contents import Places


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
    fits, least, rows = (
        np.zeros(len(layers), dtype=bool),
        np.full(layers.shape, np.inf),
        np.arange(len(layers)),
    )
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
