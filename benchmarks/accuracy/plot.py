"""Predicted against measured step time as a picture that stands on its own (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.report.memory_svg import printable
from benchmarks.accuracy.outcomes import Outcome
from benchmarks.accuracy.scores import grouped, spread
from benchmarks.tables import percent

__all__ = ["accuracy_svg"]

#: One for each stack, visible on light and on dark. The first seven are told apart by people who see
#: colours differently (Okabe and Ito 2008); shapes take turns, too.
_COLOURS: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c"),
    *("#8a63d2", "#a0522d", "#a8b400", "#e0457b", "#1bb5b5"),
)
_SHAPES: Final = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
    "M-2.9 -2.9h5.8v5.8h-5.8z",
    "M0 -3.9l3.6 6.4h-7.2z",
    "M0 -4l4 4l-4 4l-4 -4z",
    "M-3.4 -1.2h2.2v-2.2h2.4v2.2h2.2v2.4h-2.2v2.2h-2.4v-2.2h-2.2z",
)

_STYLE: Final = """
.accuracy .page { fill: #ffffff }
.accuracy text { fill: #1f2328; font: 12px system-ui, sans-serif }
.accuracy .head { font-size: 15px; font-weight: 600 }
.accuracy .small { fill: #59636e; font-size: 11px }
.accuracy .middle { text-anchor: middle }
.accuracy .end { text-anchor: end }
.accuracy .grid { stroke: #d1d9e0; stroke-width: 1 }
.accuracy .equal { stroke: #59636e; stroke-width: 1.5 }
.accuracy .band { fill: #59636e; fill-opacity: 0.18 }
.accuracy .marks { fill-opacity: 0.7 }
@media (prefers-color-scheme: dark) {
  .accuracy .page { fill: #0d1117 }
  .accuracy text { fill: #e6edf3 }
  .accuracy .small { fill: #9198a1 }
  .accuracy .grid { stroke: #3d444d }
  .accuracy .equal { stroke: #9198a1 }
  .accuracy .band { fill: #9198a1 }
}
"""

_LEFT: Final = 64.0
_TOP: Final = 64.0
_SIDE: Final = 520.0
_WIDTH: Final = 960
_HEIGHT: Final = 640
_LEGEND_ROW: Final = 24.0
_BAND: Final = 0.1
#: Room beyond the outermost marks, in powers of ten.
_ROOM: Final = 0.1

#: Measured and predicted seconds of a row.
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Scale:
    """A square with both axes logarithmic, from 10 to the ``low`` to 10 to the ``high`` seconds."""

    low: float
    high: float

    @staticmethod
    def over(points: Sequence[Point]) -> _Scale:
        """Return the square that holds ``points``, with a little room."""
        seconds = [value for point in points for value in point] or [1.0]
        return _Scale(log10(min(seconds)) - _ROOM, log10(max(seconds)) + _ROOM)

    @property
    def ends(self) -> Point:
        """The seconds at which the axes begin and end."""
        return 10.0**self.low, 10.0**self.high

    def share(self, seconds: float) -> float:
        """Return where ``seconds`` lie between the ends, which are 0 and 1."""
        return (log10(seconds) - self.low) / (self.high - self.low)

    def at(self, point: Point) -> tuple[float, float]:
        """Return where ``point`` lies [px]."""
        return _LEFT + self.share(point[0]) * _SIDE, _TOP + (1.0 - self.share(point[1])) * _SIDE


def accuracy_svg(outcomes: Sequence[Outcome]) -> str:
    """Return the picture of the complete rows that have a measured step time, a colour for each stack."""
    shown = [x for x in outcomes if x.complete and x.error is not None]
    stacks = {stack: members for (stack,), members in grouped(shown, lambda x: (x.stack,)).items()}
    scale = _Scale.over([_point(x) for x in shown])
    svg = _canvas(len(shown))
    _axes(svg, scale)
    _equality(svg, scale)
    for number, (stack, members) in enumerate(stacks.items()):
        _marks(svg, number, stack, [scale.at(_point(x)) for x in members])
        _legend(svg, number, stack, [x.error or 0.0 for x in members])
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _point(outcome: Outcome) -> Point:
    measured = outcome.run.step_seconds if outcome.run else None
    predicted = outcome.predicted
    assert measured is not None  # noqa: S101 -- rows with an error have both
    assert predicted is not None  # noqa: S101
    return measured, predicted.step_seconds


def _canvas(count: int) -> ET.Element:
    size = {"width": str(_WIDTH), "height": str(_HEIGHT), "viewBox": f"0 0 {_WIDTH} {_HEIGHT}"}
    names = {"xmlns": "http://www.w3.org/2000/svg", "class": "accuracy", "role": "img"}
    svg = ET.Element("svg", {**names, **size})
    ET.SubElement(svg, "title").text = "predicted against measured step time"
    ET.SubElement(svg, "style").text = _STYLE
    defs = ET.SubElement(svg, "defs")
    for number, shape in enumerate(_SHAPES):
        ET.SubElement(defs, "path", {"id": f"mark{number}", "d": shape})
    ET.SubElement(svg, "rect", {"class": "page", "width": "100%", "height": "100%"})
    _text(svg, _LEFT, 28, f"Step time of {count} published runs, each at its own layout", "head")
    _text(
        svg, _LEFT, 48, "python -m benchmarks.accuracy --plot; on the line, the prediction is right", "small"
    )
    return svg


def _axes(svg: ET.Element, scale: _Scale) -> None:
    """Draw a line and a number at each power of ten, both ways."""
    least, most = scale.ends
    for power in range(ceil(scale.low), floor(scale.high) + 1):
        seconds = 10.0**power
        x, y = scale.at((seconds, seconds))
        _line(svg, scale.at((seconds, least)), scale.at((seconds, most)), "grid")
        _line(svg, scale.at((least, seconds)), scale.at((most, seconds)), "grid")
        _text(svg, x, _TOP + _SIDE + 18, f"{seconds:g} s", "small middle")
        _text(svg, _LEFT - 8, y + 4, f"{seconds:g} s", "small end")
    _text(svg, _LEFT + _SIDE / 2, _TOP + _SIDE + 40, "measured", "middle")
    turned = ET.SubElement(svg, "g", {"transform": f"translate(18 {_TOP + _SIDE / 2:g}) rotate(-90)"})
    _text(turned, 0, 0, "predicted", "middle")


def _equality(svg: ET.Element, scale: _Scale) -> None:
    """Draw the line of right predictions and the band around it, cut where the square ends."""
    least, most = scale.ends
    wide = 1.0 + _BAND
    corners = [
        (least, least),
        (least, least * wide),
        (most / wide, most),
        (most, most),
        (most, most * (1.0 - _BAND)),
        (least / (1.0 - _BAND), least),
    ]
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(scale.at, corners))
    ET.SubElement(svg, "polygon", {"class": "band", "points": places})
    _line(svg, scale.at((least, least)), scale.at((most, most)), "equal")
    x = _LEFT + _SIDE + 28
    ET.SubElement(
        svg, "rect", {"class": "band", "x": f"{x - 8:.1f}", "y": "64.0", "width": "16", "height": "12"}
    )
    _text(svg, x + 16, 74, f"off by up to {100 * _BAND:.0f} %")


def _marks(svg: ET.Element, number: int, stack: str, places: Sequence[tuple[float, float]]) -> None:
    colour = _COLOURS[number % len(_COLOURS)]
    marks = ET.SubElement(svg, "g", {"class": "marks", "fill": colour})
    ET.SubElement(marks, "title").text = printable(stack)
    for place in places:
        _mark(marks, number, place)


def _mark(parent: ET.Element, number: int, place: tuple[float, float]) -> None:
    shape = f"#mark{number % len(_SHAPES)}"
    ET.SubElement(parent, "use", {"href": shape, "x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}"})


def _legend(svg: ET.Element, number: int, stack: str, errors: Sequence[float]) -> None:
    x, y = _LEFT + _SIDE + 28, _TOP + 32 + number * _LEGEND_ROW
    entry = ET.SubElement(svg, "g", {"fill": _COLOURS[number % len(_COLOURS)]})
    _mark(entry, number, (x, y))
    words = f"{stack[:30]}: {len(errors)} runs, median {percent(spread(errors).median)}"
    _text(svg, x + 16, y + 4, words)


def _text(parent: ET.Element, x: float, y: float, text: str, kind: str = "") -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    ET.SubElement(parent, "text", {**place, **({"class": kind} if kind else {})}).text = printable(text)


def _line(parent: ET.Element, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
    names = zip(("x1", "y1", "x2", "y2"), (*start, *end), strict=True)
    ET.SubElement(parent, "line", {"class": kind, **{name: f"{value:.1f}" for name, value in names}})
