"""The summary of a file of runs: the same numbers that the table prints and the JSON holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.accuracy.coverage import coverage, coverage_by_mechanism
from benchmarks.accuracy.fitting.coefficients import coefficients_of
from benchmarks.accuracy.outcomes import Outcome
from benchmarks.accuracy.parts import parts_of
from benchmarks.accuracy.scores import (
    fitting,
    grouped,
    memory_errors,
    order,
    order_by_difference,
    reported_memory,
    spread,
)
from benchmarks.skips import count_reasons

__all__ = ["row_of", "summary_of"]

#: Rows listed as the worst.
WORST = 10


def row_of(outcome: Outcome) -> dict[str, Any]:
    """Return one entry of ``rows``: predicted fields are all null where the row is skipped."""
    predicted = outcome.predicted
    peak, low, high = outcome.peak_memory or (None, None, None)
    return {
        "id": outcome.id,
        "group": outcome.group,
        "predicted_step_seconds": predicted and predicted.step_seconds,
        "predicted_step_seconds_low": predicted and predicted.step_seconds_low,
        "predicted_step_seconds_high": predicted and predicted.step_seconds_high,
        "predicted_tokens_per_second_per_device": (predicted and predicted.tokens_per_second_per_device),
        "predicted_peak_memory_bytes": peak,
        "predicted_peak_memory_bytes_low": low,
        "predicted_peak_memory_bytes_high": high,
        "fits": predicted and predicted.fits,
        "skipped": str(outcome.skipped) if outcome.skipped else None,
    }


def summary_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the summary: complete rows and incomplete ones apart, every skipped row counted."""
    complete = [x for x in outcomes if x.complete]
    incomplete = [x for x in outcomes if not x.complete]
    return {
        "rows": len(outcomes),
        "scored": sum(x.skipped is None for x in outcomes),
        "skipped": sum(x.skipped is not None for x in outcomes),
        "complete": _section(complete),
        "incomplete": {**_section(incomplete), "ranges": _ranges(incomplete)},
        "coefficients": [asdict(x) for x in coefficients_of(outcomes)],
    }


def _section(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    scored = [x for x in outcomes if x.skipped is None]
    return {
        "rows": len(outcomes),
        "scored": len(scored),
        "without_step_time": sum(x.error is None for x in scored),
        "skipped": len(outcomes) - len(scored),
        "skip_reasons": count_reasons(x.skipped for x in outcomes if x.skipped),
        "step_time": _errors(outcomes),
        "order": asdict(order(outcomes)),
        "parts": parts_of(outcomes),
        "order_by_difference": [_finite(asdict(x)) for x in order_by_difference(outcomes)],
        "by_stack_and_device": _by_stack_and_device(outcomes),
        "by_source": [
            {"source": source, **_errors(members)}
            for (source,), members in grouped(outcomes, _source).items()
        ],
        "error_quantile_90": {
            "measured_kernels": _quantile(x for x in scored if x.measured_kernels),
            "other_devices": _quantile(x for x in scored if not x.measured_kernels),
        },
        "coverage": {name: asdict(x) for name, x in coverage_by_mechanism(outcomes).items()},
        "memory": {kind: asdict(spread(e)) for kind, e in memory_errors(outcomes).items()},
        "reported_memory": reported_memory(outcomes),
        "fitting": asdict(fitting(outcomes)),
        "worst": [_worst(x) for x in _by_error(scored)[:WORST]],
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return ``row`` without an upper end where it is infinite, which JSON does not have."""
    return {key: None if value == float("inf") else value for key, value in row.items()}


def _source(outcome: Outcome) -> tuple[str]:
    return (outcome.run.source if outcome.run else "?",)


def _errors(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    members = list(outcomes)
    errors = [x.error for x in members if x.error is not None]
    return {**asdict(spread(errors)), "skipped": sum(x.skipped is not None for x in members)}


def _by_stack_and_device(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "stack": stack,
            "device": device,
            **_errors(members),
            "covered": coverage(members).share,
            "order": asdict(order(members)),
        }
        for (stack, device), members in grouped(outcomes, lambda x: (x.stack, x.device)).items()
    ]


def _quantile(outcomes: Iterable[Outcome]) -> float | None:
    """Return the error that 90 % of rows stay below: the half-width of an honest error bar."""
    sizes = [abs(x.error) for x in outcomes if x.error is not None]
    return float(np.quantile(sizes, 0.9)) if sizes else None


def _by_error(outcomes: Iterable[Outcome]) -> list[Outcome]:
    scored = [x for x in outcomes if x.error is not None]
    return sorted(scored, key=lambda x: -abs(x.error or 0.0))


def _worst(outcome: Outcome) -> dict[str, Any]:
    predicted, run = outcome.predicted, outcome.run
    return {
        "id": outcome.id,
        "stack": outcome.stack,
        "device": outcome.device,
        "layout": outcome.plan and outcome.plan.layout_string,
        "error": outcome.error,
        "measured_step_seconds": run and run.step_seconds,
        "predicted_step_seconds": predicted and predicted.step_seconds,
        "time": asdict(predicted.time) if predicted else None,
    }


def _ranges(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return, for rows that leave something out, the fastest and slowest of their layouts."""
    return [_range(x) for x in outcomes if len(x.plans) > 1]


def _range(outcome: Outcome) -> dict[str, Any]:
    seconds = [plan.predicted.step_seconds for plan in outcome.plans]
    measured = outcome.run.step_seconds if outcome.run else None
    low, high = min(seconds), max(seconds)
    return {
        "id": outcome.id,
        "layouts": len(seconds),
        "fitting": sum(plan.predicted.fits for plan in outcome.plans),
        "layout": outcome.plan and outcome.plan.layout_string,
        "measured_step_seconds": measured,
        "predicted_step_seconds_low": low,
        "predicted_step_seconds_high": high,
        "inside": None if measured is None else low <= measured <= high,
    }
