"""``python -m benchmarks.accuracy [--runs FILE] [--sample ROWS] [--check | --record | --refit | ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.accuracy.facts import without_keyed_facts
from benchmarks.accuracy.fitting.fit_values import FIT_VALUES, fit_values, save_fit_values
from benchmarks.accuracy.fitting.kept import save_left_out
from benchmarks.accuracy.fitting.leaving import (
    KEYS,
    LeftOut,
    Observation,
    as_shipped,
    left_out,
    observations_of,
    shared_fitter,
)
from benchmarks.accuracy.fitting.leaving_report import (
    left_out_summary,
    render_left_out,
    render_refitted,
)
from benchmarks.accuracy.fitting.one_layout import one_layout_of_files, one_layout_summary, render_one_layout
from benchmarks.accuracy.fitting.shared import SharedFitter
from benchmarks.accuracy.outcomes import Outcome, outcomes_of_files, outcomes_of_sample
from benchmarks.accuracy.plot import accuracy_svg
from benchmarks.accuracy.recorded import (
    RECORDED,
    RECORDED_SAMPLE,
    changes,
    figures_of,
    load_figures,
    render_changes,
    save_figures,
)
from benchmarks.accuracy.report import render
from benchmarks.accuracy.summary import row_of, summary_of
from benchmarks.command import parser_of, run

__all__ = ["DEFAULT_RUNS", "UNSEEN_RUNS", "main"]

_DATA = Path(__file__).parent / "data"

DEFAULT_RUNS = (_DATA / "training.yaml", _DATA / "training_2.yaml")

#: Runs of publications that no fit sees.
UNSEEN_RUNS = (*(_DATA / f"training_{number}.yaml" for number in range(3, 10)), _DATA / "strangers.yaml")
_UNSEEN = "unseen"


def main(arguments: list[str] | None = None) -> int:
    """Print the error of autoplan on a file of measured runs.

    Return 1 where a recorded figure is worse under ``--check``, 2 where a file cannot be read.
    """
    options = _parser().parse_args(arguments)
    if options.leave_out:
        return _leave_out(options)
    if options.refit:
        return _refit(options)
    if options.calibrate_on_one:
        return _calibrate_on_one(options)
    with without_keyed_facts() if options.without_keyed_facts else nullcontext():
        return run(
            options.runs,
            options.format,
            read=lambda paths: (
                outcomes_of_sample(paths, options.sample) if options.sample else outcomes_of_files(paths)
            ),
            row_of=row_of,
            summary_of=summary_of,
            render=render,
            then=lambda outcomes, summary: _afterwards(options, outcomes, summary),
        )


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("accuracy", "Compare predictions with measured training runs, each row's own layout.")
    parser.add_argument("--runs", type=Path, nargs="+", default=DEFAULT_RUNS, help="files of measured runs")
    parser.add_argument(
        "--sample", type=int, metavar="ROWS", help="a fixed sample of so many complete rows, in seconds"
    )
    parser.add_argument(
        "--without-keyed-facts",
        action="store_true",
        help="leave out facts keyed to a publication, as for rows of a new one",
    )
    parser.add_argument("--recorded", type=Path, help="file of recorded figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw predicted against measured (SVG)")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--check", action="store_true", help="fail where a recorded figure is worse")
    either.add_argument("--record", action="store_true", help="write the recorded figures anew")
    either.add_argument(
        "--refit", action="store_true", help="fit the shared coefficients anew, from their priors"
    )
    either.add_argument(
        "--calibrate-on-one",
        action="store_true",
        help="predict the layouts of each group after calibrating its machine on one other of them",
    )
    either.add_argument(
        "--leave-out",
        choices=[*sorted(KEYS), _UNSEEN],
        nargs="+",
        help="predict runs of each with coefficients fitted on the others, one after another where several;"
        f" {_UNSEEN}: the runs of files that no fit sees, as they are predicted now",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="PATH",
        help="with --leave-out: write its rows (CSV): a file, or a folder for KEY.csv; the docs read them",
    )
    return parser


def _leave_out(options: argparse.Namespace) -> int:
    """Print the errors of predictions by fits that have not seen the group or source they predict.

    Of several keys one table, or one line of JSON, after the other.
    """
    if options.keep and len(options.leave_out) > 1 and not options.keep.is_dir():
        print(f"--keep {options.keep}: several keys need a folder", file=sys.stderr)
        return 2
    observed = cache(lambda: observations_of(outcomes_of_files(options.runs, complete=True)))
    fitter = cache(lambda: shared_fitter(observed()))
    code = max(_leave_out_by(options, by, observed, fitter) for by in options.leave_out)
    if code == 0 and "source" in options.leave_out and options.keep and options.keep.is_dir():
        save_fit_values(fit_values(observed(), "source", fitter()), options.keep / FIT_VALUES)
    return code


def _leave_out_by(
    options: argparse.Namespace,
    by: str,
    observed: Callable[[], list[Observation]],
    fitter: Callable[[], SharedFitter],
) -> int:
    return run(
        options.runs,
        options.format,
        read=lambda _: _unseen() if by == _UNSEEN else left_out(observed(), by, lambda _: fitter()),
        row_of=asdict,
        summary_of=left_out_summary,
        render=render_left_out,
        then=lambda rows, _: _keep(options, by, rows),
    )


def _unseen() -> list[LeftOut]:
    return as_shipped(observations_of(outcomes_of_files(UNSEEN_RUNS, complete=True)))


def _keep(options: argparse.Namespace, by: str, rows: Sequence[LeftOut]) -> int:
    """Write the rows where ``--keep`` says so."""
    if options.keep:
        save_left_out(rows, options.keep / f"{by}.csv" if options.keep.is_dir() else options.keep)
    return 0


def _refit(options: argparse.Namespace) -> int:
    """Print what a fit to all rows makes of the shared coefficients."""
    return run(
        options.runs,
        options.format,
        read=lambda paths: shared_fitter(observations_of(outcomes_of_files(paths, complete=True))).whole(),
        row_of=asdict,
        summary_of=lambda found: {"coefficients": [asdict(x) for x in found]},
        render=render_refitted,
    )


def _calibrate_on_one(options: argparse.Namespace) -> int:
    """Print the errors before and after a calibration on one layout of the same group."""
    return run(
        options.runs,
        options.format,
        read=one_layout_of_files,
        row_of=asdict,
        summary_of=one_layout_summary,
        render=render_one_layout,
    )


def _afterwards(options: argparse.Namespace, outcomes: Sequence[Outcome], summary: dict[str, Any]) -> int:
    """Draw, check and record as the options say; what is said goes beside JSON, not into it."""
    notes = sys.stderr if options.format == "json" else sys.stdout
    if options.plot:
        options.plot.write_text(accuracy_svg(outcomes), encoding="utf-8")
    if not (options.check or options.record):
        return 0
    now = figures_of(summary)
    recorded = options.recorded or (RECORDED_SAMPLE if options.sample else RECORDED)
    try:
        found = changes({} if options.record and not recorded.exists() else load_figures(recorded), now)
    except (OSError, ValueError) as error:
        print(f"cannot read {recorded}: {error}", file=sys.stderr)
        return 2
    print(f"\n{render_changes(found, recorded)}", file=notes)
    if options.record:
        save_figures(recorded, now)
        print(f"{recorded} written anew", file=notes)
        return 0
    if found:
        print("`python -m benchmarks.accuracy --record` records what is said now", file=notes)
    return int(any(change.worse for change in found))


if __name__ == "__main__":
    sys.exit(main())
