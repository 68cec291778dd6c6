"""Strong and weak scaling over numbers of devices, against Amdahl's and Gustafson's laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.results.plan import Plan

__all__ = ["ScalingKind", "ScalingLine", "ScalingPoint"]

ScalingKind = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The best plan of so many devices; ``speedup`` is in tokens per second over the base of the line.

    ``line`` is what the law says of it, from the base on. ``plan`` is None where there is none, and then
    ``why`` is the reason.
    """

    devices: int
    nodes: int
    global_batch_size: int
    plan: Plan | None
    why: str = ""
    speedup: float | None = None
    line: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """Plans over numbers of devices: with the same batch (strong), or as much batch for each device (weak).

    ``base`` are the devices of the point that speedups are over, and ``serial_share`` is that of the law
    through it and the next point; fewer devices than the base lack memory, and more gain more than their
    number. ``breaks_at`` are the devices from which on the plans fall below the law by more than the model's
    noise, and ``broken_by`` is the part of the step whose share grew most there.
    """

    kind: ScalingKind
    points: tuple[ScalingPoint, ...]
    base: int | None
    serial_share: float | None
    breaks_at: int | None
    broken_by: str | None
