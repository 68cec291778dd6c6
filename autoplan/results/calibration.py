"""Result of a calibration: fitted coefficients, and errors before and after; of serving, an engine's too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from autoplan.schema.base import NumberKind
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.serving.engine_stack import EngineSpec

#: Weight of the shipped width of the interval, in runs.
INTERVAL_PRIOR_RUNS: Final = 10
#: Ratio of posterior to prior width above which the runs do not determine a coefficient.
_BARELY_NARROWED = 0.95
#: Residual above which a machine's numbers do not explain a run: three times what measured steps scatter.
_UNEXPLAINED = 0.09


@dataclass(frozen=True, slots=True)
class CoefficientChange:
    """One coefficient of one file: its value before and after, and how much the runs say of it.

    ``narrowed`` is the standard deviation that is left over that of the prior: 1 where runs say nothing.
    """

    file: str
    coefficient: str
    meaning: str
    kind: NumberKind
    before: float
    after: float
    narrowed: float

    @property
    def informed(self) -> bool:
        """Whether the runs determine the coefficient."""
        return self.narrowed < _BARELY_NARROWED

    @property
    def moved(self) -> bool:
        """Whether the value changed."""
        return self.after != self.before


@dataclass(frozen=True, slots=True)
class RunErrors:
    """One run: its measured seconds and what was predicted before, after, and without the run itself."""

    job: str
    layout: str
    measured: float
    before: float
    after: float
    left_out: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Sizes of errors, shares of what was measured."""

    median: float
    mean: float
    worst: float


def errors_of(measured: Sequence[float], predicted: Sequence[float]) -> Errors:
    """Return the sizes of the errors of ``predicted``.

    >>> errors_of([1.0, 2.0, 4.0], [1.25, 2.0, 2.0])
    Errors(median=0.25, mean=0.25, worst=0.5)
    """
    sizes = sorted(abs(p / m - 1.0) for m, p in zip(measured, predicted, strict=True))
    middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2.0
    return Errors(median=middle, mean=math.fsum(sizes) / len(sizes), worst=sizes[-1])


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibrated files, what changed in them, and the errors on the runs that changed them.

    ``kept``: the leave-one-out predictions are worse than those of the shipped values, so that these
    remain and no value changes. ``interval`` is the width of the 90 % interval over the shipped one, from
    predictions that had not seen their run.
    """

    stack: StackSpec
    kernels: KernelSpec
    changes: tuple[CoefficientChange, ...]
    runs: tuple[RunErrors, ...]
    kept: bool
    interval: float

    @property
    def before(self) -> Errors:
        """Errors of the shipped values."""
        return self._errors([run.before for run in self.runs])

    @property
    def after(self) -> Errors:
        """Errors of the calibrated values on the runs of the fit."""
        return self._errors([run.after for run in self.runs])

    @property
    def left_out(self) -> Errors:
        """Leave-one-out errors."""
        return self._errors([run.left_out for run in self.runs])

    def _errors(self, predicted: Sequence[float]) -> Errors:
        return errors_of([run.measured for run in self.runs], predicted)


@dataclass(frozen=True, slots=True)
class MachineRun:
    """One run of a calibrated machine: where its seconds are from, predictions before and after."""

    job: str
    layout: str
    origin: str
    measured: float
    before: float
    after: float

    @property
    def residual(self) -> float:
        """Predicted over measured step time after the calibration, less one."""
        return self.after / self.measured - 1.0

    @property
    def unexplained(self) -> bool:
        """Whether the calibrated numbers do not explain the run."""
        return abs(self.residual) > _UNEXPLAINED


@dataclass(frozen=True, slots=True)
class MachineCalibration:
    """The files with a machine's numbers, what changed in them, and the runs that changed it.

    ``interval`` is the width of the 90 % interval over the shipped one.
    """

    stack: StackSpec
    kernels: KernelSpec
    changes: tuple[CoefficientChange, ...]
    runs: tuple[MachineRun, ...]
    interval: float

    @property
    def before(self) -> Errors:
        """Errors of the shipped values."""
        return errors_of([run.measured for run in self.runs], [run.before for run in self.runs])

    @property
    def after(self) -> Errors:
        """Errors of the calibrated values on the runs of the fit."""
        return errors_of([run.measured for run in self.runs], [run.after for run in self.runs])


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """One fitted curve: how many points it went through, and its median error on them."""

    operation: str
    points: int
    median_error: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A kernels file made of measurements; ``failed`` points could not be measured."""

    kernels: KernelSpec
    environment: str
    curves: tuple[MeasuredCurve, ...]
    tables: int
    failed: int


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


#: Whatever is fitted or measured: each becomes files of a cost model.
Calibrated: TypeAlias = Calibration | MachineCalibration | ServingCalibration | Measured
