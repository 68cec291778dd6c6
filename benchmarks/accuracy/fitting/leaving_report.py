"""Errors of predictions of runs that were left out of the fit, by stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Final

from benchmarks.accuracy.fitting.leaving import LeftOut
from benchmarks.accuracy.fitting.widths import widths_of
from benchmarks.accuracy.scores import spread
from benchmarks.tables import percent, table

__all__ = ["left_out_summary", "render_left_out", "render_refitted"]

_SHARES: Final = (0.0, 0.15, 0.3, 0.5, 0.8, 1.01)


def left_out_summary(found: Sequence[LeftOut]) -> dict[str, Any]:
    """Return errors and coverage of all rows, by stack and by what tables price; and the widths to have."""
    stacks = sorted({x.stack for x in found})
    by_stack = [{"stack": stack, **_errors([x for x in found if x.stack == stack])} for stack in stacks]
    by_share = [
        {"modelled": f"{100 * low:.0f} to {100 * high:.0f} %", **_errors(part)}
        for low, high in pairwise(_SHARES)
        if (part := [x for x in found if low <= x.modelled_share < high])
    ]
    widths = asdict(widths_of(found)) if found else None
    return {"all": _errors(found), "by_stack": by_stack, "by_modelled_share": by_share, "widths": widths}


def _errors(found: Sequence[LeftOut]) -> dict[str, Any]:
    inside = sum(x.covered for x in found)
    return {
        "not_refitted": sum(x.seen == 0 for x in found),
        **asdict(spread([x.error for x in found])),
        "covered": inside / len(found) if found else None,
    }


def render_left_out(summary: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    title = "Error of step time of runs that the fit has not seen"
    stacks = _table(title, "stack", [*summary["by_stack"], {"stack": "all", **summary["all"]}])
    shares = _table(f"{title}, by the share that no table prices", "modelled", summary["by_modelled_share"])
    return "\n\n".join([stacks, shares, *_widths_sentence(summary["widths"])])


def _table(title: str, first: str, entries: Sequence[Mapping[str, Any]]) -> str:
    shown = ("median", "mean", "p90", "worst", "bias", "covered")
    rows = [[x[first], x["n"], x["not_refitted"], *(percent(x[key]) for key in shown)] for x in entries]
    return table(title, [first, "n", "not refitted", *shown], rows)


def _widths_sentence(widths: Mapping[str, float] | None) -> list[str]:
    if widths is None:
        return []
    a, b, inside = (percent(widths[key]) for key in ("time", "time_modelled", "covered"))
    return [f"Least interval score of these rows: hypot({a}, {b} x modelled share), {inside} inside"]


def render_refitted(summary: Mapping[str, Any]) -> str:
    """Return a table of coefficients: before any run, fitted to the runs, as shipped."""
    rows = [
        [
            x["name"],
            *(f"{x[key]:.4g}" for key in ("prior", "fitted", "shipped")),
            percent(x["narrowed"]),
            ", ".join(x["files"]),
        ]
        for x in summary["coefficients"]
    ]
    head = ["coefficient", "prior", "fitted", "shipped", "spread left", "written in"]
    return table("Coefficients that several entries share, fitted to all rows", head, rows)
