"""90 % intervals of what engines do, as values.

Notation (this file only)::

    low, high  ends of an interval of a time, both positive                          [s]
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 90 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ServedIntervals:
    """Intervals of the figures of a plan, None for one that it has not; ``reasons`` say what they rest on."""

    time_to_first_token: Interval | None
    time_per_output_token: Interval | None
    request_latency: Interval | None
    output_tokens_per_second: Interval | None
    reasons: tuple[str, ...]
