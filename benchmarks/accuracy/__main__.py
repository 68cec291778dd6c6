"""``python -m benchmarks.accuracy [--runs FILE] [--format table|json]``."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.accuracy.outcomes import outcomes_of_file
from benchmarks.accuracy.report import render
from benchmarks.accuracy.summary import row_of, summary_of
from benchmarks.command import parser_of, run

__all__ = ["main"]

_DEFAULT = Path(__file__).parent / "data" / "training.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Print the error of autoplan on a file of measured runs; 2 where the file cannot be read."""
    parser = parser_of("accuracy", "Compare predictions with measured training runs, each row's own layout.")
    parser.add_argument("--runs", type=Path, default=_DEFAULT, help="file of measured runs")
    options = parser.parse_args(arguments)
    return run(
        options.runs,
        options.format,
        read=outcomes_of_file,
        row_of=row_of,
        summary_of=summary_of,
        render=render,
    )


if __name__ == "__main__":
    sys.exit(main())
