"""Result of ``calibrate`` of serving runs: an engine's numbers on one machine, and what they predict."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.schema.serving.engine_stack import EngineSpec


@dataclass(frozen=True, slots=True)
class CalibratedNumber:
    """One number before and after; ``left`` is its deviation over that of its prior."""

    name: str
    before: float
    after: float
    left: float


@dataclass(frozen=True, slots=True)
class CalibratedFigure:
    """One measured figure [s] or [1/s]: shipped, calibrated, and by a fit without this run."""

    origin: str
    layout: str
    load: str
    figure: str
    measured: float
    before: float
    after: float
    #: None where there is no other run.
    left_out: float | None


@dataclass(frozen=True, slots=True)
class ServingCalibration:
    """The engine's file with a machine's numbers; ``interval``: width of intervals over the shipped."""

    engine: EngineSpec
    version: str
    device: str
    numbers: tuple[CalibratedNumber, ...]
    figures: tuple[CalibratedFigure, ...]
    interval: float
