"""Boxes of objective space that a front excludes: no layout has less memory and a shorter step.

With T and M the step and memory of a plan, and e the thinning, a front claims of every layout that

- it is not faster than a plan within that plan's memory;
- it is dominated within e: some plan is no slower and at most e larger, or no larger and at most e slower.

The region that violates a claim lies below a staircase, the union of the boxes at its corners.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

#: Relative tolerance of steps: rounding to the solver's ticks.
_SAME: Final = 1e-6

#: Ticks of the solver's memory up to the limit, and the tolerance in ticks.
_MEMORY_TICKS: Final = 2**16
_SAME_TICKS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Box:
    """Layouts with at most ``memory_bytes`` and a step below ``step_seconds``."""

    memory_bytes: float
    step_seconds: float


def tick_bytes(limit: float) -> float:
    """Return the tolerance of memory claims, from the solver's ticks [byte]."""
    return _SAME_TICKS * limit / _MEMORY_TICKS


def boxes_of(
    plans: Sequence[tuple[float, float]],
    *,
    thinning: float,
    limit: float,
    longest: float = math.inf,
    objectives: Collection[str] = ("step_time", "peak_memory"),
    others: Sequence[tuple[float, float]] = (),
) -> list[Box]:
    """Return the boxes excluded by a front of ``plans`` (step [s], memory [byte]), the largest memory first.

    ``limit`` and ``longest`` are the job's limits on memory and step. What ``others`` dominate, plans of
    other programs, is not excluded.

    >>> boxes_of([], thinning=0.01, limit=4.0)
    [Box(memory_bytes=4.0, step_seconds=inf)]
    >>> boxes = boxes_of([(2.0, 3.0)], thinning=0.01, limit=4.0)
    >>> [(round(box.memory_bytes, 2), round(box.step_seconds, 2)) for box in boxes]
    [(4.0, 1.98), (3.0, 2.0), (2.97, inf)]
    """
    if not plans:
        return [Box(limit, longest)]
    ticks = tick_bytes(limit)
    fastest = Box(limit, plans[0][0] / (1 + _SAME))
    if set(objectives) == {"step_time"}:
        return [fastest]
    smallest = Box(min(memory for _, memory in plans) - ticks, longest)
    if set(objectives) == {"peak_memory"}:
        return [smallest]
    below_plans = [Box(memory - ticks, step / (1 + _SAME)) for step, memory in plans]
    return maximal([*below_plans, *_undominated(plans, others, thinning, limit, longest)])


def _undominated(
    plans: Sequence[tuple[float, float]],
    others: Sequence[tuple[float, float]],
    thinning: float,
    limit: float,
    longest: float,
) -> list[Box]:
    """Return the boxes of layouts that no plan dominates within ``thinning``, and none of ``others``."""
    ticks = tick_bytes(limit)
    thinned = [(step / (1 + _SAME), memory * (1 - thinning) - ticks) for step, memory in plans]
    thinned += [(step / (1 + thinning) / (1 + _SAME), memory - ticks) for step, memory in plans]
    thinned += [(step / (1 + _SAME), memory - ticks) for step, memory in others]
    boxes, smallest = [], limit
    for step, memory in sorted(thinned):
        boxes.append(Box(smallest, step))
        smallest = min(smallest, memory)
    return [*boxes, Box(smallest, longest)]


def maximal(boxes: Sequence[Box]) -> list[Box]:
    """Return ``boxes`` without those that another one contains."""
    maximal: list[Box] = []
    for box in sorted(boxes, key=lambda c: (-c.memory_bytes, -c.step_seconds)):
        if not maximal or box.step_seconds > maximal[-1].step_seconds:
            maximal.append(box)
    return maximal
