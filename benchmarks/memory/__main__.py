"""``python -m benchmarks.memory [--cases FILE] [--format table|json]``."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.command import parser_of, run
from benchmarks.memory.outcomes import outcomes_of_file
from benchmarks.memory.report import render, summary_of

__all__ = ["main"]

_DEFAULT = Path(__file__).parent / "data" / "memory.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Print the error of autoplan's memory bookkeeping; 2 where the file cannot be read."""
    parser = parser_of("memory", "Compare memory by part with bytes counted on real PyTorch modules.")
    parser.add_argument("--cases", type=Path, default=_DEFAULT, help="file of oracle cases")
    options = parser.parse_args(arguments)
    return run(
        options.cases,
        options.format,
        read=outcomes_of_file,
        row_of=lambda outcome: outcome.row,
        summary_of=summary_of,
        render=render,
    )


if __name__ == "__main__":
    sys.exit(main())
