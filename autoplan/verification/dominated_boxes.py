"""What a front claims, as corners: no layout has less memory and a shorter step than a corner.

With T and M the step and memory of a plan, and e the thinning, a front claims of every layout that

- it is not faster than a plan within that plan's memory;
- some plan is no slower and at most e larger, or no larger and at most e slower.

Where a claim fails lies below a staircase, and a staircase is its corners.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Box", "boxes_of", "tick_bytes"]

#: Shares of a step that are no difference: what the solver's ticks may round.
_SAME: Final = 1e-6

#: Ticks of memory that the solver counts in, up to the limit, and how many are no difference.
_MEMORY_TICKS: Final = 2**16
_SAME_TICKS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Box:
    """No layout uses at most ``memory_bytes`` and takes less than ``step_seconds``."""

    memory_bytes: float
    step_seconds: float


def tick_bytes(limit: float) -> float:
    """Return the bytes of which nothing is claimed: the breadth of the solver's ticks."""
    return _SAME_TICKS * limit / _MEMORY_TICKS


def boxes_of(
    plans: Sequence[tuple[float, float]],
    *,
    thinning: float,
    limit: float,
    longest: float = math.inf,
    objectives: Collection[str] = ("step_time", "peak_memory"),
) -> list[Box]:
    """Return the corners of a front of ``plans`` (step [s], memory [byte]), the roomiest first.

    ``limit`` and ``longest`` are the job's own limits on memory and step.

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
    beaten = [Box(memory - ticks, step / (1 + _SAME)) for step, memory in plans]
    return _outermost([*beaten, *_unmatched(plans, thinning, limit, longest)])


def _unmatched(
    plans: Sequence[tuple[float, float]], thinning: float, limit: float, longest: float
) -> list[Box]:
    """Return the corners below which no plan matches a layout."""
    ticks = tick_bytes(limit)
    matching = [(step / (1 + _SAME), memory * (1 - thinning) - ticks) for step, memory in plans]
    matching += [(step / (1 + thinning) / (1 + _SAME), memory - ticks) for step, memory in plans]
    boxes, least = [], limit
    for step, memory in sorted(matching):
        boxes.append(Box(least, step))
        least = min(least, memory)
    return [*boxes, Box(least, longest)]


def _outermost(boxes: Sequence[Box]) -> list[Box]:
    """Return ``boxes`` without those below another."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda c: (-c.memory_bytes, -c.step_seconds)):
        if not kept or box.step_seconds > kept[-1].step_seconds:
            kept.append(box)
    return kept
