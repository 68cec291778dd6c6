"""Errors of predicted serving runs: by metric, engine, device and source, with the cover of intervals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.serving.conformal import coverage_of
from benchmarks.serving.outcomes import ServedOutcome, residual
from benchmarks.serving.served_choices import offline_order, slo_picks
from benchmarks.serving.served_runs import METRICS

__all__ = ["figures_of", "render", "summary_of"]

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
        "coverage": coverage_of(outcomes),
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
    lines += ["", f"{'90 % intervals by the other publications':75} {'n':>5} inside half-width"]
    lines += [
        f"{x['of']:44} {x['metric']:30} {x['n']:5} {x['share']:6.1%} {x['width']:10.2f}"
        for x in summary["coverage"]
    ]
    saturation = summary["saturation"]
    if saturation["found"] is not None:
        lines.append(f"saturated: {saturation['found']:.0%} of {saturation['n']} found")
    if saturation["false"] is not None:
        lines.append(f"others said to be saturated: {saturation['false']:.1%}")
    return "\n".join(lines)
