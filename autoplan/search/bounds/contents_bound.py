"""Lower bounds on time and memory of stages in a model with several layer types (``stage_contents``).

Bounds are per content of a stage. With one layer type, ``step_bound`` and ``memory_bound`` do the same per
number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints, taken
from autoplan.costs.core.layer_types import StageLayers
from autoplan.costs.memory.footprint import bytes_to_save, stage_needed
from autoplan.costs.memory.mixed_layers import mixed_footprint
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import Stages, end_of_step_floor, stage_backward, stage_forward
from autoplan.deadline import check_deadline
from autoplan.schema.recompute import FULL, listed_modes
from autoplan.schema.stage_layers import even_stages
from autoplan.search.space.priced_candidates import PricedCandidates, SizedCandidates
from autoplan.search.space.stage_contents import Places


def contents_bounds(group: PricedCandidates, places: Places, limit: Array | float) -> tuple[Array, Array]:
    """Return lower bounds on the time of each content and on the end of the step, under ``limit`` bytes [s].

    Shapes [C, X of all stages] and [C]. Recompute is relaxed to fractions of layers, those of least time per
    byte saved first. The end of the step of a stage is bounded by its content with the least.
    """
    limits = np.asarray(limit, dtype=np.float64).reshape(-1, 1)
    kinds = [kind.take((slice(None), places.stages)) for kind in group.kinds]
    layers = places.layers.astype(np.float64)
    layer_counts = places.prefixes.layer_counts(places.orders, {})
    coefficients = mixed_stages_of(kinds, layer_counts)
    bytes_needed = bytes_to_save(coefficients.memory, layers, limits)
    recompute = _relaxed_recompute(kinds, layer_counts, bytes_needed, group.modes)
    forward = stage_forward(coefficients, layers)
    backward = stage_backward(coefficients, layers, {})
    tails = np.minimum.reduceat(end_of_step_floor(coefficients, layers), places.starts, axis=1)
    tail: Array = tails.max(axis=1)
    return forward + backward + recompute, tail


def _relaxed_recompute(
    kinds: Sequence[Stages], layer_counts: StageLayers, need: Array, modes: frozenset[str]
) -> Array:
    """Return the optimum of the fractional knapsack: least recompute time that saves ``need`` bytes.

    Each layer type has an item for each mode: see ``recompute_steps``. Items are taken in ascending order of
    seconds per byte, across layer types.
    """
    rates, sizes, floor = [], [], np.zeros(())
    for n, stage in zip(layer_counts.layers, kinds, strict=True):
        steps, least_cost = recompute_steps(stage, modes)
        rates += [rate + 0.0 * n for rate, _ in steps]
        sizes += [n * size for _, size in steps]
        floor = floor + n * least_cost
    shape = np.broadcast_shapes(need.shape, *(x.shape for x in sizes))
    rate, size = (np.stack([np.broadcast_to(x, shape) for x in rows], axis=-1) for rows in (rates, sizes))
    order = np.argsort(rate, axis=-1, kind="stable")
    rate, size = (np.take_along_axis(x, order, axis=-1) for x in (rate, size))
    before = np.cumsum(size, axis=-1) - size
    saved = np.clip(np.maximum(need, 0.0)[..., None] - before, 0.0, size)
    with np.errstate(invalid="ignore"):
        cost = np.where(saved > 0, saved * rate, 0.0).sum(axis=-1)
    cost = np.where(need <= size.sum(axis=-1) * (1 + 1e-12), cost, np.inf)
    least: Array = np.maximum(cost, floor)
    return least


def recompute_steps(stage: Stages, modes: frozenset[str]) -> tuple[list[tuple[Array, Array]], Array]:
    """Return (seconds per byte, bytes) of the knapsack items of a layer, and its least time [s].

    The first item is the mode with fewest seconds per byte; the next ones change to modes that save more, by
    the fewest seconds for each more byte: the lower convex hull of the modes. Items that a layer does not
    have save no bytes, at infinite cost.
    """
    memory, allowed = stage.memory, [mode for mode in stage.recompute if mode in modes]
    zero = np.zeros(())
    save = [np.maximum(memory.none - memory.recomputed[mode], 0.0) for mode in allowed]
    cost = [stage.recompute[mode] for mode in allowed]
    saved: Array = zero
    spent: Array = zero
    steps: list[tuple[Array, Array]] = []
    for _ in listed_modes(modes):
        rate: Array = np.array(np.inf)
        more: Array = zero
        seconds: Array = zero
        for of_mode, cost_of_mode in zip(reversed(save), reversed(cost), strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                swap = np.where(of_mode > saved, (cost_of_mode - spent) / (of_mode - saved), np.inf)
            cheaper = swap < rate
            rate, more = np.where(cheaper, swap, rate), np.where(cheaper, of_mode - saved, more)
            seconds = np.where(cheaper, cost_of_mode - spent, seconds)
        steps.append((rate, more))
        saved, spent = saved + more, spent + seconds
    least: Array = zero if "none" in modes else np.minimum.reduce(np.broadcast_arrays(*cost))
    return steps, least


def contents_memory(group: SizedCandidates, places: Places, *, last_mix: bool = False) -> Array:
    """Return the least memory of each content over all recompute mixes, shape [C, X of all stages] [byte].

    With ``last_mix``, that of the last of ``most_recompute`` alone, which recomputes most.
    """
    return _least_memory(group, places, places.stages, places.orders, last_mix=last_mix)


def _least_memory(
    group: SizedCandidates, places: Places, stages: Ints, orders: Ints, *, last_mix: bool = False
) -> Array:
    """Return the least memory of X stages with layers in ``orders`` over recompute mixes, [C, X] [byte]."""
    check_deadline()
    of_types = [taken(footprint, (slice(None), stages)) for footprint in group.footprints]
    layers = places.prefixes.layers[orders].astype(np.float64)
    needed_by_mix = []
    unit = group.candidates.recompute_num_layers[:, None]
    # One unit for all candidates: the mixes of a content are the same for all.
    if (unit == unit[:1]).all():
        unit = unit[:1]
    mixes = most_recompute(layers, unit, group.modes)
    for mix, allowed in mixes[-1:] if last_mix else mixes:
        mixed = mixed_footprint(of_types, places.prefixes.layer_counts(orders, mix))
        needed_by_mix.append(np.where(allowed, stage_needed(mixed, layers, mix), np.inf))
    least: Array = np.minimum.reduce(needed_by_mix)
    return least


def even_memory(group: SizedCandidates, places: Places) -> Array:
    """Return the least peak memory over stages of the even split, shape [C] [byte]."""
    orders, first = [], 0
    for stage, layers in enumerate(even_stages(places.total, group.pp, places.v)):
        orders.append(places.order(stage, first, layers))
        first += layers
    most: Array = _least_memory(group, places, np.arange(group.pp), np.array(orders)).max(axis=1)
    return most


def layers_by_type(places: Places) -> NDArray[np.int64]:
    """Return the number of layers of each layer type in the model, shape [K]."""
    return np.bincount(np.array(places.sequence))


def least_stage_sum(group: PricedCandidates, places: Places) -> Array:
    """Return a lower bound on the sum of stage times, for any split and without recompute, shape [C] [s]."""
    total: Array = (group.kinds[0].forward.fixed + group.kinds[0].backward.fixed).sum(axis=1)
    for n, kind in zip(layers_by_type(places), group.kinds, strict=True):
        # The time of a layer is the same on every stage.
        total = total + n * (kind.forward.layer + kind.backward.layer).min(axis=1)
    return total


def most_recompute(
    layers: Array, unit: NDArray[np.int64] | int, modes: frozenset[str]
) -> list[tuple[dict[str, Array], NDArray[np.bool_]]]:
    """Return the mixes of a stage with the most recompute of each mode, and where each is allowed.

    Full recompute comes in multiples of ``unit`` layers; the remainder may use another mode.
    """
    always = np.ones_like(layers, dtype=bool)
    nothing = dict.fromkeys(listed_modes(modes), np.zeros_like(layers))
    in_part = [mode for mode in nothing if mode in modes and mode != FULL]
    mixes = [(nothing, always)] if "none" in modes else []
    mixes += [(nothing | {mode: layers}, always) for mode in in_part]
    if FULL in modes:
        remainder = layers % unit
        whole = nothing | {FULL: layers - remainder}
        mixes += [(whole | {mode: remainder}, always) for mode in in_part]
        # Where the unit divides all numbers of layers, this is the mix above.
        distinct = not in_part or ("none" in modes and bool(remainder.any()))
        if distinct:
            mixes.append((whole, (remainder == 0) | ("none" in modes)))
    return mixes
