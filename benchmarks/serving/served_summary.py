"""Errors of predicted serving runs: by metric, engine, device and source, with the cover of intervals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp
from statistics import fmean, median
from typing import Any, Final, cast

import numpy as np

from autoplan.catalog import serving_intervals
from autoplan.costs.serving.served_intervals import widening
from autoplan.schema.costmodel.interval_spec import IntervalSpec, ServedMetric, SpreadLoad, SpreadSpec
from benchmarks.serving.outcomes import ServedOutcome, residual
from benchmarks.serving.served_choices import offline_order, slo_picks
from benchmarks.serving.served_runs import METRICS

__all__ = ["device_factor", "figures_of", "render", "spreads_of", "summary_of"]

#: Fewer runs than this have no spread of their own.
_LEAST_RUNS: Final = 15
#: Most runs that one publication counts for in a load; runs that closed loops add to open ones.
_MOST_OF_ONE: Final = 10.0
_CLOSED_RUNS: Final = 60.0
#: Publications from which on a load has a spread of its own alone.
_ENOUGH: Final = 4
Key = tuple[str, str]


def summary_of(outcomes: Sequence[ServedOutcome]) -> dict[str, Any]:
    """Return the errors as shares of what was measured, and what was skipped and why."""
    skipped = Counter(x.category for x in outcomes if x.skipped is not None)
    return {
        "rows": len(outcomes),
        "skipped": sum(skipped.values()),
        "reasons": dict(skipped.most_common()),
        "said_not_to_fit": sum(not x.fits for x in outcomes if x.skipped is None),
        "metrics": _table(outcomes, lambda x: x.mode),
        "by_engine": _table(outcomes, lambda x: x.engine),
        "by_device": _table(outcomes, lambda x: x.device),
        "by_source": _table(outcomes, lambda x: x.source),
        "slo_picks": _by_all(slo_picks, outcomes),
        "offline_order": _by_all(offline_order, outcomes),
        "saturation": _saturation(outcomes),
        "coverage": _coverage(outcomes),
    }


Row = dict[str, float | str | None]
Scores = Callable[[Iterable[ServedOutcome], Callable[[ServedOutcome], str]], list[Row]]


def _by_all(scores: Scores, outcomes: Sequence[ServedOutcome]) -> dict[str, list[Row]]:
    """Return scores of all runs together, by engine, by device and by source."""
    return {
        "all": scores(outcomes, lambda _: "all"),
        "by_engine": scores(outcomes, lambda x: x.engine.partition("@")[0]),
        "by_device": scores(outcomes, lambda x: x.device),
        "by_source": scores(outcomes, lambda x: x.source),
    }


def _table(outcomes: Iterable[ServedOutcome], name: Callable[[ServedOutcome], str]) -> list[dict[str, Any]]:
    groups: dict[Key, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for metric in METRICS:
            error = residual(outcome, metric)
            if error is not None:
                groups[name(outcome), metric].append(exp(-error) - 1.0)
    return [
        {"of": of, "metric": metric, **_errors(errors)} for (of, metric), errors in sorted(groups.items())
    ]


def _errors(errors: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in errors]
    return {
        "n": len(errors),
        "median": median(sizes),
        "mean": fmean(sizes),
        "p90": float(np.quantile(sizes, 0.9)),
        "bias": median(errors),
    }


def _saturation(outcomes: Iterable[ServedOutcome]) -> dict[str, float | None]:
    """Return the share of saturated closed loops that are found, and of others that are said to be."""
    loops = [x for x in outcomes if x.mode == "closed loop" and x.skipped is None]
    saturated = [x.saturated for x in loops if x.was_saturated]
    false = [x.saturated for x in loops if not x.was_saturated]
    return {
        "n": len(saturated),
        "found": fmean(saturated) if saturated else None,
        "false": fmean(false) if false else None,
    }


def spreads_of(
    outcomes: Iterable[ServedOutcome], spec: IntervalSpec, without: str | None = None
) -> list[SpreadSpec]:
    """Return the spread of each mode and metric, and of all modes together, but for one publication.

    Publications weigh alike up to ten runs of a load, so that none decides alone. A residual counts over the
    widening of its device, and all are wider by what is not known of another publication. An open loop has
    few runs: its quantiles lie between theirs and those of closed loops. Of fewer than four publications a
    load has quantiles that reach as far towards those of all loads as publications are missing.
    """
    weighted: dict[Key, list[tuple[float, float]]] = defaultdict(list)
    publications: dict[Key, set[str]] = defaultdict(set)
    sizes = Counter((x.publication, x.mode) for x in outcomes)
    for outcome in outcomes:
        if outcome.publication == without:
            continue
        width, _ = widening(spec, measured=outcome.kernels_measured, engine=None)
        for metric in METRICS:
            value = residual(outcome, metric)
            if value is not None:
                weight = min(1.0, _MOST_OF_ONE / sizes[outcome.publication, outcome.mode])
                weighted[outcome.mode, metric].append((value / width, weight))
                weighted["all", metric].append((value / width, weight))
                publications[outcome.mode, metric].add(outcome.publication)
    wider = spec.other_publication.value
    found = {
        key: (wider * _quantile(values, 0.05), wider * _quantile(values, 0.95), len(values))
        for key, values in sorted(weighted.items())
        if len(values) >= _LEAST_RUNS
    }
    missing = {key: max(0.0, 1.0 - len(publications[key]) / _ENOUGH) for key in found if key[0] != "all"}
    ends = {key: _towards_all(key, _towards_closed(key, found), found, missing) for key in found}
    return [_spread(key, ends[key], found[key][2]) for key in found]


def _spread(key: Key, ends: tuple[float, float], runs: int) -> SpreadSpec:
    load, metric = cast("SpreadLoad", key[0]), cast("ServedMetric", key[1])
    return SpreadSpec(load=load, metric=metric, low=round(ends[0], 4), high=round(ends[1], 4), runs=runs)


def _towards_closed(key: Key, found: Mapping[Key, tuple[float, float, int]]) -> tuple[float, float]:
    """Return quantiles, those of an open loop as the mean with closed loops that count for sixty runs."""
    low, high, runs = found[key]
    closed = found.get(("closed loop", key[1]))
    if key[0] != "open loop" or closed is None:
        return low, high
    own = runs / (runs + _CLOSED_RUNS)
    return own * low + (1 - own) * closed[0], own * high + (1 - own) * closed[1]


def _towards_all(
    key: Key,
    ends: tuple[float, float],
    found: Mapping[Key, tuple[float, float, int]],
    missing: Mapping[Key, float],
) -> tuple[float, float]:
    """Return quantiles that reach to those of all loads by the share of publications that is missing."""
    share, everything = missing.get(key, 0.0), found.get(("all", key[1]))
    if everything is None:
        return ends
    low, high = (own + share * (other - own) for own, other in zip(ends, everything[:2], strict=True))
    return min(ends[0], low), max(ends[1], high)


def device_factor(outcomes: Sequence[ServedOutcome]) -> float | None:
    """Return how much wider residuals are on devices without measured kernels: the median over figures."""
    widths: list[dict[Key, float]] = []
    for measured in (True, False):
        weighted: dict[Key, list[tuple[float, float]]] = defaultdict(list)
        sizes = Counter(x.group for x in outcomes)
        for outcome in (x for x in outcomes if x.kernels_measured is measured):
            for metric in METRICS:
                value = residual(outcome, metric)
                if value is not None:
                    weighted[outcome.mode, metric].append((value, min(1.0, 10.0 / sizes[outcome.group])))
        widths.append(
            {
                key: _quantile(values, 0.95) - _quantile(values, 0.05)
                for key, values in weighted.items()
                if len(values) >= _LEAST_RUNS
            }
        )
    ratios = [widths[1][key] / widths[0][key] for key in widths[1] if key in widths[0]]
    return median(ratios) if ratios else None


def _quantile(values: list[tuple[float, float]], share: float) -> float:
    ordered = sorted(values)
    total, reached = sum(weight for _, weight in ordered), 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= share * total:
            return value
    return ordered[-1][0]


def _coverage(outcomes: Sequence[ServedOutcome]) -> list[dict[str, Any]]:
    """Return the share of runs within their interval, where each publication is judged by the others."""
    inside: dict[Key, list[bool]] = defaultdict(list)
    spec = serving_intervals()
    for publication in sorted({x.publication for x in outcomes}):
        spreads: dict[Key, SpreadSpec] = {
            (x.load, x.metric): x for x in spreads_of(outcomes, spec, without=publication)
        }
        for outcome in (x for x in outcomes if x.publication == publication):
            width, _ = widening(spec, measured=outcome.kernels_measured, engine=None)
            for metric in METRICS:
                value = residual(outcome, metric)
                spread = spreads.get((outcome.mode, metric)) or spreads.get(("all", metric))
                if value is not None and spread is not None:
                    inside[outcome.mode, metric].append(width * spread.low <= value <= width * spread.high)
    return [
        {"of": mode, "metric": metric, "n": len(covered), "share": fmean(covered)}
        for (mode, metric), covered in sorted(inside.items())
    ]


def figures_of(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the figures that are recorded."""
    figures = {
        f"{x['of']}, {x['metric']}": {key: round(x[key], 4) for key in ("n", "median", "mean", "p90")}
        for x in summary["metrics"]
    }
    for name, keys in (("slo_picks", ("broke", "regret")), ("offline_order", ("tau", "regret"))):
        for x in summary[name]["all"]:
            figures[name.replace("_", " ")] = {key: round(x[key], 4) for key in keys if x[key] is not None}
    saturation = summary["saturation"]
    figures["saturation"] = {
        key: round(saturation[key], 4) for key in ("found", "false") if saturation[key] is not None
    }
    figures["rows"] = {"n": summary["rows"] - summary["skipped"]}
    return figures


def _render_choices(summary: Mapping[str, Any]) -> list[str]:
    lines = ["", f"{'picks under a limit on the time per token':44} questions  broke regret"]
    lines += [
        f"{x['of']:44} {x['questions']:9} {x['broke']:6.1%} {_percent(x['regret'])}"
        for rows in summary["slo_picks"].values()
        for x in rows
    ]
    lines += ["", f"{'order of offline layouts':44} workloads  pairs    tau regret"]
    lines += [
        f"{x['of']:44} {x['workloads']:9} {x['pairs']:6} {_number(x['tau'])} {_percent(x['regret'])}"
        for rows in summary["offline_order"].values()
        for x in rows
    ]
    return lines


def _percent(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.1%}"


def _number(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.3f}"


def render(summary: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    lines = [
        f"{summary['rows']} rows, {summary['skipped']} skipped, {summary['said_not_to_fit']} said not to fit",
        *(f"  {count} x {reason}" for reason, count in summary["reasons"].items()),
    ]
    for title in ("metrics", "by_engine", "by_device", "by_source"):
        lines += ["", f"{title.replace('_', ' '):44} {'metric':30} {'n':>5} median   mean    p90   bias"]
        lines += [
            f"{x['of']:44} {x['metric']:30} {x['n']:5} {x['median']:6.1%} {x['mean']:6.1%} {x['p90']:6.1%}"
            f" {x['bias']:+6.1%}"
            for x in summary[title]
        ]
    lines += _render_choices(summary)
    lines += ["", "90 % intervals by the other publications"]
    lines += [f"{x['of']:44} {x['metric']:30} {x['n']:5} {x['share']:6.1%}" for x in summary["coverage"]]
    saturation = summary["saturation"]
    if saturation["found"] is not None:
        lines.append(f"saturated: {saturation['found']:.0%} of {saturation['n']} found")
    if saturation["false"] is not None:
        lines.append(f"others said to be saturated: {saturation['false']:.1%}")
    return "\n".join(lines)
