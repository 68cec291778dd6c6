"""Integer scaling of seconds and bytes for CP-SAT: costs are rounded up, capacities down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array

__all__ = ["Scale"]

#: Ticks of the longest step and of the memory limit. Their product stays below 2**53, so that sums of
#: time and, by far smaller, memory are exact in the solver's floating-point relaxation too.
_STEP_TICKS = 2**36
_MEMORY_TICKS = 2**16


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one tick of time [s] and of memory [byte]."""

    tick_seconds: float
    tick_bytes: float

    @staticmethod
    def of(longest_seconds: float, limit_bytes: float) -> Scale:
        """Return the scale on which the longest step and the memory limit take the full range of ticks."""
        return Scale(longest_seconds / _STEP_TICKS, limit_bytes / _MEMORY_TICKS)

    @property
    def limit_bytes(self) -> float:
        """The memory limit that takes the full range of ticks [byte]."""
        return self.tick_bytes * _MEMORY_TICKS

    def step_ticks(self, seconds: Array) -> NDArray[np.int64]:
        """Return ``seconds`` in ticks, rounded up."""
        return _up(seconds, self.tick_seconds)

    def memory_ticks(self, size: Array) -> NDArray[np.int64]:
        """Return ``size`` [byte] in ticks, rounded up."""
        return _up(size, self.tick_bytes)

    def memory_limit_ticks(self, limit: float) -> int:
        """Return a capacity of ``limit`` [byte] in ticks, rounded down."""
        return int(np.floor(limit / self.tick_bytes))


def _up(amount: Array, tick: float) -> NDArray[np.int64]:
    ticks: NDArray[np.int64] = np.ceil(np.asarray(amount) / tick).astype(np.int64)
    return ticks
