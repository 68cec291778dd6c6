"""Measurement of kernels and collectives on this machine's accelerators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autoplan.calibration.points import PointGrid
from autoplan.catalog import find_hardware, kernels_for
from autoplan.results.calibration import Measured

__all__ = ["measure"]


def measure(
    hardware: str,
    points: Path,
    *,
    device: str = "cuda",
    quick: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Measured | None:
    """Measure the points that ``points`` does not have yet; return the kernels fitted for ``hardware``.

    ``hardware`` is that of this machine: a device of the catalogue, or its node. Under torchrun the
    collectives between the ranks are timed, and only rank 0 gets a result, the others None. Raises
    UnsupportedError without SciPy, PyTorch or an accelerator.
    """
    device_spec, node = find_hardware(hardware)
    from autoplan.calibration import torchbench
    from autoplan.calibration.kernelfile import measured_kernels
    from autoplan.calibration.least_squares import require_scipy
    from autoplan.calibration.point_measurement import measure_points

    require_scipy()  # it fits the curves: fail before hours of measurement
    bench = torchbench.open_bench(device)
    grid: PointGrid = "tiny" if device == "cpu" else "quick" if quick else "full"
    record = measure_points(bench, points, grid, progress or _silent)
    return measured_kernels(record, kernels_for(device_spec.name), device_spec, node) if record else None


def _silent(done: int, total: int, name: str) -> None:
    """Report no progress."""
