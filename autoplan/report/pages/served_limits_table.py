"""What a serving plan is predicted to reach, next to the limits of its job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from autoplan.report.pages.page_frame import element, number_cell, table, text_cell
from autoplan.schema.serving.serving_limits import Percentiles, ServingLimits
from autoplan.units import format_bytes, format_seconds, format_share

__all__ = ["served_limits_table"]

_TIMES: Final = {
    "time_to_first_token": "time to the first token",
    "time_per_output_token": "time for each output token",
    "request_latency": "latency of a request",
}
#: Limits on numbers other than times: name, field of the prediction, whether it is the least.
_OTHERS: Final = (
    ("throughput", "output tokens a second", "output_tokens_per_second", True),
    ("devices", "devices", "devices", False),
    ("peak_memory", "peak memory of a device", "peak_memory_bytes_per_device", False),
    ("cost", "cost of a million output tokens", "cost_per_million_output_tokens", False),
)

#: A limit: its name, what is predicted, what is allowed, and whether that is the least.
_Row = tuple[str, float | None, float, bool]


def served_limits_table(limits: ServingLimits, predicted: Mapping[str, Any], of: str = "") -> list[str]:
    """Return the limits of a job with the numbers of a document; nothing where it has no limit.

    ``of`` tells the table from others on the page.
    """
    rows = [*_times(limits, predicted), *_numbers(limits, predicted)]
    if not rows:
        return []
    heads = [("limit", ""), ("predicted", "number"), ("allowed", "number"), ("within", "")]
    return [table(f"predicted against limits{of}", heads, map(_cells, rows))]


def _times(limits: ServingLimits, predicted: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield limits on means, by the closed form, and on percentiles, by a simulation."""
    simulated = predicted["percentiles"] or {}
    for key, name in _TIMES.items():
        limit, field = getattr(limits, key), f"{key}_seconds"
        if isinstance(limit, Percentiles):
            if limit.mean is not None:
                yield f"{name}, mean", predicted[field], limit.mean, False
            for percentile in ("p50", "p90", "p99"):
                most = getattr(limit, percentile)
                if most is not None:
                    value = (simulated.get(field) or {}).get(percentile)
                    yield f"{name}, {percentile} of a simulation", value, most, False
        elif limit is not None:
            yield f"{name}, mean", predicted[field], limit, False
    if limits.goodput is not None:
        yield "goodput of a simulation", simulated.get("goodput"), limits.goodput, True


def _numbers(limits: ServingLimits, predicted: Mapping[str, Any]) -> Iterator[_Row]:
    for key, name, field, least in _OTHERS:
        limit = getattr(limits, key)
        if limit is not None:
            yield name, predicted[field], float(limit), least


def _cells(row: _Row) -> str:
    name, value, limit, least = row
    inside = "not known"
    if value is not None:
        inside = "yes" if (value >= limit if least else value <= limit) else "no"
    return (
        element("th", name)
        + number_cell(value, "-" if value is None else _words(name, value))
        + number_cell(limit, f"at {'least' if least else 'most'} {_words(name, limit)}")
        + text_cell(inside, inside if inside in {"yes", "no"} else "quiet")
    )


def _words(name: str, value: float) -> str:
    if name.startswith(("time", "latency")):
        return format_seconds(value)
    if name.startswith("goodput"):
        return format_share(value)
    return format_bytes(value) if "memory" in name else f"{value:,.6g}"
