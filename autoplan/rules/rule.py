"""A rule of layouts, and predicates that rules use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, Ints

Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence, and a predicate that says which candidates satisfy it.

    ``searched``: the rule limits the search only; a layout that breaks it can run and be evaluated.
    """

    sentence: str
    keeps: Callable[[Candidates], Mask]
    searched: bool = False


def among(values: Ints, allowed: Sequence[int]) -> Mask:
    """Return which ``values`` are among those ``allowed``."""
    mask: Mask = np.zeros(len(values), dtype=bool)
    for value in allowed:
        mask |= values == value
    return mask


def divides(number: int, degree: Ints) -> Mask:
    """Return which degrees divide ``number``."""
    most = int(degree.max(initial=1))
    if most > len(degree):
        mask: Mask = number % degree == 0
        return mask
    # Most degrees are small: a table of all takes less than a division of each.
    table: Mask = np.ones(most + 1, dtype=bool)
    table[1:] = number % np.arange(1, most + 1) == 0
    return table[degree]
