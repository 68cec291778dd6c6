"""Kernel curves from measured points: the formulas of ``costs`` with the numbers that fit them best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from autoplan.calibration.coefficients import Coefficient
from autoplan.calibration.least_squares import LeastSquares, Scatter, differences, minimise
from autoplan.calibration.points import Point
from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernels import attention_seconds, product_seconds
from autoplan.costs.device.machine import Rate

__all__ = ["Curve", "Timings", "attention_curve", "gemm_curve", "memory_bound_curve"]

#: Measured seconds by point.
Timings = Mapping[Point, float]

#: Products of attention backward over those of forward, as in the formula of a block.
_BACKWARD_ATTENTION: Final = 2.5
#: Measured points speak for themselves: what a curve starts from weighs as much as one of them.
_SCATTER: Final = Scatter(share=0.10, weight=1.0, huber=0.20)
#: Width of each prior; a curve may end up far from where it starts.
_WIDTH: Final = 1.5
_FURTHEST: Final = 6.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The numbers of a curve by name, and how well they fit."""

    values: Mapping[str, float]
    points: int
    median_error: float


def _share(name: str) -> Coefficient:
    return Coefficient("kernels", (name,), "log", 1e-6, 1.0, "")


def _extent(name: str) -> Coefficient:
    return Coefficient("kernels", (name,), "log", 1.0, 1e5, "")


_LAUNCH: Final = Coefficient("kernels", ("launch",), "log", 1e-7, 1e-2, "")


def gemm_curve(timings: Timings, *, peak: float, bandwidth: float, start: Mapping[str, float]) -> Curve:
    """Return ceiling, half_m, half_n, half_k and launch of the products among ``timings``."""
    names = (_share("ceiling"), *map(_extent, ("half_m", "half_n", "half_k")), _LAUNCH)
    points, seconds = _chosen(timings, "gemm")
    m, n, k = _columns(points, 3)

    def predicted(x: Mapping[str, float]) -> Array:
        rate = Rate(peak * x["ceiling"], (x["half_m"], x["half_n"], x["half_k"]), x["launch"])
        return product_seconds((m, n, k), rate, bandwidth, 2)

    best = float(np.max(2.0 * m * n * k / seconds)) / peak
    return _fitted(names, predicted, seconds, {**start, "ceiling": best, "launch": _least(seconds)})


def attention_curve(timings: Timings, *, peak: float, start: Mapping[str, float]) -> Curve:
    """Return both ceilings, half_sequence, half_rows and launch of the attentions among ``timings``."""
    ceilings = (_share("forward_ceiling"), _share("backward_ceiling"))
    names = (*ceilings, *map(_extent, ("half_sequence", "half_rows")), _LAUNCH)
    points, seconds = _chosen(timings, "attention")
    tokens, heads, size = _columns(points, 3)
    backward = np.array([point.variant == "backward" for point in points])

    def predicted(x: Mapping[str, float]) -> Array:
        times = []
        for name in ("forward_ceiling", "backward_ceiling"):
            rate = Rate(peak * x[name], (x["half_sequence"], x["half_rows"]), x["launch"])
            times.append(_causal_seconds(tokens, heads, size, rate))
        both: Array = np.where(backward, _BACKWARD_ATTENTION * times[1], times[0])
        return both

    flops = np.where(backward, _BACKWARD_ATTENTION, 1.0) * 2.0 * heads * tokens**2 * size
    best = float(np.max(flops / seconds)) / peak
    told = {**dict.fromkeys(("forward_ceiling", "backward_ceiling"), best), "launch": _least(seconds)}
    return _fitted(names, predicted, seconds, {**start, **told})


def _least(seconds: Array) -> float:
    """Return where a launch time begins: half of the shortest measurement."""
    return float(seconds.min()) / 2.0


def _causal_seconds(tokens: Array, heads: Array, size: Array, rate: Rate) -> Array:
    """Return the time of one sequence for each shape: a token attends to (s + 1)/2 keys on average."""
    each = [
        float(attention_seconds(np.ones(()), np.asarray(s), (s + 1) / 2, np.asarray(a), int(d), rate))
        for s, a, d in zip(tokens, heads, size, strict=True)
    ]
    return np.array(each)


def memory_bound_curve(timings: Timings, *, peak: float) -> Curve:
    """Return bandwidth_share and launch of the streams among ``timings``; ``peak`` is in byte/s."""
    points, seconds = _chosen(timings, "stream")
    (moved,) = _columns(points, 1)

    def predicted(x: Mapping[str, float]) -> Array:
        total: Array = moved / (peak * x["bandwidth_share"]) + x["launch"]
        return total

    best = float(np.max(moved / seconds)) / peak
    start = {"bandwidth_share": best, "launch": _least(seconds)}
    return _fitted((_share("bandwidth_share"), _LAUNCH), predicted, seconds, start)


def _chosen(timings: Timings, operation: str) -> tuple[list[Point], Array]:
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
    """Return the numbers that make ``predicted`` closest to ``seconds``, from ``start`` on."""
    centre = np.array([c.coordinate(min(max(start[c.name], c.low), c.high)) for c in names])
    lower, upper = (
        (np.array([c.coordinate(x) for c, x in zip(names, ends, strict=True)]) - centre) / _WIDTH
        for ends in ([c.low for c in names], [c.high for c in names])
    )
    lower, upper = np.clip(lower, -_FURTHEST, 0.0), np.clip(upper, 0.0, _FURTHEST)

    def values(z: Array) -> dict[str, float]:
        return {c.name: c.value(float(x)) for c, x in zip(names, centre + _WIDTH * z, strict=True)}

    def residuals(z: Array) -> Array:
        logs: Array = np.log(predicted(values(z)) / seconds)
        return logs

    def derivatives(z: Array, r: Array) -> Array:
        return differences(residuals, z, r, upper)

    found = minimise(LeastSquares(residuals, derivatives, lower, upper, np.ones_like(seconds), _SCATTER))
    error = float(np.median(np.abs(np.expm1(found.residuals))))
    return Curve(values(found.z), len(seconds), error)
