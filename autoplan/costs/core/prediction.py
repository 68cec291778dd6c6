"""Prediction of a layout, time and memory by part, and facts of its job, as immutable records.

Notation (this file only)::

    S  persistent (static) memory     D  peak of transient (dynamic) memory     [byte]

``allocated`` corresponds to ``torch.cuda.max_memory_allocated``, ``reserved`` to ``max_memory_reserved``, and
``total`` to nvidia-smi, which includes the CUDA context and communicators.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

#: Categories of allocated memory; ``framework`` is added to them.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "transient")

#: Axes of the device mesh whose groups communicate. ``dp_shard`` and ``dp_replicate`` are the parts of the
#: data axis under ZeRO, ``edp`` is the data axis of experts.
MeshAxis = Literal[
    "tp", "cp", "pp", "dp", "dp_shard", "dp_replicate", "ep", "etp", "edp", "edp_shard", "edp_replicate"
]

#: Part of ``TimePrediction`` in which communication of an axis counts; tensor-parallel groups of experts
#: gather the tokens that are dispatched.
PART_OF_AXIS: Final[dict[MeshAxis, str]] = {
    "tp": "tp_exposed",
    "cp": "cp_exposed",
    "ep": "ep_exposed",
    "etp": "ep_exposed",
    "pp": "pp_exposed",
    "dp": "dp_exposed",
    "dp_shard": "dp_exposed",
    "dp_replicate": "dp_exposed",
    "edp": "dp_exposed",
    "edp_shard": "dp_exposed",
    "edp_replicate": "dp_exposed",
}

_bytes_of = attrgetter(*CATEGORIES)


@dataclass(frozen=True, slots=True)
class EventMemory:
    """Allocated bytes at one event of the memory timeline, by category."""

    event: str
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float

    @property
    def allocated(self) -> float:
        """Allocated bytes of all categories [byte]."""
        return float(sum(_bytes_of(self)))


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of a device of one stage at its peak, by category, and at all events of its memory timeline.

    ``reserved`` is S + D times the allocator's fragmentation, ``total`` adds context and communicators;
    ``framework`` is ``total`` less ``allocated``. ``host`` is in host memory.
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
    """Memory of the stage with the highest peak by category, and of every stage.

    ``fits`` is decided at the upper end of the 90 % interval, or at its centre if the job says so;
    ``fits_at_centre`` at the centre.
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
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.total)


@dataclass(frozen=True, slots=True)
class TimePrediction:
    """Breakdown of a step's seconds on the slowest stage; the parts add up to the step.

    ``overhead`` is the exposed time of activation offload.
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
    """Prediction of a layout's step time and peak memory.

    Seconds and bytes are central values; ``*_low`` and ``*_high`` are the ends of the 90 % interval,
    ``*_lower_bound`` is at the machine's theoretical limits and ``*_upper_bound`` without any overlap.
    ``modelled_share`` is the share of the step's seconds outside of measured tables.
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


@dataclass(frozen=True, slots=True)
class LayerType:
    """A type of layers: with experts or dense, with a sliding window shorter than a sequence or without.

    ``linear`` has linear attention instead of softmax attention.
    """

    experts: bool
    window: bool
    linear: bool = False


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What follows from a job whatever its layout.

    ``parameters`` counts those of the model, ``layers`` has the type of each layer, and
    ``memory_limit_bytes`` is what a device may use [byte].
    """

    parameters: int
    layers: tuple[LayerType, ...]
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True)
class Communication:
    """Messages of one kind that a rank of ``stage`` takes part in during one step.

    The process group has ``ranks`` ranks, ``stride`` apart. ``operation`` is ``all_gather``,
    ``reduce_scatter``, ``all_reduce``, ``all_to_all`` or ``send``; ``message_bytes`` is the size of the full
    tensor: of what is gathered, of what is reduced, of what a rank sends. ``calls`` per step are a mean where
    a message is a bucket, which holds several parts (``phase`` is ``step reduction`` or ``step gather``).
    """

    stage: int
    part: str
    phase: str
    operation: str
    axis: MeshAxis
    ranks: int
    stride: int
    message_bytes: float
    calls: float

    @property
    def bytes(self) -> float:
        """Bytes of the full tensors of a step [byte]."""
        return self.calls * self.message_bytes


#: Argument of an event of a predicted trace that names its part: whoever reads the trace knows it by this.
PREDICTED_PART: Final = "autoplan part"

#: ``weight gradient`` is the deferred pass of a split backward.
Phase = Literal["forward", "backward", "weight gradient", "bubble", "end of step"]


@dataclass(frozen=True, slots=True)
class StepSlice:
    """A piece of a step in which a stage has one part of its time: start and length [s].

    ``part`` is a field of ``TimePrediction``; ``microbatch`` is None in the bubble and at the step's end.
    """

    stage: int
    phase: Phase
    part: str
    microbatch: int | None
    chunk: int
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A step as slices, stage by stage in the order of time [s].

    The parts of a prediction are those of ``slowest_stage`` until ``pipeline_seconds``, and of
    ``longest_end_stage`` after.
    """

    stages: int
    seconds: float
    pipeline_seconds: float
    slowest_stage: int
    longest_end_stage: int
    slices: tuple[StepSlice, ...]

    def part_seconds(self, stage: int, *, end_of_step: bool | None = None) -> dict[str, float]:
        """Return the seconds of a stage by part [s]; before the end of the step, at it, or both where None.

        >>> own = [StepSlice(0, "forward", "compute", 0, 0, 0.0, 2.0),
        ...     StepSlice(0, "end of step", "optimizer", None, 0, 2.0, 0.5)]
        >>> StepTimeline(1, 2.5, 2.0, 0, 0, tuple(own)).part_seconds(0)
        {'compute': 2.0, 'optimizer': 0.5}
        """
        seconds: dict[str, float] = {}
        for x in self.slices:
            chosen = end_of_step is None or (x.phase == "end of step") == end_of_step
            if x.stage == stage and chosen:
                seconds[x.part] = seconds.get(x.part, 0.0) + x.seconds
        return seconds


ProductPass = Literal["forward", "input gradient", "weight gradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """Work of one of the ``calls`` of a kernel in a layer, for one microbatch on one rank [FLOP, byte, s]."""

    calls: float
    flops: float
    hbm_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte to and from HBM [FLOP/byte]."""
        return self.flops / self.hbm_bytes

    @property
    def flops_per_second(self) -> float:
        """The predicted rate [FLOP/s]."""
        return self.flops / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProduct(KernelWork):
    """A matrix product: [m, k] times [k, n]; ``groups`` is how many run as one kernel."""

    name: str
    product_pass: ProductPass
    m: float
    n: float
    k: float
    groups: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel(KernelWork):
    """Fused attention: ``queries`` rows of all heads together, each with the mean number of ``keys``."""

    attention_pass: Literal["forward", "backward"]
    queries: float
    keys: float


@dataclass(frozen=True, slots=True)
class LayerProducts:
    """Products and fused attention of a layout's layers, and the roofs of its device [FLOP/s, byte/s]."""

    peak_flops: float
    hbm_bandwidth: float
    products: tuple[LayerProduct, ...]
    attention: tuple[AttentionKernel, ...] = ()

    @property
    def ridge(self) -> float:
        """The intensity from which a kernel is compute-bound [FLOP/byte]."""
        return self.peak_flops / self.hbm_bandwidth


@dataclass(frozen=True, slots=True)
class MeshExtent:
    """An axis of the device mesh: its degree, and the ranks between neighbours along it."""

    axis: Literal["tp", "cp", "dp", "pp"]
    degree: int
    stride: int

    def coordinate(self, rank: int) -> int:
        """Return where ``rank`` is along the axis [1].

        >>> [MeshExtent("pp", 2, 4).coordinate(rank) for rank in (3, 4)]
        [0, 1]
        """
        return rank // self.stride % self.degree


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """Bytes that a device of ``stage`` sends in a step for the groups of one axis, by link [byte].

    The groups have ``ranks`` ranks, ``stride`` apart.
    """

    stage: int
    axis: MeshAxis
    ranks: int
    stride: int
    fabric_bytes: float
    network_bytes: float


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Ranks of a layout on the nodes of its machine, and what its links carry.

    Consecutive ranks fill a node. Bandwidths are those that collectives reach, one direction [byte/s].
    """

    devices: int
    devices_per_node: int
    fabric_bandwidth: float
    network_bandwidth: float
    axes: tuple[MeshExtent, ...]
    traffic: tuple[AxisTraffic, ...]

    @property
    def nodes(self) -> int:
        """Nodes with a rank of the layout."""
        return -(-self.devices // self.devices_per_node)
