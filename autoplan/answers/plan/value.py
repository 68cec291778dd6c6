"""What narrows the interval of a step time, and to what; what the choice of a layout hangs on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LinkChoice", "NarrowerIntervals"]


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """Another layout is the fastest where copies between devices go at another rate that hosts have.

    ``taken`` is the catalogue's rate and ``rate`` the other one [byte/s]; there ``layout`` takes ``seconds``,
    and the fastest plan of the answer ``fastest_seconds``.
    """

    taken: float
    rate: float
    layout: str
    seconds: float
    fastest_seconds: float


@dataclass(frozen=True, slots=True)
class NarrowerIntervals:
    """The 90 % interval of the fastest plan's step [s] after what narrows it; None where that does not help.

    ``named`` is that of its stack, where the job names none, ``calibrated`` that after a run was measured, at
    best. ``links`` are what is faster at other rates between devices, for which a measured rate decides.
    """

    named: tuple[float, float] | None
    calibrated: tuple[float, float] | None
    links: tuple[LinkChoice, ...] = ()
