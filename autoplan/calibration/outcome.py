"""From measured runs of one stack on one family of devices to calibrated files and what changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from autoplan.calibration.coefficients import COEFFICIENTS, Coefficient, number_of, with_number, with_values
from autoplan.calibration.fitting import Estimate, Fit, Observation, fit, leave_out
from autoplan.costs.core.prediction import Prediction
from autoplan.costs.predict import predict
from autoplan.costs.uncertainty import half_width
from autoplan.results.calibration import INTERVAL_PRIOR_RUNS, Calibration, CoefficientChange, RunErrors
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job

__all__ = ["SUFFIX", "calibrate"]

#: What the name of a calibrated file ends in.
SUFFIX: Final = "-calibrated"
#: Digits of a fitted value; more would not be known.
_DIGITS: Final = 4
#: The numbers of a stack's ``uncertainty`` that make the interval of a step time.
_WIDTHS: Final = ("time", "time_modelled")
#: Half-width of the 90 % interval of a normal error, in standard deviations.
_NORMAL_90: Final = 1.645
#: A shift shorter than this, in standard deviations of the prior, is no shift.
_STILL: Final = 0.1


def calibrate(observations: Sequence[Observation], *, names: Sequence[str], source: str) -> Calibration:
    """Return the calibration of the one stack and the one kernels file that price all ``observations``.

    ``names`` are what the runs' jobs are called, ``source`` says where they are from. What hardly moved
    keeps its value; where runs are predicted worse by a fit to all others than by the shipped
    values, everything does.
    """
    shipped = [predict(x.job, x.layout) for x in observations]
    before = [prediction.step_seconds for prediction in shipped]
    found, without = fit(observations), leave_out(observations)
    kept = _mean_distance(observations, without) > _mean_distance(observations, before)
    job = observations[0].job
    changes = tuple(_change(job, estimate, kept=kept) for estimate in found.estimates)
    after = before if kept else _after(observations, found, changes)
    runs = tuple(
        RunErrors(name, str(x.layout), x.seconds, *seconds)
        for name, x, *seconds in zip(names, observations, before, after, without, strict=True)
    )
    interval = _interval(observations, shipped, before if kept else without)
    stack = _calibrated_stack(job.stack, changes, source, interval)
    kernels = _calibrated_kernels(job.kernels, changes, source)
    return Calibration(stack, kernels, changes, runs, kept, interval)


def _interval(
    observations: Sequence[Observation], shipped: Sequence[Prediction], unseen: Sequence[float]
) -> float:
    """Return the width of the interval over the shipped one, s: s^2 = (n0 + sum of r^2) / (n0 + n).

    r is the error of a prediction that has not seen its run, in standard deviations of the shipped interval:
    the shipped width counts as n0 runs, so that few runs move it little and many of them prevail.
    """
    deviations = [
        _NORMAL_90 * math.log(seconds / x.seconds) / half_width(p.modelled_share, x.job.stack.uncertainty)
        for x, p, seconds in zip(observations, shipped, unseen, strict=True)
    ]
    squares = math.fsum(r * r for r in deviations)
    return math.sqrt((INTERVAL_PRIOR_RUNS + squares) / (INTERVAL_PRIOR_RUNS + len(deviations)))


def _mean_distance(observations: Sequence[Observation], predicted: Sequence[float]) -> float:
    """Return the mean size of log(predicted/measured): twice as long is as wrong as half as long."""
    pairs = zip(observations, predicted, strict=True)
    return float(np.mean([abs(math.log(seconds / x.seconds)) for x, seconds in pairs]))


def _change(job: Job, estimate: Estimate, *, kept: bool) -> CoefficientChange:
    coefficient = estimate.coefficient
    number = number_of(job, coefficient)
    change = CoefficientChange(
        file=estimate.owner,
        coefficient=coefficient.name,
        meaning=coefficient.meaning,
        kind=number.kind,
        before=number.value,
        after=number.value,
        narrowed=estimate.narrowed,
    )
    if kept or abs(estimate.shift) < _STILL * estimate.prior:
        return change
    moved = coefficient.value(coefficient.coordinate(number.value) + estimate.shift)
    return replace(change, after=float(f"{moved:.{_DIGITS}g}"))


def _after(
    observations: Sequence[Observation], found: Fit, changes: Sequence[CoefficientChange]
) -> list[float]:
    """Return the seconds that the values predict which are written, rounded as they are."""
    values = {e.coefficient: change.after for e, change in zip(found.estimates, changes, strict=True)}
    return [predict(with_values(x.job, values), x.layout).step_seconds for x in observations]


def _calibrated_stack(
    stack: StackSpec, changes: Sequence[CoefficientChange], source: str, interval: float
) -> StackSpec:
    mine = _by_coefficient(changes, "stack")
    key = _free_key(stack.sources)
    changed = stack
    for coefficient, change in mine.items():
        changed = with_number(changed, coefficient.path, **_fields(change, key))
    for name in _WIDTHS:
        number = getattr(stack.uncertainty, name)
        width = min(1.0, float(f"{interval * number.value:.2g}"))
        was = _was(number.value, number.kind, stack.name)
        fields = {"value": width, "kind": "fitted", "source": key, "note": was}
        changed = with_number(changed, ("uncertainty", name), **fields)
    title = stack.title if stack.name.endswith(SUFFIX) else f"{stack.title}, calibrated"
    sources = {**stack.sources, key: source}
    update = {"name": _name(stack.name), "title": title, "sources": sources}
    return changed.model_copy(update=update)


def _calibrated_kernels(kernels: KernelSpec, changes: Sequence[CoefficientChange], source: str) -> KernelSpec:
    mine = _by_coefficient(changes, "kernels")
    key = _free_key(kernels.sources)
    changed = kernels
    for coefficient, change in mine.items():
        changed = with_number(changed, coefficient.path, **_fields(change, key))
    update = {"name": _name(kernels.name), "sources": _sources(kernels.sources, mine, key, source)}
    return changed.model_copy(update=update)


def _by_coefficient(changes: Sequence[CoefficientChange], part: str) -> dict[Coefficient, CoefficientChange]:
    """Return the changes of one file that moved something."""
    moved = {change.coefficient: change for change in changes if change.moved}
    return {c: moved[c.name] for c in COEFFICIENTS if c.part == part and c.name in moved}


def _fields(change: CoefficientChange, key: str) -> dict[str, object]:
    was = _was(change.before, change.kind, change.file)
    return {"value": change.after, "kind": "fitted", "source": key, "note": was}


def _was(value: float, kind: str, file: str) -> str:
    return f"{value:.4g} ({kind}) in {file} before"


def _free_key(sources: Mapping[str, str]) -> str:
    """Return a key for the runs that none of the file's own sources has.

    >>> _free_key({"guess": "none"}), _free_key({"runs": "published", "runs-2": "mine"})
    ('runs', 'runs-3')
    """
    keys = ("runs", *(f"runs-{number}" for number in range(2, len(sources) + 3)))
    return next(key for key in keys if key not in sources)


def _sources(
    sources: Mapping[str, str], moved: Mapping[Coefficient, CoefficientChange], key: str, source: str
) -> dict[str, str]:
    return {**sources, key: source} if moved else dict(sources)


def _name(name: str) -> str:
    return name if name.endswith(SUFFIX) else f"{name}{SUFFIX}"
