"""Result of ``gemm`` on several devices: the chosen scheme, the others, and where the choice flips."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.results.matmul.product_answer import ProductFacts
from autoplan.schema.job import Job

__all__ = [
    "BreakEvenRows",
    "DistributedAnswer",
    "FlipAnswer",
    "LeastCommunication",
    "PanelWidth",
    "SchemeCertificate",
    "SchemeRow",
    "TransferRow",
]


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
    """Neighbouring numbers of rows between which it pays to use several devices, with the times there [s]."""

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
