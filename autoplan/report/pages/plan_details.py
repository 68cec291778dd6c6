"""One plan on a page: verdict, limits, parts of the step, memory, timeline, roofline, ranks and links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree as ET

from autoplan.costs.core.prediction import AxisTraffic, LayerProducts, MeshExtent, RankPlacement, StepTimeline
from autoplan.report.pages.page_frame import element, layout_line, number_cell, region, table, text_cell
from autoplan.report.pages.page_sections import limits_table
from autoplan.report.pages.pictures.roofline_picture import layer_roofline
from autoplan.report.pages.pictures.stacked_bars import memory_bars, time_bars
from autoplan.report.pages.pictures.timeline_picture import timeline_picture
from autoplan.report.render.svg import add_text, canvas, printable, written
from autoplan.report.wording.sentences import fits_sentence, number_words
from autoplan.results.plan import Plan
from autoplan.units import format_bytes, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class StepPictures:
    """What the pictures of a plan show: its step, or why that is not drawn; its products, and its ranks."""

    timeline: StepTimeline | str
    products: LayerProducts
    placement: RankPlacement


#: Returns what the pictures of a plan show.
PicturesOf = Callable[[Plan], StepPictures]


def plan_details(
    plan: Plan, limits: dict[str, Any], predicted: dict[str, Any], pictures_of: PicturesOf
) -> list[str]:
    """Return the elements of ``plan``; ``limits`` and ``predicted`` are those of its document."""
    low, high = format_seconds(predicted["step_seconds_low"]), format_seconds(predicted["step_seconds_high"])
    step = format_seconds(predicted["step_seconds"])
    pictures = pictures_of(plan)
    timeline = pictures.timeline
    drawn = [element("p", timeline, "quiet")] if isinstance(timeline, str) else timeline_picture(timeline)
    return [
        layout_line(plan.layout_string),
        element("p", fits_sentence(plan.predicted), "yes" if plan.predicted.fits else "no"),
        element("h3", "Predicted against limits"),
        limits_table(limits, predicted),
        element("h3", f"Step time: {step}, 90 % interval {low} to {high}"),
        *time_bars(predicted),
        element("h3", "Peak memory by stage"),
        *memory_bars(predicted),
        element("h3", "Timeline of the step"),
        *drawn,
        element("h3", "Matrix products and attention on the roofline"),
        *layer_roofline(pictures.products),
        element("h3", "Ranks and links"),
        *placement_picture(pictures.placement),
    ]


#: Most nodes that are drawn, and most rows of traffic.
MOST_NODES: Final = 4
_MOST_ROWS: Final = 64
_ACROSS: Final = 8
_CELL: Final = (92, 44)
_MARGIN: Final = 12
_HEAD: Final = 26
_GAP: Final = 18

#: Colours of stages, light enough for black text (Tol 2021, "light"), one after another.
STAGE_COLOURS: Final = (
    "#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#bbcc33", "#99bbff", "#aaaa00",
)  # fmt: skip

_LIGHT: Final = """
.NAME .node { fill: none; stroke: #59636e }
.NAME .inside { fill: #000000 }
.NAME .inside.small { fill: #000000 }
"""
_DARK: Final = ".NAME .node { stroke: #9198a1 }\n.NAME .inside, .NAME .inside.small { fill: #000000 }"


def placement_picture(placement: RankPlacement) -> list[str]:
    """Return the ranks on their nodes as a picture, and the traffic of links as a table."""
    used = [x for x in placement.axes if x.degree > 1]
    drawn = min(placement.nodes, MOST_NODES)
    left_out = placement.nodes - drawn
    more = f"; {number_words(left_out, 'more node')} continue the pattern" if left_out else ""
    strides = "; ".join(f"{x.axis} {x.degree}: every {_ordinal(x.stride)}" for x in used)
    text = (
        f"a box is a device, its colour the stage; neighbours on an axis by rank: {strides or 'none'}{more}"
    )
    return [
        element("p", text, "quiet"),
        region("ranks on nodes", _picture(placement, used, drawn), "picture placed"),
        *_traffic(placement),
    ]


def _ordinal(stride: int) -> str:
    return "rank" if stride == 1 else f"{stride}{'nd' if stride == 2 else 'rd' if stride == 3 else 'th'} rank"


def _picture(placement: RankPlacement, axes: Sequence[MeshExtent], nodes: int) -> str:
    per_node = placement.devices_per_node
    columns = min(per_node, _ACROSS)
    lines = -(-per_node // columns)
    width = 2 * _MARGIN + columns * _CELL[0] + 2 * _MARGIN
    height = _HEAD + lines * _CELL[1] + _MARGIN
    svg = canvas("placement", "ranks on nodes", (width, nodes * (height + _GAP)), light=_LIGHT, dark=_DARK)
    svg.set("role", "group")
    svg.set("aria-label", "ranks on nodes")
    for node in range(nodes):
        top = node * (height + _GAP) + 2
        box = {"x": f"{_MARGIN}", "y": f"{top}", "width": f"{width - 2 * _MARGIN}", "height": f"{height}"}
        ET.SubElement(svg, "rect", {**box, "class": "node", "rx": "6"})
        add_text(svg, (2 * _MARGIN, top + 18), f"node {node}", "small")
        first = node * per_node
        for rank in range(first, min(first + per_node, placement.devices)):
            row, column = divmod(rank - first, columns)
            at = (2 * _MARGIN + column * _CELL[0], top + _HEAD + row * _CELL[1])
            _device(svg, at, rank, node, axes)
    return written(svg)


def _device(
    svg: ET.Element, at: tuple[float, float], rank: int, node: int, axes: Sequence[MeshExtent]
) -> None:
    coordinates = {x.axis: x.coordinate(rank) for x in axes}
    words = ", ".join(f"{axis} {place}" for axis, place in coordinates.items())
    group = ET.SubElement(
        svg,
        "g",
        {"role": "img", "aria-label": printable(f"rank {rank} on node {node}{': ' if words else ''}{words}")},
    )
    box = {
        "x": f"{at[0]:.0f}",
        "y": f"{at[1]:.0f}",
        "width": f"{_CELL[0] - 6}",
        "height": f"{_CELL[1] - 6}",
        "rx": "3",
        "fill": STAGE_COLOURS[coordinates.get("pp", 0) % len(STAGE_COLOURS)],
    }
    ET.SubElement(group, "rect", box)
    add_text(group, (at[0] + 6, at[1] + 15), f"rank {rank}", "inside")
    short = " ".join(f"{axis[0]}{place}" for axis, place in coordinates.items())
    add_text(group, (at[0] + 6, at[1] + 31), short, "inside small")


def _traffic(placement: RankPlacement) -> list[str]:
    """Return what a device of each stage sends in a step, by axis and link."""
    rows = placement.traffic[:_MOST_ROWS]
    if not rows:
        return [element("p", "no link carries anything in a step", "quiet")]
    heads = [("stage", "number"), ("axis", ""), ("ranks", "number"), ("stride", "number")]
    heads += [("over the fabric", "number"), ("over the network", "number")]
    left_out = len(placement.traffic) - len(rows)
    more = f"; {number_words(left_out, 'more row')} left out" if left_out else ""
    fabric = format_rate(placement.fabric_bandwidth, "B/s")
    rates = f"the fabric reaches {fabric} one way"
    if placement.nodes > 1:
        rates += f", the network {format_rate(placement.network_bandwidth, 'B/s')}"
    return [
        table("bytes that a device sends in a step", heads, map(_row, rows)),
        element(
            "p",
            f"bytes that a device sends in a step, hidden or not; {rates}{more}",
            "quiet",
        ),
    ]


def _row(x: AxisTraffic) -> str:
    return (
        number_cell(x.stage, str(x.stage))
        + text_cell(x.axis)
        + number_cell(x.ranks, str(x.ranks))
        + number_cell(x.stride, str(x.stride))
        + number_cell(x.fabric_bytes, format_bytes(x.fabric_bytes))
        + number_cell(x.network_bytes, format_bytes(x.network_bytes))
    )
