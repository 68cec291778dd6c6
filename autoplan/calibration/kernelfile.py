"""Kernels file from measured points: measured curves and tables replace those of the device's file.

Fits of kernel curves to measured points, with the formulas of ``autoplan.costs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from autoplan.calibration.least_squares import (
    Coefficient,
    LeastSquares,
    Scatter,
    differences,
    minimise,
    with_number,
)
from autoplan.calibration.record import Environment, Point, Record
from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernels import attention_seconds, gemm_seconds_at_rate
from autoplan.costs.device.machine import Rate
from autoplan.errors import UnsupportedError
from autoplan.results.calibration import Measured, MeasuredCurve
from autoplan.schema.costmodel.kernel_spec import Collectives, CollectiveTable, KernelSpec
from autoplan.schema.hardware import DeviceSpec, NodeSpec

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


_SUFFIX: Final = "-measured"
#: Minimum number of points to fit a curve.
_MIN_POINTS: Final = {"gemm": 8, "attention": 8, "memory_bound": 4}
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class _Measurement:
    """Measured points, with the device and node of the catalogue."""

    device: DeviceSpec
    node: NodeSpec | None
    environment: Environment
    timings: Timings


def measured_kernels(record: Record, base: KernelSpec, device: DeviceSpec, node: NodeSpec | None) -> Measured:
    """Return ``base`` with the curves and tables measured in ``record``.

    An operation with too few points keeps the numbers of ``base``. Collectives need a ``node`` and are
    valid on its fabric. Raises UnsupportedError for a device without a 16-bit matrix rate.
    """
    timings = {point: seconds for point, seconds in record.seconds.items() if seconds is not None}
    measurement = _Measurement(device, node, record.environment, timings)
    curves = _curves(measurement, base)
    kernels = base
    for name, curve in curves.items():
        kernels = _with_curve(kernels, name, curve, measurement)
    kernels, tables = _with_tables(kernels, measurement)
    update: dict[str, Any] = {"name": f"{device.name}{_SUFFIX}", "devices": (device.name,)}
    if curves:
        update["valid_for"] = f"the shapes that autoplan calibrate --measure timed on {record.environment}"
    measured_curves = [
        MeasuredCurve(name, curve.points, curve.median_error) for name, curve in curves.items()
    ]
    failed = sum(seconds is None for seconds in record.seconds.values())
    return Measured(
        kernels.model_copy(update=update), str(record.environment), tuple(measured_curves), tables, failed
    )


def _curves(measurement: _Measurement, base: KernelSpec) -> dict[str, Curve]:
    """Return the fitted curve of each operation with enough points."""
    device, timings = measurement.device, measurement.timings
    peak = device.peak_flops("bf16") or device.peak_flops("fp16")
    if peak is None:
        raise UnsupportedError(f"{device.title} has no bf16 or fp16 matrix rate to measure products against")
    peak_bandwidth = device.memory.bandwidth.value
    curves: dict[str, Curve] = {}
    if _enough(timings, "memory_bound"):
        curves["memory_bound"] = memory_bound_curve(timings, peak=peak_bandwidth)
    if _enough(timings, "gemm"):
        share = curves["memory_bound"].values if "memory_bound" in curves else _numbers(base.memory_bound)
        bandwidth = peak_bandwidth * share["bandwidth_share"]
        start = _numbers(base.gemm)
        curves["gemm"] = gemm_curve(timings, peak=peak, bandwidth=bandwidth, start=start)
    if _enough(timings, "attention"):
        curves["attention"] = attention_curve(timings, peak=peak, start=_numbers(base.attention))
    return curves


def _enough(timings: Timings, operation: str) -> bool:
    return sum(point.operation == operation for point in timings) >= _MIN_POINTS[operation]


def _numbers(section: Any) -> dict[str, float]:  # noqa: ANN401 - any section of the file
    """Return the numbers of a section of a kernels file by name."""
    return {name: float(getattr(section, name).value) for name in type(section).model_fields}


def _with_curve(kernels: KernelSpec, name: str, curve: Curve, measurement: _Measurement) -> KernelSpec:
    key = f"measured-{name}"
    description = (
        f"autoplan calibrate --measure on {measurement.environment}: {curve.points} points; median error of"
        f" the fit {100 * curve.median_error:.1f} %"
    )
    for field, value in curve.values.items():
        rounded = float(f"{value:.{_DIGITS}g}")
        update = {"value": rounded, "kind": "fitted", "source": key, "note": None}
        kernels = with_number(kernels, (name, field), **update)
    # A table of the base file would take precedence over the new curve.
    replaced = {f"{name}_table": None} if f"{name}_table" in type(kernels).model_fields else {}
    return kernels.model_copy(update={"sources": {**kernels.sources, key: description}, **replaced})


def _with_tables(kernels: KernelSpec, measurement: _Measurement) -> tuple[KernelSpec, int]:
    """Return ``kernels`` with collective tables of the node's fabric, and the number of tables."""
    tables = _tables(measurement.timings)
    if not tables or measurement.node is None:
        return kernels, 0
    key = "measured-collectives"
    description = (
        f"autoplan calibrate --measure under torchrun on {measurement.environment}, {measurement.node.name}"
    )
    share = _fabric_share(tables, measurement.node)
    number = {"value": share, "kind": "measured", "source": key, "note": "largest message, all devices"}
    update = {
        "fabric_share": kernels.collectives.fabric_share.model_copy(update=number),
        "source": key,
        "fabrics": (measurement.node.name,),
        "tables": tables,
    }
    collectives: Collectives = kernels.collectives.model_copy(update=update)
    sources = {**kernels.sources, key: description}
    return kernels.model_copy(update={"collectives": collectives, "sources": sources}), len(tables)


def _tables(timings: Timings) -> tuple[CollectiveTable, ...]:
    """Return a table for each collective and number of ranks with at least two message sizes."""
    rows: dict[tuple[str, int], dict[int, float]] = {}
    for point, seconds in sorted(timings.items(), key=lambda item: item[0].sizes):
        if point.operation == "collective":
            ranks, size = point.sizes
            rows.setdefault((point.variant, ranks), {})[size] = float(f"{seconds * 1e6:.{_DIGITS}g}")
    return tuple(_table(*key, row) for key, row in sorted(rows.items()) if len(row) > 1)


def _table(operation: str, ranks: int, row: Mapping[int, float]) -> CollectiveTable:
    content = {
        "operation": operation,
        "ranks": ranks,
        "bytes": tuple(row),
        "microseconds": tuple(row.values()),
    }
    return CollectiveTable.model_validate(content)


def _fabric_share(tables: tuple[CollectiveTable, ...], node: NodeSpec) -> float:
    """Return achieved over peak fabric bandwidth [1], of the largest message in the largest group.

    The wire carries (n-1)/n of the message, twice for an all-reduce.
    """
    table = max(tables, key=lambda table: (table.ranks, table.operation == "all_gather"))
    passes = 2.0 if table.operation == "all_reduce" else 1.0
    wire_bytes = passes * (table.ranks - 1) / table.ranks * table.bytes[-1]
    share = wire_bytes / (table.microseconds[-1] * 1e-6) / node.fabric.bandwidth.value
    return float(f"{min(max(share, 1e-4), 1.0):.{_DIGITS}g}")
