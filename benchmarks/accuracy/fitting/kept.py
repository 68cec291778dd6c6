"""Rows of runs that were left out of a fit, kept in a file: predicting them anew takes minutes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.fitting.leaving import LeftOut

__all__ = ["KEPT", "load_left_out", "save_left_out"]

#: One file for each key of ``leaving.KEYS``, and ``unseen.csv``.
KEPT: Final = Path(__file__).parents[1] / "data" / "left_out"

_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "seen": int,
    "measured": float,
    "predicted": float,
    "modelled_share": float,
    "slow_share": float,
    "experts": "True".__eq__,
}


def save_left_out(found: Sequence[LeftOut], path: Path) -> None:
    """Write ``found`` as CSV; seconds and shares with five digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(LeftOut)], lineterminator="\n")
        writer.writeheader()
        for row in found:
            writer.writerow({key: _short(value) for key, value in asdict(row).items()})


def _short(value: Any) -> Any:  # noqa: ANN401 -- any cell
    return f"{value:.5g}" if isinstance(value, float) else value


def load_left_out(path: Path) -> list[LeftOut]:
    """Return the rows of a file that ``save_left_out`` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [LeftOut(**{key: _TYPES.get(key, str)(value) for key, value in row.items()}) for row in rows]
