"""Which layers a menu offers to a stage, and a layout of a menu that is found at once."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.search.alternatives.layer_splits import least_slowest
from autoplan.search.alternatives.stage_alternatives import Menu, Option
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["found_at_once", "offered"]


def offered(part: PricedCandidates, seconds: Array, longest: float) -> Array:
    """Return stage times [p, L] with what is too slow, or would leave too much to others, infinite."""
    wanted = np.where(seconds <= longest, seconds, np.inf)
    counts = np.arange(1, seconds.shape[1] + 1)
    most = np.where(np.isfinite(wanted), counts, 0).max(axis=1)
    others = most.sum() - most
    within: Array = np.where(counts[None, :] + others[:, None] >= part.layers, wanted, np.inf)
    return within


def found_at_once(menu: Menu, layers: int) -> tuple[Option, ...] | None:
    """Return options that add up to ``layers`` and keep the rules across stages; None where it found none."""
    options = None if menu.empty else _filled(menu.quickest, layers)
    return options if options is not None and menu.keeps_rules(options) else None


def _filled(menu: Menu, layers: int) -> tuple[Option, ...] | None:
    """Return options that add up to ``layers``: from the fewest, grow the stage that stays quickest.

    Where layers differ, those on a path of places whose slowest is least.
    """
    if menu.placed:
        return least_slowest(menu, layers)
    at = [0] * len(menu.stages)
    held = sum(options[0].layers for options in menu.stages)
    grown = [(options[1].both_ticks, i) for i, options in enumerate(menu.stages) if len(options) > 1]
    heapify(grown)
    while held < layers:
        if not grown:
            return None
        _, i = heappop(grown)
        options, k = menu.stages[i], at[i] + 1
        held, at[i] = held + options[k].layers - options[k - 1].layers, k
        if k + 1 < len(options):
            heappush(grown, (options[k + 1].both_ticks, i))
    if held != layers:
        return None
    return tuple(options[k] for options, k in zip(menu.stages, at, strict=True))
