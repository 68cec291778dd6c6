"""Recorded requests: their lengths and when they came."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RequestTrace"]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests of a trace in the order of their arrival."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: Seconds since the first; empty where the trace does not say.
    arrivals: tuple[float, ...]

    @property
    def longest(self) -> int:
        """Input and output tokens of the longest request."""
        return max(a + b for a, b in zip(self.inputs, self.outputs, strict=True))

    @property
    def rate(self) -> float:
        """Requests a second as they were recorded; 0 where the trace does not say, or all came at once."""
        last = self.arrivals[-1] if self.arrivals else 0.0
        return (len(self.arrivals) - 1) / last if last > 0 else 0.0
