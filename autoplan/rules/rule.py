"""A rule of layouts, and predicates that rules use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, Ints

__all__ = ["Mask", "Rule", "among", "divides"]

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
    mask: Mask = np.isin(values, np.asarray(allowed, dtype=np.int64))
    return mask


def divides(number: int, degree: Ints) -> Mask:
    """Return which degrees divide ``number``."""
    mask: Mask = number % degree == 0
    return mask
