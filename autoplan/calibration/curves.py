"""Fits of kernel curves to measured points, with the formulas of ``autoplan.costs``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from autoplan.calibration.coefficients import Coefficient
from autoplan.calibration.least_squares import LeastSquares, Scatter, differences, minimise
from autoplan.calibration.points import Point
from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernels import attention_seconds, gemm_seconds_at_rate
from autoplan.costs.device.machine import Rate

__all__ = ["Curve", "Timings", "attention_curve", "gemm_curve", "memory_bound_curve"]

#: Measured seconds by point.
Timings = Mapping[Point, float]

#: FLOPs of attention backward over those of forward, as in the formula of a block.
_BACKWARD_ATTENTION: Final = 2.5
#: A weak prior: the initial curve has the weight of one measured point.
_SCATTER: Final = Scatter(share=0.10, weight=1.0, huber=0.20)
#: Standard deviation of each prior, wide, as a curve may be far from its initial values.
_WIDTH: Final = 1.5
_MAX_SHIFT: Final = 6.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The numbers of a curve by name, the number of points, and the median relative error of the fit."""

    values: Mapping[str, float]
    points: int
    median_error: float


def _share(name: str) -> Coefficient:
    return Coefficient("kernels", (name,), "log", 1e-6, 1.0, "")


def _extent(name: str) -> Coefficient:
    return Coefficient("kernels", (name,), "log", 1.0, 1e5, "")


_LAUNCH: Final = Coefficient("kernels", ("launch",), "log", 1e-7, 1e-2, "")


def gemm_curve(timings: Timings, *, peak: float, bandwidth: float, start: Mapping[str, float]) -> Curve:
    """Return ceiling, half_m, half_n, half_k and launch of the GEMMs in ``timings``."""
    names = (_share("ceiling"), *map(_extent, ("half_m", "half_n", "half_k")), _LAUNCH)
    points, seconds = _points_of(timings, "gemm")
    m, n, k = _columns(points, 3)

    def predicted(x: Mapping[str, float]) -> Array:
        rate = Rate(peak * x["ceiling"], (x["half_m"], x["half_n"], x["half_k"]), x["launch"])
        return gemm_seconds_at_rate((m, n, k), rate, bandwidth, 2)

    ceiling = float(np.max(2.0 * m * n * k / seconds)) / peak
    return _fitted(
        names, predicted, seconds, {**start, "ceiling": ceiling, "launch": _initial_launch(seconds)}
    )


def attention_curve(timings: Timings, *, peak: float, start: Mapping[str, float]) -> Curve:
    """Return both ceilings, half_sequence, half_rows and launch of the attention kernels in ``timings``."""
    ceilings = (_share("forward_ceiling"), _share("backward_ceiling"))
    names = (*ceilings, *map(_extent, ("half_sequence", "half_rows")), _LAUNCH)
    points, seconds = _points_of(timings, "attention")
    tokens, heads, size = _columns(points, 3)
    backward = np.array([point.variant == "backward" for point in points])

    def predicted(x: Mapping[str, float]) -> Array:
        times = []
        for name in ("forward_ceiling", "backward_ceiling"):
            rate = Rate(peak * x[name], (x["half_sequence"], x["half_rows"]), x["launch"])
            times.append(_causal_seconds(tokens, heads, size, rate))
        predicted_seconds: Array = np.where(backward, _BACKWARD_ATTENTION * times[1], times[0])
        return predicted_seconds

    flops = np.where(backward, _BACKWARD_ATTENTION, 1.0) * 2.0 * heads * tokens**2 * size
    ceiling = float(np.max(flops / seconds)) / peak
    initial = {
        **dict.fromkeys(("forward_ceiling", "backward_ceiling"), ceiling),
        "launch": _initial_launch(seconds),
    }
    return _fitted(names, predicted, seconds, {**start, **initial})


def _initial_launch(seconds: Array) -> float:
    """Return the initial value of a launch time [s]: half of the shortest measurement."""
    return float(seconds.min()) / 2.0


def _causal_seconds(tokens: Array, heads: Array, size: Array, rate: Rate) -> Array:
    """Return the time of causal attention of one sequence, for each shape [s]: (s + 1)/2 keys per query."""
    by_shape = [
        float(attention_seconds(np.ones(()), np.asarray(s), (s + 1) / 2, np.asarray(a), int(d), rate))
        for s, a, d in zip(tokens, heads, size, strict=True)
    ]
    return np.array(by_shape)


def memory_bound_curve(timings: Timings, *, peak: float) -> Curve:
    """Return bandwidth_share and launch of memory-bound kernels in ``timings``; ``peak`` is in byte/s."""
    points, seconds = _points_of(timings, "memory_bound")
    (traffic,) = _columns(points, 1)

    def predicted(x: Mapping[str, float]) -> Array:
        total: Array = traffic / (peak * x["bandwidth_share"]) + x["launch"]
        return total

    bandwidth_share = float(np.max(traffic / seconds)) / peak
    start = {"bandwidth_share": bandwidth_share, "launch": _initial_launch(seconds)}
    return _fitted((_share("bandwidth_share"), _LAUNCH), predicted, seconds, start)


def _points_of(timings: Timings, operation: str) -> tuple[list[Point], Array]:
    points = [point for point in timings if point.operation == operation]
    return points, np.array([timings[point] for point in points], dtype=np.float64)


def _columns(points: Sequence[Point], count: int) -> list[Array]:
    sizes = np.array([point.sizes for point in points], dtype=np.float64).reshape(-1, count)
    return [sizes[:, i] for i in range(count)]


def _fitted(
    names: Sequence[Coefficient],
    predicted: Callable[[Mapping[str, float]], Array],
    seconds: Array,
    start: Mapping[str, float],
) -> Curve:
    """Return the least-squares fit of ``predicted`` to ``seconds``, with ``start`` as the initial point."""
    centre = np.array([c.coordinate(min(max(start[c.name], c.low), c.high)) for c in names])
    lower, upper = (
        (np.array([c.coordinate(x) for c, x in zip(names, ends, strict=True)]) - centre) / _WIDTH
        for ends in ([c.low for c in names], [c.high for c in names])
    )
    lower, upper = np.clip(lower, -_MAX_SHIFT, 0.0), np.clip(upper, 0.0, _MAX_SHIFT)

    def values(z: Array) -> dict[str, float]:
        return {c.name: c.value(float(x)) for c, x in zip(names, centre + _WIDTH * z, strict=True)}

    def residuals(z: Array) -> Array:
        logs: Array = np.log(predicted(values(z)) / seconds)
        return logs

    def derivatives(z: Array, r: Array) -> Array:
        return differences(residuals, z, r, upper)

    solution = minimise(LeastSquares(residuals, derivatives, lower, upper, np.ones_like(seconds), _SCATTER))
    error = float(np.median(np.abs(np.expm1(solution.residuals))))
    return Curve(values(solution.z), len(seconds), error)
