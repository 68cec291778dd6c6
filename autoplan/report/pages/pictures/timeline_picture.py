"""The predicted step of a plan as a picture: a row for each stage, its passes in the order of time.

Without a script all of the step is drawn, or its beginning and its end; a script draws any span of it from
the pieces, which the page has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.costs.core.prediction import StepTimeline
from autoplan.report.charts.chart_data import PIECE_KINDS, Axis, StepPiece, pieces_of, round_values
from autoplan.report.pages.html import colour_keys, element, region, zoom, zoomable
from autoplan.report.render.svg import add_line, add_text, canvas, written
from autoplan.report.render.terminal import spread
from autoplan.report.wording.sentences import number_words
from autoplan.units import format_seconds

#: Most rows of a picture, and most pieces of all its rows: more make a page that is slow to load.
_MOST_ROWS: Final = 8
MOST_PIECES: Final = 320
#: Most pieces that a page has for its script.
MOST_ZOOMED: Final = 8_000
_FEWER_ROWS: Final = (4, 2, 1)
#: Shortest time that the pieces of a page distinguish, as a share of the step.
_TICK: Final = 1e-7

_WIDTH: Final = 1100
_LEFT: Final = 64
_ROW: Final = 30
_BAR: Final = 22
_TOP: Final = 44
_TICKS: Final = 8
#: Narrowest piece that holds the number of its microbatch [px].
_NUMBERED: Final = 16

_KINDS: Final = {kind: looks.colour for kind, looks in PIECE_KINDS.items()}
_BUTTONS: Final = {
    "in": "zoom in",
    "out": "zoom out",
    "earlier": "earlier",
    "later": "later",
    "start": "beginning",
    "end": "end",
    "all": "whole step",
}
_HELP: Final = (
    "communication is what compute does not hide; point at a piece for its times, double-click to zoom in"
)

_LIGHT: Final = ".NAME .inside { fill: #000000; font-size: 11px; text-anchor: middle }"


@dataclass(frozen=True, slots=True)
class PictureRoom:
    """The frame of a drawn step: its last time [s], the number of steps of its page, and its name there."""

    seconds: float
    pictures: int = 1
    name: str = ""


def timeline_picture(timeline: StepTimeline, room: PictureRoom | None = None) -> list[str]:
    """Return the step as HTML: the whole of it, or its beginning and its end where it has many passes.

    ``room`` is given where a page has several steps on one time axis, which share the pieces of a page.
    """
    room = room or PictureRoom(timeline.seconds)
    every = list(pieces_of(timeline))
    stages = set(spread(timeline.stages, _MOST_ROWS))
    pieces = [piece for piece in every if piece.stage in stages]
    windows = _windows(timeline.seconds, room, len(pieces))
    pictures = [
        region(
            f"timeline{room.name} from {format_seconds(start)} to {format_seconds(end)}",
            _picture([piece for piece in pieces if piece.start < end and piece.end > start], (start, end)),
            "picture drawn",
        )
        for start, end in windows
    ]
    still = [element("p", _words(timeline, len(stages), windows), "quiet"), *pictures]
    zoomed = _zoomed(timeline.stages, every, MOST_ZOOMED // room.pictures)
    if not zoomed:
        return still
    return [zoomable("\n".join(still), _zoom(timeline, zoomed, room))]


def _zoomed(stages: int, pieces: Sequence[StepPiece], most_pieces: int) -> list[StepPiece]:
    """Return the pieces of the stages that a page has room for; none where not even one has room."""
    for most in (_MOST_ROWS, *_FEWER_ROWS):
        chosen = set(spread(stages, most))
        visible = [piece for piece in pieces if piece.stage in chosen]
        if len(visible) <= most_pieces:
            return visible
    return []


def _zoom(timeline: StepTimeline, pieces: Sequence[StepPiece], room: PictureRoom) -> str:
    """Return the step for the script of the page: kinds, and three numbers for each piece of a row.

    The numbers are kind, microbatch (-1 for none) and length in ticks; a gap has the kind -1.
    """
    kinds = [kind for kind in _KINDS if any(piece.kind == kind for piece in pieces)]
    tick = timeline.seconds * _TICK
    rows = [
        [stage, _row([piece for piece in pieces if piece.stage == stage], kinds, tick)]
        for stage in dict.fromkeys(piece.stage for piece in pieces)
    ]
    data = {
        "data-seconds": json.dumps(room.seconds),
        "data-tick": json.dumps(tick),
        "data-kinds": json.dumps([[kind, _KINDS[kind]] for kind in kinds]),
        "data-pieces": json.dumps(rows, separators=(",", ":")),
    }
    drawn = len({piece.stage for piece in pieces})
    more = (
        f"; {number_words(timeline.stages - drawn, 'more stage')} not drawn"
        if drawn < timeline.stages
        else ""
    )
    lines = [
        element("p", f"{_HELP}{more}", "quiet"),
        colour_keys((kind, _KINDS[kind]) for kind in kinds),
    ]
    return zoom(data, room.name, lines, _BUTTONS)


def _row(pieces: Sequence[StepPiece], kinds: Sequence[str], tick: float) -> list[int]:
    """Return the pieces of a stage one after another; ends are rounded, so that no error adds up."""
    row: list[int] = []
    reached = 0
    for piece in pieces:
        start, end = round(piece.start / tick), round(piece.end / tick)
        if start > reached:
            row += [-1, -1, start - reached]
        row += [kinds.index(piece.kind), -1 if piece.microbatch is None else piece.microbatch, end - start]
        reached = end
    return row


def _words(timeline: StepTimeline, rows: int, windows: Sequence[tuple[float, float]]) -> str:
    text = "communication is what compute does not hide"
    if len(windows) > 1:
        drawn = format_seconds(windows[0][1])
        text += f"; drawn are the first and the last {drawn} of {format_seconds(timeline.seconds)}"
    if rows < timeline.stages:
        text += f"; {number_words(timeline.stages - rows, 'more stage')} not drawn"
    return f"{text}; --output trace.json has it all for Perfetto" if text.count(";") else text


def _windows(seconds: float, room: PictureRoom, pieces: int) -> list[tuple[float, float]]:
    """Return the spans of the step that are drawn [s]: all of it, or two ends with about ``MOST_PIECES``."""
    most = MOST_PIECES // room.pictures
    if pieces <= most:
        return [(0.0, room.seconds)]
    length = seconds * most / pieces / 2
    return [(0.0, length), (seconds - length, seconds)]


def _picture(pieces: Sequence[StepPiece], window: tuple[float, float]) -> str:
    rows = {stage: row for row, stage in enumerate(dict.fromkeys(piece.stage for piece in pieces))}
    x = Axis(*window, _LEFT, _WIDTH - 10)
    bottom = _TOP + _ROW * len(rows)
    svg = canvas("timeline", "the predicted step by stage", (_WIDTH, bottom + 40), light=_LIGHT)
    _legend(svg, {piece.kind for piece in pieces})
    for seconds in round_values(*window, _TICKS):
        add_line(svg, (x.at(seconds), _TOP - 4), (x.at(seconds), bottom), "grid")
        add_text(svg, (x.at(seconds), bottom + 16), format_seconds(seconds), "small middle")
    add_text(svg, (_WIDTH - 10, bottom + 32), "time since the step began", "small end")
    for stage, row in rows.items():
        add_text(svg, (8, _TOP + _ROW * row + 16), f"stage {stage}", "small")
    for piece in pieces:
        _draw(svg, x, piece, _TOP + _ROW * rows[piece.stage])
    return written(svg)


def _draw(svg: ET.Element, x: Axis, piece: StepPiece, top: float) -> None:
    """Draw a piece, cut where the picture ends."""
    left, right = x.at(max(piece.start, x.low)), x.at(min(piece.end, x.high))
    number = "" if piece.microbatch is None else f" of microbatch {piece.microbatch}"
    rect = _box(svg, (left, top), (right - left, _BAR), piece.kind)
    ET.SubElement(rect, "title").text = (
        f"stage {piece.stage}: {piece.kind}{number}, {format_seconds(piece.end - piece.start)}"
        f" from {format_seconds(piece.start)}"
    )
    if piece.microbatch is not None and right - left >= _NUMBERED and piece.kind in {"forward", "backward"}:
        add_text(svg, ((left + right) / 2, top + 15), str(piece.microbatch), "inside")


def _box(svg: ET.Element, at: tuple[float, float], size: tuple[float, float], kind: str) -> ET.Element:
    places = zip(("x", "y", "width", "height"), (*at, *size), strict=True)
    return ET.SubElement(svg, "rect", {**{name: f"{v:.2f}" for name, v in places}, "fill": _KINDS[kind]})


def _legend(svg: ET.Element, kinds: set[str]) -> None:
    left = float(_LEFT)
    for kind in _KINDS:
        if kind in kinds:
            _box(svg, (left, 10), (12, 12), kind)
            add_text(svg, (left + 17, 20), kind)
            left += 17 + 7 * len(kind) + 14
