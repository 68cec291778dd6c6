"""Whether some layout of a choice of degrees fits into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.layer_types import layer_types_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.job import Job
from autoplan.schema.recompute import FULL, listed_modes, total
from autoplan.verification.listing.branch_and_bound import RemainingStages
from autoplan.verification.listing.priced_rows import row_prices, rows_of
from autoplan.verification.relaxation.split_minima import LayerRanges, least_maximum
from autoplan.verification.relaxation.stage_floors import stages_of_ranges

__all__ = ["fits_by_listing", "some_fit", "some_split", "states_fit"]


def states_fit(job: Job, kinds: Sequence[Stages]) -> NDArray[np.bool_]:
    """Return which choices may hold persistent memory and the update on all devices together, [C].

    Each layer counts with the least that any stage needs for it.
    """
    types, limit = layer_types_of(job.model, job.workload.sequence_length), memory_limit_bytes(job)
    counts, memory = np.bincount(np.array(types.sequence)), [kind.memory for kind in kinds]
    first = memory[0]
    needed = first.persistent.fixed + first.framework + first.share * first.update.fixed
    total = needed.sum(axis=1)
    for n, x in zip(counts.tolist(), memory, strict=True):
        total = total + n * (x.persistent.layer + x.share * x.update.layer).min(axis=1)
    devices = first.persistent.fixed.shape[1]
    possible: NDArray[np.bool_] = np.asarray(total) <= limit * (1 + 1e-9) * devices
    return possible


def some_split(fits: NDArray[np.bool_], ranges: LayerRanges) -> NDArray[np.bool_]:
    """Return which choices have a split all of whose stages fit, for certain, [C]."""
    if ranges.even or ranges.prefixes is not None:
        return np.isfinite(least_maximum(np.where(fits, 0.0, np.inf), ranges))
    # Where a stage fits with up to n units of layers, it can hold any number up to n.
    contiguous = np.logical_and.accumulate(fits, axis=2).sum(axis=2)
    possible: NDArray[np.bool_] = (contiguous >= 1).all(axis=1) & (contiguous.sum(axis=1) >= ranges.units)
    return possible


def some_fit(
    kinds: Sequence[Stages], ranges: LayerRanges, modes: Collection[str], unit: int, limit: float
) -> NDArray[np.bool_]:
    """Return for which stages and contents one of a few recompute mixes fits ``limit`` bytes, [C, p, P].

    ``unit`` is the number of layers of a recompute unit.
    """
    fitting = np.zeros((1, 1, 1), dtype=bool)
    for counts in _few_mixes(ranges.layers, modes, unit):
        recomputed = total(counts, np.zeros_like(ranges.layers))
        possible = np.logical_and.reduce([count >= 0 for count in counts.values()])
        possible &= (recomputed <= ranges.layers) & (("none" in modes) | (recomputed == ranges.layers))
        mix = {mode: np.where(possible, count, 0.0) for mode, count in counts.items()}
        _, fits = stage_fits(stages_of_ranges(kinds, ranges, mix).memory, ranges.layers, mix, limit)
        fitting = fitting | ((fits > 0) & possible)
    return fitting


def _few_mixes(n: Array, modes: Collection[str], unit: int) -> Iterator[dict[str, Array]]:
    """Yield numbers of layers with each recompute mode, few or most of all."""
    none = dict.fromkeys(listed_modes(modes), np.zeros_like(n))
    in_part = [mode for mode in none if mode in modes and mode != FULL]
    if "none" in modes:
        yield none
    for left in range(3):
        yield from (none | {mode: n - left} for mode in in_part)
        if FULL in modes:
            whole = none | {FULL: (n - left) - (n - left) % unit}
            yield whole
            yield from (whole | {mode: n - whole[FULL]} for mode in in_part)


def fits_by_listing(
    job: Job,
    kinds: Sequence[Stages],
    ranges: LayerRanges,
    modes: Sequence[str],
    unit: int,
    possible: NDArray[np.bool_],
) -> bool:
    """Return whether a layout of a single choice fits, by all mixes of contents for which that is unknown.

    Layers have one type, and some stage may hold the contents that are ``possible``, [p, P].
    """
    fits = np.broadcast_to(
        some_fit(kinds, ranges, modes, unit, memory_limit_bytes(job))[0], possible.shape
    ).copy()
    layers = np.broadcast_to(ranges.layers, possible.shape).astype(np.int64)
    unknown = set(layers[possible & ~fits].tolist())
    only = modes[0] if len(modes) == 1 else None
    rows = rows_of(job, ranges.pp, ranges.v, unit, only, among=unknown) if unknown else None
    if rows is not None:
        by_count = np.maximum.reduceat(row_prices(job, kinds, rows)[-1], rows.starts, axis=1) > 0
        for column, count in enumerate(rows.layers[rows.starts].tolist()):
            fits |= (layers == count) & by_count[:, column, None]
    if ranges.even:
        return bool(fits[:, 0].all())
    counts = [(-1, count) for count in layers[0].tolist()]
    sums = RemainingStages.of(counts, ranges.units * ranges.v, np.where(fits, 0.0, np.inf)).sums
    return bool(sums[0][-1] < np.inf)
