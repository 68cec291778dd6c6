"""Predicted against measured step time as a picture that stands on its own (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.report.render.svg import Place, add_line, add_text, canvas, printable, written
from benchmarks.accuracy.outcomes import Outcome
from benchmarks.accuracy.scores import grouped, spread
from benchmarks.scatter import COLOURS, MARKS, LogAxis, add_mark, add_shapes
from benchmarks.tables import percent

__all__ = ["accuracy_svg"]

_LIGHT: Final = f"""{MARKS}
.NAME .equal {{ stroke: #59636e; stroke-width: 1.5 }}
.NAME .band {{ fill: #59636e; fill-opacity: 0.18 }}
"""

_DARK: Final = """
.NAME .equal { stroke: #9198a1 }
.NAME .band { fill: #9198a1 }
"""

_LEFT: Final = 64.0
_TOP: Final = 64.0
_SIDE: Final = 520.0
_WIDTH: Final = 960
_HEIGHT: Final = 640
_LEGEND_ROW: Final = 24.0
_BAND: Final = 0.1

#: Measured and predicted seconds of a row.
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Scale:
    """A square whose sides are both the same axis, of seconds."""

    axis: LogAxis

    def at(self, point: Point) -> Place:
        """Return where ``point`` lies."""
        across, up = map(self.axis.share, point)
        return _LEFT + across * _SIDE, _TOP + (1.0 - up) * _SIDE


def accuracy_svg(outcomes: Sequence[Outcome]) -> str:
    """Return the picture of the complete rows that have a measured step time, a colour for each stack."""
    shown = [x for x in outcomes if x.complete and x.error is not None]
    stacks = {stack: members for (stack,), members in grouped(shown, lambda x: (x.stack,)).items()}
    scale = _Scale(LogAxis.over(seconds for x in shown for seconds in _point(x)))
    svg = _canvas(len(shown))
    _axes(svg, scale)
    _equality(svg, scale)
    for number, (stack, members) in enumerate(stacks.items()):
        _marks(svg, number, stack, [scale.at(_point(x)) for x in members])
        _legend(svg, number, stack, [x.error or 0.0 for x in members])
    return written(svg)


def _point(outcome: Outcome) -> Point:
    measured = outcome.run.step_seconds if outcome.run else None
    predicted = outcome.predicted
    assert measured is not None  # noqa: S101 -- rows with an error have both
    assert predicted is not None  # noqa: S101
    return measured, predicted.step_seconds


def _canvas(count: int) -> ET.Element:
    title = "predicted against measured step time"
    svg = canvas("accuracy", title, (_WIDTH, _HEIGHT), light=_LIGHT, dark=_DARK)
    add_shapes(svg)
    add_text(svg, (_LEFT, 28), f"Step time of {count} published runs, each at its own layout", "head")
    how = "python -m benchmarks.accuracy --plot; on the line, the prediction is right"
    add_text(svg, (_LEFT, 48), how, "small")
    return svg


def _axes(svg: ET.Element, scale: _Scale) -> None:
    """Draw a line and a number at each power of ten, both ways."""
    least, most = scale.axis.ends
    for seconds in scale.axis.powers:
        x, y = scale.at((seconds, seconds))
        add_line(svg, scale.at((seconds, least)), scale.at((seconds, most)), "grid")
        add_line(svg, scale.at((least, seconds)), scale.at((most, seconds)), "grid")
        add_text(svg, (x, _TOP + _SIDE + 18), f"{seconds:g} s", "small middle")
        add_text(svg, (_LEFT - 8, y + 4), f"{seconds:g} s", "small end")
    add_text(svg, (_LEFT + _SIDE / 2, _TOP + _SIDE + 40), "measured", "middle")
    turned = ET.SubElement(svg, "g", {"transform": f"translate(18 {_TOP + _SIDE / 2:g}) rotate(-90)"})
    add_text(turned, (0, 0), "predicted", "middle")


def _equality(svg: ET.Element, scale: _Scale) -> None:
    """Draw the line of right predictions and the band around it, cut where the square ends."""
    least, most = scale.axis.ends
    wide = 1.0 + _BAND
    boxes = [
        (least, least),
        (least, least * wide),
        (most / wide, most),
        (most, most),
        (most, most * (1.0 - _BAND)),
        (least / (1.0 - _BAND), least),
    ]
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(scale.at, boxes))
    ET.SubElement(svg, "polygon", {"class": "band", "points": places})
    add_line(svg, scale.at((least, least)), scale.at((most, most)), "equal")
    x = _LEFT + _SIDE + 28
    ET.SubElement(
        svg, "rect", {"class": "band", "x": f"{x - 8:.1f}", "y": "64.0", "width": "16", "height": "12"}
    )
    add_text(svg, (x + 16, 74), f"off by up to {100 * _BAND:.0f} %")


def _marks(svg: ET.Element, number: int, stack: str, places: Sequence[tuple[float, float]]) -> None:
    colour = COLOURS[number % len(COLOURS)]
    marks = ET.SubElement(svg, "g", {"class": "marks", "fill": colour})
    ET.SubElement(marks, "title").text = printable(stack)
    for place in places:
        add_mark(marks, number, place)


def _legend(svg: ET.Element, number: int, stack: str, errors: Sequence[float]) -> None:
    x, y = _LEFT + _SIDE + 28, _TOP + 32 + number * _LEGEND_ROW
    entry = ET.SubElement(svg, "g", {"fill": COLOURS[number % len(COLOURS)]})
    add_mark(entry, number, (x, y))
    words = f"{stack[:30]}: {len(errors)} runs, median {percent(spread(errors).median)}"
    add_text(svg, (x + 16, y + 4), words)
