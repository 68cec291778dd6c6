"""Measuring points one after the other; those that a file holds already are not measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from autoplan.calibration.points import Point, PointGrid, collective_points, device_points
from autoplan.calibration.record import Environment, Record

__all__ = ["Bench", "CannotRunError", "Progress", "measure_points"]

#: Called with how many points are done, how many there are, and the next one's name.
Progress: TypeAlias = Callable[[int, int, str], None]


class CannotRunError(Exception):
    """A point that this machine cannot run, such as one that is too large for its memory."""


class Bench(Protocol):
    """What can time points: a machine's accelerator, or a stand-in for it."""

    rank: int
    ranks: int
    environment: Environment

    def seconds(self, point: Point) -> float:
        """Return the time of one call; raises CannotRunError."""
        ...

    def agreed(self, keys: list[str]) -> list[str]:
        """Return the keys that the first rank has, on every rank."""
        ...


def measure_points(bench: Bench, path: Path, grid: PointGrid, progress: Progress) -> Record | None:
    """Measure what ``path`` does not hold yet, and return all of it; None on all ranks but the first.

    One rank measures its device; several measure the collectives between them.
    """
    wanted = collective_points(grid, bench.ranks) if bench.ranks > 1 else device_points(grid)
    record = Record(path, bench.environment) if bench.rank == 0 else None
    known = record.seconds if record else {}
    open_keys = set(bench.agreed([point.key for point in wanted if point not in known]))
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
