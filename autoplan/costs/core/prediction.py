"""What a prediction says of a layout: time and memory by part, as frozen values; nothing is computed here.

Notation (this file only)::

    S  bytes that stand all through a step     D  bytes that come and go, at their most  [byte]

``allocated`` is what ``torch.cuda.max_memory_allocated`` prints at the end of a step, ``reserved`` what
``max_memory_reserved`` does, ``total`` what nvidia-smi shows for the device: context and communicators too.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

__all__ = ["CATEGORIES", "EventMemory", "MemoryPrediction", "Prediction", "StageMemory", "TimePrediction"]


#: What is allocated, by category; ``framework`` comes on top.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "transient")


_bytes_of = attrgetter(*CATEGORIES)


@dataclass(frozen=True, slots=True)
class EventMemory:
    """Bytes alive at one moment of a step, by category."""

    event: str
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float

    @property
    def allocated(self) -> float:
        """All of them [byte]."""
        return float(sum(_bytes_of(self)))


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a device of one stage at its worst moment, by category, and at all its moments.

    ``reserved`` is S + D share, ``total`` that with context and communicators; ``framework`` is all of
    ``total`` beyond ``allocated``, the allocator's part included. ``host`` is in host memory.
    """

    stage: int
    layers: int
    event: str
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float
    framework: float
    allocated: float
    reserved: float
    total: float
    total_low: float
    total_high: float
    host: float
    events: tuple[EventMemory, ...]


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """Memory of the fullest stage by category, and of every stage.

    ``fits`` is decided at the upper end of the interval, or at its centre where the job says so;
    ``fits_at_centre`` is true where the centre is within the limit.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float
    framework: float
    limit: float
    fits: bool
    fits_at_centre: bool
    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage whose devices are fullest."""
        return max(self.stages, key=lambda stage: stage.total)


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """Where a step's seconds go, along the slowest stage; the parts add up to the step.

    ``overhead`` is what copies of activations to and from host memory add.
    """

    compute: float
    recompute: float
    tp_exposed: float
    cp_exposed: float
    ep_exposed: float
    pp_exposed: float
    bubble: float
    dp_exposed: float
    optimizer: float
    overhead: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a layout costs.

    Seconds and bytes are central values; ``*_low`` and ``*_high`` bound the 90 % interval,
    ``*_lower_bound`` is the speed of light and ``*_upper_bound`` the same work with nothing overlapped.
    ``modelled_share`` is the share of the step's seconds that no measured table prices.
    """

    step_seconds: float
    step_seconds_low: float
    step_seconds_high: float
    step_seconds_lower_bound: float
    step_seconds_upper_bound: float
    modelled_share: float
    tokens_per_second: float
    tokens_per_second_per_device: float
    model_flops_utilization: float
    bubble_share: float
    microbatches: int
    peak_memory_bytes_per_device: float
    peak_memory_bytes_low: float
    peak_memory_bytes_high: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    memory_limit_bytes: float
    fits: bool
    memory: MemoryPrediction
    time: TimePrediction
