"""``python -m benchmarks.memory [--cases FILE] [--format table|json]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.memory.outcomes import outcomes_of_file
from benchmarks.memory.report import render, summary_of

__all__ = ["main"]

_DEFAULT = Path(__file__).parent / "data" / "memory.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Print the error of autoplan's memory bookkeeping; 2 where the file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory",
        description="Compare memory by part with bytes counted on real PyTorch modules.",
    )
    parser.add_argument("--cases", type=Path, default=_DEFAULT, help="file of oracle cases")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print")
    options = parser.parse_args(arguments)
    try:
        outcomes = outcomes_of_file(options.cases)
    except (OSError, ValueError) as error:
        print(f"cannot read {options.cases}: {error}", file=sys.stderr)
        return 2
    summary = summary_of(outcomes)
    if options.format == "json":
        rows = [outcome.row for outcome in outcomes]
        print(json.dumps({"rows": rows, "summary": summary}, allow_nan=False))
    else:
        print(render(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
