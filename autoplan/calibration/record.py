"""File of measurements, one JSON object per line, from which an interrupted sweep resumes.

Each line is written before the next point is measured, so an interrupt loses one point at most. An incomplete
last line is removed when the file is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from autoplan.catalog import read_file
from autoplan.errors import CatalogError, Problem, SpecError, UnsupportedError

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


Operation: TypeAlias = Literal["gemm", "attention", "memory_bound", "collective"]
PointGrid: TypeAlias = Literal["full", "quick", "tiny"]

_MEBI: Final = 2**20


@dataclass(frozen=True, slots=True)
class Point:
    """One operation of one shape.

    ============  =====================================================  ==========================
    operation     variants                                               sizes
    ============  =====================================================  ==========================
    gemm          forward, input, weight: the three GEMMs of a layer     rows, columns, inner width
    attention     forward, backward: causal                              sequence, heads, head size
    memory_bound  copy, norm, add                                        bytes read and written
    collective    all_reduce, all_gather, reduce_scatter                 ranks, bytes of the tensor
    ============  =====================================================  ==========================
    """

    operation: Operation
    variant: str
    sizes: tuple[int, ...]

    @property
    def key(self) -> str:
        """The point's name in a file of measurements.

        >>> Point("gemm", "forward", (4096, 1024, 512)).key
        'gemm/forward/4096x1024x512'
        """
        return f"{self.operation}/{self.variant}/{'x'.join(map(str, self.sizes))}"


def point_of(key: str) -> Point:
    """Return the point with the key ``key``; raises ValueError for an invalid key.

    >>> point_of("memory_bound/copy/1048576").sizes
    (1048576,)
    """
    parts = key.split("/")
    if len(parts) != 3 or parts[0] not in get_args(Operation):
        raise ValueError(f"{key!r} names no operation")
    sizes = tuple(int(size) for size in parts[2].split("x"))
    return Point(cast("Operation", parts[0]), parts[1], sizes)


@dataclass(frozen=True, slots=True)
class _Extents:
    """Sizes along each dimension of one grid."""

    rows: Sequence[int]
    widths: Sequence[int]
    sequences: Sequence[int]
    heads: Sequence[int]
    head_sizes: Sequence[int]
    traffic: Sequence[int]
    messages: Sequence[int]


_GRIDS: Final[dict[PointGrid, _Extents]] = {
    "full": _Extents(
        rows=(256, 512, 1024, 2048, 4096, 8192, 16384),
        widths=(512, 1024, 2048, 4096, 8192, 14336),
        sequences=(512, 1024, 2048, 4096, 8192, 16384),
        heads=(4, 8, 16, 32),
        head_sizes=(64, 128),
        traffic=tuple(_MEBI * 4**i for i in range(3, 7)),
        messages=tuple(2**i for i in range(12, 30)),
    ),
    "quick": _Extents(
        rows=(512, 2048, 8192),
        widths=(1024, 4096, 8192),
        sequences=(1024, 4096, 8192),
        heads=(8, 32),
        head_sizes=(128,),
        traffic=(64 * _MEBI, 1024 * _MEBI),
        messages=tuple(2**i for i in range(14, 29, 2)),
    ),
    # For tests on a CPU.
    "tiny": _Extents(
        rows=(64, 256),
        widths=(128, 256),
        sequences=(64, 128),
        heads=(2, 4),
        head_sizes=(64,),
        traffic=(_MEBI, 4 * _MEBI),
        messages=(2**14, 2**18),
    ),
}


def device_points(grid: PointGrid) -> tuple[Point, ...]:
    """Return the points of one device: GEMMs, attention and memory-bound kernels, without duplicates."""
    extents = _GRIDS[grid]
    return tuple(dict.fromkeys((*_gemms(extents), *_attention(extents), *_memory_bound(extents))))


def collective_points(grid: PointGrid, ranks: int) -> tuple[Point, ...]:
    """Return the collectives among 2, 4, ... and all of ``ranks`` devices.

    >>> sorted({point.sizes[0] for point in collective_points("quick", 6)})
    [2, 4, 6]
    """
    groups = sorted({2**i for i in range(1, ranks.bit_length()) if 2**i <= ranks} | {ranks})
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    shapes = product(operations, groups, _GRIDS[grid].messages)
    return tuple(Point("collective", operation, (n, size)) for operation, n, size in shapes)


def _gemms(extents: _Extents) -> Iterator[Point]:
    """Yield the three GEMMs of a linear layer [m, k] -> [m, n]: forward, dgrad and wgrad."""
    for m, n, k in product(extents.rows, extents.widths, extents.widths):
        yield Point("gemm", "forward", (m, n, k))
        yield Point("gemm", "input", (m, k, n))
        yield Point("gemm", "weight", (n, k, m))


def _attention(extents: _Extents) -> Iterator[Point]:
    for sizes in product(extents.sequences, extents.heads, extents.head_sizes):
        yield Point("attention", "forward", sizes)
        yield Point("attention", "backward", sizes)


def _memory_bound(extents: _Extents) -> Iterator[Point]:
    for variant, traffic in product(("copy", "norm", "add"), extents.traffic):
        yield Point("memory_bound", variant, (traffic,))
