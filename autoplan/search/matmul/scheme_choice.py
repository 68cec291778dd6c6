"""The scheme, grid and panel width of a distributed product, chosen by enumeration of all candidates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from autoplan.costs.matmul.grids import SchemeName
from autoplan.search.matmul.scheme_pricing import PricedSchemes

__all__ = ["ChosenScheme", "choose_scheme"]


@dataclass(frozen=True, slots=True)
class ChosenScheme:
    """Index of the best of all ``candidates`` and its time [s]; None and infinite where none is feasible.

    ``conflict`` is then a minimal set of rules that no candidate keeps: ``memory``, ``scheme``.
    """

    index: int | None
    seconds: float
    candidates: int
    conflict: tuple[str, ...] = ()


def choose_scheme(priced: PricedSchemes, limit: float, allowed: Collection[SchemeName] = ()) -> ChosenScheme:
    """Return the fastest candidate whose memory is within ``limit`` [byte], of the schemes ``allowed``.

    All candidates are priced, so that the least time is that of an array. ``allowed`` left out, all are. Of
    equally fast ones, the one with least memory, and of those the first.
    """
    seconds, needed = priced.times.seconds, priced.memory.needed
    fits = needed <= limit
    named = np.array([not allowed or name in allowed for name in priced.names])
    feasible = np.flatnonzero(fits & named)
    if not len(feasible):
        both = bool(fits.any() and named.any())
        conflict = ("memory", "scheme") if both else ("memory",) if named.any() else ("scheme",)
        return ChosenScheme(None, np.inf, len(named), conflict)
    index = int(feasible[np.lexsort((needed[feasible], seconds[feasible]))[0]])
    return ChosenScheme(index, float(seconds[index]), len(named))
