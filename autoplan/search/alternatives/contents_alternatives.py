"""Alternatives of stages where layers differ: one for each place of a stage, with the fastest recompute mix.

All recompute mixes of a content are priced: the layers recomputed are the first ones. Backward and memory of
a mix do not depend on the memory limit, so each is priced once in a sweep (``MixPrices``): a limit then
chooses among the mixes by a comparison of two numbers. The fastest mix that fits serves all places with that
content; where the user's rules distinguish mixes, the fastest of each class do (``stage_alternatives`` shows
why the others are dominated).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, ByMode, Ints, distinct, mapped
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import Stages, stage_backward
from autoplan.deadline import check_deadline
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Scale,
    alternative_table,
    alternatives_by_rules,
    mixes,
    uniform_alternatives,
)
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import across
from autoplan.search.space.stage_contents import Places

#: Prices that are remembered for later limits: 48 MB.
_MOST_PRICES: Final = 3_000_000

#: Prices of one array, which stays in the cache of a core.
_BLOCK: Final = 50_000


class _Contents(NamedTuple):
    """Contents of stages by their stage and their order of layer types, shape [X]."""

    stage: Ints
    order: Ints


class MixPrices:
    """Prices of the recompute mixes of one candidate's contents, each made when it is first asked for.

    A row is a content, of a stage; its columns are the mixes of ``mixes``, in order.
    """

    def __init__(self, group: PricedCandidates, position: int, scale: Scale) -> None:
        if group.places is None:
            raise ValueError("a candidate whose layers are all alike has no contents")
        self.scale = scale
        # Copies, so that the other candidates of the group can be freed.
        self._kinds: list[Stages] = [mapped(kind, lambda x: x[position].copy()) for kind in group.kinds]
        self._prefixes, self._v = group.places.prefixes, group.places.v
        self._modes, self._unit = group.modes, int(group.candidates.recompute_num_layers[position])
        self._rows: dict[tuple[int, int], int] = {}
        self._backward: Array = np.zeros((0, 0))
        self._memory: Array = np.zeros((0, 0))
        self._alternatives: dict[tuple[int, int], Alternative] = {}

    @property
    def count(self) -> int:
        """Number of prices that are remembered."""
        return self._backward.size + self._memory.size

    def fastest(self, stage: Ints, order: Ints, limit: float) -> list[Alternative | None]:
        """Return the fastest alternative within ``limit`` bytes of each content; None where no mix fits.

        Contents are given by ``stage`` and ``order``, shape [X]. Memory breaks ties only: its share stays
        below half a tick of time.
        """
        self._price_new(stage, order)
        rows = np.array([self._rows[key] for key in zip(stage.tolist(), order.tolist(), strict=True)])
        memory = self._memory[rows]
        ranked = self._backward[rows] + 0.5 * self.scale.tick_seconds * memory / limit
        ranked = np.where(memory <= limit, ranked, np.inf)
        best = ranked.argmin(axis=1)
        at = np.arange(len(rows)), best
        fitting = np.isfinite(ranked[at])
        keys = list(zip(rows.tolist(), best.tolist(), strict=True))
        new = np.array(
            [i for i, key in enumerate(keys) if fitting[i] and key not in self._alternatives], dtype=np.int64
        )
        if len(new):
            listed = self._listed(_Contents(stage[new], order[new]), best[new], memory[at][new])
            self._alternatives.update(zip((keys[i] for i in new.tolist()), listed, strict=True))
        return [
            self._alternatives[key] if fits else None
            for key, fits in zip(keys, fitting.tolist(), strict=True)
        ]

    def _price_new(self, stage: Ints, order: Ints) -> None:
        """Price the mixes of the contents that are asked for the first time."""
        keys = zip(stage.tolist(), order.tolist(), strict=True)
        new = [i for i, key in enumerate(keys) if key not in self._rows]
        if not new:
            return
        layers = self._prefixes.layers[order]
        for some in self._blocks(np.array(new), layers):
            check_deadline()
            contents = _Contents(stage[some], order[some])
            backward, memory = self._priced(contents, layers[some])
            first = len(self._rows)
            keys = zip(contents.stage.tolist(), contents.order.tolist(), strict=True)
            self._rows |= {key: first + i for i, key in enumerate(keys)}
            self._backward = _appended(self._backward, backward)
            self._memory = _appended(self._memory, memory)

    def _blocks(self, index: Ints, layers: Ints) -> Iterator[Ints]:
        """Yield ``index`` in parts of similar numbers of mixes, each small enough for an array."""
        widths = np.array([_number_of(self._mixes(count)) for count in layers[index].tolist()])
        for width in distinct(np.frexp(widths)[1]).tolist():
            similar = index[np.frexp(widths)[1] == width]
            size = max(1, _BLOCK >> width)
            yield from (similar[i : i + size] for i in range(0, len(similar), size))

    def _mixes(self, layers: int) -> dict[str, Array]:
        return mixes(layers, self._modes, self._unit)

    def _priced(self, contents: _Contents, layers: Ints) -> tuple[Array, Array]:
        """Return backward [s] and memory [byte] of contents by mix; infinite where a mix never fits."""
        mixes_of = [self._mixes(count) for count in layers.tolist()]
        shape = len(layers), max(map(_number_of, mixes_of))
        recomputed, listed = {mode: np.zeros(shape) for mode in mixes_of[0]}, np.zeros(shape, dtype=bool)
        for row, mix in enumerate(mixes_of):
            listed[row, : _number_of(mix)] = True
            for mode, counts in mix.items():
                recomputed[mode][row, : len(counts)] = counts
        mixed = self._mixed(contents, recomputed)
        count = layers.astype(np.float64)[:, None]
        memory, fits = stage_fits(mixed.memory, count, recomputed, np.inf)
        backward = np.broadcast_to(stage_backward(mixed, count, recomputed), shape)
        return backward, np.where(listed & (fits > 0), memory, np.inf)

    def _mixed(self, contents: _Contents, recomputed: ByMode) -> Stages:
        """Return the coefficients of contents with as many layers recomputed, shape [X, mixes]."""
        kinds = [kind.take((contents.stage, None)) for kind in self._kinds]
        return mixed_stages_of(kinds, self._prefixes.layer_counts(contents.order[:, None], recomputed))

    def _listed(self, contents: _Contents, mix: Ints, memory: Array) -> Iterator[Alternative]:
        """Yield the alternative of each content with one ``mix``, which needs ``memory`` bytes."""
        layers = self._prefixes.layers[contents.order]
        mixes_of = list(map(self._mixes, layers.tolist()))
        of_mix = {
            mode: np.array([[of_stage[mode][i]] for i, of_stage in zip(mix.tolist(), mixes_of, strict=True)])
            for mode in mixes_of[0]
        }
        mixed = self._mixed(contents, of_mix)
        count = layers.astype(np.float64)[:, None]
        table = alternative_table(mixed, count, of_mix, memory[:, None], v=self._v, scale=self.scale)
        return map(Alternative.of, table[:, 0].tolist())


def _number_of(mix: ByMode) -> int:
    """Return the number of mixes."""
    return len(next(iter(mix.values())))


class RecentMixPrices:
    """Prices of the mixes of the candidates that were asked for last, by group and position."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._prices: dict[tuple[int, int], MixPrices] = {}

    def of(self, key: tuple[int, int], group: PricedCandidates, position: int) -> MixPrices:
        """Return the prices of the candidate ``key``, which is the one of ``group`` at ``position``."""
        if sum(prices.count for prices in self._prices.values()) > _MOST_PRICES:
            self._prices.clear()
        if key not in self._prices:
            self._prices[key] = MixPrices(group, position, self._scale)
        return self._prices[key]


def _appended(table: Array, rows: NDArray[np.floating]) -> Array:
    """Return ``table`` with more ``rows``; columns that one of the two lacks are infinite."""
    width = max(table.shape[1], rows.shape[1])
    joined = np.full((len(table) + len(rows), width), np.inf)
    joined[: len(table), : table.shape[1]] = table
    joined[len(table) :, : rows.shape[1]] = rows
    return joined


#: Position of the layers before a stage among the fields of ``Alternative``.
_FIRST: Final = Alternative._fields.index("first")


def alternatives_of_contents(
    group: PricedCandidates,
    places: Places,
    position: int,
    limit: float,
    wanted: NDArray[np.bool_],
    prices: MixPrices,
    *,
    longest: float = inf,
) -> Alternatives:
    """Return the alternatives of the candidate at ``position`` with every device within ``limit`` bytes.

    ``wanted`` [X of all stages] marks the contents to list; ``prices`` are the candidate's, under any limit.
    Alternatives of more than ``longest`` seconds may be left out.
    """
    usable = places.usable(wanted)
    contents = [distinct(row.content[places_on]) for row, places_on in zip(places.rows, usable, strict=True)]
    fastest_by_content: dict[tuple[int, int], list[Alternative]] = {}
    rules = group.stage_rules(position)
    plain = [i for i in range(group.pp) if not rules[i].of_recompute]
    if all(map(len, contents)):
        of_stages = {i: contents[i] for i in plain}
        fastest_by_content = _fastest(places, prices, limit, of_stages)
    rows = []
    for i, (row, places_on, stage_rules) in enumerate(zip(places.rows, usable, rules, strict=True)):
        chosen = []
        of_recompute = stage_rules.of_recompute
        for e in np.flatnonzero(places_on).tolist():
            first, key = int(row.first[e]), (i, int(row.content[e]))
            if of_recompute and key not in fastest_by_content:
                fastest_by_content[key] = alternatives_by_rules(
                    group, position, stage_rules, (first, int(row.layers[e])), (limit, longest), prices.scale
                )
            chosen += [_placed(o, first) for o in fastest_by_content.get(key, ())]
        if stage_rules.of_stage and not of_recompute:
            chosen = [o for o in chosen if stage_rules.allows(o.layers, {})[0]]
        rows.append(tuple(chosen))
    stages = tuple(rows)
    if group.requires_uniform_recompute(position):
        stages = uniform_alternatives(stages, group.layers)
    return Alternatives(stages, group.schedule(position), across(group.parts(position)), placed=True)


def _placed(alternative: Alternative, first: int) -> Alternative:
    """Return ``alternative`` behind ``first`` layers: ``_replace`` takes twice as long."""
    return Alternative._make((*alternative[:_FIRST], first, *alternative[_FIRST + 1 :]))


def _fastest(
    places: Places, prices: MixPrices, limit: float, contents: dict[int, Ints]
) -> dict[tuple[int, int], list[Alternative]]:
    """Return the fastest alternative by stage and content, where one fits."""
    if not contents:
        return {}
    stage = np.repeat(list(contents), [len(numbers) for numbers in contents.values()])
    content = np.concatenate(list(contents.values()))
    order = np.concatenate([places.rows[i].orders[numbers] for i, numbers in contents.items()])
    keys = zip(stage.tolist(), content.tolist(), strict=True)
    return {
        key: [alternative]
        for key, alternative in zip(keys, prices.fastest(stage, order, limit), strict=True)
        if alternative is not None
    }
