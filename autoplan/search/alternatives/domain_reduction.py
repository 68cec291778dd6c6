"""Domain reduction: remove the alternatives that no layout as fast as the incumbent uses.

The solver gets the reduced domains, and the best layout of the primal heuristics as a hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.layer_splits import sum_and_maximum_heuristic, within_makespan
from autoplan.search.alternatives.primal_heuristic import primal_heuristic
from autoplan.search.alternatives.reduction_overlap import with_more_reduction_overlap
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, Incumbent
from autoplan.search.bounds.step_bound import longest_stage
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["OpenCandidate", "ReducedDomains", "reduced_domains", "within_step"]

#: Share by which rounding may make the relaxation's end of step too long.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class OpenCandidate:
    """A candidate that may have the fastest layout: its alternatives under the current memory limit.

    ``incumbent_seconds`` is the step of a feasible layout of these alternatives; ``sum_seconds`` and
    ``tail_seconds`` are the least sum of stage times and the least end of step.
    """

    group: int
    position: int
    bound_seconds: float
    incumbent_seconds: float
    sum_seconds: float
    tail_seconds: float
    alternatives: Alternatives


@dataclass(frozen=True, slots=True)
class ReducedDomains:
    """Candidates with the alternatives of steps within ``ceiling`` ticks, and an incumbent."""

    live: tuple[OpenCandidate, ...]
    ceiling: int
    incumbent: Incumbent | None


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
    alternatives = replace(alternatives, stages=reduced)
    return None if alternatives.empty else replace(live, alternatives=alternatives)


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
    return ReducedDomains(reduced, ceiling, incumbent)


def _heuristic_layout(
    live: Sequence[OpenCandidate], layers: int
) -> tuple[OpenCandidate, tuple[Alternative, ...]] | None:
    """Return the candidate with the fastest heuristic layout, and that layout."""
    best = min(live, key=lambda c: c.incumbent_seconds, default=None)
    chosen = primal_heuristic(best.alternatives, layers) if best is not None else None
    return None if best is None or chosen is None else (best, chosen)


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
