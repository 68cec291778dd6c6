"""Which layers a menu offers to a stage, and a layout of a menu that is found at once."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.search.alternatives.layer_splits import least_slowest
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["offered", "primal_heuristic"]


def offered(part: PricedCandidates, seconds: Array, longest: float) -> Array:
    """Return stage times [p, L] with what is too slow, or would leave too much to others, infinite."""
    wanted = np.where(seconds <= longest, seconds, np.inf)
    counts = np.arange(1, seconds.shape[1] + 1)
    most = np.where(np.isfinite(wanted), counts, 0).max(axis=1)
    others = most.sum() - most
    within: Array = np.where(counts[None, :] + others[:, None] >= part.layers, wanted, np.inf)
    return within


def primal_heuristic(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return options that add up to ``layers`` and keep the rules across stages; None where it found none."""
    chosen = None if alternatives.empty else _filled(alternatives.quickest, layers)
    return chosen if chosen is not None and alternatives.keeps_rules(chosen) else None


def _filled(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return options that add up to ``layers``: from the fewest, grow the stage that stays quickest.

    Where layers differ, those on a path of places whose slowest is least.
    """
    if alternatives.placed:
        return least_slowest(alternatives, layers)
    at = [0] * len(alternatives.stages)
    held = sum(chosen[0].layers for chosen in alternatives.stages)
    grown = [(chosen[1].both_ticks, i) for i, chosen in enumerate(alternatives.stages) if len(chosen) > 1]
    heapify(grown)
    while held < layers:
        if not grown:
            return None
        _, i = heappop(grown)
        chosen, k = alternatives.stages[i], at[i] + 1
        held, at[i] = held + chosen[k].layers - chosen[k - 1].layers, k
        if k + 1 < len(chosen):
            heappush(grown, (chosen[k + 1].both_ticks, i))
    if held != layers:
        return None
    return tuple(chosen[k] for chosen, k in zip(alternatives.stages, at, strict=True))
