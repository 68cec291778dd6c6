"""Kernels of a layer on the roofline of a device: intensity against predicted rate, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.costs.core.prediction import AttentionKernel, KernelWork, LayerProduct, LayerProducts
from autoplan.report.charts.chart_data import PIECE_KINDS, Axis
from autoplan.report.pages.html import (
    colour_keys,
    element,
    folded,
    number_cell,
    readout,
    region,
    table,
    text_cell,
)
from autoplan.report.pages.pictures.scatter_picture import PointLabel, add_labels
from autoplan.report.pages.pictures.stacked_bars import share_cell
from autoplan.report.render.svg import Place, add_line, add_text, canvas, printable, written
from autoplan.units import format_rate, format_seconds

_SIZE: Final = (760, 380)
_LEFT: Final = 86
_RIGHT: Final = 740
_TOP: Final = 34
_BOTTOM: Final = 330
#: Most decades of an axis whose fifths are marked too.
_FEW_DECADES: Final = 3

_LIGHT: Final = """
.NAME .roof { stroke: #cf222e; stroke-width: 2 }
.NAME .ridge { stroke: #59636e; stroke-dasharray: 4 4 }
.NAME circle, .NAME .diamond { stroke: #ffffff; stroke-width: 1 }
.NAME .label { fill: #1f2328 }
"""
_DARK: Final = """
.NAME .roof { stroke: #ff7b72 }
.NAME .ridge { stroke: #9198a1 }
.NAME circle, .NAME .diamond { stroke: #0d1117 }
.NAME .label { fill: #e6edf3 }
"""
_PASS_COLOURS: Final = {
    "forward": PIECE_KINDS["forward"].colour,
    "input gradient": PIECE_KINDS["backward"].colour,
    "weight gradient": PIECE_KINDS["weight gradient"].colour,
}
#: Passes whose products have their names in the picture; those of the others lie next to them.
_LABELLED: Final = frozenset({"forward"})
_ATTENTION_COLOURS: Final = {name: PIECE_KINDS[name].colour for name in ("forward", "backward")}
#: Half the width of a diamond [px].
_DIAMOND: Final = 8


#: Columns that the tables of products and of attention share.
_WORK_HEADS: Final = [
    ("calls", "number"),
    ("time of one", "number"),
    ("FLOP/byte", "number"),
    ("rate", "number"),
    ("of peak (%)", "number"),
    ("bound by", ""),
]


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """An operation: FLOP/byte, FLOP/s, its colour, and what it says.

    ``label`` is written next to it where there is room; a diamond is an operation that is no matrix product.
    """

    intensity: float
    flops_per_second: float
    colour: str
    words: str
    label: str = ""
    diamond: bool = False


def layer_roofline(layers: LayerProducts) -> list[str]:
    """Return the matrix products and the attention of a layout's layers as a picture and tables."""
    points = [*map(_attention_point, layers.attention), *map(_product_point, layers.products)]
    points.sort(key=lambda point: not point.label)
    passes = dict.fromkeys(x.product_pass for x in layers.products)
    keys: list[tuple[str, str]] = [(name, _PASS_COLOURS[name]) for name in passes]
    keys += [
        (f"attention {x.attention_pass}", _ATTENTION_COLOURS[x.attention_pass]) for x in layers.attention[:2]
    ]
    about = "kernels of a layer for one microbatch on one rank, at their predicted rates"
    if not layers.attention:
        about += "; attention is not drawn: this stack has no fused kernel for it"
    return [
        element("p", about, "quiet"),
        colour_keys(keys),
        roofline_picture(layers.peak_flops, layers.hbm_bandwidth, points),
        folded(
            "the kernels as numbers",
            _table(layers),
            *([_attention_table(layers)] if layers.attention else []),
        ),
    ]


def _product_point(x: LayerProduct) -> RooflinePoint:
    label = x.name if x.product_pass in _LABELLED else ""
    return RooflinePoint(
        x.intensity,
        x.flops_per_second,
        _PASS_COLOURS[x.product_pass],
        f"{x.name}, {x.product_pass}: [{x.m:,.0f}, {x.k:,.0f}] times [{x.k:,.0f}, {x.n:,.0f}], {_rates(x)}",
        label,
    )


def _attention_point(x: AttentionKernel) -> RooflinePoint:
    words = (
        f"attention, {x.attention_pass}: {x.queries:,.0f} rows of queries with {x.keys:,.0f} keys each,"
        f" {_rates(x)}"
    )
    label, colour = f"attention {x.attention_pass}", _ATTENTION_COLOURS[x.attention_pass]
    return RooflinePoint(x.intensity, x.flops_per_second, colour, words, label, diamond=True)


def _rates(x: KernelWork) -> str:
    rate = format_rate(x.flops_per_second, "FLOP/s")
    return f"{x.intensity:,.0f} FLOP/byte, {rate}, {format_seconds(x.seconds)}"


def _table(layers: LayerProducts) -> str:
    heads = [("product", ""), ("pass", ""), ("m", "number"), ("n", "number"), ("k", "number"), *_WORK_HEADS]
    rows = [
        text_cell(x.name)
        + text_cell(x.product_pass)
        + "".join(number_cell(size, f"{size:,.0f}") for size in (x.m, x.n, x.k))
        + _work_cells(x, layers)
        for x in layers.products
    ]
    return table("matrix products of a layer", heads, rows)


def _attention_table(layers: LayerProducts) -> str:
    heads = [("attention", ""), ("rows of queries", "number"), ("keys of a row", "number"), *_WORK_HEADS]
    rows = [
        text_cell(x.attention_pass)
        + number_cell(x.queries, f"{x.queries:,.0f}")
        + number_cell(x.keys, f"{x.keys:,.1f}")
        + _work_cells(x, layers)
        for x in layers.attention
    ]
    return table("attention of a layer", heads, rows)


def _work_cells(x: KernelWork, layers: LayerProducts) -> str:
    """Return the cells that products and attention share."""
    return (
        number_cell(x.calls, f"{x.calls:,.4g}")
        + number_cell(x.seconds, format_seconds(x.seconds))
        + number_cell(x.intensity, f"{x.intensity:,.0f}")
        + number_cell(x.flops_per_second, format_rate(x.flops_per_second, "FLOP/s"))
        + share_cell(x.flops_per_second / layers.peak_flops)
        + text_cell("compute" if x.intensity >= layers.ridge else "memory")
    )


def roofline_picture(peak_flops: float, bandwidth: float, points: Sequence[RooflinePoint]) -> str:
    """Return ``points`` below the roofs of a device [FLOP/s, byte/s] as HTML."""
    ridge = peak_flops / bandwidth
    intensities = [ridge, *(point.intensity for point in points)]
    rates = [peak_flops, *(point.flops_per_second for point in points)]
    x = _zoomed(min(intensities), max(intensities), _LEFT, _RIGHT)
    y = _zoomed(min(rates), max(rates), _BOTTOM, _TOP)
    svg = canvas("roofline", "roofline of the device", _SIZE, light=_LIGHT, dark=_DARK)
    svg.set("role", "group")
    svg.set("aria-label", "roofline of the device")
    _axes(svg, x, y)
    corner = (x.at(math.log10(ridge)), y.at(math.log10(peak_flops)))
    lowest = max(10**x.low, 10**y.low / bandwidth)
    start = (x.at(math.log10(lowest)), y.at(math.log10(lowest * bandwidth)))
    add_line(svg, start, corner, "roof")
    add_line(svg, corner, (_RIGHT, corner[1]), "roof")
    add_line(svg, corner, (corner[0], _BOTTOM), "ridge")
    add_text(svg, (_RIGHT, corner[1] - 7), f"peak {format_rate(peak_flops, 'FLOP/s')}", "small end")
    add_text(svg, (corner[0] + 5, _BOTTOM - 6), f"ridge {ridge:,.0f} FLOP/byte", "small")
    places = [(x.at(math.log10(p.intensity)), y.at(math.log10(p.flops_per_second))) for p in points]
    # The first points are drawn last: they have labels.
    for point, place in reversed(list(zip(points, places, strict=True))):
        _point(svg, place, point)
    labels = [PointLabel(at, point.label) for point, at in zip(points, places, strict=True) if point.label]
    add_labels(svg, labels, places, (_LEFT, corner[1] + 3, _RIGHT, _BOTTOM - 18))
    return "\n".join(
        [region("roofline", written(svg), "picture drawn"), readout("point at an operation for its numbers")]
    )


def _zoomed(low: float, high: float, start: float, end: float) -> Axis:
    """Return a logarithmic axis that holds ``low`` and ``high`` and little more, from one mark to another."""
    marks = [digit * 10.0**power for power in range(*_powers(low, high)) for digit in (1, 2, 5)]
    first = max(mark for mark in marks if mark <= low / 1.3)
    last = min(mark for mark in marks if mark >= high * 1.2)
    return Axis(math.log10(first), math.log10(last), start, end)


def _powers(low: float, high: float) -> tuple[int, int]:
    """Return the powers of ten around two numbers, as bounds of a range."""
    return math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2


def _axes(svg: ET.Element, x: Axis, y: Axis) -> None:
    for value in _marks(x):
        place = x.at(math.log10(value))
        add_line(svg, (place, _TOP), (place, _BOTTOM), "grid")
        add_text(svg, (place, _BOTTOM + 18), f"{value:,g}", "small middle")
    for value in _marks(y):
        place = y.at(math.log10(value))
        add_line(svg, (_LEFT, place), (_RIGHT, place), "grid")
        add_text(svg, (_LEFT - 8, place + 4), format_rate(value, "FLOP/s"), "small end")
    title = "arithmetic intensity: FLOP for each byte to and from memory"
    add_text(svg, (_RIGHT, _BOTTOM + 38), title, "small end")
    add_text(svg, (10, 18), "predicted rate (FLOP/s)", "small")


def _marks(axis: Axis) -> list[float]:
    """Return the values that are marked: decades, and of few decades twice and five times each."""
    digits = (1, 2, 5) if axis.high - axis.low <= _FEW_DECADES else (1,)
    powers = range(*_powers(10**axis.low, 10**axis.high))
    values = (digit * 10.0**power for power in powers for digit in digits)
    return [value for value in values if axis.low - 1e-9 <= math.log10(value) <= axis.high + 1e-9]


def _point(svg: ET.Element, place: Place, point: RooflinePoint) -> None:
    words = printable(point.words)
    mark = ET.SubElement(svg, "g", {"class": "operation", "role": "img", "aria-label": words})
    ET.SubElement(mark, "title").text = words
    x, y = place
    if point.diamond:
        corners = ((x, y - _DIAMOND), (x + _DIAMOND, y), (x, y + _DIAMOND), (x - _DIAMOND, y))
        outline = " ".join(f"{left:.2f},{top:.2f}" for left, top in corners)
        ET.SubElement(mark, "polygon", {"class": "diamond", "points": outline, "fill": point.colour})
        return
    ET.SubElement(mark, "circle", {"cx": f"{x:.2f}", "cy": f"{y:.2f}", "r": "6", "fill": point.colour})
