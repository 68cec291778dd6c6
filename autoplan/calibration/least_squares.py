"""Coefficients that calibration fits, with their priors, and their maximum a posteriori shifts.

Each is fitted along an unbounded coordinate: the logarithm of a time or a factor, the logit of a share. Its
prior along that coordinate is a Gaussian around the shipped value.

Notation (this file only)::

    z    shifts, in standard deviations of their priors: 0 is the shipped value        [1]
    r    log(predicted / measured) of each measurement                                 [1]
    rho  Huber loss: r^2/2, and linear beyond d                                        [1]
    s    residual scatter of r, estimated together with z                              [1]
    s0   prior value of s, with the weight of n0 measurements                          [1]
    J    derivatives of r by z                                                         [1]

The objective is F(z) = (n0 + n)/2 log(n0 s0^2 + 2 sum rho(r)) + |z|^2/2: Gaussian priors, a robust
likelihood, and a scatter that grows where measurements contradict each other. For a given s it is
sum rho(r)/s^2 + |z|^2/2, which ``scipy.optimize.least_squares`` minimises; s and z are estimated alternately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.errors import UnsupportedError
from autoplan.schema.base import Frozen, NumberKind, Sourced
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.job import Job

Part: TypeAlias = Literal["stack", "kernels"]
S = TypeVar("S", bound=Frozen)

#: Standard deviation of the prior along the coordinate, by the kind of the shipped number. Along a
#: logarithm 0.1 is 10 %; along the logit of a share, 0.1 is 2 points at 80 % and half a point at 97 %.
PRIOR_WIDTHS: Final[dict[NumberKind, float]] = {
    "data sheet": 0.10,  # from a vendor: differs with software releases only
    "measured": 0.15,  # measured on one machine: others differ by a few per cent
    "derived": 0.25,  # derived from numbers of another machine
    "fitted": 0.35,  # fitted to published runs, including other errors of the model
    "guess": 0.80,  # not measured: may be off by a factor of two
}

#: Extension of the logit beyond 0 and 100 %, so that shares shipped as 0 or 1 can change.
_MARGIN: Final = 0.05


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A sourced number of a stack or of kernels, with its valid range.

    ``attention`` are the attention kernels that it applies to, empty for all. ``prior`` is the standard
    deviation of the prior along the coordinate; without it, that of the number's kind.
    """

    part: Part
    path: tuple[str, ...]
    scale: Literal["log", "logit"]
    low: float
    high: float
    meaning: str
    attention: tuple[str, ...] = ()
    prior: float | None = None

    @property
    def name(self) -> str:
        """The name of the number in its file.

        >>> COEFFICIENTS[0].name
        'block.elementwise_traffic'
        """
        return ".".join(self.path)

    def coordinate(self, value: float) -> float:
        """Return the unbounded coordinate of ``value``.

        >>> traffic, attention = COEFFICIENTS[:2]
        >>> traffic.coordinate(1.0), round(attention.coordinate(0.5), 12)
        (0.0, 0.0)
        """
        if self.scale == "log":
            return math.log(max(value, self.low))
        return math.log((value + _MARGIN) / (1.0 + _MARGIN - value))

    def value(self, coordinate: float) -> float:
        """Return the value at ``coordinate``, clipped to the coefficient's range."""
        if self.scale == "log":
            unclipped = math.exp(coordinate)
        else:
            unclipped = (1.0 + 2.0 * _MARGIN) / (1.0 + math.exp(-coordinate)) - _MARGIN
        return min(max(unclipped, self.low), self.high)


def _stack(path: str, scale: Literal["log", "logit"], low: float, high: float, meaning: str) -> Coefficient:
    return Coefficient("stack", tuple(path.split(".")), scale, low, high, meaning)


def _kernels(path: str, low: float, meaning: str, attention: tuple[str, ...] = ()) -> Coefficient:
    return Coefficient("kernels", tuple(path.split(".")), "logit", low, 1.0, meaning, attention)


COEFFICIENTS: Final[tuple[Coefficient, ...]] = (
    _stack("block.elementwise_traffic", "log", 0.5, 10.0, "traffic of activations, rotations and copies"),
    _stack("block.attention_share", "logit", 0.10, 1.0, "rate of attention over the measured kernels'"),
    _stack("block.norm_traffic", "log", 0.5, 10.0, "traffic of norms and additions"),
    _stack("overlap.interference", "logit", 0.0, 1.0, "hidden communication that slows compute"),
    _stack("host_launch", "log", 2e-7, 1e-4, "host time to launch a kernel"),
    _kernels("gemm.sustained_share", 0.30, "clock of long training over that of a sweep"),
    _kernels(
        "attention.flash1_share",
        0.10,
        "rate of the first FlashAttention over the second's",
        ("flash1", "flash1-triton", "masked"),
    ),
    _kernels("collectives.network_share", 0.02, "bandwidth of the network that a ring reaches"),
    _kernels("collectives.fabric_share", 0.02, "bandwidth of the fabric that a ring reaches"),
)


def _spec(job: Job, part: Part) -> StackSpec | KernelSpec:
    return job.stack if part == "stack" else job.kernels


def owner_of(job: Job, coefficient: Coefficient) -> str:
    """Return the name of the file that contains ``coefficient`` of ``job``."""
    return _spec(job, coefficient.part).name


def affecting(job: Job, coefficient: Coefficient) -> bool:
    """Return whether the step time of ``job`` depends on ``coefficient``."""
    return not coefficient.attention or job.stack.block.attention in coefficient.attention


def number_of(job: Job, coefficient: Coefficient) -> Any:  # noqa: ANN401 - each kind of sourced number
    """Return the sourced number of ``job`` that ``coefficient`` names."""
    return number_at(_spec(job, coefficient.part), coefficient.path)


def number_at(model: Frozen, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - each kind of sourced number
    """Return the number at ``path`` of a stack or of kernels."""
    number: Any = model
    for name in path:
        number = getattr(number, name)
    return number


def prior_width(job: Job, coefficient: Coefficient) -> float:
    """Return the standard deviation of the prior of ``coefficient`` of ``job`` along its coordinate."""
    return coefficient.prior or PRIOR_WIDTHS[number_of(job, coefficient).kind]


def with_values(job: Job, values: Mapping[Coefficient, float]) -> Job:
    """Return ``job`` with new values of coefficients; their kind, source and note do not change."""
    stack, kernels = job.stack, job.kernels
    for coefficient, value in values.items():
        if coefficient.part == "stack":
            stack = with_number(stack, coefficient.path, value=value)
        else:
            kernels = with_number(kernels, coefficient.path, value=value)
    return replace(job, stack=stack, kernels=kernels)


def with_number(model: S, path: tuple[str, ...], **update: object) -> S:
    """Return ``model`` with the fields ``update`` of the number at ``path`` changed."""
    inner = getattr(model, path[0])
    if len(path) > 1:
        changed: Frozen = with_number(inner, path[1:], **update)
    elif isinstance(inner, Sourced):
        changed = inner.model_copy(update=update)
    else:
        raise TypeError(f"{path[0]} is not a sourced number")
    return model.model_copy(update={path[0]: changed})


Residuals: TypeAlias = Callable[[Array], Array]

#: Step of the finite differences, in standard deviations of the prior.
STEP: Final = 0.05
#: Relative decrease of the sum of squares, and length of a step of z, that end the minimisation.
_COST_TOLERANCE: Final = 1e-6
_STEP_TOLERANCE: Final = 1e-4
#: Relative change of s that ends the alternation.
_SCATTER_TOLERANCE: Final = 1e-3
_MAX_ITERATIONS: Final = 20
_MAX_EVALUATIONS: Final = 60


@dataclass(frozen=True, slots=True)
class Scatter:
    """Prior of the scatter of measurements.

    ``share`` is s0, ``weight`` is n0, and ``huber`` is d, beyond which the loss is linear.
    """

    share: float = 0.10
    weight: float = 4.0
    huber: float = 0.10


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """Residuals and their Jacobian as functions of z, bounds of z, and the weight of rows (1 or 0)."""

    residuals: Residuals
    derivatives: Callable[[Array, Array], Array]
    lower: Array
    upper: Array
    rows: Array
    scatter: Scatter = Scatter()


@dataclass(frozen=True, slots=True)
class Minimum:
    """Solution z, its residuals, Jacobian and scatter, and the standard deviation of each shift."""

    z: Array
    residuals: Array
    jacobian: Array
    scatter: float
    deviations: Array

    def linear_residuals(self, z: Array) -> Array:
        """Return the residuals at ``z`` by the Jacobian here."""
        r: Array = self.residuals + self.jacobian @ (z - self.z)
        return r


def require_scipy() -> None:
    """Raise UnsupportedError where SciPy, which is optional, is not installed."""
    if find_spec("scipy") is None:
        raise UnsupportedError("autoplan calibrate needs SciPy: pip install 'autoplan[calibrate]'")


def differences(residuals: Residuals, z: Array, r: Array, upper: Array) -> Array:
    """Return J by forward differences, by backward differences at the upper bound."""
    columns = []
    for k in range(len(z)):
        step = STEP if z[k] + STEP <= upper[k] else -STEP
        shifted = z.copy()
        shifted[k] += step
        columns.append((residuals(shifted) - r) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(r), 0))


def minimise(
    problem: LeastSquares, *, start: Minimum | None = None, renew: bool = True, initial: Array | None = None
) -> Minimum:
    """Return the z that minimises F within the bounds; raises UnsupportedError without SciPy.

    ``start`` is the initial point: the solution of a problem that differs in few rows. Without ``renew`` its
    Jacobian is used for all z, which is accurate enough where a few rows of hundreds differ. ``initial`` is
    an initial point of which nothing else is known.
    """
    require_scipy()
    cache = _ResidualCache(problem, None if start is None or renew else start.jacobian)
    first = np.zeros_like(problem.lower) if initial is None else initial
    z = np.clip(first, problem.lower, problem.upper) if start is None else start.z
    scatter = _scatter(problem, cache.residuals(z))
    for _ in range(_MAX_ITERATIONS if len(z) else 0):
        z = _least_squares(problem, cache, z, scatter)
        before, scatter = scatter, _scatter(problem, cache.residuals(z))
        if abs(scatter - before) <= _SCATTER_TOLERANCE * before:
            break
    r, jacobian = cache.residuals(z), cache.jacobian(z)
    return Minimum(z, r, jacobian, scatter, _deviations(problem, r, jacobian, scatter))


@dataclass(slots=True)
class _ResidualCache:
    """Cache of the last residuals and the last Jacobian of a problem.

    The Jacobian is reused within one step of the finite differences, which is its accuracy.
    """

    problem: LeastSquares
    fixed_jacobian: Array | None
    last_z: Array | None = None
    last_residuals: Array | None = None
    last_jacobian: Array | None = None
    jacobian_z: Array | None = None

    def residuals(self, z: Array) -> Array:
        """Return r at ``z``."""
        if self.last_residuals is None or self.last_z is None or not np.array_equal(z, self.last_z):
            self.last_z, self.last_residuals = z.copy(), self.problem.residuals(z)
        return self.last_residuals

    def jacobian(self, z: Array) -> Array:
        """Return J at ``z``."""
        if self.fixed_jacobian is not None:
            return self.fixed_jacobian
        at = self.jacobian_z
        if self.last_jacobian is None or at is None or np.abs(z - at).max(initial=0.0) > STEP:
            self.jacobian_z, self.last_jacobian = z.copy(), self.problem.derivatives(z, self.residuals(z))
        return self.last_jacobian


def _least_squares(problem: LeastSquares, cache: _ResidualCache, start: Array, scatter: float) -> Array:
    """Return the z that minimises sum rho(r)/s^2 + |z|^2/2: rows of r/s, then rows of z."""
    from scipy.optimize import least_squares

    weights = problem.rows / scatter

    def stacked_residuals(z: Array) -> Array:
        rows: Array = np.concatenate([weights * cache.residuals(z), z])
        return rows

    def stacked_jacobian(z: Array) -> Array:
        rows: Array = np.vstack([weights[:, None] * cache.jacobian(z), np.eye(len(z))])
        return rows

    solution: Any = least_squares(
        stacked_residuals,
        start,
        stacked_jacobian,
        (problem.lower, problem.upper),
        method="dogbox",
        loss=lambda squares: _huber(squares, len(weights)),
        f_scale=problem.scatter.huber / scatter,
        ftol=_COST_TOLERANCE,
        xtol=_STEP_TOLERANCE,
        max_nfev=_MAX_EVALUATIONS,
    )
    z: Array = solution.x
    return z


def _huber(squares: Array, measured: int) -> Array:
    """Return the Huber loss of squares over d^2 and two derivatives; quadratic for rows after ``measured``.

    >>> _huber(np.array([0.25, 4.0, 4.0]), 2)[0].tolist()
    [0.25, 3.0, 4.0]
    """
    linear = squares > 1.0
    linear[measured:] = False
    root = np.sqrt(np.where(linear, squares, 1.0))
    value = np.where(linear, 2.0 * root - 1.0, squares)
    return np.stack([value, 1.0 / root, np.where(linear, -0.5 / root**3, 0.0)])


def _deviations(problem: LeastSquares, r: Array, jacobian: Array, scatter: float) -> Array:
    """Return the standard deviation of each shift: the diagonal of (J' W J + 1)^-1, W less beyond d."""
    robust = np.minimum(1.0, problem.scatter.huber / np.maximum(np.abs(r), 1e-300))
    weighted = jacobian * (problem.rows * robust / scatter**2)[:, None]
    variances = np.diag(np.linalg.inv(weighted.T @ jacobian + np.eye(jacobian.shape[1])))
    deviations: Array = np.minimum(np.sqrt(variances), 1.0)
    return deviations


def _scatter(problem: LeastSquares, r: Array) -> float:
    """Return the scatter s: s^2 = (n0 s0^2 + 2 sum rho(r)) / (n0 + n)."""
    prior, size = problem.scatter, np.abs(r)
    loss = np.where(size <= prior.huber, 0.5 * r**2, prior.huber * (size - 0.5 * prior.huber))
    total = prior.weight * prior.share**2 + 2.0 * float(np.sum(problem.rows * loss))
    return float(np.sqrt(total / (prior.weight + float(problem.rows.sum()))))
