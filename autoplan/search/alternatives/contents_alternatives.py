"""Alternatives of stages where layers differ: one for each place of a stage, with the fastest recompute mix.

All recompute mixes of a content are priced (``mix_prices``): the layers recomputed are the first ones. The
fastest mix that fits serves all places with that content; where the user's rules distinguish mixes, the
fastest of each class do (``stage_alternatives`` shows why the others are dominated).
"""

from __future__ import annotations

from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Ints, distinct
from autoplan.search.alternatives.mix_prices import MixPrices
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    alternatives_by_rules,
    uniform_alternatives,
)
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import across
from autoplan.search.space.stage_contents import Places

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
