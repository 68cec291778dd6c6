"""Fitting coefficients to measured steps: independent of files, and of how many stacks took part.

Each file that prices some of the observations, a stack's or a device's, has coefficients of its own; a
coefficient moves by the same distance in every job that the file prices. An ``owner`` of another kind makes
several files share one. What no observation feels stays where its prior is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from autoplan.calibration.coefficients import (
    COEFFICIENTS,
    PRIOR_WIDTHS,
    Coefficient,
    affecting,
    number_of,
    owner_of,
    with_values,
)
from autoplan.calibration.least_squares import STEP, LeastSquares, Minimum, Scatter, minimise
from autoplan.costs.core.candidates import Array
from autoplan.costs.predict import Steps
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["Estimate", "Fit", "Observation", "Owner", "Refits", "fit", "leave_out"]

#: Whose a coefficient of a job is: all jobs of one owner have one value; None leaves it as it is.
Owner: TypeAlias = Callable[[Job, Coefficient], str | None]

#: Furthest that a coefficient may move, in standard deviations of its prior.
FURTHEST: Final = 3.0
#: Share of the rows up to which a fit without them stays close to that with them.
_FEW: Final = 0.1


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
    """One coefficient of one file: its shift, and what the observations say of it.

    ``shift`` and ``prior`` (a standard deviation) are along the coefficient's coordinate; ``narrowed`` is the
    standard deviation afterwards over that before, 1 where the observations say nothing.
    """

    coefficient: Coefficient
    owner: str
    shift: float
    prior: float
    narrowed: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients that explain some observations; ``scatter`` is what they leave unexplained, a share."""

    estimates: tuple[Estimate, ...]
    scatter: float
    owner: Owner = owner_of

    def job(self, job: Job) -> Job:
        """Return ``job`` with the coefficients that were fitted; those of other owners stay."""
        shifts = {(e.coefficient, e.owner): e.shift for e in self.estimates}
        mine = {c: self.owner(job, c) for c in COEFFICIENTS}
        return _moved(job, {c: shifts.get((c, owner), 0.0) for c, owner in mine.items() if owner is not None})

    def predict(self, observations: Sequence[Observation]) -> tuple[float, ...]:
        """Return the seconds of each observation as the fitted coefficients predict them."""
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
    """Return the most likely coefficients given ``observations`` and the priors of what is shipped."""
    return Refits(observations, coefficients=coefficients, scatter=scatter).whole


class Refits:
    """Fits of one set of observations, to all of them and to all but some."""

    def __init__(
        self,
        observations: Sequence[Observation],
        *,
        coefficients: Sequence[Coefficient] = COEFFICIENTS,
        scatter: Scatter | None = None,
        owner: Owner = owner_of,
    ) -> None:
        self._model = _ShiftedJobs(observations, coefficients, owner)
        self._scatter = scatter or Scatter()
        self._whole = minimise(self._model.problem(self._scatter))

    @property
    def whole(self) -> Fit:
        """The fit to all observations."""
        return self._model.fit_of(self._whole)

    def without(self, rows: Sequence[int]) -> tuple[Fit, tuple[float, ...]]:
        """Return a fit to all observations but ``rows``, and the seconds that it predicts for those."""
        kept = np.ones_like(self._model.measured)
        kept[list(rows)] = 0.0
        few = len(rows) < _FEW * len(kept)
        # Of two fits that are nearly as good, one that knows much less must not take what the whole one did.
        start = self._whole if few else None
        found = minimise(self._model.problem(self._scatter, kept), start=start, renew=not few)
        seconds = self._model.measured[list(rows)] * np.exp(found.residuals[list(rows)])
        return self._model.fit_of(found), tuple(seconds.tolist())


def leave_out(
    observations: Sequence[Observation],
    *,
    coefficients: Sequence[Coefficient] = COEFFICIENTS,
    scatter: Scatter | None = None,
) -> tuple[float, ...]:
    """Return the seconds of each observation as a fit without its group predicts them."""
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
    """Rows of one job and pipeline depth, which are priced together."""

    job: Job
    steps: Steps
    rows: list[int]


def _batches(observations: Sequence[Observation]) -> list[_Batch]:
    """Return the observations by job and depth."""
    found: list[tuple[Job, int, list[int]]] = []
    for row, x in enumerate(observations):
        known = next((rows for job, depth, rows in found if depth == x.layout.pp and job == x.job), None)
        if known is None:
            found.append((x.job, x.layout.pp, [row]))
        else:
            known.append(row)
    return [
        _Batch(job, Steps.of(job, [observations[row].layout for row in rows]), rows) for job, _, rows in found
    ]


def _moved(job: Job, shifts: dict[Coefficient, float]) -> Job:
    """Return ``job`` with its coefficients shifted; a shift of nothing leaves the very number."""
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
        #: The first job of each coefficient of each owner: where its shipped number is read.
        self.homes: dict[tuple[Coefficient, str], Job] = {}
        for batch in self.batches:
            for coefficient, name in self._owned(batch.job, coefficients):
                self.homes.setdefault((coefficient, name), batch.job)
        self.keys = sorted(self.homes, key=lambda key: (coefficients.index(key[0]), key[1]))
        self.columns = {key: column for column, key in enumerate(self.keys)}
        self.coefficients = tuple(coefficients)
        self.priors = [PRIOR_WIDTHS[number_of(self.homes[key], key[0]).kind] for key in self.keys]
        self.bounds = np.array([self._bounds(k) for k in range(len(self.keys))]).reshape(-1, 2)

    def _owned(self, job: Job, coefficients: Sequence[Coefficient]) -> list[tuple[Coefficient, str]]:
        """Return the coefficients that ``job`` feels, each with its owner."""
        contention = (coefficient for coefficient in coefficients if affecting(job, coefficient))
        owners = ((coefficient, self.owner(job, coefficient)) for coefficient in contention)
        return [(coefficient, name) for coefficient, name in owners if name is not None]

    def problem(self, scatter: Scatter, rows: Array | None = None) -> LeastSquares:
        """Return the problem for the solver, with the ``rows`` that count."""
        return LeastSquares(
            residuals=self.residuals,
            derivatives=self.derivatives,
            lower=self.bounds[:, 0],
            upper=self.bounds[:, 1],
            rows=np.ones_like(self.measured) if rows is None else rows,
            scatter=scatter,
        )

    def _bounds(self, column: int) -> tuple[float, float]:
        """Return the range of z that keeps a coefficient in its own range; 0 is always in it."""
        key, prior = self.keys[column], self.priors[column]
        coefficient = key[0]
        start = coefficient.coordinate(number_of(self.homes[key], coefficient).value)
        low, high = ((coefficient.coordinate(x) - start) / prior for x in (coefficient.low, coefficient.high))
        return min(0.0, max(low, -FURTHEST)), max(0.0, min(high, FURTHEST))

    def residuals(self, z: Array) -> Array:
        """Return log(predicted / measured) of every observation."""
        r = np.empty_like(self.measured)
        for batch in self.batches:
            r[batch.rows] = self._logs(batch, z)
        return r

    def derivatives(self, z: Array, r: Array) -> Array:
        """Return how the residuals change with each shift; only jobs of an owner feel its coefficients."""
        jacobian = np.zeros((len(r), len(z)))
        for batch in self.batches:
            for key in self._owned(batch.job, self.coefficients):
                k = self.columns[key]
                step = STEP if z[k] + STEP <= self.bounds[k, 1] else -STEP
                moved = z.copy()
                moved[k] += step
                jacobian[batch.rows, k] = (self._logs(batch, moved) - r[batch.rows]) / step
        return jacobian

    def _logs(self, batch: _Batch, z: Array) -> Array:
        seconds = batch.steps.seconds(self._job(batch.job, z))
        logs: Array = np.log(seconds / self.measured[batch.rows])
        return logs

    def _job(self, job: Job, z: Array) -> Job:
        owned = {key: self.columns[key] for key in self._owned(job, self.coefficients)}
        return _moved(job, {key[0]: float(z[k]) * self.priors[k] for key, k in owned.items()})

    def fit_of(self, found: Minimum) -> Fit:
        """Return the fit that a solution of the problem is."""
        estimates = tuple(
            Estimate(
                coefficient=coefficient,
                owner=owner,
                shift=float(found.z[k]) * self.priors[k],
                prior=self.priors[k],
                narrowed=float(found.deviations[k]),
            )
            for k, (coefficient, owner) in enumerate(self.keys)
        )
        return Fit(estimates, found.scatter, self.owner)
