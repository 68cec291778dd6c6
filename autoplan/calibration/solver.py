"""The most likely shifts of some coefficients, given logarithms of predicted over measured times.

Notation (this file only)::

    z    shifts, in standard deviations of their priors: 0 is what was known before    [1]
    r    log(predicted / measured) of each measurement                                 [1]
    rho  Huber's loss: r^2/2, and linear beyond d                                      [1]
    s    scatter of r that no coefficient explains, itself estimated                   [1]
    s0   what s is expected to be, as if n0 measurements had shown it                  [1]
    J    derivatives of r by z                                                         [1]

What is made small is F(z) = (n0 + n)/2 log(n0 s0^2 + 2 sum rho(r)) + |z|^2/2: Gaussian priors, a robust
likelihood, and a scatter that the measurements themselves widen where they contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from autoplan.costs.arrays import Array

__all__ = ["STEP", "Problem", "Scatter", "Solution", "differences", "minimise"]

Residuals: TypeAlias = Callable[[Array], Array]

#: Step of the finite differences, in standard deviations of the prior.
STEP: Final = 0.05
#: A gain of F below this, or a step shorter than that, with derivatives that are fresh, ends the search.
_LITTLE: Final = 1e-5
_CLOSE: Final = 2e-3
_MOST_STEPS: Final = 60
_FIRST_DAMPING: Final = 1e-2
_MOST_DAMPING: Final = 1e4


@dataclass(frozen=True, slots=True)
class Scatter:
    """What is expected of the measurements before they are seen.

    ``share`` is their scatter around the formula and ``weight`` how many measurements that expectation is
    worth; beyond ``huber`` an error pulls no harder than there.
    """

    share: float = 0.10
    weight: float = 4.0
    huber: float = 0.10


@dataclass(frozen=True, slots=True)
class Problem:
    """Residuals and their derivatives as functions of z, the bounds of z, and which rows count (1 or 0)."""

    residuals: Residuals
    derivatives: Callable[[Array, Array], Array]
    lower: Array
    upper: Array
    rows: Array
    scatter: Scatter = Scatter()


@dataclass(frozen=True, slots=True)
class Solution:
    """Shifts, the residuals and derivatives there, the scatter, and the standard deviation of each shift."""

    z: Array
    residuals: Array
    jacobian: Array
    scatter: float
    deviations: Array


def differences(residuals: Residuals, z: Array, r: Array, upper: Array) -> Array:
    """Return J by finite differences, downward where a step up would leave the bounds."""
    columns = []
    for k in range(len(z)):
        step = STEP if z[k] + STEP <= upper[k] else -STEP
        moved = z.copy()
        moved[k] += step
        columns.append((residuals(moved) - r) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(r), 0))


def minimise(problem: Problem, *, start: Solution | None = None, renew: bool = True) -> Solution:
    """Return the z that makes F small, by damped Gauss-Newton steps inside of the bounds.

    ``start`` is the solution of a problem that differs in few rows: its derivatives are good enough to begin
    with. J follows the steps by Broyden's rule and is worked out again where a step does not help; without
    ``renew`` it is not, which is enough where a few rows of hundreds differ.
    """
    here = _begin(problem, start)
    fresh, damping = start is None, _FIRST_DAMPING
    for _ in range(_MOST_STEPS):
        z = _stepped(problem, here, damping)
        length = float(np.abs(z - here.z).max(initial=0.0))
        there = replace(here, z=z, residuals=problem.residuals(z))
        gain = _objective(problem, here) - _objective(problem, there)
        here = _broyden(here, there) if gain > 0 else here
        if gain > _LITTLE:
            fresh, damping = False, damping / 4
        elif not fresh and renew:
            here, fresh = replace(here, jacobian=problem.derivatives(here.z, here.residuals)), True
        elif gain > 0 or length < _CLOSE or damping > _MOST_DAMPING:
            break
        else:
            damping *= 8
    return _finished(problem, here)


def _begin(problem: Problem, start: Solution | None) -> Solution:
    if start is not None:
        return start
    z = np.clip(np.zeros_like(problem.lower), problem.lower, problem.upper)
    r = problem.residuals(z)
    return Solution(z, r, problem.derivatives(z, r), problem.scatter.share, np.ones_like(z))


def _finished(problem: Problem, here: Solution) -> Solution:
    """Return ``here`` with its scatter, and deviations from the curvature of F where J is fresh."""
    normal = _normal(problem, here)
    deviations = np.sqrt(np.diag(np.linalg.inv(normal))) if len(here.z) else here.z
    scatter = float(np.sqrt(_variance(problem, here.residuals)))
    return replace(here, scatter=scatter, deviations=np.minimum(deviations, 1.0))


def _loss(r: Array, width: float) -> Array:
    size = np.abs(r)
    loss: Array = np.where(size <= width, 0.5 * r**2, width * (size - 0.5 * width))
    return loss


def _variance(problem: Problem, r: Array) -> float:
    """Return s^2 = (n0 s0^2 + 2 sum rho(r)) / (n0 + n)."""
    known = problem.scatter
    total = known.weight * known.share**2 + 2.0 * float(np.sum(problem.rows * _loss(r, known.huber)))
    return total / (known.weight + float(problem.rows.sum()))


def _objective(problem: Problem, here: Solution) -> float:
    count = problem.scatter.weight + float(problem.rows.sum())
    return 0.5 * count * float(np.log(_variance(problem, here.residuals))) + 0.5 * float(here.z @ here.z)


def _weights(problem: Problem, here: Solution) -> Array:
    """Return what each row weighs: 1/s^2, less beyond the width of Huber's loss."""
    size = np.maximum(np.abs(here.residuals), 1e-300)
    robust = np.minimum(1.0, problem.scatter.huber / size)
    weights: Array = problem.rows * robust / _variance(problem, here.residuals)
    return weights


def _normal(problem: Problem, here: Solution) -> Array:
    """Return the curvature of F without second derivatives: J' W J + 1."""
    weighted = here.jacobian * _weights(problem, here)[:, None]
    normal: Array = weighted.T @ here.jacobian + np.eye(len(here.z))
    return normal


def _stepped(problem: Problem, here: Solution, damping: float) -> Array:
    """Return z after a damped step; what leans on a bound and would leave it stays."""
    gradient = here.jacobian.T @ (_weights(problem, here) * here.residuals) + here.z
    normal = _normal(problem, here)
    stuck = ((here.z <= problem.lower) & (gradient > 0)) | ((here.z >= problem.upper) & (gradient < 0))
    free = ~stuck
    step = np.zeros_like(here.z)
    damped = normal + damping * np.diag(np.diag(normal))
    step[free] = -np.linalg.solve(damped[np.ix_(free, free)], gradient[free])
    return np.clip(here.z + step, problem.lower, problem.upper)


def _broyden(here: Solution, there: Solution) -> Solution:
    """Return ``there`` with J changed so that it explains the step that was taken."""
    step = there.z - here.z
    error = there.residuals - here.residuals - here.jacobian @ step
    correction = np.outer(error, step) / max(float(step @ step), 1e-300)
    return replace(there, jacobian=here.jacobian + correction)
