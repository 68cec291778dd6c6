"""Profiler traces: PyTorch Profiler (Kineto) and Nsight Systems, read in a stream and attributed to parts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from autoplan.calibration.traces.event_stream import first_bytes
from autoplan.calibration.traces.kineto import read_kineto
from autoplan.calibration.traces.nsight import read_nsight
from autoplan.calibration.traces.timeline_record import DeviceTrace
from autoplan.catalog.roots import is_folder
from autoplan.errors import CatalogError

__all__ = ["read_trace", "trace_files"]


_SQLITE: Final = b"SQLite format 3\0"
_SUFFIXES: Final = (".json", ".json.gz", ".sqlite")
_REPORTS: Final = (".nsys-rep", ".qdrep")


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files to read: those named, and the traces in folders that are named, by name."""
    files: list[Path] = []
    for path in paths:
        if is_folder(path):
            inside = sorted(x for x in path.iterdir() if x.name.endswith(_SUFFIXES) and x.is_file())
            if not inside:
                raise CatalogError(f"{path} has no trace: no file ends in {', '.join(_SUFFIXES)}")
            files += inside
        else:
            files.append(path)
    return files


def read_trace(path: Path) -> list[DeviceTrace]:
    """Return what a trace says of each device: PyTorch Profiler's JSON, plain or gzip, or Nsight's SQLite.

    Raises SpecError for what is none of these, CatalogError for a file that cannot be read.
    """
    if first_bytes(path, len(_SQLITE)) == _SQLITE:
        return read_nsight(path)
    if path.suffix in _REPORTS:
        raise CatalogError(
            f"{path} is a report of Nsight Systems: `nsys export --type sqlite {path.name}` first"
        )
    return read_kineto(path)
