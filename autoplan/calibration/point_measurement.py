"""Measurement of points in sequence; points that a file already contains are skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from autoplan.calibration.points import Point, PointGrid, collective_points, device_points
from autoplan.calibration.record import Environment, Record

__all__ = ["Bench", "CannotRunError", "Progress", "measure_points"]

#: Called with the number of points done, their total number, and the name of the next one.
Progress: TypeAlias = Callable[[int, int, str], None]


class CannotRunError(Exception):
    """A point that this machine cannot run, for example because it does not fit in memory."""


class Bench(Protocol):
    """Benchmark runner that times points: on an accelerator, or a fake one in tests."""

    rank: int
    ranks: int
    environment: Environment

    def seconds(self, point: Point) -> float:
        """Return the time of one call; raises CannotRunError."""
        ...

    def agreed(self, keys: list[str]) -> list[str]:
        """Return the keys of the first rank, on every rank."""
        ...


def measure_points(bench: Bench, path: Path, grid: PointGrid, progress: Progress) -> Record | None:
    """Measure points that ``path`` does not contain, and return all; None on all ranks but the first.

    One rank measures kernels of its device; several ranks measure collectives.
    """
    wanted = collective_points(grid, bench.ranks) if bench.ranks > 1 else device_points(grid)
    record = Record(path, bench.environment) if bench.rank == 0 else None
    measured = record.seconds if record else {}
    open_keys = set(bench.agreed([point.key for point in wanted if point not in measured]))
    missing = [point for point in wanted if point.key in open_keys]
    done = len(wanted) - len(missing)
    for count, point in enumerate(missing):
        progress(done + count, len(wanted), point.key)
        _measure(bench, point, record)
    progress(len(wanted), len(wanted), "")
    return record


def _measure(bench: Bench, point: Point, record: Record | None) -> None:
    try:
        seconds, reason = bench.seconds(point), None
    except CannotRunError as error:
        seconds, reason = None, str(error)
    if record:
        record.add(point, seconds, reason=reason)
