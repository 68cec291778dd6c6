"""Memory in use at one event of a training step, by category.

Notation (this file only)::

    l  layers of a stage                                                        [1]
    K  saved activations of one microbatch                                   [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from autoplan.costs.core.candidates import Array

__all__ = ["PHASES", "Event", "Phase"]

#: Phase of an event: before backward of the layers; backward of the last, of the next-to-last and of the
#: second layer; backward of the first layer and later; the optimizer step.
Phase = Literal["before", "last", "next", "second", "late", "update"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Event:
    """Bytes in use at one event: ``*_layer`` per layer, ``*_fixed`` independent of the number of layers.

    ``microbatches`` is the number of microbatches whose K is in memory.
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
        """Bytes that do not depend on the number of layers [byte]."""
        total: Array = self.gradients_fixed + self.activations + self.logits + self.transient_fixed
        return total

    @property
    def layer(self) -> Array:
        """Bytes that one layer adds [byte], without its saved activations."""
        return self.gradients_layer + self.activations_layer + self.transient_layer
