"""Times, memory and menus of the places of stages, where layers differ (``stage_contents``).

Contents are priced stage by stage. Where layers are alike, ``step_bound`` and ``stage_alternatives`` do the
same with numbers of layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.layer_types import HeldLayers
from autoplan.costs.memory.footprint import Footprint, bytes_to_save, stage_needed
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import Stages, end_of_step_floor, stage_backward, stage_forward
from autoplan.schema.stage_layers import even_stages
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.stage_contents import Places

__all__ = [
    "contents_bounds",
    "contents_memory",
    "even_memory",
    "least_time",
    "most_recompute",
    "standing_share",
]


def contents_bounds(group: PricedCandidates, places: Places, limit: Array | float) -> tuple[Array, Array]:
    """Return the relaxed time of each content under ``limit`` bytes, and each candidate's least tail [s].

    Shapes [C, X of all stages] and [C]. Recompute is relaxed to shares of any layers, those of least time for
    the bytes they save; each stage has its tail at the content with the least.
    """
    limits = np.asarray(limit, dtype=np.float64).reshape(-1, 1)
    found, tails, none = [], [], np.zeros(())
    for stage in range(group.pp):
        kinds = [kind.take((slice(None), stage, None)) for kind in group.kinds]
        layers = places.layers(stage).astype(np.float64)
        held = places.held(stage, none, none)
        here = mixed_stages_of(kinds, held)
        need = bytes_to_save(here.memory, layers, limits)
        again = _relaxed_recompute(kinds, held, need, group.modes)
        found.append(stage_forward(here, layers) + stage_backward(here, layers, none, none) + again)
        tails.append(end_of_step_floor(here, layers).min(axis=1))
    tail: Array = np.maximum.reduce(tails)
    return np.concatenate(found, axis=1), tail


def _relaxed_recompute(
    kinds: Sequence[Stages], held: HeldLayers, need: Array, modes: frozenset[str]
) -> Array:
    """Return the least time that recompute of shares of layers takes to save ``need`` bytes of K.

    Of each kind the cheaper way to save a byte comes first, and whole recompute in place of selective then;
    what is cheapest for the bytes it saves goes first, whatever its kind.
    """
    rates, sizes, floor = [], [], np.zeros(())
    for n, stage in zip(held.layers, kinds, strict=True):
        steps, each = _ways_to_save(stage, modes)
        rates += [rate + 0.0 * n for rate, _ in steps]
        sizes += [n * size for _, size in steps]
        floor = floor + n * each
    shape = np.broadcast_shapes(need.shape, *(x.shape for x in sizes))
    rate, size = (np.stack([np.broadcast_to(x, shape) for x in rows], axis=-1) for rows in (rates, sizes))
    order = np.argsort(rate, axis=-1, kind="stable")
    rate, size = (np.take_along_axis(x, order, axis=-1) for x in (rate, size))
    before = np.cumsum(size, axis=-1) - size
    part = np.clip(np.maximum(need, 0.0)[..., None] - before, 0.0, size)
    with np.errstate(invalid="ignore"):
        paid = np.where(part > 0, part * rate, 0.0).sum(axis=-1)
    paid = np.where(need <= size.sum(axis=-1) * (1 + 1e-12), paid, np.inf)
    least: Array = np.maximum(paid, floor)
    return least


def _ways_to_save(stage: Stages, modes: frozenset[str]) -> tuple[list[tuple[Array, Array]], Array]:
    """Return seconds a byte and bytes of the steps to recompute a layer, and the seconds it pays at least."""
    memory: Footprint = stage.memory
    inf, none = np.array(np.inf), np.zeros(())
    save_s = np.maximum(memory.none - memory.selective, 0.0) if "selective" in modes else none
    save_f = np.maximum(memory.none - memory.full, 0.0) if "full" in modes else none
    cost_s = stage.selective if "selective" in modes else inf
    cost_f = stage.full if "full" in modes else inf
    with np.errstate(divide="ignore", invalid="ignore"):
        rate_s = np.where(save_s > 0, cost_s / save_s, np.inf)
        rate_f = np.where(save_f > 0, cost_f / save_f, np.inf)
        swap = np.where(save_f > save_s, (cost_f - cost_s) / (save_f - save_s), np.inf)
    partly = (rate_s < rate_f) & np.isfinite(rate_s)
    first = np.where(partly, rate_s, rate_f), np.where(partly, save_s, save_f)
    second = np.where(partly, swap, np.inf), np.where(partly, np.maximum(save_f - save_s, 0.0), 0.0)
    least = none if "none" in modes else np.minimum(cost_s, cost_f)
    return [first, second], least


def contents_memory(group: PricedCandidates, places: Places) -> Array:
    """Return the least bytes by which each content is judged to fit, shape [C, X of all stages]."""
    return np.concatenate(
        [_least_memory(group, places, stage, slice(None)) for stage in range(group.pp)], axis=1
    )


def _least_memory(
    group: PricedCandidates, places: Places, stage: int, some: slice | NDArray[np.int64]
) -> Array:
    """Return the least bytes of ``some`` contents of a stage: with the most recompute of each kind."""
    kinds = [kind.take((slice(None), stage, None)) for kind in group.kinds]
    orders = places.rows[stage].orders[some]
    layers = places.prefixes.layers[orders].astype(np.float64)
    found = []
    for selective, full, allowed in most_recompute(layers, group.candidates.checkpoint[:, None], group.modes):
        here = mixed_stages_of(kinds, places.prefixes.held(orders, selective, full))
        needed = stage_needed(here.memory, layers, selective, full)
        found.append(np.where(allowed, needed, np.inf))
    least: Array = np.minimum.reduce(found)
    return least


def even_memory(group: PricedCandidates, places: Places) -> Array:
    """Return the least bytes by which the fullest stage of the even split fits, shape [C]."""
    found, first = [], 0
    for stage, layers in enumerate(even_stages(places.total, group.pp, places.v)):
        row = places.rows[stage]
        here = np.flatnonzero((row.first == first) & (row.layers == layers))
        found.append(_least_memory(group, places, stage, row.content[here])[:, 0])
        first += layers
    most: Array = np.maximum.reduce(found)
    return most


def standing_share(group: PricedCandidates, places: Places) -> Array:
    """Return what some stage has at least, however the layers are split, shape [C] [byte]: what stands."""
    memory = [kind.memory for kind in group.kinds]
    total = (memory[0].persistent_fixed + memory[0].framework).sum(axis=1)
    for n, kind in zip(_counts(places), memory, strict=True):
        total = total + n * kind.persistent_layer.min(axis=1)
    share: Array = total / group.pp
    return share


def _counts(places: Places) -> NDArray[np.int64]:
    return np.bincount(np.array(places.sequence))


def least_time(group: PricedCandidates, places: Places) -> Array:
    """Return the seconds of all stages for one microbatch, of any split and without recompute, shape [C]."""
    total: Array = (group.kinds[0].forward.fixed + group.kinds[0].backward.fixed).sum(axis=1)
    for n, kind in zip(_counts(places), group.kinds, strict=True):
        # A layer takes as long on one stage as on another.
        total = total + n * (kind.forward.layer + kind.backward.layer).min(axis=1)
    return total


def most_recompute(
    layers: Array, checkpoint: NDArray[np.int64] | int, modes: frozenset[str]
) -> list[tuple[Array, Array, NDArray[np.bool_]]]:
    """Return the mixes of a stage with the most recompute of each kind: selective, full, where allowed.

    Whole recompute comes in multiples of ``checkpoint``; what is left over may be recomputed selectively.
    """
    none = np.zeros_like(layers)
    anywhere = np.ones_like(layers, dtype=bool)
    found = [(none, none, anywhere)] if "none" in modes else []
    if "selective" in modes:
        found.append((layers, none, anywhere))
    if "full" in modes:
        rest = layers % checkpoint
        if "selective" in modes:
            found.append((rest, layers - rest, anywhere))
        if "none" in modes or "selective" not in modes:
            found.append((none, layers - rest, (rest == 0) | ("none" in modes)))
    return found
