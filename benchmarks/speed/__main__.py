"""``python -m benchmarks.speed [--format table|json] [--repeat N] [--case NAME]``."""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.speed.cases import CASES
from benchmarks.speed.measure import results
from benchmarks.speed.report import render

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Time the program on the frozen cases; a wish that is not met is shown, and fails nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="Time whole planning runs against the bare import of the solver.",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print")
    parser.add_argument("--repeat", type=_positive, default=5, help="rounds after the warm-up (default 5)")
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this case; may be repeated")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.case is None or case.name in options.case]
    measured = results(cases, options.repeat)
    print(json.dumps(measured, allow_nan=False) if options.format == "json" else render(measured))
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
