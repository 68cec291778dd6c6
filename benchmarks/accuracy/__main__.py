"""``python -m benchmarks.accuracy [--runs FILE] [--format table|json]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.accuracy.outcomes import outcomes_of_file
from benchmarks.accuracy.report import render
from benchmarks.accuracy.summary import row_of, summary_of

__all__ = ["main"]

_DEFAULT = Path(__file__).parent / "data" / "training.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Print the error of autoplan on a file of measured runs; 2 where the file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description="Compare predictions with measured training runs, each row's own layout.",
    )
    parser.add_argument("--runs", type=Path, default=_DEFAULT, help="file of measured runs")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print")
    options = parser.parse_args(arguments)
    try:
        outcomes = outcomes_of_file(options.runs)
    except (OSError, ValueError) as error:
        print(f"cannot read {options.runs}: {error}", file=sys.stderr)
        return 2
    summary = summary_of(outcomes)
    if options.format == "json":
        rows = [row_of(outcome) for outcome in outcomes]
        print(json.dumps({"rows": rows, "summary": summary}, allow_nan=False))
    else:
        print(render(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
