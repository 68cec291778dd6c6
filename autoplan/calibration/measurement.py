"""What was measured of a step: its parts on each device, its collectives, and its memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

# What an allocator's record says of a device's memory, against the prediction.


@dataclass(frozen=True, slots=True)
class MemoryMeasurement:
    """Memory of a device at its measured peak [byte].

    ``categories`` are as ``torch.profiler`` or the frames of an allocation tell them, at the peak of
    ``allocated``. ``reserved`` is 0 and ``event`` empty where the file does not say. ``retries`` are segments
    that were given back to the driver to make room, ``out_of_memory`` failed requests.
    """

    source: str
    kind: str
    allocated: float
    reserved: float
    requested: float
    event: str
    categories: tuple[tuple[str, float], ...]
    retries: int
    out_of_memory: int


@dataclass(frozen=True, slots=True)
class CategoryComparison:
    """Bytes of a category at the measured and at the predicted peak."""

    category: str
    measured: float
    predicted: float | None


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """The measured memory of a device against that predicted for ``stage`` [byte].

    ``predicted_events`` are the allocated bytes at each event of the predicted step; ``categories`` are those
    at its peak.
    """

    measured: MemoryMeasurement
    stage: int
    predicted_event: str
    predicted_allocated: float
    predicted_reserved: float
    predicted_events: tuple[tuple[str, float], ...]
    categories: tuple[CategoryComparison, ...]


@dataclass(frozen=True, slots=True)
class MeasuredParts:
    """Seconds of one step on one device; the parts add up to the step.

    A moment counts once, for the first of the fields in which it is: computing hides communication, and both
    hide copies. ``*_exposed`` is communication while nothing computes; ``data_loader``, ``host`` and ``idle``
    are moments in which the device does nothing: it waits for data, for the host to launch the next kernel,
    or for another device.
    """

    gemm: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    other: float = 0.0
    recompute: float = 0.0
    optimizer: float = 0.0
    tp_exposed: float = 0.0
    cp_exposed: float = 0.0
    ep_exposed: float = 0.0
    pp_exposed: float = 0.0
    dp_exposed: float = 0.0
    unknown_exposed: float = 0.0
    copies: float = 0.0
    bubble: float = 0.0
    data_loader: float = 0.0
    host: float = 0.0
    idle: float = 0.0

    @property
    def compute(self) -> float:
        """Kernels that compute, but for recompute and optimizer where a trace distinguishes these [s]."""
        return self.gemm + self.attention + self.elementwise + self.other

    @property
    def exposed(self) -> float:
        """Exposed communication of all groups [s]."""
        exposed = (self.tp_exposed, self.cp_exposed, self.ep_exposed, self.pp_exposed, self.dp_exposed)
        return sum(exposed) + self.unknown_exposed

    @property
    def total(self) -> float:
        """The step, the sum of all parts [s]."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """Seconds of a step in which communication of a part runs, and those that no compute hides."""

    part: str
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True)
class CollectiveTiming:
    """Collectives of one kind in a step: how many, and how long one takes [s].

    ``part`` is the part of the step that it belongs to; ``message_bytes`` is 0 where the trace does not say.
    """

    part: str
    operation: str
    ranks: int | None
    message_bytes: float
    calls: int
    shortest_seconds: float
    median_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class KernelShare:
    """Kernels of one name in a step [s], whatever runs concurrently."""

    name: str
    kind: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeviceMeasurement:
    """What a trace says of one device: all its steps, and the parts of the one of median length.

    ``rank`` and ``stage`` are None where nothing tells them. ``annotated`` says that steps were annotated;
    ``starts`` and ``durations`` by part are those of the collectives of the median step, in order.
    ``small_kernels`` are shorter than ten microseconds.
    """

    source: str
    device: str
    rank: int | None
    stage: int | None
    on_host: bool
    annotated: bool
    step_numbers: tuple[int, ...]
    step_seconds: tuple[float, ...]
    step: int
    parts: MeasuredParts
    traffic: tuple[GroupTraffic, ...]
    collectives: tuple[CollectiveTiming, ...]
    durations: tuple[tuple[str, tuple[float, ...]], ...]
    kernels: int
    small_kernels: int
    median_kernel_seconds: float
    longest: tuple[KernelShare, ...]
    allocator_calls: int

    @property
    def seconds(self) -> float:
        """The step of median length [s]."""
        return self.step_seconds[self.step_numbers.index(self.step)]
