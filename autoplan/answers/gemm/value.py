"""Result of ``gemm`` on several devices: the chosen scheme, the others, and where the choice flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.schema.job import Job
from autoplan.schema.precision import Precision

# Result of ``gemm`` on one device: bytes, memory, roofline and time of one product.


Purpose = Literal["inference", "training"]


@dataclass(frozen=True, slots=True)
class ProductFacts:
    """Extents and formats of Y [m, n] = A [m, k] W [k, n], bytes of each operand, FLOPs and HBM traffic."""

    m: int
    n: int
    k: int
    batch: int
    operands: Precision
    output: Precision
    partial: Precision
    bias: bool
    residual: bool
    a_bytes: int
    w_bytes: int
    y_bytes: int
    flops: int
    hbm_bytes: float


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """One tensor at the event with most memory: its bytes, and whether it stays between steps."""

    name: str
    bytes: int
    kept: bool


@dataclass(frozen=True, slots=True)
class PurposeMemory:
    """Memory of a device for inference or training, at the event with most."""

    purpose: Purpose
    event: str
    tensors: tuple[TensorBytes, ...]
    allocated_bytes: float
    reserved_bytes: float
    context_bytes: float
    total_bytes: float
    needed_bytes: float
    limit_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class PurposeTime:
    """Seconds with their 90 % interval; ``parts`` are its GEMMs, ``least_seconds`` is the roofline's.

    ``modelled_share`` is the share of the time outside of measured tables.
    """

    purpose: Purpose
    parts: tuple[tuple[str, float], ...]
    seconds: float
    seconds_low: float
    seconds_high: float
    least_seconds: float
    modelled_share: float
    flops_per_second: float
    peak_share: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Intensity and ridge point [FLOP/byte], and which side of it the product is on."""

    intensity: float
    ridge: float
    peak_flops: float
    hbm_bandwidth: float
    bound: Literal["compute", "memory"]


@dataclass(frozen=True, slots=True)
class SplitK:
    """Partial sums of split-k, and the workspaces that hold them."""

    library: str
    parts: int
    bytes: int
    in_workspace: bool
    workspace_bytes: float
    lt_workspace_bytes: float
    most_parts: int


@dataclass(frozen=True, slots=True)
class FreeExtent:
    """The extent that was left out: the largest that fits, 0 if none does, and the smallest compute-bound.

    ``most_intensity`` is what intensity approaches as the extent grows [FLOP/byte]; ``used`` is the value
    that the rest of the answer is about.
    """

    extent: Literal["m", "n", "k"]
    largest_inference: int
    largest_training: int
    smallest_compute_bound: int | None
    most_intensity: float
    used: int


@dataclass(frozen=True, slots=True)
class ProductAnswer:
    """One product on one device; ``reasons`` say why it is not feasible, ``changes`` what would help."""

    job: Job
    device: str
    facts: ProductFacts
    memory: tuple[PurposeMemory, ...]
    time: tuple[PurposeTime, ...]
    roofline: Roofline
    split_k: SplitK
    free: FreeExtent | None
    reasons: tuple[str, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]

    @property
    def feasible(self) -> bool:
        """Whether there is an answer: the product fits, or the extent that was asked for exists."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """A scheme on its grid: what a device sends, holds and takes.

    ``text`` says both in short, ``collectives`` which operations it needs on which tensors. ``grid`` is the
    parts of batch, rows of A, columns of W and inner extent, ``strides`` those of their groups among the
    devices. ``serial_seconds`` are without overlap, ``overlapped_seconds`` with it, and ``seconds`` those of
    the candidate. ``communication_ratio`` is the bytes over the lower bound.
    """

    scheme: str
    text: str
    collectives: tuple[tuple[str, str], ...]
    grid: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    steps: int
    panel_width: int
    overlapped: bool
    aggregated: bool
    sent_bytes: float
    sent_messages: float
    tensor_bytes: float
    communicator_bytes: float
    total_bytes: float
    needed_bytes: float
    fits: bool
    compute_seconds: float
    communication_seconds: float
    serial_seconds: float
    overlapped_seconds: float
    seconds: float
    communication_ratio: float | None


@dataclass(frozen=True, slots=True)
class TransferRow:
    """What a device sends in one kind of call of the chosen scheme; ``calls`` are of all rounds."""

    tensor: str
    operation: str
    ranks: int
    stride: int
    crosses_nodes: bool
    calls: float
    message_bytes: float
    sent_bytes: float
    sent_messages: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PanelWidth:
    """A panel width of the chosen scheme and grid, with its time and memory."""

    width: int
    panels: int
    serial_seconds: float
    overlapped_seconds: float
    needed_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class LeastCommunication:
    """Lower bounds of what some device sends [byte]: with any memory, and with ``memory_elements`` of it."""

    any_memory_bytes: float
    this_memory_bytes: float
    bytes: float
    memory_elements: float


@dataclass(frozen=True, slots=True)
class FlipAnswer:
    """A value beyond which another scheme is faster; ``value`` lies between ``near`` and ``far``.

    All candidates were priced on both sides: ``near_choice`` takes ``near_seconds`` at ``near``,
    ``far_choice`` is best at ``far``. ``text`` says the value in its unit.
    """

    parameter: str
    near: float
    far: float
    text: str
    near_choice: str
    far_choice: str
    near_seconds: float
    far_seconds: float | None


@dataclass(frozen=True, slots=True)
class BreakEvenRows:
    """Neighbouring numbers of rows: one device is faster at the first, several at the second; times [s]."""

    one_device: int
    several_devices: int
    choice: str
    one_seconds: float
    several_seconds: float


@dataclass(frozen=True, slots=True)
class SchemeCertificate:
    """What proves the choice: all ``candidates`` are priced, so that its time [s] is their least."""

    method: str
    status: str
    seconds: float
    bound_seconds: float
    candidates: int


@dataclass(frozen=True, slots=True)
class DistributedAnswer:
    """One product on several devices; without ``chosen`` nothing fits, and ``reasons`` say why."""

    job: Job
    facts: ProductFacts
    start: str
    result: str
    limit_bytes: float
    chosen: SchemeRow | None
    seconds_low: float | None
    seconds_high: float | None
    least_seconds: float
    modelled_share: float | None
    one_device_seconds: float | None
    schemes: tuple[SchemeRow, ...]
    transfers: tuple[TransferRow, ...]
    panels: tuple[PanelWidth, ...]
    least: LeastCommunication | None
    flips: tuple[FlipAnswer, ...]
    break_even: BreakEvenRows | None
    certificate: SchemeCertificate
    reasons: tuple[str, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether a scheme fits."""
        return self.chosen is not None
