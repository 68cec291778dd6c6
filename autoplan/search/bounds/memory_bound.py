"""The least memory that a candidate needs with any stages and recompute, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.memory.footprint import stage_needed
from autoplan.schema.stage_layers import even_stages
from autoplan.search.bounds.contents_bound import contents_memory, even_memory, most_recompute, standing_share
from autoplan.search.bounds.step_bound import k_th_stage
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.stage_contents import Places

__all__ = ["fits_somehow", "least_memory", "least_stage_memory"]


def least_memory(group: PricedCandidates) -> Array:
    """Return the least bytes by which each candidate is judged to fit, shape [C]."""
    if group.places is not None:
        of_contents = (contents_memory(part, group.places) for part in _parts(group))
        return np.concatenate([group.places.least_peak(memory) for memory in of_contents])
    peaks = [k_th_stage(least_stage_memory(part), part.layers / part.v) for part in _parts(group)]
    return np.concatenate(peaks)


def fits_somehow(group: PricedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return which candidates have stages and recompute that need at most ``limit`` bytes, shape [C].

    Most are told by one split: even stages fit; or no stage has room for its share, which some stage has to
    hold. Only the others are looked at with every number of layers.
    """
    if group.places is not None:
        return _places_fit(group, group.places, limit)
    c = group.candidates
    shares = {v: even_stages(group.layers, group.pp, v) for v in np.unique(c.vpp).tolist()}
    even = np.array([shares[v] for v in c.vpp.tolist()], dtype=np.float64)
    fits: NDArray[np.bool_] = _least_at(group, even).max(axis=1) <= limit
    if group.even:
        return fits
    share = np.ceil(group.layers / group.v / group.pp) * group.v
    room = _least_at(group, np.broadcast_to(share[:, None], even.shape)).min(axis=1) <= limit
    # Where layers share a checkpoint, more of them may need less.
    shared = c.checkpoint > 1
    for open_, all_fit in ((~fits & shared, _least_fits), (~fits & ~shared & room, _most_fit)):
        if open_.any():
            fits[open_] = all_fit(group.take(np.flatnonzero(open_)), limit)
    return fits


def _least_fits(group: PricedCandidates, limit: float) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = least_memory(group) <= limit
    return fits


def _most_fit(group: PricedCandidates, limit: float) -> NDArray[np.bool_]:
    """Return whether the most layers that each stage has room for are all layers, shape [C].

    More layers never need less, so the most are found by halving.
    """
    v = group.v[:, None]
    chunks = group.layers / v
    # Each of the others holds a chunk of each virtual stage.
    most = np.broadcast_to(chunks - (group.pp - 1), (len(v), group.pp))
    fewest = np.zeros_like(most)
    while (fewest < most).any():
        middle = np.ceil((fewest + most) / 2)
        fit = _least_at(group, middle * v) <= limit
        fewest, most = np.where(fit, middle, fewest), np.where(fit, most, middle - 1)
    enough: NDArray[np.bool_] = (fewest.min(axis=1) > 0) & (fewest.sum(axis=1) >= chunks[:, 0])
    return enough


def _places_fit(group: PricedCandidates, places: Places, limit: float) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = even_memory(group, places) <= limit
    # What stands is shared by the stages, and some stage has its share.
    open_ = np.flatnonzero(~fits & (standing_share(group, places) <= limit))
    if len(open_) and not group.even:
        fits[open_] = least_memory(group.take(open_)) <= limit
    return fits


def _least_at(group: PricedCandidates, layers: Array) -> Array:
    """Return the least bytes by which each stage is judged to fit with ``layers``, shape [C, p]."""
    mixes = most_recompute(layers, group.candidates.checkpoint[:, None], group.modes)
    chosen = [
        np.where(allowed, stage_needed(group.stages.memory, layers, selective, full), np.inf)
        for selective, full, allowed in mixes
    ]
    least: Array = np.minimum.reduce(chosen)
    return least


def _parts(group: PricedCandidates) -> Iterator[PricedCandidates]:
    return (group.take(block) for block in group.blocks())


def least_stage_memory(group: PricedCandidates) -> Array:
    """Return the least bytes by which each stage is judged to fit, for each number of layers, [C, p, L].

    More recompute of one kind never needs more, so the extremes suffice.
    """
    stages = group.stages.take((..., None))
    layers = np.arange(1.0, group.layers + 1)
    chosen = [
        np.where(allowed, stage_needed(stages.memory, layers, selective, full), np.inf)
        for selective, full, allowed in most_recompute(
            layers, group.candidates.checkpoint[:, None, None], group.modes
        )
    ]
    least: Array = np.where(group.allowed(), np.minimum.reduce(chosen), np.inf)
    return least
