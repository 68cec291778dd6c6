"""Breakdown of seconds into compute, recompute, exposed communication by axis, and host copies.

Notation (this file only)::

    T  seconds of a stage        [s]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from autoplan.costs.core.candidates import Array, broadcast


@dataclass(frozen=True, slots=True)
class Parts:
    """Breakdown of seconds, in arrays that broadcast to one shape; the parts add up to T.

    ``compute`` and ``recompute`` are kernels; ``tensor``, ``context``, ``experts``, ``pipeline`` and ``data``
    the exposed communication of an axis; ``host`` the exposed copies of activation offload.
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
        """Return the sum, part by part."""
        return Parts(*(one + two for one, two in zip(self._parts, other._parts, strict=True)))

    def __rmul__(self, times: Array | float) -> Parts:
        """Return ``times`` as many seconds, part by part."""
        return Parts(*(times * seconds for seconds in self._parts))

    @property
    def _parts(self) -> tuple[Array | float, ...]:
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
        """T, the sum of all parts [s].

        >>> float(Parts(compute=2.0, data=0.5).total)
        2.5
        """
        total: Array = np.asarray(sum(self._parts))
        return total

    def wide(self, shape: tuple[int, int]) -> Parts:
        """Return the seconds broadcast to ``shape`` [s].

        >>> Parts(compute=2.0).wide((1, 2)).compute.tolist()
        [[2.0, 2.0]]
        """
        return Parts(*(broadcast(seconds, shape) for seconds in self._parts))

    def at(self, index: Any) -> Parts:  # noqa: ANN401 - whatever numpy takes as an index
        """Return the seconds at ``index`` into [C, p].

        >>> float(Parts(compute=np.array([[1.0, 3.0]]), host=2.0).wide((1, 2)).at((0, 1)).total)
        5.0
        """
        return Parts(*(float(np.asarray(seconds)[index]) for seconds in self._parts))


#: Zero seconds in all parts.
NOTHING: Final = Parts()
