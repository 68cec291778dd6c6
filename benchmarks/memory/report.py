"""The summary of a file of cases, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.memory.outcomes import QUANTITIES, Outcome
from benchmarks.skips import count_reasons
from benchmarks.tables import percent, table

__all__ = ["render", "summary_of"]

#: Cases listed as the worst of their peak.
WORST = 15


def summary_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return median and worst error of each quantity, the skipped cases and the worst peaks."""
    peaks = _errors(outcomes, "peak_bytes")
    return {
        "cases": len(outcomes),
        "scored": sum(x.skipped is None for x in outcomes),
        "skipped": sum(x.skipped is not None for x in outcomes),
        "skip_reasons": count_reasons(x.skipped for x in outcomes if x.skipped),
        "errors": {name: _spread(_errors(outcomes, name)) for name in QUANTITIES},
        "worst_peaks": [{"id": name, "error": error} for error, name in peaks[:WORST]],
    }


def _errors(outcomes: Sequence[Outcome], quantity: str) -> list[tuple[float, str]]:
    """Return signed errors of ``quantity`` with their cases, largest first."""
    found = []
    for outcome in outcomes:
        said = getattr(outcome.predicted, quantity, None)
        counted = getattr(outcome.measured, quantity)
        if said is not None and counted is not None:
            found.append((said / counted - 1.0, outcome.id))
    return sorted(found, key=lambda item: -abs(item[0]))


def _spread(errors: Sequence[tuple[float, str]]) -> dict[str, Any]:
    sizes = [abs(error) for error, _ in errors]
    signed = [error for error, _ in errors]
    return {
        "n": len(sizes),
        "median": median(sizes) if sizes else None,
        "worst": sizes[0] if sizes else None,
        "bias": median(signed) if signed else None,
        "worst_case": errors[0][1] if errors else None,
    }


def render(summary: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    errors = [
        [
            name,
            x["n"],
            percent(x["median"]),
            percent(x["worst"]),
            percent(x["bias"], signed=True),
            x["worst_case"],
        ]
        for name, x in summary["errors"].items()
    ]
    worst = [[percent(x["error"], signed=True), x["id"]] for x in summary["worst_peaks"]]
    reasons = [[n, reason] for reason, n in summary["skip_reasons"].items()]
    return "\n\n".join(
        [
            f"{summary['cases']} cases: {summary['scored']} scored, {summary['skipped']} skipped",
            table(
                "Error against the memory oracle, bytes on rank 0",
                ["quantity", "n", "median", "worst", "bias", "worst case"],
                errors,
            ),
            table("Worst peaks", ["error", "case"], worst),
            table("Skipped", ["cases", "reason"], reasons),
        ]
    )
