"""Menus where layers differ: an option for each place of a stage, with the fastest recompute that fits.

All mixes of a content are priced: which layers are recomputed follows from how many, the first ones. The
fastest that fits serves all places of that content; where the user's own rules tell mixes apart, the fastest
of each kind do (``stage_alternatives`` says why the others may go).
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import stage_backward
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    alternative_table,
    mixes,
    on_every_stage,
    told_apart,
)
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import StageRules, across
from autoplan.search.space.stage_contents import Places

__all__ = ["alternatives_of_contents"]


def alternatives_of_contents(
    group: PricedCandidates,
    places: Places,
    position: int,
    limit: float,
    wanted: NDArray[np.bool_],
    scale: Scale,
    *,
    longest: float = inf,
) -> Alternatives:
    """Return the menu of the candidate at ``position`` with every device within ``limit`` bytes.

    ``wanted`` [X of all stages] marks contents worth offering. Options of more than ``longest`` seconds may
    be left out.
    """
    usable = places.usable(wanted)
    contents = [np.unique(row.content[on]) for row, on in zip(places.rows, usable, strict=True)]
    found: dict[tuple[int, int], list[Alternative]] = {}
    rules = group.stage_rules(position)
    plain = [i for i in range(group.pp) if not rules[i].of_recompute]
    if all(map(len, contents)):
        found = _fastest(group, places, position, limit, {i: contents[i] for i in plain}, scale)
    rows = []
    for i, (row, on, own) in enumerate(zip(places.rows, usable, rules, strict=True)):
        chosen = []
        for e in np.flatnonzero(on).tolist():
            first, layers, key = int(row.first[e]), int(row.layers[e]), (i, int(row.content[e]))
            if own.of_recompute and key not in found:
                found[key] = told_apart(group, position, own, (first, layers), (limit, longest), scale)
            chosen += [o._replace(first=first) for o in found.get(key, []) if _kept(own, o)]
        rows.append(tuple(chosen))
    stages = tuple(rows)
    if group.asks_uniform(position):
        stages = on_every_stage(stages, group.layers)
    return Alternatives(stages, group.schedule(position), across(group.parts(position)), placed=True)


def _kept(rules: StageRules, option: Alternative) -> bool:
    """Return whether an option keeps the rules about its stage's layers; those of mixes are kept already."""
    none = np.zeros(1)
    return rules.of_recompute or bool(rules.allows(option.layers, none, none)[0])


def _fastest(
    group: PricedCandidates,
    places: Places,
    position: int,
    limit: float,
    contents: dict[int, Ints],
    scale: Scale,
) -> dict[tuple[int, int], list[Alternative]]:
    """Return the fastest option of each content by stage and content, where one fits."""
    pairs = [(i, x, int(places.rows[i].orders[x])) for i, some in contents.items() for x in some.tolist()]
    if not pairs:
        return {}
    stage, content, order = np.array(pairs, dtype=np.int64).T
    held = places.prefixes.layers[order]
    found: dict[tuple[int, int], list[Alternative]] = {}
    for layers in np.unique(held).tolist():
        here = np.flatnonzero(held == layers)
        chosen = _of_layers(group, places, position, limit, (stage[here], order[here]), layers, scale)
        keys = zip(stage[here].tolist(), content[here].tolist(), strict=True)
        found |= {key: [option] for key, option in zip(keys, chosen, strict=True) if option is not None}
    return found


def _of_layers(
    group: PricedCandidates,
    places: Places,
    position: int,
    limit: float,
    contents: tuple[Ints, Ints],
    layers: int,
    scale: Scale,
) -> list[Alternative | None]:
    """Return the fastest option of contents of as many layers, given by stage and order, or None."""
    stage, order = contents
    selective, full = mixes(layers, group.modes, int(group.candidates.checkpoint[position]))
    kinds = [kind.take((position, stage, None)) for kind in group.kinds]
    here = mixed_stages_of(kinds, places.prefixes.held(order[:, None], selective, full))
    count, shape = np.array(float(layers)), (len(stage), len(selective))
    memory, fits = stage_fits(here.memory, count, selective, full, limit)
    backward = np.broadcast_to(stage_backward(here, count, selective, full), shape)
    # Memory breaks ties only: its share stays below half a tick of time.
    ranked = np.where(fits > 0, backward + 0.5 * scale.tick_seconds * memory / limit, np.inf)
    rows = np.arange(len(stage))
    best = ranked.argmin(axis=1)

    def at(values: Array) -> Array:
        chosen: Array = np.broadcast_to(values, shape)[rows, best]
        return chosen

    chosen = mixed_stages_of(
        [kind.take((position, stage)) for kind in group.kinds],
        places.prefixes.held(order, selective[best], full[best]),
    )
    mix = selective[best], full[best]
    table = alternative_table(chosen, count, mix, at(memory), v=places.v, scale=scale).tolist()
    fitting = np.isfinite(ranked[rows, best]).tolist()
    return [Alternative(*entry) if fit else None for entry, fit in zip(table, fitting, strict=True)]
