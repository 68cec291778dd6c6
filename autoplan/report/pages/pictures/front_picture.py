"""The plans of a front as points of step time and memory, each a link to its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoplan.report.pages.pictures.scatter_picture import (
    ScatterAxis,
    ScatterPoint,
    scatter_picture,
    with_ends_labelled,
)
from autoplan.report.wording.part_names import GIB
from autoplan.units import format_bytes, format_seconds

__all__ = ["front_picture"]


def front_picture(plans: Mapping[int, Mapping[str, Any]], chosen: int) -> str:
    """Return the picture of ``plans`` as HTML, with plan number ``chosen`` marked.

    ``plans`` are by number, as ``front_document`` has them.
    """
    limit = next(iter(plans.values()))["predicted"]["memory_limit_bytes"]
    across = ScatterAxis("step time", "data-step-seconds", format_seconds)
    up = ScatterAxis(
        "peak memory of a device (GiB)",
        "data-memory-bytes",
        lambda size: f"{size / GIB:g}",
        unit=GIB,
        from_zero=True,
        limit=(limit, f"limit {format_bytes(limit)}"),
    )
    points = [_point(number, plan, chosen=number == chosen) for number, plan in plans.items()]
    points = with_ends_labelled(points, "fastest", "least memory")
    return scatter_picture("front", "plans of the front: step time and memory", (across, up), points)


def _point(number: int, plan: Mapping[str, Any], *, chosen: bool) -> ScatterPoint:
    predicted = plan["predicted"]
    seconds, size = predicted["step_seconds"], predicted["peak_memory_bytes_per_device"]
    interval = predicted["step_seconds_low"], predicted["step_seconds_high"]
    low, high = map(format_seconds, interval)
    words = (
        f"plan {number}: {format_seconds(seconds)} a step (90 % interval {low} to {high}),"
        f" {format_bytes(size)} per device, {plan['layout_string']}"
    )
    return ScatterPoint(seconds, size, f"#plan-{number}", words, chosen=chosen, interval=interval)
