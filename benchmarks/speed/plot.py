"""How the time of a whole run grows with devices and with layers, as a picture that stands alone (SVG)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from xml.etree import ElementTree as ET

from autoplan.report.render.svg import Place, add_line, add_text, canvas, written
from benchmarks.scatter import COLOURS, MARKS, LogAxis, add_mark, add_shapes
from benchmarks.speed.cases import DEEPER

__all__ = ["speed_svg"]

_LIGHT: Final = f"""{MARKS}
.NAME .path {{ stroke-width: 1.5; fill: none }}
.NAME .open {{ fill: none; stroke-width: 1.5 }}
.NAME .unit {{ stroke: #59636e; stroke-width: 1.5; stroke-dasharray: 4 3 }}
"""

_DARK: Final = ".NAME .unit { stroke: #9198a1 }"

_WIDTH: Final = 1060
_HEIGHT: Final = 660
_TOP: Final = 76.0
_TALL: Final = 390.0
_FOOT: Final = _TOP + _TALL
_LEGEND_ROW: Final = 20.0
_LEGEND_COLUMN: Final = 510.0
_LEGEND_ROWS: Final = 6

#: How the seconds of a peer were found.
_KINDS: Final = {"cpu": "processor time", "wall": "wall time", "extrapolated": "extrapolated"}


@dataclass(frozen=True, slots=True)
class _Panel:
    """A rectangle from ``left``, ``width`` pixels wide, with a number of things across and seconds up."""

    left: float
    width: float
    across: LogAxis
    up: LogAxis

    def at(self, number: float, seconds: float) -> Place:
        """Return where a question of that ``number`` that takes ``seconds`` lies."""
        x = self.left + self.across.share(number) * self.width
        return x, _TOP + (1.0 - self.up.share(seconds)) * _TALL


@dataclass(frozen=True, slots=True)
class _Entry:
    """A series of marks: which colour and shape, what it is called, and whether it is extrapolated."""

    number: int
    words: str
    extrapolated: bool = False


def speed_svg(record: dict[str, Any], peers: Sequence[dict[str, Any]]) -> str:
    """Return the picture of a recorded run beside what ``peers`` take for the same kind of question."""
    deep = {case.name for case in DEEPER}
    wide = [row for row in record["rows"] if row["case"] not in deep]
    deeper = [row for row in record["rows"] if row["case"] in deep]
    unit = record["solver_import"]["cpu_seconds"]
    up = LogAxis.over([unit, *(x["cpu_seconds"] for x in record["rows"]), *(x["seconds"] for x in peers)])
    svg = _canvas(record["on"])
    left = _Panel(70.0, 560.0, LogAxis.over(x["devices"] for x in [*wide, *peers]), up)
    right = _Panel(720.0, 290.0, LogAxis.over(x["layers"] for x in deeper), up)
    for panel, key, rows in ((left, "devices", [*wide, *peers]), (right, "layers", deeper)):
        _axes(svg, panel, key, sorted({row[key] for row in rows}))
        _unit(svg, panel, unit)
    entries = [*_ours(svg, left, "devices", wide, 0), *_ours(svg, right, "layers", deeper, len(COLOURS) - 1)]
    entries += _others(svg, left, peers, len(entries) - 1)
    for place, entry in enumerate(entries):
        _legend(svg, place, entry)
    return written(svg)


def _canvas(on: dict[str, Any]) -> ET.Element:
    title = "time of a whole planning run over devices and over layers"
    svg = canvas("speed", title, (_WIDTH, _HEIGHT), light=_LIGHT, dark=_DARK)
    add_shapes(svg)
    add_text(svg, (70, 28), "Processor time from the command to the proven front", "head")
    what = (
        f"autoplan {on['autoplan']} of {on['date']} on one core of {on['processor']};"
        " open marks: extrapolated from a part of the run; the dashed line: the import of the solver alone"
    )
    add_text(svg, (70, 48), what, "small")
    return svg


def _axes(svg: ET.Element, panel: _Panel, key: str, numbers: Sequence[int]) -> None:
    """Draw a line at each power of ten of seconds, and one at each of the ``numbers`` asked for."""
    right, (least, most) = panel.left + panel.width, panel.up.ends
    for seconds in panel.up.powers:
        _, y = panel.at(numbers[0], seconds)
        add_line(svg, (panel.left, y), (right, y), "grid")
        add_text(svg, (panel.left - 8, y + 4), f"{seconds:,g} s", "small end")
    for number in numbers:
        bottom = panel.at(number, least)
        add_line(svg, bottom, panel.at(number, most), "grid")
        add_text(svg, (bottom[0], _FOOT + 18), f"{number:,}", "small middle")
    add_text(svg, (panel.left + panel.width / 2, _FOOT + 40), key, "middle")


def _unit(svg: ET.Element, panel: _Panel, seconds: float) -> None:
    """Draw the time that nothing can be faster than: what importing the solver takes."""
    _, y = panel.at(panel.across.ends[0], seconds)
    add_line(svg, (panel.left, y), (panel.left + panel.width, y), "unit")


def _ours(
    svg: ET.Element, panel: _Panel, key: str, rows: Iterable[dict[str, Any]], number: int
) -> Iterator[_Entry]:
    """Draw our ``rows``, joined model by model, and yield what the legend says of each."""
    for model, members in groupby(rows, key=lambda row: str(row["model"])):
        places = [panel.at(row[key], row["cpu_seconds"]) for row in members]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        ET.SubElement(svg, "polyline", {"class": "path", "points": path, "stroke": _colour(number)})
        entry = _Entry(number, f"autoplan, {model}" + (", by layers" if key == "layers" else ""))
        _marks(svg, entry, places)
        yield entry
        number += 1


def _others(svg: ET.Element, panel: _Panel, peers: Sequence[dict[str, Any]], number: int) -> Iterator[_Entry]:
    """Draw the runs of each of the ``peers``, and yield what the legend says of each."""
    for (program, kind), members in groupby(peers, key=lambda peer: (peer["program"], peer["kind"])):
        entry = _Entry(number, f"{program}, {_KINDS[kind]}", extrapolated=kind == "extrapolated")
        _marks(svg, entry, [panel.at(x["devices"], x["seconds"]) for x in members])
        yield entry
        number += 1


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _marks(svg: ET.Element, entry: _Entry, places: Sequence[Place]) -> None:
    """Draw the marks of one series, open where they are extrapolated."""
    colour = _colour(entry.number)
    paint = {"class": "open", "stroke": colour} if entry.extrapolated else {"class": "marks", "fill": colour}
    marks = ET.SubElement(svg, "g", paint)
    ET.SubElement(marks, "title").text = entry.words
    for place in places:
        add_mark(marks, entry.number, place)


def _legend(svg: ET.Element, place: int, entry: _Entry) -> None:
    column, row = divmod(place, _LEGEND_ROWS)
    at = (74 + column * _LEGEND_COLUMN, _FOOT + 68 + row * _LEGEND_ROW)
    group = ET.SubElement(svg, "g", {"class": "legend"})
    _marks(group, entry, [at])
    add_text(group, (at[0] + 16, at[1] + 4), entry.words)
