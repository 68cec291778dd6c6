"""Partial layouts of a branch and bound: their first stages, and bounds on the remaining ones.

The notation is that of ``branch_and_bound``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autoplan.costs.core.candidates import Array, Ints

__all__ = ["FirstStages", "RemainingStages", "no_stage"]


@dataclass(frozen=True, slots=True)
class RemainingStages:
    """Least sum of t and least slowest t of the stages from s on with n layers, [p + 1, L + 1] [s]."""

    sums: Array
    slowest: Array

    @staticmethod
    def of(ranges: Sequence[tuple[int, int]], total: int, both: Array) -> RemainingStages:
        """Return the minima over all splits; ``both`` is t by stage and layer range [s].

        ``ranges`` are the layers before a stage (-1 for one layer type) and the layers of the stage.
        """
        p, size = len(both), total + 1
        sums, slowest = np.full((p + 1, size), np.inf), np.full((p + 1, size), np.inf)
        sums[p, 0] = slowest[p, 0] = 0.0
        for s in reversed(range(p)):
            for seconds, (before, stage_layers) in zip(both[s].tolist(), ranges, strict=True):
                if seconds < np.inf and stage_layers < size:
                    # The layers before the stage fix how many it and the later stages have.
                    remaining = (
                        slice(stage_layers, size) if before < 0 else slice(size - 1 - before, size - before)
                    )
                    after = slice(remaining.start - stage_layers, remaining.stop - stage_layers)
                    sums[s, remaining] = np.minimum(sums[s, remaining], seconds + sums[s + 1, after])
                    least = np.maximum(seconds, slowest[s + 1, after])
                    slowest[s, remaining] = np.minimum(slowest[s, remaining], least)
        return RemainingStages(sums, slowest)


@dataclass(slots=True)
class FirstStages:
    """Partial layouts of the first stages, one per row."""

    mixes: Ints  # [S, k]
    layers: Ints  # of the first stages
    total: Array  # sum of t so far
    forward_sum: Array  # sum of F so far
    split_sum: Array  # sum of F and B without weight gradients, where the backward is split
    direct_path: Array  # longest path of the first kind through the stages so far
    return_path: Array  # likewise of the second kind: (m - 1 - p + s) t_s - sum of t before s
    round_path: Array  # likewise of the third kind, interleaved: sum of t before s + (M - (v - 1) p) t_s
    forward: Array  # largest forward and backward so far
    backward: Array
    tail: Array

    def take(self, index: Any) -> FirstStages:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the rows at ``index``."""
        return FirstStages(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def joined(parts: Sequence[FirstStages]) -> FirstStages:
        """Return the rows of all ``parts``."""
        names = tuple(field.name for field in fields(FirstStages))
        return FirstStages(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def no_stage() -> FirstStages:
    """Return the partial layout without stages, the root of the branch and bound."""
    zero, never = np.zeros(1), np.full(1, -np.inf)
    no_stages = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    return FirstStages(*no_stages, zero, zero, zero, zero, never, never, zero, zero, never)
