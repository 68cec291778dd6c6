"""Calibration of a machine's numbers to a few of its steps: new files, residuals, a narrower interval.

Notation (this file only)::

    s    width of the interval above over the one below                                         [1]
    v    variance of log step times that the numbers still cause, over that before the runs    [1]
    m    share of the variance of a prediction that they cause                                  [1]
    r    log(predicted / measured) of a run after the fit, in standard deviations               [1]
    n0   weight of the shipped width, in runs                                                   [1]

Fit of the few numbers of a machine to a few of its own steps: of one layout already.

Notation (this file only)::

    z    shifts of the numbers, in standard deviations of their priors: 0 is the shipped value     [1]
    J    derivatives of log step times by z                                                        [1]
    s    scatter of a measured step time around what the right numbers predict                     [1]
    C    covariance of z that is left, (J' J / s^2 + 1)^-1                                         [1]
    v    variance of log step times that the numbers still cause, over that before the runs        [1]
    m    share of the variance of a prediction that a machine's numbers cause                      [1]

The shifts are the maximum a posteriori ones: Gaussian priors along the logarithm of each number, and a
Gaussian scatter of known width, beyond which the loss is linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from autoplan.calibration.coefficients import Coefficient, Part
from autoplan.calibration.fitting import Fit, Observation, Refits
from autoplan.calibration.least_squares import Scatter
from autoplan.calibration.outcome import (
    NORMAL_90,
    calibrated_kernels,
    calibrated_stack,
    change_of,
    rounded_seconds,
)
from autoplan.costs.core.candidates import Array
from autoplan.costs.core.prediction import Prediction
from autoplan.costs.predict import predict
from autoplan.costs.uncertainty import MACHINE_SHARE, half_width
from autoplan.results.calibration import INTERVAL_PRIOR_RUNS, MachineCalibration, MachineRun
from autoplan.schema.base import SourcedFactor

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


#: The numbers that a machine has of its own, with standard deviations of their priors along the logarithm.
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
