"""The most likely shifts of some coefficients, given logarithms of predicted over measured times.

Notation (this file only)::

    z    shifts, in standard deviations of their priors: 0 is what was known before    [1]
    r    log(predicted / measured) of each measurement                                 [1]
    rho  Huber's loss: r^2/2, and linear beyond d                                      [1]
    s    scatter of r that no coefficient explains, itself estimated                   [1]
    s0   what s is expected to be, as if n0 measurements had shown it                  [1]
    J    derivatives of r by z                                                         [1]

What is made small is F(z) = (n0 + n)/2 log(n0 s0^2 + 2 sum rho(r)) + |z|^2/2: Gaussian priors, a robust
likelihood, and a scatter that the measurements themselves widen where they contradict each other. For a
given s that is sum rho(r)/s^2 + |z|^2/2, which ``scipy.optimize.least_squares`` makes small; s and z are
found in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.errors import UnsupportedError

__all__ = ["STEP", "LeastSquares", "Minimum", "Scatter", "differences", "minimise", "require_scipy"]

Residuals: TypeAlias = Callable[[Array], Array]

#: Step of the finite differences, in standard deviations of the prior.
STEP: Final = 0.05
#: A gain of the sum of squares below this share of it, or a step of z shorter than that, ends a turn.
_LITTLE: Final = 1e-6
_CLOSE: Final = 1e-4
#: A change of s below this share of it ends the turns.
_SAME_SCATTER: Final = 1e-3
_MOST_TURNS: Final = 20
_MOST_STEPS: Final = 60


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
class LeastSquares:
    """Residuals and their derivatives as functions of z, the bounds of z, and which rows count (1 or 0)."""

    residuals: Residuals
    derivatives: Callable[[Array, Array], Array]
    lower: Array
    upper: Array
    rows: Array
    scatter: Scatter = Scatter()


@dataclass(frozen=True, slots=True)
class Minimum:
    """Shifts, the residuals and derivatives there, the scatter, and the standard deviation of each shift."""

    z: Array
    residuals: Array
    jacobian: Array
    scatter: float
    deviations: Array


def require_scipy() -> None:
    """Raise UnsupportedError where SciPy, which is optional, is not installed."""
    if find_spec("scipy") is None:
        raise UnsupportedError("autoplan calibrate needs SciPy: pip install 'autoplan[calibrate]'")


def differences(residuals: Residuals, z: Array, r: Array, upper: Array) -> Array:
    """Return J by finite differences, downward where a step up would leave the bounds."""
    columns = []
    for k in range(len(z)):
        step = STEP if z[k] + STEP <= upper[k] else -STEP
        moved = z.copy()
        moved[k] += step
        columns.append((residuals(moved) - r) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(r), 0))


def minimise(problem: LeastSquares, *, start: Minimum | None = None, renew: bool = True) -> Minimum:
    """Return the z that makes F small, inside of the bounds; raises UnsupportedError without SciPy.

    ``start`` is the solution of a problem that differs in few rows, to begin from. Without ``renew`` its
    derivatives stand for those everywhere, which is enough where a few rows of hundreds differ.
    """
    require_scipy()
    seen = _Seen(problem, None if start is None or renew else start.jacobian)
    z = np.clip(np.zeros_like(problem.lower), problem.lower, problem.upper) if start is None else start.z
    scatter = _scatter(problem, seen.residuals(z))
    for _ in range(_MOST_TURNS if len(z) else 0):
        z = _least_squares(problem, seen, z, scatter)
        before, scatter = scatter, _scatter(problem, seen.residuals(z))
        if abs(scatter - before) <= _SAME_SCATTER * before:
            break
    r, jacobian = seen.residuals(z), seen.jacobian(z)
    return Minimum(z, r, jacobian, scatter, _deviations(problem, r, jacobian, scatter))


@dataclass(slots=True)
class _Seen:
    """Residuals and derivatives of a problem; what was worked out last is not worked out again.

    Derivatives are those of the last place within a step of the finite differences: they are no better there.
    """

    problem: LeastSquares
    fixed: Array | None
    place: Array | None = None
    found: Array | None = None
    slope: Array | None = None
    slope_place: Array | None = None

    def residuals(self, z: Array) -> Array:
        """Return r at ``z``."""
        if self.found is None or self.place is None or not np.array_equal(z, self.place):
            self.place, self.found = z.copy(), self.problem.residuals(z)
        return self.found

    def jacobian(self, z: Array) -> Array:
        """Return J at ``z``."""
        if self.fixed is not None:
            return self.fixed
        here = self.slope_place
        if self.slope is None or here is None or np.abs(z - here).max(initial=0.0) > STEP:
            self.slope_place, self.slope = z.copy(), self.problem.derivatives(z, self.residuals(z))
        return self.slope


def _least_squares(problem: LeastSquares, seen: _Seen, start: Array, scatter: float) -> Array:
    """Return the z that makes sum rho(r)/s^2 + |z|^2/2 small: rows of r/s, then those of z."""
    from scipy.optimize import least_squares

    weights = problem.rows / scatter

    def stacked(z: Array) -> Array:
        rows: Array = np.concatenate([weights * seen.residuals(z), z])
        return rows

    def slopes(z: Array) -> Array:
        rows: Array = np.vstack([weights[:, None] * seen.jacobian(z), np.eye(len(z))])
        return rows

    found: Any = least_squares(
        stacked,
        start,
        slopes,
        (problem.lower, problem.upper),
        method="dogbox",
        loss=lambda squares: _huber(squares, len(weights)),
        f_scale=problem.scatter.huber / scatter,
        ftol=_LITTLE,
        xtol=_CLOSE,
        max_nfev=_MOST_STEPS,
    )
    z: Array = found.x
    return z


def _huber(squares: Array, measured: int) -> Array:
    """Return the loss of each square over d^2 with two derivatives; rows after the ``measured`` have none.

    >>> _huber(np.array([0.25, 4.0, 4.0]), 2)[0].tolist()
    [0.25, 3.0, 4.0]
    """
    far = squares > 1.0
    far[measured:] = False
    root = np.sqrt(np.where(far, squares, 1.0))
    value = np.where(far, 2.0 * root - 1.0, squares)
    return np.stack([value, 1.0 / root, np.where(far, -0.5 / root**3, 0.0)])


def _deviations(problem: LeastSquares, r: Array, jacobian: Array, scatter: float) -> Array:
    """Return the standard deviation of each shift: the diagonal of (J' W J + 1)^-1, W less beyond d."""
    robust = np.minimum(1.0, problem.scatter.huber / np.maximum(np.abs(r), 1e-300))
    weighted = jacobian * (problem.rows * robust / scatter**2)[:, None]
    variances = np.diag(np.linalg.inv(weighted.T @ jacobian + np.eye(jacobian.shape[1])))
    deviations: Array = np.minimum(np.sqrt(variances), 1.0)
    return deviations


def _scatter(problem: LeastSquares, r: Array) -> float:
    """Return s, of which s^2 = (n0 s0^2 + 2 sum rho(r)) / (n0 + n)."""
    known, size = problem.scatter, np.abs(r)
    loss = np.where(size <= known.huber, 0.5 * r**2, known.huber * (size - 0.5 * known.huber))
    total = known.weight * known.share**2 + 2.0 * float(np.sum(problem.rows * loss))
    return float(np.sqrt(total / (known.weight + float(problem.rows.sum()))))
