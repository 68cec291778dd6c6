"""What pictures of answers draw: intervals on the axis of time, roofs around points, one colour a thing."""

from __future__ import annotations

import re
from collections import defaultdict
from xml.etree import ElementTree as ET

import pytest

from autoplan.report.charts.chart_data import PIECE_KINDS
from autoplan.report.pages.page_sections import STAGE_COLOURS
from autoplan.report.pages.pictures.roofline_picture import RooflinePoint, roofline_picture
from autoplan.report.pages.pictures.scatter_picture import ScatterAxis, ScatterPoint, scatter_picture
from autoplan.report.wording.part_names import MEMORY_PARTS, SERVED_MEMORY, TIME_COLOURS

#: What is one thing under two names.
SAME = {"bubble": "idle", "overhead": "offload"}
SERVED = {
    "weights": "parameters",
    "activation": "activations",
    "overhead": "framework",
    "reserve": "transient",
}


def drawn(html: str) -> ET.Element:
    """Return the picture in ``html``."""
    return ET.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])  # noqa: S314 - our own picture


def marks(svg: ET.Element, kind: str, name: str) -> list[ET.Element]:
    """Return the elements of ``svg`` of a kind that have the class ``name``."""
    return [x for x in svg.iter() if x.tag.endswith(kind) and name in x.get("class", "").split()]


def test_an_interval_is_drawn_to_the_scale_of_its_axis():
    """A point in the middle of its interval lies in the middle of the line; one without has none."""
    points = [
        ScatterPoint(10.0, 1.0, "#a", "a", interval=(8.0, 12.0)),
        ScatterPoint(20.0, 2.0, "#b", "b", interval=(15.0, 30.0)),
        ScatterPoint(25.0, 3.0, "#c", "c"),
    ]
    axes = ScatterAxis("time", "data-x", str), ScatterAxis("size", "data-y", str, from_zero=True)
    svg = drawn(scatter_picture("front", "a front", axes, points))
    lines = [(float(x.get("x1")), float(x.get("x2"))) for x in marks(svg, "line", "interval")]
    places = [float(x.get("cx")) for x in svg.iter() if x.tag.endswith("circle")]

    assert len(lines) == 2
    assert sum(lines[0]) / 2 == pytest.approx(places[0], abs=0.1)
    scale = (places[1] - places[0]) / 10.0
    assert [(high - low) / scale for low, high in lines] == pytest.approx([4.0, 15.0], abs=0.05)


@pytest.mark.parametrize("intensities", [(1900.0, 2100.0), (3.0, 900.0), (0.02, 40_000.0)])
def test_the_roofline_is_zoomed_to_its_points(intensities):
    """The axes hold all points and the ridge, and end within a factor of five of them."""
    ridge = 200.0
    points = [RooflinePoint(x, min(x * 1e12, 2e14) / 3, "#000000", "words") for x in intensities]
    svg = drawn(roofline_picture(2e14, 1e12, points))
    ticks = [x.text for x in marks(svg, "text", "middle")]
    ends = [float(text.replace(",", "")) for text in (ticks[0], ticks[-1])]
    low, high = min(ridge, *intensities), max(ridge, *intensities)
    few = high / low < 500
    assert low / (5 if few else 15) < ends[0] <= low * (1 if few else 10)
    assert high / (1 if few else 10) <= ends[1] < high * 5


def test_a_colour_means_one_thing():
    """On all pages: parts of a step, kinds of passes, memory of training and serving, and stages."""
    things: dict[str, set[str]] = defaultdict(set)
    tables = (
        TIME_COLOURS,
        {name: looks.colour for name, looks in PIECE_KINDS.items()},
        {f"{name} memory": part.colour for name, part in MEMORY_PARTS.items()},
        {f"{SERVED.get(name, name)} memory": colour for name, (_, colour) in SERVED_MEMORY.items()},
        {f"stage {i}": colour for i, colour in enumerate(STAGE_COLOURS)},
    )
    for table in tables:
        for name, colour in table.items():
            things[colour].add(SAME.get(name, name))
    assert [names for names in things.values() if len(names) > 1] == []
