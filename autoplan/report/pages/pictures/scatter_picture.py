"""Answers as points of two numbers, each a link to its row.

Labels next to the points of a picture, where there is room for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.report.charts.chart_data import Axis, round_values
from autoplan.report.pages.html import readout, region
from autoplan.report.render.svg import Place, add_line, add_text, canvas, printable, written

_SIZE: Final = (760, 400)
_LEFT: Final = 70
_RIGHT: Final = 740
_TOP: Final = 36
_BOTTOM: Final = 350
_TICKS: Final = 7

_LIGHT: Final = """
.NAME .limit { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 6 4 }
.NAME circle { fill: #6e7781; stroke: #ffffff; stroke-width: 1 }
.NAME .interval { stroke: #6e7781; stroke-width: 2; stroke-opacity: 0.3 }
.NAME .chosen circle { fill: #0969da }
.NAME .chosen .interval { stroke: #0969da; stroke-opacity: 0.8 }
.NAME .label { fill: #1f2328 }
.NAME a:hover circle, .NAME a:focus circle { r: 8px; fill: #0969da }
.NAME a:hover .interval, .NAME a:focus .interval { stroke: #0969da; stroke-opacity: 0.8 }
"""

_DARK: Final = """
.NAME .limit { stroke: #ff7b72 }
.NAME circle { fill: #9198a1; stroke: #0d1117 }
.NAME .interval { stroke: #9198a1 }
.NAME .chosen circle { fill: #58a6ff }
.NAME .chosen .interval { stroke: #58a6ff }
.NAME .label { fill: #e6edf3 }
"""


@dataclass(frozen=True, slots=True)
class ScatterAxis:
    """What an axis says: its title, how a value reads, and its unit as a number of base units.

    ``attribute`` of a point has its value. ``from_zero`` begins the axis at zero, ``limit`` draws a line
    across it, with its words.
    """

    title: str
    attribute: str
    words: Callable[[float], str]
    unit: float = 1.0
    from_zero: bool = False
    limit: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class ScatterPoint:
    """A point: its values, the fragment that it leads to, and what it says.

    ``label`` is written next to it where there is room. ``interval`` is where the measured value of ``x`` is
    expected, drawn across the point.
    """

    x: float
    y: float
    link: str
    words: str
    chosen: bool = False
    label: str = ""
    interval: tuple[float, float] | None = None


def with_ends_labelled(points: Sequence[ScatterPoint], left: str, right: str) -> list[ScatterPoint]:
    """Return ``points`` with labels at the two ends of a front: its leftmost and its rightmost point."""
    if len(points) < 2:
        return list(points)
    ends = min(points, key=lambda point: point.x), max(points, key=lambda point: point.x)
    labels = dict(zip((ends[0].link, ends[1].link), (left, right), strict=True))
    return [replace(point, label=labels.get(point.link, "")) for point in points]


def scatter_picture(
    name: str, title: str, axes: tuple[ScatterAxis, ScatterAxis], points: Sequence[ScatterPoint]
) -> str:
    """Return ``points`` as HTML, a picture of the class ``name`` with a line that reads them out."""
    x = _scale(axes[0], [x for point in points for x in (point.x, *(point.interval or ()))], _LEFT, _RIGHT)
    y = _scale(axes[1], [point.y for point in points], _BOTTOM, _TOP)
    svg = canvas(name, title, _SIZE, light=_LIGHT, dark=_DARK)
    # The links are reached one by one, which a picture that is read as one image would hide.
    svg.set("role", "group")
    svg.set("aria-label", printable(title))
    _axes(svg, axes, (x, y))
    for point in points:
        _point(svg, axes, (x, y), point)
    places = [(x.at(point.x), y.at(point.y)) for point in points]
    labels = [PointLabel(at, point.label) for point, at in zip(points, places, strict=True) if point.label]
    top = _TOP if axes[1].limit is None else max(_TOP, y.at(axes[1].limit[0]) + 2)
    add_labels(svg, labels, places, (_LEFT, top, _RIGHT + 16, _BOTTOM))
    return "\n".join(
        [region(title, written(svg), "picture drawn"), readout("point at a plan, or move the focus to it")]
    )


def _scale(axis: ScatterAxis, values: Sequence[float], start: float, end: float) -> Axis:
    most = max(values)
    if axis.from_zero:
        highest = max(most, axis.limit[0] if axis.limit else 0.0)
        return Axis(0.0, 1.05 * highest or 1.0, start, end)
    room = 0.05 * (most - min(values)) or 0.1 * abs(most) or 1.0
    return Axis(min(values) - room, most + room, start, end)


def _axes(svg: ET.Element, axes: tuple[ScatterAxis, ScatterAxis], scales: tuple[Axis, Axis]) -> None:
    (across, up), (x, y) = axes, scales
    for value in round_values(x.low / across.unit, x.high / across.unit, _TICKS):
        place = x.at(value * across.unit)
        add_line(svg, (place, _TOP), (place, _BOTTOM), "grid")
        add_text(svg, (place, _BOTTOM + 18), across.words(value * across.unit), "small middle")
    for value in round_values(y.low / up.unit, y.high / up.unit, _TICKS):
        place = y.at(value * up.unit)
        add_line(svg, (_LEFT, place), (_RIGHT, place), "grid")
        add_text(svg, (_LEFT - 8, place + 4), up.words(value * up.unit), "small end")
    add_text(svg, (_RIGHT, _BOTTOM + 38), across.title, "small end")
    add_text(svg, (10, 18), up.title, "small")
    if up.limit is not None:
        value, words = up.limit
        add_line(svg, (_LEFT, y.at(value)), (_RIGHT, y.at(value)), "limit")
        add_text(svg, (_RIGHT, y.at(value) - 6), words, "small end")


def _point(
    svg: ET.Element, axes: tuple[ScatterAxis, ScatterAxis], scales: tuple[Axis, Axis], point: ScatterPoint
) -> None:
    """Draw a point as a link; its name says what its row says first."""
    (across, up), (x, y) = axes, scales
    link = ET.SubElement(
        svg,
        "a",
        {
            "class": "point chosen" if point.chosen else "point",
            "href": point.link,
            "aria-label": printable(point.words),
            across.attribute: json.dumps(point.x),
            up.attribute: json.dumps(point.y),
        },
    )
    ET.SubElement(link, "title").text = printable(point.words)
    if point.interval is not None:
        low, high = point.interval
        add_line(link, (x.at(low), y.at(point.y)), (x.at(high), y.at(point.y)), "interval")
    place = {"cx": f"{x.at(point.x):.2f}", "cy": f"{y.at(point.y):.2f}"}
    ET.SubElement(link, "circle", {**place, "r": "6"})


#: Room that a character and a line of a label take at most [px].
_CHARACTER: Final = 6.4
_LINE: Final = 13.0
#: Distance of a label from the middle of its point [px].
_GAP: Final = 10.0

#: Left, top, right and bottom [px].
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class PointLabel:
    """What is written next to a point, and where the point lies."""

    at: Place
    text: str


def add_labels(svg: ET.Element, labels: Sequence[PointLabel], points: Sequence[Place], frame: Box) -> None:
    """Write ``labels`` in order, each beside, above or below its point; one without room is left out.

    None covers one of the ``points`` or another label, or leaves ``frame``.
    """
    taken = [(x - _GAP + 3, y - _GAP + 3, x + _GAP - 3, y + _GAP - 3) for x, y in points]
    for label in labels:
        for box, start, anchor in _candidates(label):
            if _inside(box, frame) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                add_text(svg, start, label.text, f"small label {anchor}")
                break


def _candidates(label: PointLabel) -> Iterator[tuple[Box, Place, str]]:
    """Yield the places of a label: its box, where its baseline begins, and its anchor."""
    (x, y), width = label.at, _CHARACTER * len(label.text)
    for down in (0.0, -_LINE, _LINE):
        top = y + down - _LINE / 2
        baseline = top + _LINE - 3
        yield (x + _GAP, top, x + _GAP + width, top + _LINE), (x + _GAP, baseline), "start"
        yield (x - _GAP - width, top, x - _GAP, top + _LINE), (x - _GAP, baseline), "end"
    above, below = -_GAP - _LINE / 2, _GAP + _LINE / 2
    for down in (above, below, below + _LINE, below + 2 * _LINE):
        top = y + down - _LINE / 2
        yield (x - width / 2, top, x + width / 2, top + _LINE), (x, top + _LINE - 3), "middle"


def _inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
