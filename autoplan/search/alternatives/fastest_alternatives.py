"""The fastest recompute mix of every stage and number of layers that fits, of several candidates at once.

The arrays of one candidate are small: most of their time is that of calls. So candidates that are opened one
after the other, with the same bound, are priced together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, ByMode, Ints
from autoplan.costs.memory.footprint import bytes_to_save, stage_fits
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.recompute import FULL, listed_modes, total
from autoplan.search.alternatives.layer_splits import useful_counts
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Scale,
    alternative_table,
    alternatives_by_rules,
    uniform_alternatives,
)
from autoplan.search.bounds.step_bound import Bound, longest_stage
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import across

#: Entries of one array [C, p, n, f] that are priced at once: 1.6 MB of floats.
_BLOCK: Final = 200_000
#: Times the least bound of a batch from which on a step says little: the next incumbent is far below it.
_FAR: Final = 1.5


class RecentFastest:
    """Alternatives of one candidate after the other; those of a batch are priced together."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._batch: Bound | None = None
        self._first_alone = False
        self._priced: _Fastest | None = None

    def begin(self, batch: Bound, most: float) -> None:
        """Expect candidates of ``batch`` next, for steps of up to ``most`` seconds."""
        self._batch, self._priced = batch, None
        # The first candidate then gives an incumbent that excludes most of the others.
        self._first_alone = most > _FAR * float(batch.step_seconds.min())

    def of(
        self, group: PricedCandidates, position: int, limit: float, most: float, lower: Bound
    ) -> Alternatives:
        """Return the alternatives of a candidate for steps of up to ``most`` seconds.

        ``lower`` has its bound under the ``limit`` [bytes], in the row ``position``.
        """
        useful, longest = _useful(group, position, most, lower)
        if lower is not self._batch or self._first_alone or group.parts(position):
            self._first_alone = False
            return alternatives_of(group, position, limit, useful, self._scale, longest=longest)
        if self._priced is None or position not in self._priced.rows:
            following = lower.step_seconds >= lower.step_seconds[position]
            positions = np.flatnonzero(following & (lower.step_seconds <= most))
            positions = positions[np.argsort(lower.step_seconds[positions], kind="stable")]
            offered = [np.isfinite(_useful(group, i, most, lower)[0]) for i in positions.tolist()]
            self._priced = _Fastest.of(group, positions, limit, np.array(offered), self._scale)
        return self._priced.alternatives(position, useful)


def _useful(group: PricedCandidates, position: int, most: float, lower: Bound) -> tuple[Array, float]:
    """Return the times of a candidate's stages by useful number of layers, and the longest of them [s]."""
    busy = most - float(lower.tail[position])
    longest = longest_stage(group.schedule(position), float(lower.stage_sum[position]), busy)
    return useful_counts(group, lower.stage_seconds[position], longest), longest


def alternatives_of(
    group: PricedCandidates,
    position: int,
    limit: float,
    offered: Array,
    scale: Scale,
    *,
    longest: float = inf,
) -> Alternatives:
    """Return the alternatives of the candidate at ``position`` with every device within ``limit`` bytes.

    ``offered`` [p, L] is finite for the useful layer counts of a stage. Alternatives of more than ``longest``
    seconds may be left out.
    """
    useful = np.isfinite(offered)
    fastest = _Fastest.of(group, np.array([position]), limit, useful[None], scale)
    alternatives = fastest.alternatives(position, offered)
    if not group.parts(position) or not useful.any():
        return alternatives
    stages = _under_rules(group, position, alternatives.stages, useful, (limit, longest), scale)
    return Alternatives(stages, alternatives.schedule, across(group.parts(position)))


def _under_rules(
    group: PricedCandidates,
    position: int,
    stages: tuple[tuple[Alternative, ...], ...],
    useful: NDArray[np.bool_],
    most: tuple[float, float],
    scale: Scale,
) -> tuple[tuple[Alternative, ...], ...]:
    """Return ``stages`` under the user's rules: the fastest allowed mix of each class of the rules.

    ``most`` is the memory limit [bytes] and the time limit [s] of a stage.
    """
    rows = []
    for row, rules in zip(stages, group.stage_rules(position), strict=True):
        if rules.of_recompute:
            counts = (np.flatnonzero(useful[rules.stage]) + 1).tolist()
            by_count = [alternatives_by_rules(group, position, rules, (-1, n), most, scale) for n in counts]
            rows.append(tuple(o for chosen in by_count for o in chosen))
        else:
            rows.append(tuple(o for o in row if rules.allows(o.layers, {})[0]))
    return (
        uniform_alternatives(rows, group.layers)
        if group.requires_uniform_recompute(position)
        else tuple(rows)
    )


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest alternatives of candidates, for the same numbers of layers ``counts`` [n].

    ``rows`` maps positions in the group to rows of ``table`` [C, p, n, fields of ``Alternative``] and of
    ``fits`` [C, p, n], which says where the limit allows a mix.
    """

    group: PricedCandidates
    rows: dict[int, int]
    counts: Ints
    table: NDArray[np.int64]
    fits: NDArray[np.bool_]

    @staticmethod
    def of(
        group: PricedCandidates, positions: Ints, limit: float, offered: NDArray[np.bool_], scale: Scale
    ) -> _Fastest:
        """Return those of the first of ``positions``, as many as are priced at once.

        ``offered`` [C, p, L] says which numbers of layers are useful.
        """
        counts = np.flatnonzero(offered.any(axis=(0, 1))) + 1
        enumerated = max(1, len(_enumerated_modes(group.modes)))
        entries = group.pp * len(counts) * (int(counts.max(initial=0)) + 1) ** enumerated
        at = positions[: max(1, _BLOCK // max(1, entries))]
        rows = {position: row for row, position in enumerate(at.tolist())}
        if not len(counts):
            none = np.zeros((len(at), group.pp, 0, 0), dtype=np.int64)
            return _Fastest(group, rows, counts, none, none[..., 0].astype(bool))
        # Coefficients with an axis for the layers and one for the mixes of a number of layers.
        stages, layers = group.stages.take((at, slice(None), None, None)), counts[:, None].astype(np.float64)
        unit = group.candidates.recompute_num_layers[at, None, None, None]
        mix, memory, fits = _fastest_mix(stages, layers, limit, group.modes, scale, unit)
        v = group.v[at, None, None, None]
        table = alternative_table(stages, layers, mix, memory, v=v, scale=scale)
        return _Fastest(group, rows, counts, table[..., 0, :], fits[..., 0])

    def alternatives(self, position: int, offered: Array) -> Alternatives:
        """Return the alternatives of a candidate; ``offered`` [p, L] is finite for those that are useful."""
        row = self.rows[position]
        listed = np.isfinite(offered[:, self.counts - 1]) & self.fits[row]
        entries = self.table[row][listed].tolist()
        chosen = map(Alternative.of, entries)
        stages = tuple(tuple(islice(chosen, count)) for count in listed.sum(axis=1).tolist())
        return Alternatives(stages, self.group.schedule(position))


_NONE: Final = np.zeros(())


def _fastest_mix(
    stages: Stages, layers: Array, limit: float, modes: frozenset[str], scale: Scale, unit: Ints
) -> tuple[dict[str, Array], Array, NDArray[np.bool_]]:
    """Return the fastest mix (layers with each mode), its memory and whether it fits, [C, p, n, 1].

    For each numbers of layers with the other modes, of full recompute multiples of ``unit``, the fewest that
    fit with the first mode follow from the bytes to save; among equal times the mix with the least memory is
    taken. ``stages`` has coefficients [C, p, 1, 1], ``layers`` shape [n, 1] and ``unit`` [C, 1, 1, 1].
    """
    others = _enumerated(layers, modes, unit)
    first = next((mode for mode in listed_modes(modes) if mode in modes - others.keys()), None)
    mix: dict[str, Array] = dict.fromkeys(listed_modes(modes), _NONE) | others
    enumerated = total(others, _NONE)
    if first is not None:
        mix[first] = _fewest(stages, layers, others, limit, modes, first)
    memory, fits = stage_fits(stages.memory, layers, mix, limit)
    if first is not None:
        # The recompute workspace of the last layers, or what the first one saves, may require one or two
        # more.
        for _ in range(2):
            short = (fits == 0) & (total(mix, _NONE) < layers) & (mix[first] < 2 + layers - enumerated)
            if not short.any():
                break
            mix[first] = mix[first] + short
            memory, fits = stage_fits(stages.memory, layers, mix, limit)
    valid = (total(mix, _NONE) <= layers) & (fits > 0)
    if "none" not in modes:
        valid &= total(mix, _NONE) == layers
    cost = sum((count * stages.recompute[mode] for mode, count in mix.items()), _NONE)
    # Memory breaks ties only: its share stays below half a tick of time.
    ranked = np.where(valid, cost + 0.5 * scale.tick_seconds * memory / limit, np.inf)
    best = ranked.argmin(axis=-1)[..., None]
    chosen = {mode: _at(best, count, ranked.shape) for mode, count in mix.items()}
    used = _at(best, memory, ranked.shape)
    return chosen, used, np.take_along_axis(valid, best, axis=-1)


def _at(best: Ints, values: Array, shape: tuple[int, ...]) -> Array:
    """Return the ``values``, broadcast to ``shape``, at the index ``best`` of the last axis."""
    chosen: Array = np.take_along_axis(np.broadcast_to(values, shape), best, axis=-1)
    return chosen


def _enumerated_modes(modes: frozenset[str]) -> tuple[str, ...]:
    """Return the modes whose counts are enumerated: full recompute, and all but the first of the others."""
    in_part = [mode for mode in listed_modes(modes) if mode in modes and mode != FULL]
    return (FULL, *in_part[1:]) if FULL in modes else tuple(in_part[1:])


def _enumerated(layers: Array, modes: frozenset[str], unit: Ints) -> dict[str, Array]:
    """Return every combination of counts of the enumerated modes, shape [C, 1, 1, combinations]."""
    most, enumerated = layers.max(), _enumerated_modes(modes)
    counts = [np.arange((most // unit.min() if mode == FULL else most) + 1.0) for mode in enumerated]
    grid = np.meshgrid(*counts, indexing="ij")
    return {
        mode: of_mode.ravel() * (unit if mode == FULL else 1)
        for mode, of_mode in zip(enumerated, grid, strict=True)
    }


def _fewest(
    stages: Stages, layers: Array, others: ByMode, limit: float, modes: frozenset[str], first: str
) -> Array:
    """Return the fewest layers with the mode ``first`` that fit into memory for each count of the others."""
    remaining = np.maximum(layers - total(others, _NONE), 0.0)
    shape = np.broadcast_shapes(stages.forward.layer.shape, remaining.shape)
    if "none" not in modes:
        return np.broadcast_to(remaining, shape)
    memory = stages.memory
    per_layer = memory.none - memory.recomputed[first]
    short = bytes_to_save(memory, layers, limit)
    for mode, count in others.items():
        short = short - count * (memory.none - memory.recomputed[mode])
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = np.ceil(short / per_layer - 1e-9)
    # Where recompute of the mode saves nothing, no number of layers helps.
    needed = np.where(short <= 0, 0.0, np.where(per_layer > 0, enough, np.inf))
    # Recompute costs nothing where communication overlaps it: use it for all layers.
    needed = np.where((stages.recompute[first] <= 0) & (per_layer > 0), remaining, needed)
    return np.minimum(needed, layers + 1)
