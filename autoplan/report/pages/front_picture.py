"""The plans of a front as points of step time and memory, each a link to its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET

from autoplan.report.charts.axis import Axis, round_values
from autoplan.report.pages.page_frame import region
from autoplan.report.render.svg import add_line, add_text, canvas, printable, written
from autoplan.report.wording.part_names import GIB
from autoplan.units import format_bytes, format_seconds

__all__ = ["front_picture"]

_SIZE: Final = (760, 400)
_LEFT: Final = 70
_RIGHT: Final = 740
_TOP: Final = 36
_BOTTOM: Final = 350
_TICKS: Final = 7

_LIGHT: Final = """
.NAME .limit { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 6 4 }
.NAME circle { fill: #0072b2; stroke: #ffffff; stroke-width: 1 }
.NAME .chosen circle { fill: #d55e00 }
.NAME a:hover circle, .NAME a:focus circle { r: 8px; fill: #d55e00 }
"""

_DARK: Final = """
.NAME .limit { stroke: #ff7b72 }
.NAME circle { fill: #56b4e9; stroke: #0d1117 }
"""


def front_picture(plans: Mapping[int, Mapping[str, Any]], chosen: int) -> str:
    """Return the picture of ``plans`` as HTML, with plan number ``chosen`` marked.

    ``plans`` are by number, as ``front_document`` has them.
    """
    predicted = [plan["predicted"] for plan in plans.values()]
    steps = [p["step_seconds"] for p in predicted]
    room = 0.05 * (max(steps) - min(steps)) or 0.1 * steps[0]
    x = Axis(min(steps) - room, max(steps) + room, _LEFT, _RIGHT)
    limit = predicted[0]["memory_limit_bytes"]
    highest = max(limit, *(p["peak_memory_bytes_per_device"] for p in predicted))
    y = Axis(0.0, 1.05 * highest, _BOTTOM, _TOP)
    title = "plans of the front: step time and memory"
    svg = canvas("front", title, _SIZE, light=_LIGHT, dark=_DARK)
    # The links are reached one by one, which a picture that is read as a whole would hide.
    svg.set("role", "group")
    svg.set("aria-label", title)
    _axes(svg, x, y)
    add_line(svg, (_LEFT, y.at(limit)), (_RIGHT, y.at(limit)), "limit")
    add_text(svg, (_RIGHT, y.at(limit) - 6), f"limit {format_bytes(limit)}", "small end")
    for number, plan in plans.items():
        _point(svg, (x, y), number, plan, chosen=number == chosen)
    return region("the front", written(svg), "picture drawn")


def _axes(svg: ET.Element, x: Axis, y: Axis) -> None:
    for seconds in round_values(x.low, x.high, _TICKS):
        add_line(svg, (x.at(seconds), _TOP), (x.at(seconds), _BOTTOM), "grid")
        add_text(svg, (x.at(seconds), _BOTTOM + 18), format_seconds(seconds), "small middle")
    for size in round_values(0.0, y.high / GIB, _TICKS):
        add_line(svg, (_LEFT, y.at(size * GIB)), (_RIGHT, y.at(size * GIB)), "grid")
        add_text(svg, (_LEFT - 8, y.at(size * GIB) + 4), f"{size:g}", "small end")
    add_text(svg, (_RIGHT, _BOTTOM + 38), "step time", "small end")
    add_text(svg, (10, 18), "peak memory of a device (GiB)", "small")


def _point(
    svg: ET.Element, axes: tuple[Axis, Axis], number: int, plan: Mapping[str, Any], *, chosen: bool
) -> None:
    """Draw a plan as a link to its row; its name says what the row says first."""
    predicted, (x, y) = plan["predicted"], axes
    seconds, size = predicted["step_seconds"], predicted["peak_memory_bytes_per_device"]
    low, high = (format_seconds(predicted[f"step_seconds_{end}"]) for end in ("low", "high"))
    words = (
        f"plan {number}: {format_seconds(seconds)} a step (90 % interval {low} to {high}),"
        f" {format_bytes(size)} per device, {plan['layout_string']}"
    )
    link = ET.SubElement(
        svg,
        "a",
        {
            "class": "point chosen" if chosen else "point",
            "href": f"#plan-{number}",
            "aria-label": printable(words),
            "data-step-seconds": json.dumps(seconds),
            "data-memory-bytes": json.dumps(size),
        },
    )
    ET.SubElement(link, "title").text = printable(words)
    place = {"cx": f"{x.at(seconds):.2f}", "cy": f"{y.at(size):.2f}"}
    ET.SubElement(link, "circle", {**place, "r": "6"})
