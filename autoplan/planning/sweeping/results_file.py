"""The rows of a sweep as a file: CSV, or Parquet through pyarrow."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from autoplan.catalog.file_writing import check_target, write_whole
from autoplan.errors import CatalogError, UnsupportedError
from autoplan.results.sweep import CellAnswer, Sweep
from autoplan.schema.grids.grid_spec import text_of
from autoplan.schema.yaml.document import Plain

__all__ = ["check_results_path", "write_results"]

_SUFFIXES: Final = (".csv", ".parquet")


def check_results_path(path: Path) -> None:
    """Raise UnsupportedError for a format that cannot be written here, CatalogError for a folder."""
    if path.suffix not in _SUFFIXES:
        raise UnsupportedError(f"{path}: results are written as {' or '.join(_SUFFIXES)}")
    if path.is_dir():
        raise CatalogError(f"cannot write {path}: {path} is a folder")
    if path.exists() and not path.is_file():
        raise CatalogError(f"cannot write {path}: it is not an ordinary file")
    _check(path)
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UnsupportedError(
            f"{path}: Parquet needs pyarrow: pip install 'autoplan[parquet]', or write .csv"
        )


def _check(path: Path) -> None:
    try:
        check_target(path)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> CatalogError:
    return CatalogError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")


def write_results(sweep: Sweep, path: Path) -> None:
    """Write the rows of ``sweep`` to ``path`` whole or not at all; raises CatalogError where that fails."""
    columns = _columns(sweep)
    data = _csv(columns) if path.suffix == ".csv" else _parquet(columns)
    try:
        write_whole(path, data)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _columns(sweep: Sweep) -> dict[str, list[Plain]]:
    """Return the values of each column, the same columns for every sweep of one grid."""
    names = list(dict.fromkeys(["cell", *sweep.keys, *(field.name for field in fields(CellAnswer))]))
    rows = list(sweep.values())
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: _of_one_kind(values) for name, values in columns.items()}


def _of_one_kind(values: list[Plain]) -> list[Plain]:
    """Return ``values`` as they are where they are all numbers, all switches or all texts, else as texts."""
    kinds = {
        bool if isinstance(v, bool) else str if isinstance(v, str) else float for v in values if v is not None
    }
    return values if len(kinds) <= 1 else [None if v is None else text_of(v) for v in values]


def _csv(columns: dict[str, list[Plain]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8")


def _cell(value: Plain) -> Any:  # noqa: ANN401 - what the csv module writes
    return str(value).lower() if isinstance(value, bool) else value


def _parquet(columns: dict[str, list[Plain]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    # A column without a value would have no type, and files of two sweeps could not be joined.
    known = {
        field.name: kinds.get(str(field.type).split(" ")[0], pa.string()) for field in fields(CellAnswer)
    }
    arrays = {name: pa.array(values, type=known.get(name)) for name, values in columns.items()}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
