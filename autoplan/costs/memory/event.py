"""One moment of a step: what is alive, by category.

Notation (this file only)::

    l  layers of a stage                                                        [1]
    K  bytes that one microbatch keeps                                       [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from autoplan.costs.core.candidates import Array

__all__ = ["PHASES", "Event", "Phase"]

#: When a moment is: before backward of the layers, in that of the last, of the one next to it, of the
#: second, of the first and later, after it.
Phase = Literal["before", "last", "next", "second", "late", "update"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Event:
    """What is alive at one moment: ``*_fixed`` whatever the layers, ``*_layer`` for each of them.

    ``microbatches`` counts those that keep K.
    """

    name: str
    phase: Phase
    microbatches: Array
    gradients_fixed: Array
    gradients_layer: Array
    activations: Array
    activations_layer: Array
    logits: Array
    transient_fixed: Array
    transient_layer: Array

    @property
    def fixed(self) -> Array:
        """All that does not depend on layers [byte]."""
        total: Array = self.gradients_fixed + self.activations + self.logits + self.transient_fixed
        return total

    @property
    def layer(self) -> Array:
        """All that each layer adds [byte], but for its part of K."""
        return self.gradients_layer + self.activations_layer + self.transient_layer
