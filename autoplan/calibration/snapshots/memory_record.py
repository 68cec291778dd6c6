"""Memory of a device as PyTorch recorded it: which kind of file it is, and its values.

Known are ``torch.cuda.memory._dump_snapshot`` (a pickle), the same value as JSON, and the memory timelines of
torch.profiler (``export_memory_timeline`` to .json or .raw.json.gz), of PyTorch 2.13.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from autoplan.calibration.measurement import MemoryMeasurement
from autoplan.calibration.snapshots.allocator_history import measured_snapshot
from autoplan.calibration.snapshots.plain_pickle import read_plain_pickle
from autoplan.calibration.snapshots.profiler_timeline import measured_events, measured_timeline
from autoplan.calibration.traces.byte_stream import first_bytes, pieces
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
