"""Measuring the kernels of this machine's accelerator."""

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
    """Time what ``points`` does not hold yet, and return the kernels file of ``hardware`` that follows.

    ``hardware`` is what this machine has: a device of the catalogue, or the node that holds it. Under
    torchrun the collectives between its ranks are timed, and only the first rank gets an answer. Raises
    UnsupportedError without SciPy, PyTorch or an accelerator.
    """
    found, node = find_hardware(hardware)
    from autoplan.calibration import torchbench
    from autoplan.calibration.kernelfile import measured_kernels
    from autoplan.calibration.least_squares import require_scipy
    from autoplan.calibration.point_measurement import measure_points

    require_scipy()  # before hours of measuring, which it fits curves to
    bench = torchbench.open_bench(device)
    grid: PointGrid = "tiny" if device == "cpu" else "quick" if quick else "full"
    record = measure_points(bench, points, grid, progress or _silent)
    return measured_kernels(record, kernels_for(found.name), found, node) if record else None


def _silent(done: int, total: int, name: str) -> None:
    """Tell nobody."""
