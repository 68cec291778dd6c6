"""Seconds by what they are spent on.

Notation (this file only)::

    T  seconds of a stage        [s]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from autoplan.costs.core.candidates import Array

__all__ = ["NOTHING", "Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds by what they are spent on, arrays that broadcast to one shape; they add up to T.

    ``compute`` and ``recompute`` are kernels; ``tensor``, ``context``, ``experts``, ``pipeline`` and ``data``
    the exposed communication of an axis; ``host`` copies of activations to and from host memory.
    """

    compute: Array | float = 0.0
    recompute: Array | float = 0.0
    tensor: Array | float = 0.0
    context: Array | float = 0.0
    experts: Array | float = 0.0
    pipeline: Array | float = 0.0
    data: Array | float = 0.0
    host: Array | float = 0.0

    def __add__(self, other: Parts) -> Parts:
        """Return one after the other."""
        return Parts(*(mine + theirs for mine, theirs in zip(self._each, other._each, strict=True)))

    def __rmul__(self, times: Array | float) -> Parts:
        """Return so many of it."""
        return Parts(*(times * seconds for seconds in self._each))

    @property
    def _each(self) -> tuple[Array | float, ...]:
        return (
            self.compute,
            self.recompute,
            self.tensor,
            self.context,
            self.experts,
            self.pipeline,
            self.data,
            self.host,
        )

    @property
    def total(self) -> Array:
        """T, all of them [s].

        >>> float(Parts(compute=2.0, data=0.5).total)
        2.5
        """
        total: Array = np.asarray(sum(self._each))
        return total

    def wide(self, shape: tuple[int, int]) -> Parts:
        """Return the seconds as arrays of ``shape`` [s].

        >>> Parts(compute=2.0).wide((1, 2)).compute.tolist()
        [[2.0, 2.0]]
        """
        return Parts(*(np.broadcast_to(seconds, shape) for seconds in self._each))

    def at(self, index: Any) -> Parts:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the seconds at ``index`` into [C, p].

        >>> float(Parts(compute=np.array([[1.0, 3.0]]), host=2.0).wide((1, 2)).at((0, 1)).total)
        5.0
        """
        return Parts(*(float(np.asarray(seconds)[index]) for seconds in self._each))


#: No time at all.
NOTHING: Final = Parts()
