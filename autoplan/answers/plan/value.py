"""What narrows the interval of a step time, and to what."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NarrowerIntervals"]


@dataclass(frozen=True, slots=True)
class NarrowerIntervals:
    """The 90 % interval of the fastest plan's step [s] after what narrows it; None where that does not help.

    ``named`` is that of its stack, where the job names none, ``calibrated`` that after a run was measured, at
    best.
    """

    named: tuple[float, float] | None
    calibrated: tuple[float, float] | None
