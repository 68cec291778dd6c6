"""A run compared with its plan: what was measured, what was predicted, and where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.calibration.measurement import DeviceMeasurement, MeasuredParts, MemoryComparison
from autoplan.results.plan import Plan

FindingKind = Literal[
    "no overlap",
    "slow collectives",
    "exposed communication",
    "slow compute",
    "slow optimizer",
    "small kernels",
    "host",
    "data loader",
    "stragglers",
    "imbalanced stages",
    "imbalanced ranks",
    "imbalanced experts",
    "bubble",
    "copies",
    "allocator",
    "memory",
    "unknown groups",
]


@dataclass(frozen=True, slots=True)
class PartComparison:
    """A part of the step as measured and as predicted [s]; None where the model has no such part."""

    part: str
    measured: float
    predicted: float | None

    @property
    def lost_seconds(self) -> float:
        """How much longer the part is than predicted [s]."""
        return self.measured - (self.predicted or 0.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a run is slower than its plan: what it costs [s], and the facts that show it."""

    kind: FindingKind
    lost_seconds: float
    facts: tuple[tuple[str, float | int | str], ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a profile of a run says against the prediction of its layout.

    ``parts`` compare the devices of ``stage``, or all where their stages are not known, with the prediction;
    ``measured`` is their mean. ``findings`` are sorted by what they cost. ``notes`` say what a reader must
    know of the traces.
    """

    plan: Plan
    stage: int | None
    measured_seconds: float
    predicted_seconds: float
    measured: MeasuredParts
    parts: tuple[PartComparison, ...]
    devices: tuple[DeviceMeasurement, ...]
    findings: tuple[Finding, ...]
    memory: tuple[MemoryComparison, ...]
    notes: tuple[str, ...]
