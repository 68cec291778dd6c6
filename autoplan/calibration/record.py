"""File of measurements, one JSON object per line, from which an interrupted sweep resumes.

Each line is written before the next point is measured, so an interrupt loses one point at most. An incomplete
last line is removed when the file is opened.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autoplan.calibration.points import Point, point_of
from autoplan.catalog import read_file
from autoplan.errors import CatalogError, Problem, SpecError, UnsupportedError

__all__ = ["Environment", "Record"]

#: What one operation may take.
_LEAST_SECONDS: Final = 1e-12
_MOST_SECONDS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Environment:
    """Device and software versions for which measurements are valid."""

    device: str
    torch: str
    driver: str

    def __str__(self) -> str:
        return f"{self.device} (torch {self.torch}, driver {self.driver})"


class Record:
    """Measurements of one file: seconds by point, None for a point that cannot be measured."""

    def __init__(self, path: Path, environment: Environment) -> None:
        self.path = path
        self.environment = environment
        self.seconds: dict[Point, float | None] = {}
        text = self._complete_lines()
        for number, line in enumerate(text.splitlines(), start=1):
            self._read(line, number)

    def add(self, point: Point, seconds: float | None, *, reason: str | None = None) -> None:
        """Append one measurement, or the ``reason`` for a failed one."""
        entry = {
            "point": point.key,
            **({"failed": reason} if seconds is None else {"seconds": seconds}),
            "device": self.environment.device,
            "torch": self.environment.torch,
            "driver": self.environment.driver,
        }
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise CatalogError(f"cannot write {self.path}: {error.strerror or error}") from error
        self.seconds[point] = seconds

    def _complete_lines(self) -> str:
        """Return the complete lines of the file, and remove an incomplete last one."""
        try:
            if not os.path.lexists(self.path):
                return ""
            text = read_file(self.path)
            end = text.rfind("\n") + 1
            if end < len(text):
                with self.path.open("r+b") as file:
                    file.truncate(len(text[:end].encode()))
            return text[:end]
        except OSError as error:
            raise CatalogError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _read(self, line: str, number: int) -> None:
        try:
            entry: dict[str, Any] = json.loads(line)
            point = point_of(entry["point"])
            seconds = None if "failed" in entry else _measured(entry["seconds"])
            device = str(entry["device"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            message = f"not a measurement that autoplan wrote: {error}"
            raise SpecError([Problem(message, "$", str(self.path), number)]) from error
        if device != self.environment.device:
            raise UnsupportedError(
                f"{self.path} holds measurements of {device}, and this is {self.environment.device}:"
                " name another file with --points"
            )
        self.seconds[point] = seconds


def _measured(value: object) -> float:
    """Return ``value`` as seconds that something took; raises ValueError for what nothing can take."""
    if not isinstance(value, int | float) or not _LEAST_SECONDS <= value <= _MOST_SECONDS:
        raise ValueError(f"{value!r} is no time between {_LEAST_SECONDS:g} s and {_MOST_SECONDS:g} s")
    return float(value)
