"""Domain reduction: remove the alternatives that no layout as fast as the incumbent uses.

The solver gets the reduced domains, the best layout of the heuristics as a hint, and the least objective that
label setting proves.

Least step and least memory of a candidate whose stages can only choose their recompute.

Where every stage has one number of layers, as with virtual stages that are equal once embedding and head
count as layers, its alternatives trade a longer backward for a shorter end of step (``reduction_overlap``).
The makespan does not decrease when a backward grows. So for a limit on the longest end of step, the fastest
layout has the shortest backward within it on every stage, and the least step is that of one of these layouts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf

import numpy as np
from numpy.typing import NDArray

from autoplan.deadline import check_deadline
from autoplan.search.alternatives.layer_splits import (
    primal_heuristic,
    sum_and_maximum_heuristic,
    within_makespan,
)
from autoplan.search.alternatives.layout_labels import LeastLayout, least_layout
from autoplan.search.alternatives.reduction_overlap import with_more_reduction_overlap
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Incumbent,
    Scale,
    step_ticks,
)
from autoplan.search.bounds.step_bound import longest_stage
from autoplan.search.space.priced_candidates import PricedCandidates

#: Share by which rounding may make the relaxation's end of step too long.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class OpenCandidate:
    """A candidate that may have the fastest layout: its alternatives under the current memory limit.

    ``incumbent_seconds`` is the step of a feasible layout of these alternatives; ``sum_seconds`` and
    ``tail_seconds`` are the least sum of stage times and the least end of step. ``before_cut`` are the
    alternatives before those too slow for a step were left out.
    """

    group: int
    position: int
    bound_seconds: float
    incumbent_seconds: float
    sum_seconds: float
    tail_seconds: float
    alternatives: Alternatives
    before_cut: Alternatives | None = None


@dataclass(frozen=True, slots=True)
class ReducedDomains:
    """Candidates with the alternatives of steps within ``ceiling`` ticks, and an incumbent.

    ``least`` is a lower bound on the step, and among equal steps on the memory [ticks], where the incumbent
    attains it. Others are left out: with a bound that no layout attains the solver takes longer (405B on
    16,384 devices: 5.4 units of its work, and 1.8 without).
    """

    live: tuple[OpenCandidate, ...]
    ceiling: int
    incumbent: Incumbent | None
    least: tuple[float, float] = (0, 0)


def within_step(live: OpenCandidate, layers: int, most: float, scale: Scale) -> OpenCandidate | None:
    """Return ``live`` without alternatives that no step of ``most`` seconds uses; None if none is left."""
    alternatives = live.alternatives
    longest = longest_stage(alternatives.schedule, live.sum_seconds, most - live.tail_seconds)
    ticks = int(longest / scale.tick_seconds / alternatives.schedule.v) + 3
    stages = [[o for o in row if o.stage_ticks <= ticks] for row in alternatives.stages]
    most_layers = [max((o.layers for o in row), default=0) for row in stages]
    fewest_layers = [layers - sum(most_layers) + count for count in most_layers]
    reduced = tuple(
        tuple(o for o in row if o.layers >= least) for row, least in zip(stages, fewest_layers, strict=True)
    )
    cut = replace(alternatives, stages=reduced)
    return None if cut.empty else replace(live, alternatives=cut, before_cut=alternatives)


def reduced_domains(
    live: Sequence[OpenCandidate],
    groups: Sequence[PricedCandidates],
    scale: Scale,
    ceiling: int,
    limit: float,
) -> ReducedDomains:
    """Return the reduced domains of ``live`` within ``limit`` bytes.

    The ceiling is the step of the primal heuristic's best layout. Alternatives that exceed it are removed;
    slower ones with a shorter end of step are added.
    """
    layers = groups[0].layers
    layout: tuple[OpenCandidate, tuple[Alternative, ...]] | None = None
    for c in live:
        chosen, ceiling = sum_and_maximum_heuristic(c.alternatives, layers, ceiling)
        layout = layout if chosen is None else (c, chosen)
    remaining = [
        (c, alternatives)
        for c in live
        if (alternatives := _reduced_domain(c, groups[c.group], scale, ceiling, limit)) is not None
    ]
    incumbent = _as_incumbent([c for c, _ in remaining], layout or _heuristic_layout(live, layers))
    reduced = tuple(replace(c, alternatives=alternatives) for c, alternatives in remaining)
    return _with_least(ReducedDomains(reduced, ceiling, incumbent), layers)


def _with_least(domains: ReducedDomains, layers: int) -> ReducedDomains:
    """Return ``domains`` with their least objective, without candidates that the best layout excludes."""
    leasts = [_least(c.alternatives, layers, domains.ceiling) for c in domains.live]
    layouts = [] if domains.incumbent is None else [domains.incumbent]
    layouts += [
        Incumbent(i, least.chosen)
        for i, (c, least) in enumerate(zip(domains.live, leasts, strict=True))
        if isinstance(least, LeastLayout) and c.alternatives.keeps_rules(least.chosen)
    ]
    best = min(layouts, key=lambda layout: _objective(domains, layout), default=None)
    best_objective = (domains.ceiling, inf) if best is None else _objective(domains, best)
    numbers = [i for i, least in enumerate(leasts) if _least_objective(least) <= best_objective]
    listed = best is not None and best.candidate in numbers
    least = min((_least_objective(leasts[i]) for i in numbers), default=(0, 0))
    reduced = ReducedDomains(
        live=tuple(domains.live[i] for i in numbers),
        ceiling=min(domains.ceiling, int(best_objective[0])),
        incumbent=best._replace(candidate=numbers.index(best.candidate)) if best and listed else None,
        least=least if listed and least == best_objective else (0, 0),
    )
    return _of_least(reduced, layers) if reduced.least != (0, 0) else reduced


def _of_least(domains: ReducedDomains, layers: int) -> ReducedDomains:
    """Return ``domains`` with the alternatives of layouts as fast and as small as the incumbent alone.

    No other layout is better, so the solver has only to confirm the incumbent.
    """
    step, memory = int(domains.least[0]), domains.least[1]
    live: list[OpenCandidate] = []
    incumbent = None
    for number, c in enumerate(domains.live):
        alternatives = within_least(c.alternatives, layers, step, memory)
        if alternatives is None:
            continue
        if domains.incumbent is not None and domains.incumbent.candidate == number:
            incumbent = domains.incumbent._replace(candidate=len(live))
        live.append(replace(c, alternatives=alternatives))
    return domains if incumbent is None else replace(domains, live=tuple(live), incumbent=incumbent)


def within_least(alternatives: Alternatives, layers: int, step: int, memory: float) -> Alternatives | None:
    """Return the alternatives of layouts within a step and a memory [ticks]; None if a stage has none."""
    rows = tuple(tuple(o for o in row if o.memory_ticks <= memory) for row in alternatives.stages)
    if not all(rows):
        return None
    within = replace(alternatives, stages=rows)
    return within_makespan(within, layers, step - within.least_end_of_step(len(rows)))


def _least(alternatives: Alternatives, layers: int, ceiling: int) -> LeastLayout | float | None:
    least = least_of_fixed_layers(alternatives, layers, ceiling)
    return least_layout(alternatives, layers, ceiling) if least is None else least


def _objective(domains: ReducedDomains, layout: Incumbent) -> tuple[float, float]:
    """Return the step and the memory of a layout [ticks]."""
    alternatives = domains.live[layout.candidate].alternatives
    return step_ticks(alternatives, layout.chosen), max(o.memory_ticks for o in layout.chosen)


def _least_objective(least: LeastLayout | float | None) -> tuple[float, float]:
    """Return the least step and memory of a candidate [ticks]: nothing where no bound is known."""
    if isinstance(least, LeastLayout):
        return least.step_ticks, least.memory_ticks
    return (0, 0) if least is None else (least, 0)


def _heuristic_layout(
    live: Sequence[OpenCandidate], layers: int
) -> tuple[OpenCandidate, tuple[Alternative, ...]] | None:
    """Return the candidate with the fastest heuristic layout, and that layout."""
    best = min(live, key=lambda c: c.incumbent_seconds, default=None)
    if best is None:
        return None
    # Without the slow alternatives the heuristic may end at a faster layout, or at none.
    options = [x for x in (best.alternatives, best.before_cut) if x is not None]
    layouts = [chosen for x in options if (chosen := primal_heuristic(x, layers)) is not None]
    chosen = min(layouts, key=lambda x: step_ticks(best.alternatives, x), default=None)
    return None if chosen is None else (best, chosen)


def _as_incumbent(
    remaining: Sequence[OpenCandidate], layout: tuple[OpenCandidate, tuple[Alternative, ...]] | None
) -> Incumbent | None:
    """Return ``layout`` as an incumbent of the candidates that are left; None where its candidate is not."""
    positions = [i for i, c in enumerate(remaining) if layout is not None and c is layout[0]]
    return Incumbent(positions[0], layout[1]) if layout is not None and positions else None


def _reduced_domain(
    live: OpenCandidate, group: PricedCandidates, scale: Scale, ceiling: int, limit: float
) -> Alternatives | None:
    """Return all alternatives that a step within ``ceiling`` may use; None if a stage has none.

    The end of step of the first stage is part of every step, and so is the candidate's least. Once
    alternatives with every end of step are listed, so is the longest of the stages' shortest.
    """
    layers = group.layers
    tail = int(live.tail_seconds / scale.tick_seconds * (1 - _ROUNDING))
    makespan = ceiling - max(live.alternatives.least_end_of_step(1), tail)
    alternatives = within_makespan(live.alternatives, layers, makespan)
    if alternatives is None:
        return None
    alternatives = with_more_reduction_overlap(alternatives, group, live.position, limit, makespan, scale)
    return within_makespan(
        alternatives, layers, ceiling - alternatives.least_end_of_step(len(alternatives.stages))
    )


_Row = Sequence[Alternative]


def least_of_fixed_layers(
    alternatives: Alternatives, layers: int, ceiling: int
) -> LeastLayout | float | None:
    """Return the least step of a candidate, the least memory with it, and a layout that has both [ticks].

    Infinite where no step is within ``ceiling`` ticks; None where stages can choose their number of layers,
    where the layers are not ``layers`` in all, and without a choice.
    """
    rows = alternatives.stages
    if alternatives.placed or alternatives.fixed or not all(map(_differs_in_backward_only, rows)):
        return None
    if sum(row[0].layers for row in rows) != layers:
        return None
    fastest = _fastest(alternatives, ceiling)
    if fastest is None:
        return inf
    step, chosen = fastest
    sizes = sorted({o.memory_ticks for row in rows for o in row})
    low, high = 0, bisect_left(sizes, _memory(chosen))
    # The layout is often the smallest already, so the next smaller size is asked for first.
    middle = high - 1
    while low < high:
        smaller = _fastest(alternatives, step, sizes[middle])
        if smaller is None:
            low = middle + 1
        else:
            chosen = smaller[1]
            high = bisect_left(sizes, _memory(chosen))
        middle = (low + high) // 2
    return LeastLayout(step, _memory(chosen), chosen)


def _differs_in_backward_only(row: _Row) -> bool:
    first = row[0]
    return all(
        o.layers == first.layers
        and o.forward_ticks == first.forward_ticks
        and o.weight_ticks == first.weight_ticks
        for o in row
    )


def _memory(chosen: _Row) -> int:
    return max(o.memory_ticks for o in chosen)


def _fastest(
    alternatives: Alternatives, most: int, most_memory: float = inf
) -> tuple[int, tuple[Alternative, ...]] | None:
    """Return the least step and its layout of at most ``most_memory``; None without one within ``most``."""
    check_deadline()
    rows = [
        sorted((o for o in row if o.memory_ticks <= most_memory), key=lambda o: o.backward_ticks)
        for row in alternatives.stages
    ]
    if not all(rows):
        return None
    shortest = max(min(o.end_of_step_ticks for o in row) for row in rows)
    ends = np.array(
        sorted({o.end_of_step_ticks for row in rows for o in row if o.end_of_step_ticks >= shortest})
    )
    # The first alternative of each stage that ends within each of the limits.
    firsts = [
        np.argmax(np.array([o.end_of_step_ticks for o in row]) <= ends[:, None], axis=1) for row in rows
    ]
    makespans = alternatives.schedule.time(
        [
            [
                np.array([getattr(o, part) for o in row])[first]
                for row, first in zip(rows, firsts, strict=True)
            ]
            for part in alternatives.schedule.parts
        ],
        _elementwise_largest,
    )
    best = int(np.argmin(makespans + ends))
    step = int(makespans[best] + ends[best])
    if step > most:
        return None
    return step, tuple(row[first[best]] for row, first in zip(rows, firsts, strict=True))


def _elementwise_largest(times: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return reduce(np.maximum, times)
