"""What fills the devices of a layout, moment by moment, as a picture that stands on its own (SVG)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.costs.predict import StageMemory
from autoplan.plans import Plan
from autoplan.plans.explanation import judged_stage
from autoplan.report.breakdown import GIB
from autoplan.report.memory_bars import PARTS, MomentBar, moment_bars, picked_stages, scale_bytes
from autoplan.report.words import number_words
from autoplan.schema.job import Job

__all__ = ["MOST_PANELS", "memory_svg", "printable"]

#: Stages of a pipeline that are pictured.
MOST_PANELS: Final = 16

#: Tell apart by anybody who sees colours differently (Okabe and Ito 2008), on light and on dark.
_COLOURS: Final = {
    "parameters": "#0072b2",
    "gradients": "#56b4e9",
    "optimizer": "#009e73",
    "activations": "#e69f00",
    "logits": "#cc79a7",
    "transient": "#f0e442",
    "framework": "#8c8c8c",
}

_STYLE: Final = """
.memory .page { fill: #ffffff }
.memory text { fill: #1f2328; font: 12px system-ui, sans-serif }
.memory .head { font-size: 15px; font-weight: 600 }
.memory .small { fill: #59636e; font-size: 11px }
.memory .end { text-anchor: end }
.memory .middle { text-anchor: middle }
.memory .grid { stroke: #d1d9e0; stroke-width: 1 }
.memory .interval { stroke: #59636e; stroke-width: 1.5 }
.memory .limit { stroke: #cf222e; stroke-width: 2 }
.memory .worst { font-weight: 700 }
@media (prefers-color-scheme: dark) {
  .memory .page { fill: #0d1117 }
  .memory text { fill: #e6edf3 }
  .memory .small { fill: #9198a1 }
  .memory .grid { stroke: #3d444d }
  .memory .interval { stroke: #9198a1 }
  .memory .limit { stroke: #ff7b72 }
}
"""

_MARGIN: Final = 20
_LABELS: Final = 134
_NUMBERS: Final = 56
_ROW: Final = 22
_BAR: Final = 16
_TOP: Final = 92
_PANEL_HEAD: Final = 30
_AXIS: Final = 34
_TICKS: Final = 6

#: Pixels from the left to the right end of all panels.
_WIDTH: Final = 1160


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where bytes lie on a panel of ``width`` pixels, whose bars hold ``most`` bytes."""

    width: float
    most: float
    limit: float

    def x(self, size: float) -> float:
        """Return where ``size`` lies [px]."""
        return _LABELS + size / self.most * (self.width - _LABELS - _NUMBERS)

    @property
    def ticks(self) -> list[float]:
        """Round numbers of bytes for the axis, from zero."""
        steps = (digit * 10.0**power * GIB for power in range(-6, 12) for digit in (1, 2, 5))
        step = next(step for step in steps if self.most / step <= _TICKS)
        return [i * step for i in range(int(self.most / step) + 1)]


def memory_svg(job: Job, plan: Plan) -> str:
    """Return the picture of ``plan`` as the text of an SVG file."""
    predicted = plan.predicted
    stages = picked_stages(predicted, judged_stage(job, predicted), MOST_PANELS)
    columns = 1 if len(stages) == 1 else 2
    width = (_WIDTH - (columns - 1) * 2 * _MARGIN) / columns
    scale = _Scale(width, scale_bytes(predicted), predicted.memory_limit_bytes)
    tallest = max(map(_panel_height, stages)) + _MARGIN
    rows = -(-len(stages) // columns)
    svg = _canvas(2 * _MARGIN + _WIDTH, _TOP + rows * tallest, plan)
    _head(svg, job, plan, len(stages))
    for number, stage in enumerate(stages):
        row, column = divmod(number, columns)
        place = (_MARGIN + column * (width + 2 * _MARGIN), _TOP + row * tallest)
        _panel(_group(svg, *place), stage, scale)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def printable(text: str) -> str:
    """Return ``text`` with a question mark for what XML has no place for, such as control characters.

    >>> printable(f"a{chr(0)}b")
    'a?b'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def _canvas(width: int, height: int, plan: Plan) -> ET.Element:
    size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    names = {"xmlns": "http://www.w3.org/2000/svg", "class": "memory", "role": "img"}
    svg = ET.Element("svg", {**names, **size})
    ET.SubElement(svg, "title").text = f"memory of {printable(plan.layout_string)}"
    ET.SubElement(svg, "style").text = _STYLE
    ET.SubElement(svg, "rect", {"class": "page", "width": "100%", "height": "100%"})
    return svg


def _head(svg: ET.Element, job: Job, plan: Plan, shown: int) -> None:
    """Draw the title and what is shown."""
    _text(svg, _MARGIN, 26, plan.layout_string, "head")
    left_out = len(plan.predicted.memory.stages) - shown
    more = f"; {number_words(left_out, 'more stage')} not shown" if left_out else ""
    what = f"{job.name}: memory of a device by moment of a step{more}"
    _text(svg, _MARGIN, 46, what, "small")
    _legend(svg, plan.predicted.memory_limit_bytes)


def _legend(svg: ET.Element, limit: float) -> None:
    x = float(_MARGIN)
    for name in PARTS:
        _rect(svg, (x, 60), (12, 12), name)
        _text(svg, x + 17, 70, name)
        x += 17 + 7 * len(name) + 14
    _line(svg, (x, 66), (x + 16, 66), "interval")
    _line(svg, (x + 16, 61), (x + 16, 71), "interval")
    _text(svg, x + 22, 70, "upper end of the 90 % interval")
    _line(svg, (x + 222, 58), (x + 222, 74), "limit")
    _text(svg, x + 229, 70, f"limit {limit / GIB:,.1f} GiB")


def _panel_height(stage: StageMemory) -> int:
    return _PANEL_HEAD + _ROW * len(stage.moments) + _AXIS


def _panel(panel: ET.Element, stage: StageMemory, scale: _Scale) -> None:
    """Draw one stage: its axis, the bar of each moment, and the limit across them."""
    title = f"stage {stage.stage}, {number_words(stage.layers, 'layer')}"
    _text(panel, 0, 16, title, "worst")
    bars = moment_bars(stage)
    bottom = _PANEL_HEAD + _ROW * len(bars)
    for tick in scale.ticks:
        x = scale.x(tick)
        _line(panel, (x, _PANEL_HEAD - 4), (x, bottom + 4), "grid")
        _text(panel, x, bottom + 18, f"{tick / GIB:g}", "small middle")
    _text(panel, scale.width, bottom + 18, "GiB", "small end")
    for row, bar in enumerate(bars):
        _moment(_group(panel, 0, _PANEL_HEAD + row * _ROW), bar, scale)
    x = scale.x(scale.limit)
    _line(panel, (x, _PANEL_HEAD - 6), (x, bottom + 6), "limit")


def _moment(row: ET.Element, bar: MomentBar, scale: _Scale) -> None:
    """Draw the bar of one moment, and at the worst one up to where its interval ends."""
    worst = " worst" if bar.high is not None else ""
    _text(row, _LABELS - 8, 12, bar.moment, f"end{worst}")
    reached = 0.0
    for name, size in bar.parts:
        left, reached = scale.x(reached), reached + size
        if size > 0:
            rect = _rect(row, (left, 0.0), (scale.x(reached) - left, _BAR), name)
            ET.SubElement(rect, "title").text = f"{name} {size / GIB:,.2f} GiB"
    if bar.high is not None and bar.high > reached:
        right = scale.x(bar.high)
        _line(row, (scale.x(reached), _BAR / 2), (right, _BAR / 2), "interval")
        _line(row, (right, 3), (right, _BAR - 3), "interval")
    _text(row, scale.width, 12, f"{bar.total / GIB:,.1f}", f"small end{worst}")


def _group(parent: ET.Element, x: float, y: float) -> ET.Element:
    return ET.SubElement(parent, "g", {"transform": f"translate({x:g} {y:g})"})


def _text(parent: ET.Element, x: float, y: float, text: str, kind: str = "") -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    ET.SubElement(parent, "text", {**place, **({"class": kind} if kind else {})}).text = printable(text)


def _line(parent: ET.Element, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
    names = zip(("x1", "y1", "x2", "y2"), (*start, *end), strict=True)
    ET.SubElement(parent, "line", {"class": kind, **{name: f"{value:.1f}" for name, value in names}})


def _rect(parent: ET.Element, at: tuple[float, float], size: tuple[float, float], name: str) -> ET.Element:
    places = zip(("x", "y", "width", "height"), (*at, *size), strict=True)
    numbers = {key: f"{value:.2f}" for key, value in places}
    return ET.SubElement(parent, "rect", {**numbers, "fill": _COLOURS[name], "class": name})
