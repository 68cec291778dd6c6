"""Values of a link, batch or sequence at which another layout becomes the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.units import Dimension

__all__ = ["Crossing", "Knob", "KnobName", "KnobRange", "KnobSide"]

KnobName = Literal[
    "fabric_bandwidth",
    "fabric_latency",
    "network_bandwidth",
    "network_latency",
    "global_batch_size",
    "sequence_length",
]


@dataclass(frozen=True, slots=True)
class Knob:
    """A number of the job or of its hardware that is varied, with its present value.

    ``dimension`` is None for counts: sequences of a step, tokens of a sequence.
    """

    name: KnobName
    present: float
    dimension: Dimension | None


@dataclass(frozen=True, slots=True)
class KnobSide:
    """The layouts priced at one ``value``: steps [s] and whether they fit, in their order.

    ``winner`` is the number of the best one, from 0: the fastest that fits. Where none fits it is None,
    unless none fits at the present value either: then it is the fastest.
    """

    value: float
    step_seconds: tuple[float, ...]
    fits: tuple[bool, ...]
    winner: int | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value at which the winner changes, and the layouts priced on either side of it.

    ``by_memory`` says that it changes because a layout fits on one side alone. Between ``noise_low`` and
    ``noise_high`` the two steps are closer than ``noise``, which the cost model cannot tell apart; these are
    None where the range ends first, and all three where nothing is known of that. ``microbatches`` of a step
    are those of each layout, where the batch is varied.
    """

    value: float
    below: KnobSide
    above: KnobSide
    by_memory: bool
    noise: float | None = None
    noise_low: float | None = None
    noise_high: float | None = None
    microbatches: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KnobRange:
    """What the verdict is between the ``least`` and the ``most`` value of a knob: where it changes.

    ``why`` says why a knob was not solved, and is empty where it was.
    """

    knob: Knob
    least: float
    most: float
    crossings: tuple[Crossing, ...]
    winner_at_least: int | None = None
    winner_at_most: int | None = None
    why: str = ""

    @property
    def nearest(self) -> Crossing | None:
        """The crossing nearest to the present value, by ratio; None where the winner never changes."""
        present = self.knob.present
        return min(self.crossings, key=lambda x: max(x.value / present, present / x.value), default=None)
