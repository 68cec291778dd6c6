"""Result of ``gemm`` on one device: bytes, memory, roofline and time of one product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.schema.job import Job
from autoplan.schema.precision import Precision

__all__ = [
    "FreeExtent",
    "ProductAnswer",
    "ProductFacts",
    "PurposeMemory",
    "PurposeTime",
    "Roofline",
    "SplitK",
    "TensorBytes",
]

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
