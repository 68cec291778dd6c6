"""The table of a run: what people read; programs read the JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from benchmarks.tables import Cell, table

__all__ = ["count", "render"]

_HEAD = (
    *("case", "devices", "layers", "seconds", "CPU s", "x import", "of CPU", "x plain", "wished"),
    *("MiB", "plans", "solves", "layouts"),
)


def render(results: dict[str, Any]) -> str:
    """Return the table of ``results``, with the imports of the solver as its first rows."""
    unit, plain, pricing = (results[key] for key in ("solver_import", "solver_import_with_pandas", "pricing"))
    imports = [
        _import_cells("import of the solver, as plan does it", unit, unit),
        _import_cells("the same import with pandas", plain, unit),
    ]
    rows = [*imports, *(_cells(row) for row in results["rows"])]
    rounds = results["repeat"]
    title = f"autoplan plan JOB --format json, whole process; medians of {rounds} interleaved rounds"
    return "\n".join([table(title, _HEAD, rows), "", _sentence(pricing)])


def _import_cells(name: str, found: dict[str, Any], unit: dict[str, Any]) -> list[Cell]:
    ratios = [f"{found[key] / unit[key]:.2f}" for key in ("seconds", "cpu_seconds")]
    return [
        name,
        None,
        None,
        *_times(found),
        *ratios,
        None,
        None,
        _mebibytes(found["peak_memory_bytes"]),
        *[None] * 3,
    ]


def _cells(row: dict[str, Any]) -> list[Cell]:
    target = row["target_ratio"]
    return [
        row["case"],
        row["devices"],
        row["layers"],
        *_times(row),
        f"{row['ratio']:.2f}",
        f"{row['cpu_ratio']:.2f}",
        f"{row['plain_ratio']:.2f}",
        None if target is None else f"<= {target:g}",
        _mebibytes(row["peak_memory_bytes"]),
        row["plans"],
        row["solves"],
        count(row["layouts_covered"]),
    ]


def _sentence(pricing: dict[str, Any]) -> str:
    return (
        f"In process, pricing all {count(pricing['layouts_covered'])} layouts of {pricing['job']} as "
        f"{pricing['candidates']:,} candidates takes {1000 * pricing['seconds']:.1f} ms, "
        f"{pricing['ratio']:.3f} imports"
    )


def _times(found: dict[str, Any]) -> list[Cell]:
    return [f"{found[key]:.3f}" for key in ("seconds", "cpu_seconds")]


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f}"


def count(number: int) -> str:
    """Return a count in words that fit a column: counts of layouts have dozens of digits.

    >>> count(8505768), count(10**52)
    ('8,505,768', '1e52')
    """
    return f"{number:,}" if number < 10**9 else f"{Decimal(number):.0e}".replace("e+", "e")
