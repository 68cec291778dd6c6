"""The fastest layout of priced candidates, and an upper bound on the step of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.stage.stage_times import Stages
from autoplan.schema.recompute import listed_modes
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.front_sweep import FrontSweep
from autoplan.search.space.priced_candidates import PricedCandidates

__all__ = ["fastest_seconds", "longest_seconds"]


def fastest_seconds(groups: Sequence[PricedCandidates], limit: float, ceiling: float) -> float | None:
    """Return the step of the fastest layout within ``limit`` bytes and ``ceiling`` seconds, if any [s]."""
    scale = Scale.of(ceiling, limit)
    point = FrontSweep(groups, scale, ceiling).fastest(scale.memory_limit_ticks(limit))
    return None if point is None else point.step_ticks * scale.tick_seconds


def longest_seconds(groups: Sequence[PricedCandidates]) -> float:
    """Return an upper bound on the step of every layout [s].

    The slowest stage has at most all layers with full recompute, every fixed part and every end of step.
    """
    longest = 0.0
    for group in groups:
        layers = float(group.layers)
        parts = (_longest_parts(kind, layers, listed_modes(group.modes)) for kind in group.kinds)
        stages, end_of_step = zip(*parts, strict=True)
        step = (group.m + group.pp)[:, None] * 2 * np.maximum.reduce(stages) + np.maximum.reduce(end_of_step)
        longest = max(longest, float(step.max()))
    return longest


def _longest_parts(s: Stages, layers: float, modes: Sequence[str]) -> tuple[Array, Array]:
    """Return upper bounds on a stage's time and its end of step, with all layers of one type [s]."""
    recompute = (s.recompute[mode] for mode in reversed(modes))
    per_layer = sum(recompute, s.forward.layer + s.backward.layer)
    stage = s.forward.fixed + s.backward.fixed + layers * per_layer
    end_of_step = s.reduce.fixed + s.gather.fixed + s.norms.fixed + s.optimizer.fixed
    return stage, end_of_step + layers * (s.reduce.layer + s.gather.layer + s.norms.layer + s.optimizer.layer)
