"""Memory of a device as PyTorch recorded it: which kind of file it is, and its values.

Known are ``torch.cuda.memory._dump_snapshot`` (a pickle), the same value as JSON, and the memory timelines of
torch.profiler (``export_memory_timeline`` to .json or .raw.json.gz), of PyTorch 2.13.

Memory timelines of torch.profiler: bytes by category at the peak.

Categories are those of torch/profiler/_memory_profiler.py (2.13), in the order of ``_CATEGORY_TO_COLORS``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from autoplan.calibration.measurement import MemoryMeasurement
from autoplan.calibration.snapshots.allocator_history import measured_snapshot
from autoplan.calibration.snapshots.plain_pickle import read_plain_pickle
from autoplan.calibration.traces.event_stream import first_bytes, pieces
from autoplan.errors import CatalogError, Problem, SpecError

__all__ = ["read_memory"]

_PICKLE: Final = b"\x80"
_LARGEST: Final = 2**30


def read_memory(path: Path) -> MemoryMeasurement:
    """Return the memory at the peak that a snapshot or a memory timeline tells.

    Raises SpecError for a file of another kind, CatalogError for one that cannot be read.
    """
    name = str(path)
    value = read_plain_pickle(path) if first_bytes(path, 1) == _PICKLE else _json(path)
    if isinstance(value, dict) and "segments" in value:
        return measured_snapshot(value, name)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(x, list) for x in value):
        return measured_timeline(value[0], value[1], name)
    if isinstance(value, list) and value and isinstance(value[0], list):
        return measured_events(value, name)
    message = (
        "no memory record: known are torch.cuda.memory._dump_snapshot (pickle or JSON, with segments) and"
        " torch.profiler's export_memory_timeline (.json or .raw.json.gz)"
    )
    raise SpecError([Problem(message, "$", name)])


def _json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return the value of a JSON file, plain or gzip."""
    data = bytearray()
    for piece in pieces(path):
        data += piece
        if len(data) > _LARGEST:
            raise CatalogError(f"{path} is larger than {_LARGEST // 2**30} GiB of JSON: dump it as a pickle")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"no JSON and no pickle: {str(error)[:80]}"
        raise SpecError([Problem(message, "$", str(path), getattr(error, "lineno", None))]) from error


#: What each category of torch.profiler is called here, in its order.
_CATEGORIES: Final = (
    "parameters",
    "optimizer",
    "activations",  # INPUT
    "transient",  # TEMPORARY
    "activations",
    "gradients",
    "activations",  # AUTOGRAD_DETAIL
    "unknown",
)


def measured_timeline(times: Sequence[Any], sizes: Sequence[Any], name: str) -> MemoryMeasurement:
    """Return the peak of a timeline: at each time a row of bytes, a zero and then each category."""
    if len(times) != len(sizes) or not sizes:
        raise _problem(f"{len(times)} times and {len(sizes)} rows of sizes", name)
    best: list[float] = []
    for number, row in enumerate(sizes):
        if not isinstance(row, list) or len(row) != len(_CATEGORIES) + 1 or not all(map(_is_count, row)):
            raise _problem(f"row {number} is not {len(_CATEGORIES) + 1} numbers", name)
        if not best or sum(row) > sum(best):
            best = row[1:]
    return _measurement(best, name)


def measured_events(events: Sequence[Any], name: str) -> MemoryMeasurement:
    """Return the peak of a timeline of events: time, action, bytes and category of each."""
    now, total, most = [0.0] * len(_CATEGORIES), 0.0, -1.0
    best = list(now)
    for number, event in enumerate(events):
        if not isinstance(event, list) or len(event) != 4 or not all(map(_is_count, event)):
            raise _problem(f"event {number} is not four numbers", name)
        size, category = event[2], event[3]
        if not isinstance(category, int) or not 0 <= category < len(_CATEGORIES):
            raise _problem(f"event {number} has the category {category!r}", name)
        now[category] += size
        total += size
        if total > most:
            best, most = list(now), total
    return _measurement(best, name)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2.0**64


def _problem(message: str, name: str) -> SpecError:
    return SpecError([Problem(f"no memory timeline of torch.profiler: {message}", "$", name)])


def _measurement(best: Sequence[float], name: str) -> MemoryMeasurement:
    sums = dict.fromkeys(_CATEGORIES, 0.0)
    for category, size in zip(_CATEGORIES, best, strict=True):
        sums[category] += max(0.0, float(size))
    return MemoryMeasurement(
        source=name,
        kind="timeline",
        allocated=sum(sums.values()),
        reserved=0.0,
        requested=0.0,
        event="",
        categories=tuple(sums.items()),
        retries=0,
        out_of_memory=0,
    )
