"""Primal heuristic: a feasible layout by greedy assignment of layers, and useful layer counts."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.search.alternatives.layer_splits import min_max_layout
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives
from autoplan.search.space.priced_candidates import PricedCandidates


def useful_counts(part: PricedCandidates, seconds: Array, longest: float) -> Array:
    """Return stage times [p, L]: infinite where too slow, or where the other stages cannot take the rest."""
    fast_enough = np.where(seconds <= longest, seconds, np.inf)
    counts = np.arange(1, seconds.shape[1] + 1)
    most_layers = np.where(np.isfinite(fast_enough), counts, 0).max(axis=1)
    others = most_layers.sum() - most_layers
    useful: Array = np.where(counts[None, :] + others[:, None] >= part.layers, fast_enough, np.inf)
    return useful


def primal_heuristic(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return a feasible layout: one alternative a stage, ``layers`` in all; None on failure."""
    chosen = None if alternatives.empty else _greedy_layout(alternatives.quickest, layers)
    return chosen if chosen is not None and alternatives.keeps_rules(chosen) else None


def _greedy_layout(alternatives: Alternatives, layers: int) -> tuple[Alternative, ...] | None:
    """Return alternatives of ``layers`` in all, greedily: add layers to the stage that stays fastest.

    Where layers differ, return those whose slowest stage is fastest.
    """
    if alternatives.placed:
        return min_max_layout(alternatives, layers)
    indices = [0] * len(alternatives.stages)
    assigned = sum(row[0].layers for row in alternatives.stages)
    next_alternatives = [(row[1].stage_ticks, i) for i, row in enumerate(alternatives.stages) if len(row) > 1]
    heapify(next_alternatives)
    while assigned < layers:
        if not next_alternatives:
            return None
        _, i = heappop(next_alternatives)
        row, k = alternatives.stages[i], indices[i] + 1
        assigned, indices[i] = assigned + row[k].layers - row[k - 1].layers, k
        if k + 1 < len(row):
            heappush(next_alternatives, (row[k + 1].stage_ticks, i))
    if assigned != layers:
        return None
    return tuple(row[k] for row, k in zip(alternatives.stages, indices, strict=True))
