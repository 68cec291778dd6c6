"""Step time and memory of a plan as stacked bars, each with a table of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final
from xml.etree import ElementTree as ET

from autoplan.report.pages.html import (
    colour_keys,
    drawn,
    drawn_cell,
    element,
    number_cell,
    table,
    text_cell,
)
from autoplan.report.render.terminal import spread
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS, TIME_COLOURS, TIME_NAMES
from autoplan.report.wording.sentences import number_words
from autoplan.units import format_seconds

#: Most pipeline stages with a bar.
MOST_BARS: Final = 32

#: Name, amount, colour, and what is shown on hover.
Part = tuple[str, float, str, str]


def time_bars(predicted: Mapping[str, Any]) -> list[str]:
    """Return the parts of a step as a bar and a table; ``predicted`` is that of a document."""
    step, parts = predicted["step_seconds"], predicted["time"]
    rows = [
        element("th", name)
        + number_cell(parts[field], format_seconds(parts[field]))
        + share_cell(parts[field] / step)
        for field, name in TIME_NAMES.items()
        if parts[field]
    ]
    heads = [("part", ""), ("time", "number"), ("of the step (%)", "number")]
    return [
        drawn(_time_stack(predicted, step)),
        colour_keys((TIME_NAMES[field], TIME_COLOURS[field]) for field in TIME_NAMES if parts[field]),
        table("parts of the step", heads, rows),
    ]


def time_stacks(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the steps of named plans as bars on one scale."""
    longest = max(predicted["step_seconds"] for _, predicted in plans)
    rows = [
        element("th", name)
        + drawn_cell(_time_stack(predicted, longest))
        + number_cell(predicted["step_seconds"], format_seconds(predicted["step_seconds"]))
        for name, predicted in plans
    ]
    used = [field for field in TIME_NAMES if any(predicted["time"][field] for _, predicted in plans)]
    heads = [("layout", ""), ("parts of the step", ""), ("step", "number")]
    keys = colour_keys((TIME_NAMES[field], TIME_COLOURS[field]) for field in used)
    return [keys, table("step time of the layouts", heads, rows)]


def _time_stack(predicted: Mapping[str, Any], longest: float) -> str:
    """Return the parts of a step as one bar, scaled to the ``longest`` step [s]."""
    seconds = predicted["time"]
    parts = [
        (field, seconds[field], TIME_COLOURS[field], f"{name} {format_seconds(seconds[field])}")
        for field, name in TIME_NAMES.items()
    ]
    return stacked_bar(parts, longest)


def memory_stacks(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the memory of named plans on the stage that holds most as bars on one scale."""
    limit = plans[0][1]["memory_limit_bytes"]
    fullest = [
        (name, max(predicted["memory"]["stages"], key=lambda x: x["total"])) for name, predicted in plans
    ]
    scale = max(limit, *(stage["total_high"] for _, stage in fullest))
    rows = [
        element("th", name)
        + drawn_cell(stacked_bar(_memory_parts(stage, MEMORY_PARTS), scale, limit))
        + number_cell(stage["total"], f"{stage['total'] / GIB:,.1f}")
        + share_cell(stage["total"] / limit)
        for name, stage in fullest
    ]
    heads = [("layout", ""), ("memory", ""), ("peak (GiB)", "number"), ("of limit (%)", "number")]
    present = [name for name in MEMORY_PARTS if any(stage[name] for _, stage in fullest)]
    keys = colour_keys((name, MEMORY_PARTS[name].colour) for name in present)
    return [keys, table("peak memory of the layouts", heads, rows)]


def _memory_parts(stage: Mapping[str, Any], names: Iterable[str]) -> list[Part]:
    return [
        (name, stage[name], MEMORY_PARTS[name].colour, f"{name} {stage[name] / GIB:,.2f} GiB")
        for name in names
    ]


def memory_bars(predicted: Mapping[str, Any]) -> list[str]:
    """Return the peak memory of each stage by category as bars in a table; the line is the limit."""
    stages, limit = predicted["memory"]["stages"], predicted["memory_limit_bytes"]
    scale = max(limit, *(stage["total_high"] for stage in stages))
    drawn = [stages[index] for index in spread(len(stages), MOST_BARS)]
    present = [name for name in MEMORY_PARTS if any(stage[name] for stage in stages)]
    heads = [
        ("stage", "number"),
        ("layers", "number"),
        ("memory", ""),
        *((name, "number") for name in present),
    ]
    heads += [
        ("peak (GiB)", "number"),
        ("up to (GiB)", "number"),
        ("of limit (%)", "number"),
        ("peak event", ""),
    ]
    rows = [_stage_row(stage, present, limit, scale) for stage in drawn]
    left_out = len(stages) - len(drawn)
    more = f"; {number_words(left_out, 'more stage')} in the JSON" if left_out else ""
    return [
        colour_keys((name, MEMORY_PARTS[name].colour) for name in present),
        table("peak memory by stage", heads, rows, "table dense"),
        element("p", f"GiB at the peak of a device of each stage; the line is the limit{more}", "quiet"),
    ]


def _stage_row(stage: Mapping[str, Any], present: Sequence[str], limit: float, scale: float) -> str:
    return "".join(
        [
            number_cell(stage["stage"], str(stage["stage"])),
            number_cell(stage["layers"], str(stage["layers"])),
            drawn_cell(stacked_bar(_memory_parts(stage, present), scale, limit)),
            *(
                number_cell(stage[name], f"{stage[name] / GIB:,.1f}")
                for name in (*present, "total", "total_high")
            ),
            share_cell(stage["total"] / limit),
            text_cell(stage["event"]),
        ]
    )


def share_cell(share: float) -> str:
    """Return a cell with a share of one in per cent."""
    return number_cell(share, f"{share * 100:.1f}")


def stacked_bar(parts: Iterable[Part], total: float, limit: float | None = None) -> str:
    """Return ``parts`` of ``total`` side by side; the numbers next to it say the same in words."""
    places = {"viewBox": "0 0 100 10", "preserveAspectRatio": "none", "aria-hidden": "true"}
    svg = ET.Element("svg", {"class": "stack", **places})
    reached = 0.0
    for name, amount, colour, words in parts:
        width = 100 * amount / total
        if width > 0:
            box = {
                "x": f"{reached:.3f}",
                "width": f"{width:.3f}",
                "height": "10",
                "fill": colour,
                "class": name,
            }
            ET.SubElement(ET.SubElement(svg, "rect", box), "title").text = words
        reached += width
    if limit is not None:
        x = f"{100 * limit / total:.3f}"
        ET.SubElement(svg, "line", {"class": "limit", "x1": x, "x2": x, "y1": "0", "y2": "10"})
    return ET.tostring(svg, encoding="unicode")


def share_bars(parts: Sequence[tuple[str, float]]) -> list[str]:
    """Return named seconds as one bar and a table of their shares; nothing without seconds."""
    total = sum(seconds for _, seconds in parts)
    if not total:
        return []
    colours = dict(zip((name for name, _ in parts), cycle(TIME_COLOURS.values()), strict=False))
    bar = stacked_bar(
        [
            (f"part-{n}", seconds, colours[name], f"{name} {format_seconds(seconds)}")
            for n, (name, seconds) in enumerate(parts)
        ],
        total,
    )
    rows = [
        element("th", name) + number_cell(seconds, format_seconds(seconds)) + share_cell(seconds / total)
        for name, seconds in parts
    ]
    heads = [("class", ""), ("time", "number"), ("of the step (%)", "number")]
    return [drawn(bar), colour_keys(colours.items()), table("what the step waits for", heads, rows)]
