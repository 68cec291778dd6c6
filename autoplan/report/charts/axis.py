"""A straight axis of a picture: where a value lies, and the round values that are marked."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Axis", "round_values"]


def round_values(low: float, high: float, most: int) -> list[float]:
    """Return the multiples of a round step from ``low`` to ``high``, about ``most`` of them.

    >>> round_values(0.0, 79.2, 6), round_values(37.4, 66.7, 4)
    ([0.0, 20.0, 40.0, 60.0], [40.0, 50.0, 60.0])
    """
    width = high - low
    if not width > 0:
        return [low]
    lowest = math.floor(math.log10(width / most))
    steps = (digit * 10.0**power for power in range(lowest, lowest + 3) for digit in (1, 2, 5))
    step = next(step for step in steps if width / step <= most)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high``, which lie at ``start`` and ``end`` [px]."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of ``value`` [px]."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
