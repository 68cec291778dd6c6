"""Kernels file from measured points: measured curves and tables replace those of the device's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from autoplan.calibration.coefficients import with_number
from autoplan.calibration.curves import Curve, Timings, attention_curve, gemm_curve, memory_bound_curve
from autoplan.calibration.record import Environment, Record
from autoplan.errors import UnsupportedError
from autoplan.results.calibration import Measured, MeasuredCurve
from autoplan.schema.costmodel.kernel_spec import Collectives, CollectiveTable, KernelSpec
from autoplan.schema.hardware import DeviceSpec, NodeSpec

__all__ = ["measured_kernels"]

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
