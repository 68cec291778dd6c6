"""The guide to a model on hardware as a page."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from autoplan.answers.guide.blocks import guide_blocks, guide_document
from autoplan.answers.guide.value import ScalingLine, TrainingGuide
from autoplan.report.charts.chart_data import Axis, round_values
from autoplan.report.pages.html import colour_keys, element, html_of, page, readout, region
from autoplan.report.pages.page_sections import (
    PageRequest,
    closing_sections,
    headings,
    prediction_details,
    rejected_section,
)
from autoplan.report.render.blocks import below_heading
from autoplan.report.render.svg import Place, add_line, add_text, canvas, written
from autoplan.report.render.terminal import WIDE
from autoplan.units import format_seconds


def guide_page(guide: TrainingGuide, request: PageRequest) -> str:
    """Return the guide as a self-contained page."""
    job, best = guide.job, guide.best
    parts = guide_blocks(guide, WIDE)
    # The title and its conditions are those of the page.
    body = [
        *headings(job, guide.front.facts),
        element("h2", "The answer"),
        *html_of(below_heading(parts)),
        *(x for line in guide.scaling for x in scaling_picture(line)),
    ]
    if best is not None:
        body += [element("h2", "The best layout"), *prediction_details(job, best, request)]
    body += [
        *rejected_section(guide.front),
        *closing_sections(job, request, "the guide as JSON", guide_document(guide)),
    ]
    return page(f"{job.name}: a guide", body)


_SIZE: Final = (760, 320)
_LEFT: Final = 56
_RIGHT: Final = 740
_TOP: Final = 20
_BOTTOM: Final = 270
_COLOURS: Final = {"predicted": "#0072b2", "law": "#e69f00"}
_LAWS: Final = {"strong": "Amdahl's law", "weak": "Gustafson's law"}

_LIGHT: Final = ".NAME polyline { fill: none; stroke-width: 2 }"


def scaling_picture(line: ScalingLine) -> list[str]:
    """Return the speedups of ``line`` as HTML; nothing where fewer than two numbers of devices have one."""
    points = [point for point in line.points if point.speedup is not None]
    if len(points) < 2:
        return []
    x = Axis(0.0, float(len(points) - 1), _LEFT + 20, _RIGHT - 20)
    most = max(max(point.speedup or 0.0, point.line or 0.0) for point in points)
    y = Axis(0.0, 1.05 * most, _BOTTOM, _TOP)
    title = f"speedup with more devices, {line.kind} scaling"
    svg = canvas(f"scaling-{line.kind}", title, _SIZE, light=_LIGHT)
    svg.set("role", "group")
    svg.set("aria-label", title)
    for value in round_values(0.0, y.high, 6):
        add_line(svg, (_LEFT, y.at(value)), (_RIGHT, y.at(value)), "grid")
        add_text(svg, (_LEFT - 8, y.at(value) + 4), f"{value:g}", "small end")
    for n, point in enumerate(points):
        add_text(svg, (x.at(n), _BOTTOM + 18), str(point.devices), "small middle")
    add_text(svg, (_RIGHT, _BOTTOM + 38), "devices", "small end")
    law = [(x.at(n), y.at(point.line)) for n, point in enumerate(points) if point.line is not None]
    predicted = [(x.at(n), y.at(point.speedup or 0.0)) for n, point in enumerate(points)]
    _polyline(svg, law, _COLOURS["law"], dashed=True)
    _polyline(svg, predicted, _COLOURS["predicted"], dashed=False)
    for place, point in zip(predicted, points, strict=True):
        words = f"{point.devices} devices: {point.speedup or 0.0:.2f} times as fast"
        if point.line is not None:
            words += f", {point.line:.2f} by the law"
        if point.plan is not None:
            words += f", {format_seconds(point.plan.predicted.step_seconds)} a step"
        _mark(svg, place, words)
    keys = [("predicted", _COLOURS["predicted"]), (_LAWS[line.kind], _COLOURS["law"])]
    return [
        element("h2", title.capitalize()),
        colour_keys(keys),
        region(title, written(svg), "picture drawn"),
        readout("point at a number of devices"),
    ]


def _polyline(svg: ET.Element, places: list[Place], colour: str, *, dashed: bool) -> None:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = ET.SubElement(svg, "polyline", {"points": points, "stroke": colour})
    if dashed:
        line.set("stroke-dasharray", "6 4")


def _mark(svg: ET.Element, place: Place, words: str) -> None:
    mark = ET.SubElement(svg, "g", {"role": "img", "aria-label": words})
    ET.SubElement(mark, "title").text = words
    at = {"cx": f"{place[0]:.1f}", "cy": f"{place[1]:.1f}", "r": "5", "fill": _COLOURS["predicted"]}
    ET.SubElement(mark, "circle", at)
