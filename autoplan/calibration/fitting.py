"""Fit of coefficients to measured steps, of any number of stacks and devices.

Each stack's or device's file that prices observations has coefficients; a coefficient shifts by the
same distance in every job of that file. Another ``owner`` function makes several files share a coefficient. A
coefficient that affects no observation stays at its prior mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from autoplan.calibration.least_squares import (
    COEFFICIENTS,
    STEP,
    Coefficient,
    LeastSquares,
    Minimum,
    Scatter,
    affecting,
    minimise,
    number_of,
    owner_of,
    prior_width,
    with_values,
)
from autoplan.costs.core.candidates import Array
from autoplan.costs.predict import Steps
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: Owner of a coefficient of a job: all jobs of one owner share its shift; None excludes it from the fit.
Owner: TypeAlias = Callable[[Job, Coefficient], str | None]

#: Maximum shift of a coefficient, in standard deviations of its prior.
FURTHEST: Final = 3.0
#: Initial shift of a coefficient of an owner, along its coordinate.
Initial: TypeAlias = Callable[[Coefficient, str], float]
#: Share of rows up to which a fit without them is linear in the shifts from the fit to all rows.
_FEW_ROWS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step: the job and layout that ran, and its seconds.

    Observations of one ``group`` are left out together; one without a group is left out alone.
    """

    job: Job
    layout: Layout
    seconds: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated shift of one coefficient of one file.

    ``shift`` and ``prior`` (a standard deviation) are along the coefficient's coordinate; ``narrowed`` is
    posterior over prior standard deviation, 1 where the observations have no information.
    """

    coefficient: Coefficient
    owner: str
    shift: float
    prior: float
    narrowed: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted coefficients; ``scatter`` is the residual scatter of the observations, a share."""

    estimates: tuple[Estimate, ...]
    scatter: float
    owner: Owner = owner_of

    def job(self, job: Job) -> Job:
        """Return ``job`` with the fitted coefficients; those of other owners do not change."""
        shifts = {(e.coefficient, e.owner): e.shift for e in self.estimates}
        owners = {e.coefficient: self.owner(job, e.coefficient) for e in self.estimates}
        return _with_shifts(
            job, {c: shifts.get((c, owner), 0.0) for c, owner in owners.items() if owner is not None}
        )

    def predict(self, observations: Sequence[Observation]) -> tuple[float, ...]:
        """Return the step time of each observation [s], predicted with the fitted coefficients."""
        seconds = np.empty(len(observations))
        for batch in _batches(observations):
            seconds[batch.rows] = batch.steps.seconds(self.job(batch.job))
        return tuple(seconds.tolist())


def fit(
    observations: Sequence[Observation],
    *,
    coefficients: Sequence[Coefficient] = COEFFICIENTS,
    scatter: Scatter | None = None,
) -> Fit:
    """Return the maximum a posteriori coefficients given ``observations`` and the shipped priors."""
    return Refits(observations, coefficients=coefficients, scatter=scatter).of_all


class Refits:
    """Fits to a set of observations, and to the set without some (cross-validation)."""

    def __init__(
        self,
        observations: Sequence[Observation],
        *,
        coefficients: Sequence[Coefficient] = COEFFICIENTS,
        scatter: Scatter | None = None,
        owner: Owner = owner_of,
        initial: Initial | None = None,
    ) -> None:
        self._model = _ShiftedJobs(observations, coefficients, owner)
        self._scatter = scatter or Scatter()
        problem = self._model.problem(self._scatter)
        self._of_all_rows = minimise(problem, initial=None if initial is None else self._model.at(initial))

    @property
    def of_all(self) -> Fit:
        """The fit to all observations."""
        return self._model.fit_of(self._of_all_rows)

    @property
    def jacobian(self) -> Array:
        """Derivatives of the logarithms of step times by the shifts, in prior standard deviations."""
        return self._of_all_rows.jacobian

    def without(self, rows: Sequence[int]) -> tuple[Fit, tuple[float, ...]]:
        """Return a fit without the observations ``rows``, and its predicted step times of those [s].

        Without a few of many, residuals are linear in the shifts from the fit to all, by its Jacobian;
        the predicted times are exact. Without many, that solution is the initial point.
        """
        included = np.ones_like(self._model.measured)
        included[list(rows)] = 0.0
        problem = self._model.problem(self._scatter, included)
        linear = replace(problem, residuals=self._of_all_rows.linear_residuals)
        solution = minimise(linear, start=self._of_all_rows, renew=False)
        if len(rows) >= _FEW_ROWS * len(included):
            solution = minimise(problem, initial=solution.z)
        logs = self._model.residuals(solution.z, frozenset(rows))[list(rows)]
        seconds = self._model.measured[list(rows)] * np.exp(logs)
        return self._model.fit_of(solution), tuple(seconds.tolist())


def leave_out(
    observations: Sequence[Observation],
    *,
    coefficients: Sequence[Coefficient] = COEFFICIENTS,
    scatter: Scatter | None = None,
) -> tuple[float, ...]:
    """Return the step time of each observation [s], predicted by a fit without its group."""
    refits = Refits(observations, coefficients=coefficients, scatter=scatter)
    seconds = np.empty(len(observations))
    for rows in _groups(observations):
        seconds[rows] = refits.without(rows)[1]
    return tuple(seconds.tolist())


def _groups(observations: Sequence[Observation]) -> list[list[int]]:
    groups: dict[tuple[str, int], list[int]] = {}
    for row, observation in enumerate(observations):
        key = (observation.group, 0) if observation.group else ("", row)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows of one job and pipeline-parallel size, priced together."""

    job: Job
    steps: Steps
    rows: list[int]


def _batches(observations: Sequence[Observation]) -> list[_Batch]:
    """Return the observations grouped by job and pipeline-parallel size."""
    groups: list[tuple[Job, int, list[int]]] = []
    for row, x in enumerate(observations):
        group = next((rows for job, depth, rows in groups if depth == x.layout.pp and job == x.job), None)
        if group is None:
            groups.append((x.job, x.layout.pp, [row]))
        else:
            group.append(row)
    return [
        _Batch(job, Steps.of(job, [observations[row].layout for row in rows]), rows)
        for job, _, rows in groups
    ]


def _with_shifts(job: Job, shifts: dict[Coefficient, float]) -> Job:
    """Return ``job`` with its coefficients shifted; a shift of 0 leaves the value unchanged to the bit."""
    values = {
        coefficient: coefficient.value(coefficient.coordinate(number_of(job, coefficient).value) + shift)
        for coefficient, shift in shifts.items()
        if shift
    }
    return with_values(job, values)


class _ShiftedJobs:
    """The observations as a function of shifts z, in standard deviations of the priors."""

    def __init__(
        self, observations: Sequence[Observation], coefficients: Sequence[Coefficient], owner: Owner
    ) -> None:
        self.owner = owner
        self.batches = _batches(observations)
        self.measured: Array = np.array([x.seconds for x in observations], dtype=np.float64)
        #: The first job of each coefficient of each owner, for its shipped value and prior.
        self.first_jobs: dict[tuple[Coefficient, str], Job] = {}
        for batch in self.batches:
            for coefficient, name in self._owned(batch.job, coefficients):
                self.first_jobs.setdefault((coefficient, name), batch.job)
        self.keys = sorted(self.first_jobs, key=lambda key: (coefficients.index(key[0]), key[1]))
        self.columns = {key: column for column, key in enumerate(self.keys)}
        self.coefficients = tuple(coefficients)
        self.priors = [prior_width(self.first_jobs[key], key[0]) for key in self.keys]
        self.bounds = np.array([self._bounds(k) for k in range(len(self.keys))]).reshape(-1, 2)

    def at(self, initial: Initial) -> Array:
        """Return the point z at the shifts that ``initial`` says."""
        shifts = [initial(*key) / prior for key, prior in zip(self.keys, self.priors, strict=True)]
        return np.array(shifts, dtype=np.float64)

    def _owned(self, job: Job, coefficients: Sequence[Coefficient]) -> list[tuple[Coefficient, str]]:
        """Return the coefficients that affect ``job``, with their owners."""
        affected = (coefficient for coefficient in coefficients if affecting(job, coefficient))
        owners = ((coefficient, self.owner(job, coefficient)) for coefficient in affected)
        return [(coefficient, name) for coefficient, name in owners if name is not None]

    def problem(self, scatter: Scatter, rows: Array | None = None) -> LeastSquares:
        """Return the least-squares problem, with ``rows`` as the weight of observations (1 or 0).

        Jobs whose observations all weigh nothing are not priced.
        """
        weighed = frozenset[int]() if rows is None else frozenset(np.flatnonzero(rows).tolist())
        return LeastSquares(
            residuals=lambda z: self.residuals(z, weighed),
            derivatives=lambda z, r: self.derivatives(z, r, weighed),
            lower=self.bounds[:, 0],
            upper=self.bounds[:, 1],
            rows=np.ones_like(self.measured) if rows is None else rows,
            scatter=scatter,
        )

    def _bounds(self, column: int) -> tuple[float, float]:
        """Return the bounds of z from a coefficient's valid range; they include 0."""
        key, prior = self.keys[column], self.priors[column]
        coefficient = key[0]
        start = coefficient.coordinate(number_of(self.first_jobs[key], coefficient).value)
        low, high = ((coefficient.coordinate(x) - start) / prior for x in (coefficient.low, coefficient.high))
        return min(0.0, max(low, -FURTHEST)), max(0.0, min(high, FURTHEST))

    def residuals(self, z: Array, rows: frozenset[int] = frozenset()) -> Array:
        """Return log(predicted / measured) of every observation; only those of ``rows``, where there are any.

        Those of other jobs are 0 then.
        """
        r = np.zeros_like(self.measured)
        for batch in self._batches_with(rows):
            r[batch.rows] = self._logs(batch, z)
        return r

    def _batches_with(self, rows: frozenset[int]) -> list[_Batch]:
        """Return the batches with any of ``rows``; all where there are none."""
        return [batch for batch in self.batches if not rows or not rows.isdisjoint(batch.rows)]

    def derivatives(self, z: Array, r: Array, rows: frozenset[int] = frozenset()) -> Array:
        """Return the Jacobian of the residuals, as far as of ``rows``; entries of other owners are 0."""
        jacobian = np.zeros((len(r), len(z)))
        for batch in self._batches_with(rows):
            for key in self._owned(batch.job, self.coefficients):
                k = self.columns[key]
                step = STEP if z[k] + STEP <= self.bounds[k, 1] else -STEP
                shifted = z.copy()
                shifted[k] += step
                jacobian[batch.rows, k] = (self._logs(batch, shifted) - r[batch.rows]) / step
        return jacobian

    def _logs(self, batch: _Batch, z: Array) -> Array:
        seconds = batch.steps.seconds(self._job(batch.job, z))
        logs: Array = np.log(seconds / self.measured[batch.rows])
        return logs

    def _job(self, job: Job, z: Array) -> Job:
        owned = {key: self.columns[key] for key in self._owned(job, self.coefficients)}
        return _with_shifts(job, {key[0]: float(z[k]) * self.priors[k] for key, k in owned.items()})

    def fit_of(self, solution: Minimum) -> Fit:
        """Return the fit of a solution of the least-squares problem."""
        estimates = tuple(
            Estimate(
                coefficient=coefficient,
                owner=owner,
                shift=float(solution.z[k]) * self.priors[k],
                prior=self.priors[k],
                narrowed=float(solution.deviations[k]),
            )
            for k, (coefficient, owner) in enumerate(self.keys)
        )
        return Fit(estimates, solution.scatter, self.owner)
