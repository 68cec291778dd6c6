"""Memory in use at one event of a training step, by category.

Notation (this file only)::

    l  layers of a stage                                                        [1]
    K  saved activations of one microbatch                                   [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from autoplan.costs.core.candidates import Array, Linear

#: Names of the events, in order of time; that of a reference's forward stands last where a step has one.
EVENTS: Final = (
    "end of forward",
    "loss",
    "output layer",
    "gradient reduction",
    "last layer",
    "next-to-last layer",
    "second layer",
    "first layer",
    "embedding",
    "optimizer step",
)
#: Forward of the reference of preference training, behind that of the policy, whose graph is in memory.
REFERENCE: Final = "reference"

#: Phase of an event: before backward of the layers; backward of the last, of the next-to-last and of the
#: second layer; backward of the first layer and later; the optimizer step.
Phase = Literal["before", "last", "next", "second", "late", "update"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Event:
    """Bytes in use at one event by category, linear in the layers of the stage.

    ``microbatches`` is the number of microbatches whose K is in memory; ``activations`` come in addition.
    """

    name: str
    phase: Phase
    microbatches: Array
    gradients: Linear
    activations: Linear
    logits: Array
    transient: Linear

    @property
    def fixed(self) -> Array:
        """Bytes that do not depend on the number of layers [byte]."""
        total: Array = self.gradients.fixed + self.activations.fixed + self.logits + self.transient.fixed
        return total

    @property
    def layer(self) -> Array:
        """Bytes that one layer adds [byte], without its saved activations."""
        return self.gradients.layer + self.activations.layer + self.transient.layer
