"""Menus of candidates without the options that no step as fast as the best known has.

What is left is what the solver is asked about, with a layout as fast as can be found at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.layer_splits import quick_layout, without_slow
from autoplan.search.alternatives.primal_heuristic import primal_heuristic
from autoplan.search.alternatives.reduction_overlap import with_shorter_tails
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, Incumbent
from autoplan.search.bounds.step_bound import longest_stage
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["Live", "Narrow", "narrowed", "tightened"]


@dataclass(frozen=True, slots=True)
class Live:
    """A candidate that may hold the fastest layout: its menu under the limit in force.

    ``incumbent_seconds`` is the step of some layout that the menu allows; ``sum_seconds`` and
    ``tail_seconds`` are the least sum of stage times and the least tail.
    """

    group: int
    position: int
    bound_seconds: float
    incumbent_seconds: float
    sum_seconds: float
    tail_seconds: float
    alternatives: Alternatives


@dataclass(frozen=True, slots=True)
class Narrow:
    """Candidates with the options of steps within ``ceiling`` ticks, and one of their layouts."""

    live: tuple[Live, ...]
    ceiling: int
    known: Incumbent | None


def tightened(live: Live, layers: int, most: float, scale: Scale) -> Live | None:
    """Return ``live`` without options that cannot be part of a step of ``most`` seconds; None if none can."""
    alternatives = live.alternatives
    longest = longest_stage(alternatives.schedule, live.sum_seconds, most - live.tail_seconds)
    ticks = int(longest / scale.tick_seconds / alternatives.schedule.v) + 3
    stages = [[o for o in row if o.both_ticks <= ticks] for row in alternatives.stages]
    most_layers = [max((o.layers for o in row), default=0) for row in stages]
    needed = [layers - sum(most_layers) + own for own in most_layers]
    kept = tuple(
        tuple(o for o in row if o.layers >= least) for row, least in zip(stages, needed, strict=True)
    )
    alternatives = replace(alternatives, stages=kept)
    return None if alternatives.empty else replace(live, alternatives=alternatives)


def narrowed(
    live: Sequence[Live], groups: Sequence[PricedCandidates], scale: Scale, ceiling: int, limit: float
) -> Narrow:
    """Return ``live`` with the options that a step may have, within ``limit`` bytes.

    The ceiling is the step of a layout as fast as can be found at once. Options that are slower go, and
    those that take longer to have a shorter tail come.
    """
    layers = groups[0].layers
    quick: tuple[Live, tuple[Alternative, ...]] | None = None
    for c in live:
        chosen, ceiling = quick_layout(c.alternatives, layers, ceiling)
        quick = quick if chosen is None else (c, chosen)
    left = [
        (c, alternatives)
        for c in live
        if (alternatives := _offering_shorter_tails(c, groups[c.group], scale, ceiling, limit)) is not None
    ]
    known = _known([c for c, _ in left], quick or _filled(live, layers))
    return Narrow(tuple(replace(c, alternatives=alternatives) for c, alternatives in left), ceiling, known)


def _filled(live: Sequence[Live], layers: int) -> tuple[Live, tuple[Alternative, ...]] | None:
    """Return the candidate whose quickest filling takes least, and that filling."""
    best = min(live, key=lambda c: c.incumbent_seconds, default=None)
    chosen = primal_heuristic(best.alternatives, layers) if best is not None else None
    return None if best is None or chosen is None else (best, chosen)


def _known(left: Sequence[Live], layout: tuple[Live, tuple[Alternative, ...]] | None) -> Incumbent | None:
    """Return ``layout`` as one of the candidates that are left, if it is."""
    found = [i for i, c in enumerate(left) if layout is not None and c is layout[0]]
    return Incumbent(found[0], layout[1]) if layout is not None and found else None


def _offering_shorter_tails(
    live: Live, group: PricedCandidates, scale: Scale, ceiling: int, limit: float
) -> Alternatives | None:
    """Return the menu with all options that a step within ``ceiling`` may have; None if there are none.

    The tail of the first stage is part of every step; once all tails are offered, so is the longest of
    the stages' shortest.
    """
    layers = group.layers
    busy = ceiling - live.alternatives.least_end_of_step(1)
    alternatives = without_slow(live.alternatives, layers, busy)
    if alternatives is None:
        return None
    alternatives = with_shorter_tails(alternatives, group, live.position, limit, busy, scale)
    return without_slow(
        alternatives, layers, ceiling - alternatives.least_end_of_step(len(alternatives.stages))
    )
