"""Memory timeline of a layout as a self-contained SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.costs.core.prediction import StageMemory
from autoplan.report.charts.chart_data import EventBar, event_bars, picked_stages, round_values, scale_bytes
from autoplan.report.render.svg import add_group, add_line, add_text, canvas, written
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS
from autoplan.report.wording.sentences import number_words
from autoplan.results.explanation import judged_stage
from autoplan.results.plan import Plan
from autoplan.schema.job import Job

#: Most pipeline stages in one chart.
MOST_PANELS: Final = 16

_LIGHT: Final = """
.NAME .interval { stroke: #59636e; stroke-width: 1.5 }
.NAME .limit { stroke: #cf222e; stroke-width: 2 }
.NAME .worst { font-weight: 700 }
"""

_DARK: Final = """
.NAME .interval { stroke: #9198a1 }
.NAME .limit { stroke: #ff7b72 }
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

#: Width of all panels [px].
_WIDTH: Final = 1160


@dataclass(frozen=True, slots=True)
class _Scale:
    """Horizontal axis of a panel: ``width`` in pixels, ``most`` the largest value in bytes."""

    width: float
    most: float
    limit: float

    def x(self, size: float) -> float:
        """Return the position of ``size`` [px]."""
        return _LABELS + size / self.most * (self.width - _LABELS - _NUMBERS)

    @property
    def ticks(self) -> list[float]:
        """Axis ticks [byte], from zero."""
        return [tick * GIB for tick in round_values(0.0, self.most / GIB, _TICKS)]


def memory_svg(job: Job, plan: Plan) -> str:
    """Return the memory timeline of ``plan`` as an SVG document."""
    predicted = plan.predicted
    stages = picked_stages(predicted, judged_stage(job, predicted), MOST_PANELS)
    columns = 1 if len(stages) == 1 else 2
    width = (_WIDTH - (columns - 1) * 2 * _MARGIN) / columns
    scale = _Scale(width, scale_bytes(predicted), predicted.memory_limit_bytes)
    tallest = max(_PANEL_HEAD + _ROW * len(stage.events) + _AXIS for stage in stages) + _MARGIN
    rows = -(-len(stages) // columns)
    size = (2 * _MARGIN + _WIDTH, _TOP + rows * tallest)
    svg = canvas("memory", f"memory of {plan.layout_string}", size, light=_LIGHT, dark=_DARK)
    _head(svg, job, plan, len(stages))
    for number, stage in enumerate(stages):
        row, column = divmod(number, columns)
        place = (_MARGIN + column * (width + 2 * _MARGIN), _TOP + row * tallest)
        _panel(add_group(svg, place), stage, scale)
    return written(svg)


def _head(svg: ET.Element, job: Job, plan: Plan, shown: int) -> None:
    """Draw title, subtitle and legend."""
    add_text(svg, (_MARGIN, 26), plan.layout_string, "head")
    left_out = len(plan.predicted.memory.stages) - shown
    more = f"; {number_words(left_out, 'more stage')} not shown" if left_out else ""
    subtitle = f"{job.name}: device memory by event of a step{more}"
    add_text(svg, (_MARGIN, 46), subtitle, "small")
    _legend(svg, plan.predicted.memory_limit_bytes)


def _legend(svg: ET.Element, limit: float) -> None:
    x = float(_MARGIN)
    for name in MEMORY_PARTS:
        _rect(svg, (x, 60), (12, 12), name)
        add_text(svg, (x + 17, 70), name)
        x += 17 + 7 * len(name) + 14
    add_line(svg, (x, 66), (x + 16, 66), "interval")
    add_line(svg, (x + 16, 61), (x + 16, 71), "interval")
    add_text(svg, (x + 22, 70), "upper end of the 90 % interval")
    add_line(svg, (x + 222, 58), (x + 222, 74), "limit")
    add_text(svg, (x + 229, 70), f"limit {limit / GIB:,.1f} GiB")


def _panel(panel: ET.Element, stage: StageMemory, scale: _Scale) -> None:
    """Draw one stage: axis, one bar per event, and the memory limit."""
    title = f"stage {stage.stage}, {number_words(stage.layers, 'layer')}"
    add_text(panel, (0, 16), title, "worst")
    bars = event_bars(stage)
    bottom = _PANEL_HEAD + _ROW * len(bars)
    for tick in scale.ticks:
        x = scale.x(tick)
        add_line(panel, (x, _PANEL_HEAD - 4), (x, bottom + 4), "grid")
        add_text(panel, (x, bottom + 18), f"{tick / GIB:g}", "small middle")
    add_text(panel, (scale.width, bottom + 18), "GiB", "small end")
    for row, bar in enumerate(bars):
        _event(add_group(panel, (0, _PANEL_HEAD + row * _ROW)), bar, scale)
    x = scale.x(scale.limit)
    add_line(panel, (x, _PANEL_HEAD - 6), (x, bottom + 6), "limit")


def _event(row: ET.Element, bar: EventBar, scale: _Scale) -> None:
    """Draw the bar of one event, with the upper end of the interval at the peak."""
    worst = " worst" if bar.high is not None else ""
    add_text(row, (_LABELS - 8, 12), bar.event, f"end{worst}")
    reached = 0.0
    for name, size in bar.parts:
        left, reached = scale.x(reached), reached + size
        if size > 0:
            rect = _rect(row, (left, 0.0), (scale.x(reached) - left, _BAR), name)
            ET.SubElement(rect, "title").text = f"{name} {size / GIB:,.2f} GiB"
    if bar.high is not None and bar.high > reached:
        right = scale.x(bar.high)
        add_line(row, (scale.x(reached), _BAR / 2), (right, _BAR / 2), "interval")
        add_line(row, (right, 3), (right, _BAR - 3), "interval")
    add_text(row, (scale.width, 12), f"{bar.total / GIB:,.1f}", f"small end{worst}")


def _rect(parent: ET.Element, at: tuple[float, float], size: tuple[float, float], name: str) -> ET.Element:
    places = zip(("x", "y", "width", "height"), (*at, *size), strict=True)
    numbers = {key: f"{value:.2f}" for key, value in places}
    return ET.SubElement(parent, "rect", {**numbers, "fill": MEMORY_PARTS[name].colour, "class": name})
