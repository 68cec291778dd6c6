"""``python -m benchmarks.serving [--runs FILE] [--sample N] [--check | --record | --refit | --left-out]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from autoplan.catalog import serving_intervals
from autoplan.schema.yaml.writer import file_text
from benchmarks.accuracy.recorded import changes, load_figures, render_changes, save_figures
from benchmarks.command import parser_of, run
from benchmarks.serving.conformal import device_factor, spreads_of
from benchmarks.serving.engine_fitting.engine_fits import fit_engines, left_out_errors, left_out_shares
from benchmarks.serving.engine_fitting.engine_numbers import family_of, write_fits
from benchmarks.serving.engine_fitting.step_responses import NUMBERS, Response, responses, sampled
from benchmarks.serving.outcomes import FITTED, ServedOutcome, outcomes_of_files, row_of
from benchmarks.serving.served_runs import ServedRun, read_served_runs
from benchmarks.serving.served_summary import figures_of, render, summary_of

__all__ = ["DEFAULT_RUNS", "main"]

_DATA: Final = Path(__file__).parent / "data"
DEFAULT_RUNS: Final = tuple(_DATA / name for name in FITTED)
#: Runs that no fit of an engine sees; intervals do.
UNSEEN_RUNS: Final = tuple(_DATA / f"served_runs_{number}.yaml" for number in (3, 4, 5, 6))
RECORDED: Final = Path(__file__).parent / "recorded.yaml"
#: The figures of a fixed sample of runs, which tests compare.
RECORDED_SAMPLE: Final = RECORDED.with_name("recorded_sample.yaml")
INTERVALS: Final = Path(__file__).parents[2] / "costmodels" / "intervals" / "serving.yaml"

#: What is left out to see how a fit does on others.
_GROUPS: Final[dict[str, Callable[[Response], str]]] = {
    "publication": lambda x: x.publication,
    "model": lambda x: x.model,
    "device": lambda x: x.device,
    "version": lambda x: x.engine,
}


def main(arguments: list[str] | None = None) -> int:
    """Print the error of autoplan on a file of measured serving runs.

    Return 1 where a recorded figure is worse under ``--check``, 2 where a file cannot be read.
    """
    options = _parser().parse_args(arguments)
    if options.refit or options.left_out:
        return _refit(options)
    spec = serving_intervals()
    return run(
        options.runs,
        options.format,
        read=lambda paths: outcomes_of_files(paths, sample=options.sample),
        row_of=lambda outcome: row_of(outcome, spec),
        summary_of=summary_of,
        render=render,
        then=lambda outcomes, summary: _afterwards(options, outcomes, summary),
    )


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("serving", "Compare predictions with measured serving runs, each row's own layout.")
    parser.add_argument("--runs", type=Path, nargs="+", default=DEFAULT_RUNS, help="files of measured runs")
    parser.add_argument(
        "--sample", type=int, metavar="ROWS", help="a fixed sample of so many rows, in seconds"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--check", action="store_true", help="fail where a recorded figure is worse")
    either.add_argument("--record", action="store_true", help="write recorded figures and intervals anew")
    either.add_argument(
        "--refit", action="store_true", help="fit the scale and host time of each engine's version"
    )
    either.add_argument(
        "--left-out",
        action="store_true",
        help="errors where a fit has not seen a model, device or publication",
    )
    parser.add_argument("--write", action="store_true", help="with --refit: write them to costmodels/engines")
    parser.add_argument(
        "--most", type=int, default=60, metavar="RUNS", help="with --refit: most runs of a version (60)"
    )
    return parser


def _afterwards(
    options: argparse.Namespace, outcomes: Sequence[ServedOutcome], summary: dict[str, Any]
) -> int:
    figures, recorded = figures_of(summary), RECORDED_SAMPLE if options.sample else RECORDED
    if options.record:
        save_figures(recorded, figures)
        if not options.sample:
            _save_spreads(outcomes)
    if not options.check:
        return 0
    try:
        changed = changes(load_figures(recorded), figures)
    except (OSError, ValueError) as error:
        print(f"cannot read {recorded}: {error}", file=sys.stderr)
        return 2
    if changed:
        print(render_changes(changed, recorded), file=sys.stderr)
    return 1 if any(change.worse for change in changed) else 0


def _save_spreads(outcomes: Sequence[ServedOutcome]) -> None:
    """Write the spreads and the factor of devices of the intervals that plans have."""
    spec = serving_intervals()
    factor = device_factor(outcomes)
    if factor is not None:
        wider = spec.unmeasured_device.model_copy(update={"value": round(factor, 2)})
        spec = spec.model_copy(update={"unmeasured_device": wider})
    everything = [*outcomes, *outcomes_of_files(UNSEEN_RUNS)]
    met = [x for x in everything if x.skipped is None]
    spec = spec.model_copy(
        update={
            "spreads": tuple(spreads_of(everything, spec)),
            "models": tuple(sorted({f"{x.model[0]}x{x.model[1]}" for x in met})),
            "devices": tuple(sorted({x.device for x in met})),
        }
    )
    INTERVALS.write_text(file_text(spec), encoding="utf-8")


def _refit(options: argparse.Namespace) -> int:
    """Print what a fit makes of each engine's version, or the errors of what it has not seen."""
    runs = [row for path in options.runs for _, row in read_served_runs(path) if isinstance(row, ServedRun)]
    with ProcessPoolExecutor(2) as pool:
        measured = list(responses(sampled(runs, options.most), pool))
    if options.left_out:
        print(*_left_out_table(measured), sep="\n")
        return 0
    fits = fit_engines(measured, family_of)
    for fit in fits:
        numbers = ", ".join(f"{number} {fit.numbers[number]:.3g}" for number in NUMBERS)
        name = fit.family if fit.engine == "family" else f"  {fit.engine}"
        behind = f"{fit.runs} runs of {fit.publications} publications"
        print(f"{name}: {behind}, loss {fit.before:.3f} to {fit.after:.3f}: {numbers}")
    if options.write:
        print(*(f"wrote {path}" for path in write_fits(fits)), sep="\n")
    return 0


def _left_out_table(measured: Sequence[Response]) -> list[str]:
    """Return lines: the errors of each load and figure where the fit has not seen what is named."""
    kinds = {"nothing": None, **_GROUPS}
    found = {
        kind: left_out_shares(left_out_errors(measured, family_of, group_of))
        for kind, group_of in kinds.items()
    }
    lines = [
        f"{'left out: median and mean of absolute errors':56}" + "".join(f"{kind:>16}" for kind in kinds)
    ]
    for load, metric in sorted({key for shares in found.values() for key in shares}):
        cells = [found[kind].get((load, metric), ()) for kind in kinds]
        lines.append(
            f"{load + ', ' + metric + f' ({len(cells[0])})':56}"
            + "".join(f"{median(x):8.1%}{fmean(x):8.1%}" if x else f"{'-':>16}" for x in cells)
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
