"""Calibration of one stack and one kernels file to measured runs: new files, and changes."""

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
from autoplan.schema.base import NumberKind
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job
from autoplan.units import format_share

#: Suffix of the name of a calibrated file.
SUFFIX: Final = "-calibrated"
#: Significant digits of a fitted value.
_DIGITS: Final = 4
#: The numbers of a stack's ``uncertainty`` that give the prediction interval of a step time.
_WIDTHS: Final = ("time", "time_modelled")
#: Half-width of the 90 % interval of a normal error, in standard deviations.
NORMAL_90: Final = 1.645
#: Shifts below this, in standard deviations of the prior, do not change the value.
_NO_SHIFT: Final = 0.1


def calibrate(observations: Sequence[Observation], *, names: Sequence[str], source: str) -> Calibration:
    """Return the calibration of the one stack and the one kernels file that price all ``observations``.

    ``names`` are the names of the runs' jobs, ``source`` is their reference. Coefficients with negligible
    shifts do not change. None changes where cross-validated predictions are worse than those of the shipped
    values.
    """
    shipped = [predict(x.job, x.layout) for x in observations]
    before = [prediction.step_seconds for prediction in shipped]
    fitted, without = fit(observations), leave_out(observations)
    keep_shipped = _mean_distance(observations, without) > _mean_distance(observations, before)
    job = observations[0].job
    changes = tuple(change_of(job, estimate, keep_shipped=keep_shipped) for estimate in fitted.estimates)
    after = before if keep_shipped else rounded_seconds(observations, fitted, changes)
    runs = tuple(
        RunErrors(name, str(x.layout), x.seconds, *seconds)
        for name, x, *seconds in zip(names, observations, before, after, without, strict=True)
    )
    interval = _interval(observations, shipped, before if keep_shipped else without)
    stack = calibrated_stack(job.stack, changes, source, interval)
    kernels = calibrated_kernels(job.kernels, changes, source)
    return Calibration(stack, kernels, changes, runs, keep_shipped, interval)


def _interval(
    observations: Sequence[Observation], shipped: Sequence[Prediction], cross_validated: Sequence[float]
) -> float:
    """Return the ratio s of the calibrated to the shipped interval width: s^2 = (n0 + sum of r^2) / (n0 + n).

    r is the error of a cross-validated prediction, in standard deviations of the shipped interval. The
    shipped width has the weight of n0 runs.
    """
    deviations = [
        NORMAL_90 * math.log(seconds / x.seconds) / half_width(p.modelled_share, x.job.stack.uncertainty)
        for x, p, seconds in zip(observations, shipped, cross_validated, strict=True)
    ]
    squares = math.fsum(r * r for r in deviations)
    return math.sqrt((INTERVAL_PRIOR_RUNS + squares) / (INTERVAL_PRIOR_RUNS + len(deviations)))


def _mean_distance(observations: Sequence[Observation], predicted: Sequence[float]) -> float:
    """Return the mean of |log(predicted / measured)|, symmetric in over- and underestimates."""
    pairs = zip(observations, predicted, strict=True)
    return float(np.mean([abs(math.log(seconds / x.seconds)) for x, seconds in pairs]))


def change_of(job: Job, estimate: Estimate, *, keep_shipped: bool = False) -> CoefficientChange:
    """Return the change of one number, rounded; none where the shift is negligible or ``keep_shipped``."""
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
    if keep_shipped or abs(estimate.shift) < _NO_SHIFT * estimate.prior:
        return change
    shifted = coefficient.value(coefficient.coordinate(number.value) + estimate.shift)
    return replace(change, after=float(f"{shifted:.{_DIGITS}g}"))


def rounded_seconds(
    observations: Sequence[Observation], fitted: Fit, changes: Sequence[CoefficientChange]
) -> list[float]:
    """Return step times predicted with the rounded values of ``changes`` [s]."""
    values = {e.coefficient: change.after for e, change in zip(fitted.estimates, changes, strict=True)}
    return [predict(with_values(x.job, values), x.layout).step_seconds for x in observations]


def calibrated_stack(
    stack: StackSpec,
    changes: Sequence[CoefficientChange],
    source: str,
    interval: float,
    *,
    kind: NumberKind = "fitted",
    reason: str = "",
    slower: float | None = None,
) -> StackSpec:
    """Return ``stack`` with the changed numbers and the width of its interval, ``interval`` times as wide.

    ``slower`` is the new ratio of the width above to the one below; None leaves it.
    """
    by_coefficient = _by_coefficient(changes, "stack")
    key = _free_key(stack.sources)
    changed = stack
    for coefficient, change in by_coefficient.items():
        changed = with_number(changed, coefficient.path, **_fields(change, key))
    share = format_share(interval)
    for name in _WIDTHS:
        number = getattr(stack.uncertainty, name)
        width = min(1.0, float(f"{interval * number.value:.2g}"))
        note = f"{share} as wide as the {format_share(number.value)} ({number.kind}) of {stack.name}{reason}"
        fields = {"value": width, "kind": kind, "source": key, "note": note}
        changed = with_number(changed, ("uncertainty", name), **fields)
    if slower is not None and stack.uncertainty.slower is not None:
        ratio = {
            "value": float(f"{slower:.3g}"),
            "kind": kind,
            "source": key,
            "note": reason.strip(", ") or None,
        }
        changed = with_number(changed, ("uncertainty", "slower"), **ratio)
    # The host whose steps were measured is no other one.
    uncertainty = changed.uncertainty.model_copy(update={"slow_host": None})
    title = stack.title if stack.name.endswith(SUFFIX) else f"{stack.title}, calibrated"
    sources = {**stack.sources, key: source}
    update = {"name": _name(stack.name), "title": title, "sources": sources, "uncertainty": uncertainty}
    return changed.model_copy(update=update)


def calibrated_kernels(kernels: KernelSpec, changes: Sequence[CoefficientChange], source: str) -> KernelSpec:
    """Return ``kernels`` with the changed numbers."""
    by_coefficient = _by_coefficient(changes, "kernels")
    key = _free_key(kernels.sources)
    changed = kernels
    for coefficient, change in by_coefficient.items():
        changed = with_number(changed, coefficient.path, **_fields(change, key))
    update = {
        "name": _name(kernels.name),
        "sources": {**kernels.sources, key: source} if by_coefficient else dict(kernels.sources),
    }
    return changed.model_copy(update=update)


def _by_coefficient(changes: Sequence[CoefficientChange], part: str) -> dict[Coefficient, CoefficientChange]:
    """Return the changes of one file whose value differs from the shipped one."""
    changed = {change.coefficient: change for change in changes if change.moved}
    return {c: changed[c.name] for c in COEFFICIENTS if c.part == part and c.name in changed}


def _fields(change: CoefficientChange, key: str) -> dict[str, object]:
    note = f"{change.before:.4g} ({change.kind}) in {change.file} before"
    return {"value": change.after, "kind": "fitted", "source": key, "note": note}


def _free_key(sources: Mapping[str, str]) -> str:
    """Return a key for the runs that is not among the file's sources.

    >>> _free_key({"guess": "none"}), _free_key({"runs": "published", "runs-2": "mine"})
    ('runs', 'runs-3')
    """
    keys = ("runs", *(f"runs-{number}" for number in range(2, len(sources) + 3)))
    return next(key for key in keys if key not in sources)


def _name(name: str) -> str:
    return name if name.endswith(SUFFIX) else f"{name}{SUFFIX}"
