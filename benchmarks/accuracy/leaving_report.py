"""Errors of predictions of runs that were left out of the fit, by stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.accuracy.leaving import LeftOut
from benchmarks.accuracy.scores import spread
from benchmarks.tables import percent, table

__all__ = ["left_out_row", "left_out_summary", "render_left_out", "render_refitted"]


def left_out_row(found: LeftOut) -> dict[str, Any]:
    """Return one entry of ``rows``."""
    observation, predicted = found.observation, found.predicted
    return {
        "id": observation.id,
        "group": observation.group,
        "source": observation.source,
        "stack": observation.stack,
        "seen_of_its_stack": found.seen,
        "measured_step_seconds": observation.seconds,
        "predicted_step_seconds": predicted.step_seconds,
        "predicted_step_seconds_low": predicted.step_seconds_low,
        "predicted_step_seconds_high": predicted.step_seconds_high,
    }


def left_out_summary(found: Sequence[LeftOut]) -> dict[str, Any]:
    """Return errors and coverage of all rows and by stack."""
    stacks = sorted({x.observation.stack for x in found})
    by_stack = [
        {"stack": stack, **_errors([x for x in found if x.observation.stack == stack])} for stack in stacks
    ]
    return {"all": _errors(found), "by_stack": by_stack}


def _errors(found: Sequence[LeftOut]) -> dict[str, Any]:
    inside = sum(x.covered for x in found)
    return {
        "not_refitted": sum(x.seen == 0 for x in found),
        **asdict(spread([x.error for x in found])),
        "covered": inside / len(found) if found else None,
    }


def render_left_out(summary: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    shares = ("median", "mean", "p90", "worst", "covered")
    rows = [
        [x["stack"], x["n"], x["not_refitted"], *(percent(x[key]) for key in shares)]
        for x in [*summary["by_stack"], {"stack": "all", **summary["all"]}]
    ]
    head = ["stack", "n", "not refitted", *shares]
    return table("Error of step time of runs that the fit has not seen", head, rows)


def render_refitted(summary: Mapping[str, Any]) -> str:
    """Return a table of coefficients: before any run, fitted to the runs, as shipped."""
    rows = [
        [x["name"], *(f"{x[key]:.4g}" for key in ("prior", "fitted", "shipped")), percent(x["narrowed"])]
        for x in summary["coefficients"]
    ]
    head = ["coefficient", "prior", "fitted", "shipped", "spread left"]
    return table("Coefficients that several files share, fitted to all rows", head, rows)
