"""``python -m benchmarks.speed [--format table|json] [--repeat N] [--case NAME] [--record] [--plot F]``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.speed.cases import CASES, DEEPER, OVER_PROGRAMS
from benchmarks.speed.measure import results
from benchmarks.speed.recorded import RECORDED, load_peers, load_record, machine, save_record
from benchmarks.speed.report import render

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Time the program on the frozen cases; a wish that is not met is shown, and fails nothing.

    Return 2 where a picture is wanted of a record that cannot be read.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    recorded = (*CASES, *DEEPER)
    cases = [x for x in (*recorded, *OVER_PROGRAMS) if x.name in (options.case or [c.name for c in recorded])]
    if options.record and options.case:
        parser.error("--record measures every case: leave --case out")
    on = machine()
    measured = results(cases, options.repeat)
    print(json.dumps(measured, allow_nan=False) if options.format == "json" else render(measured))
    if options.record:
        save_record(on, measured, options.recorded)
    return _drawn(options.plot, options.recorded) if options.plot else 0


def _drawn(picture: Path, recorded: Path) -> int:
    """Draw the record, and return the exit code."""
    # Not before all is measured: a process starts as large as its parent.
    from benchmarks.speed.plot import speed_svg

    try:
        picture.write_text(speed_svg(load_record(recorded), load_peers()), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"cannot draw {recorded}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="Time whole planning runs against the import of the solver, as they do it.",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print")
    parser.add_argument("--repeat", type=_positive, default=5, help="rounds after the warm-up (default 5)")
    names = [case.name for case in (*CASES, *DEEPER, *OVER_PROGRAMS)]
    parser.add_argument(
        "--case", action="append", choices=names, metavar="NAME", help="only this case; may be repeated"
    )
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="file of the recorded run")
    parser.add_argument(
        "--record", action="store_true", help="write the recorded run anew, with this machine"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the recorded run (SVG)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
