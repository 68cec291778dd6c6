"""Calibrations: of one stack and one kernels file to measured runs, and of a machine to a few of its steps.

Notation of the second (this file only)::

    z    shifts of the numbers, in standard deviations of their priors: 0 is the shipped value     [1]
    J    derivatives of log step times by z                                                        [1]
    s    scatter of a measured step time around what the right numbers predict                     [1]
    C    covariance of z that is left, (J' J / s^2 + 1)^-1                                         [1]
    v    variance of log step times that the numbers still cause, over that before the runs        [1]
    m    share of the variance of a prediction that a machine's numbers cause                      [1]
    r    log(predicted / measured) of a run after the fit, in standard deviations                  [1]
    n0   weight of the shipped width, in runs                                                      [1]

The shifts are the maximum a posteriori ones: Gaussian priors along the logarithm of each number, and a
Gaussian scatter of known width, beyond which the loss is linear. One layout is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoplan.calibration.fitting import Estimate, Fit, Observation, Refits, fit, leave_out
from autoplan.calibration.least_squares import (
    COEFFICIENTS,
    Coefficient,
    Part,
    Scatter,
    number_of,
    with_number,
    with_values,
)
from autoplan.costs.core.candidates import Array
from autoplan.costs.core.prediction import Prediction
from autoplan.costs.predict import predict
from autoplan.costs.uncertainty import MACHINE_SHARE, half_width
from autoplan.results.calibration import (
    INTERVAL_PRIOR_RUNS,
    Calibration,
    CoefficientChange,
    MachineCalibration,
    MachineRun,
    RunErrors,
)
from autoplan.schema.base import NumberKind, SourcedFactor
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


#: Runs that the note of a width names.
_NAMED_RUNS: Final = 3


def calibrate_machine(
    observations: Sequence[Observation], runs: Sequence[tuple[str, str, str]]
) -> MachineCalibration:
    """Return the calibration of the numbers of the machine on which ``observations`` were made.

    ``runs`` has the job and the layout of each, in the user's words, and where its step time is from.
    """
    job = observations[0].job
    shipped = [predict(x.job, x.layout) for x in observations]
    fitted = fit_machine(observations)
    changes = tuple(change_of(job, estimate) for estimate in fitted.fit.estimates)
    after = rounded_seconds(observations, fitted.fit, changes)
    answered = tuple(
        MachineRun(*words, x.seconds, before.step_seconds, seconds)
        for words, x, before, seconds in zip(runs, observations, shipped, after, strict=True)
    )
    interval = interval_share(fitted.variance, _residuals(observations, shipped, after))
    source = f"autoplan calibrate: {_listed(answered)}"
    reason = f", by {_listed(answered)}"
    slower = slower_ratio(job.stack.uncertainty.slower, fitted.variance)
    stack = calibrated_stack(
        job.stack, changes, source, interval, kind="derived", reason=reason, slower=slower
    )
    kernels = calibrated_kernels(job.kernels, changes, source)
    return MachineCalibration(stack, kernels, changes, answered, interval)


def interval_share(variance: Sequence[float], residuals: Sequence[float]) -> float:
    """Return the width of the interval over the shipped one: (1 - m + m v)^1/2, wider where runs contradict.

    Where residuals are larger than 1 on average, the square grows by (n0 + sum of r^2) / (n0 + n).

    >>> interval_share([1.0], [0.0]), round(interval_share([0.0], [0.5]) ** 2, 12)
    (1.0, 0.5)
    >>> interval_share([0.0], [4.0]) > interval_share([0.0], [1.0])
    True

    Leaves out: that a new layout may depend on other numbers than those observed.
    """
    runs = len(variance)
    left = 1.0 - MACHINE_SHARE + MACHINE_SHARE * math.fsum(variance) / runs
    squares = math.fsum(r * r for r in residuals)
    misfit = max(1.0, (INTERVAL_PRIOR_RUNS + squares) / (INTERVAL_PRIOR_RUNS + runs))
    return math.sqrt(left * misfit)


def slower_ratio(shipped: SourcedFactor | None, variance: Sequence[float]) -> float | None:
    """Return the width above over the one below after the runs: 1 + (s - 1) v; None where there is no s.

    Machines are slower than predicted more often than faster. One that was measured is as slow as it was:
    what is left differs between layouts, either way alike.

    Source: runs of a group predicted by the error of one other of it, benchmarks/accuracy: 5 and 95 % of them
    are at 0.82 and 1.22 where publications weigh alike, before at 0.90 and 1.41.
    """
    return None if shipped is None else 1.0 + (shipped.value - 1.0) * math.fsum(variance) / len(variance)


def _residuals(
    observations: Sequence[Observation], shipped: Sequence[Prediction], after: Sequence[float]
) -> list[float]:
    """Return r of each run: over the standard deviation of a prediction for a machine that is known."""
    remaining = math.sqrt(1.0 - MACHINE_SHARE)
    deviations = [
        remaining * half_width(p.modelled_share, x.job.stack.uncertainty) / NORMAL_90
        for x, p in zip(observations, shipped, strict=True)
    ]
    return [
        math.log(seconds / x.seconds) / deviation
        for x, seconds, deviation in zip(observations, after, deviations, strict=True)
    ]


def _listed(runs: Sequence[MachineRun]) -> str:
    """Return the runs in words, the first of them by name."""
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    named = "; ".join(f"{run.job} {run.layout} ({run.origin})" for run in runs[:_NAMED_RUNS])
    more = f"; {len(runs) - _NAMED_RUNS} more" if len(runs) > _NAMED_RUNS else ""
    return f"{count}: {named}{more}"


#: s: 3 % by which measured steps differ between releases and days, and 4 % by which the errors of layouts of
#: one group differ, in the median over groups left out of the fit (``left_out/group.csv`` of the benchmark).
NOISE: Final = math.hypot(0.03, 0.04)
#: The scatter does not follow from the runs, of which there may be one: its prior outweighs any number.
_SCATTER: Final = Scatter(share=NOISE, weight=1e9, huber=0.10)


def _number(path: str, low: float, high: float, prior: float, meaning: str) -> Coefficient:
    part: Part = "kernels" if "." in path else "stack"
    return Coefficient(part, tuple(path.split(".")), "log", low, high, meaning, prior=prior)


#: The numbers that differ between machines, with standard deviations of their priors along the logarithm.
#: Mean errors of groups differ by 9 % where the fit had not seen the group, by 13 % where it had not seen the
#: source (``benchmarks/accuracy/data/left_out``): most of a step runs at the clock, which gets 10 %. Hosts
#: and networks, of which no data sheet tells these numbers, get 30 %, and shares of fabrics 15 %, as measured
#: ones have (``PRIOR_WIDTHS``).
MACHINE_NUMBERS: Final[tuple[Coefficient, ...]] = (
    _number("host_launch", 2e-7, 1e-4, 0.30, "host time to launch a kernel"),
    _number("gemm.sustained_share", 0.30, 1.0, 0.10, "clock of long training over that of a sweep"),
    _number("collectives.network_share", 0.02, 1.0, 0.30, "bandwidth of the network that a ring reaches"),
    _number("collectives.fabric_share", 0.02, 1.0, 0.15, "bandwidth of the fabric that a ring reaches"),
)


@dataclass(frozen=True, slots=True)
class MachineFit:
    """The fitted numbers, and ``variance``: v of each observed step."""

    fit: Fit
    variance: tuple[float, ...]


def fit_machine(observations: Sequence[Observation]) -> MachineFit:
    """Return the most probable numbers of the machine on which ``observations`` were made."""
    refits = Refits(observations, coefficients=MACHINE_NUMBERS, scatter=_SCATTER)
    return MachineFit(refits.of_all, tuple(_variance(refits.jacobian).tolist()))


def _variance(jacobian: Array) -> Array:
    """Return v of every row of J: (J C J') / (J J').

    >>> round(float(_variance(np.array([[NOISE]]))[0]), 12)  # as much known as told
    0.5
    """
    covariance = np.linalg.inv(jacobian.T @ jacobian / NOISE**2 + np.eye(jacobian.shape[1]))
    before = np.einsum("ij,ij->i", jacobian, jacobian)
    after = np.einsum("ij,jk,ik->i", jacobian, covariance, jacobian)
    share: Array = np.where(before > 0.0, after / np.maximum(before, 1e-300), 1.0)
    return share
