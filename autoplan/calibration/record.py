"""Measurements as they come: a file of one JSON value a line, which a killed sweep goes on from.

A line is written whole before the next point is measured, so killing the program at any moment loses one
point at most. What is left of a line without its end is cut off when the file is opened again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.calibration.points import Point, point_of
from autoplan.errors import CatalogError, Problem, SpecError, UnsupportedError

__all__ = ["Environment", "Record"]


@dataclass(frozen=True, slots=True)
class Environment:
    """What the measurements hold for."""

    device: str
    torch: str
    driver: str

    def __str__(self) -> str:
        return f"{self.device} (torch {self.torch}, driver {self.driver})"


class Record:
    """The measurements of one file: seconds by point, None for a point that could not be measured."""

    def __init__(self, path: Path, environment: Environment) -> None:
        self.path = path
        self.environment = environment
        self.seconds: dict[Point, float | None] = {}
        text = self._whole_lines()
        for number, line in enumerate(text.splitlines(), start=1):
            self._read(line, number)

    def add(self, point: Point, seconds: float | None, *, reason: str | None = None) -> None:
        """Append one measurement, or the ``reason`` why there is none."""
        entry = {
            "point": point.key,
            **({"failed": reason} if seconds is None else {"seconds": seconds}),
            "device": self.environment.device,
            "torch": self.environment.torch,
            "driver": self.environment.driver,
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.seconds[point] = seconds

    def _whole_lines(self) -> str:
        """Return the lines of the file that are whole, and cut off what is not."""
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            end = data.rfind(b"\n") + 1
            if end < len(data):
                with self.path.open("r+b") as file:
                    file.truncate(end)
            return data[:end].decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CatalogError(f"cannot read {self.path}: {reason}") from error

    def _read(self, line: str, number: int) -> None:
        try:
            entry: dict[str, Any] = json.loads(line)
            point = point_of(entry["point"])
            seconds = None if "failed" in entry else float(entry["seconds"])
            device = str(entry["device"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"not a measurement that autoplan wrote: {error}"
            raise SpecError([Problem(said, "$", str(self.path), number)]) from error
        if device != self.environment.device:
            raise UnsupportedError(
                f"{self.path} holds measurements of {device}, and this is {self.environment.device}:"
                " name another file with --points"
            )
        self.seconds[point] = seconds
