"""SVG elements and the shared style of charts, on light and on dark backgrounds."""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

#: Position from the left and the top [px].
Place = tuple[float, float]

#: Selectors begin with the class of the chart, since a page may contain several charts.
_LIGHT: Final = """
.NAME .page { fill: #ffffff }
.NAME text { fill: #1f2328; font: 12px system-ui, sans-serif }
.NAME .head { font-size: 15px; font-weight: 600 }
.NAME .small { fill: #59636e; font-size: 11px }
.NAME .middle { text-anchor: middle }
.NAME .end { text-anchor: end }
.NAME .grid { stroke: #d1d9e0; stroke-width: 1 }
"""

_DARK: Final = """
.NAME .page { fill: #0d1117 }
.NAME text { fill: #e6edf3 }
.NAME .small { fill: #9198a1 }
.NAME .grid { stroke: #3d444d }
"""


def canvas(name: str, title: str, size: tuple[int, int], *, light: str = "", dark: str = "") -> ET.Element:
    """Return an empty SVG of ``size`` pixels with the class ``name``.

    ``light`` and ``dark`` are additional CSS rules, in which NAME stands for ``name``.
    """
    width, height = map(str, size)
    names = {"xmlns": "http://www.w3.org/2000/svg", "class": name, "role": "img"}
    places = {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    svg = ET.Element("svg", {**names, **places})
    ET.SubElement(svg, "title").text = printable(title)
    dimmed = ["@media (prefers-color-scheme: dark) {", *_rules(_DARK, dark), "}"]
    lines = ["", *_rules(_LIGHT, light), *dimmed, ""]
    ET.SubElement(svg, "style").text = "\n".join(lines).replace("NAME", name)
    ET.SubElement(svg, "rect", {"class": "page", "width": "100%", "height": "100%"})
    return svg


def _rules(*texts: str) -> list[str]:
    return [line for text in texts for line in text.splitlines() if line]


def written(svg: ET.Element) -> str:
    """Return ``svg`` as the text of a file."""
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def printable(text: str) -> str:
    """Return ``text`` with question marks for characters that XML does not allow, such as control characters.

    >>> printable(f"a{chr(0)}b")
    'a?b'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def add_group(parent: ET.Element, at: Place) -> ET.Element:
    """Return a new group in ``parent`` whose origin is ``at``."""
    return ET.SubElement(parent, "g", {"transform": f"translate({at[0]:g} {at[1]:g})"})


def add_text(parent: ET.Element, at: Place, text: str, kind: str = "") -> None:
    """Write ``text`` with its baseline beginning ``at``, in the classes ``kind``."""
    place = {"x": f"{at[0]:.1f}", "y": f"{at[1]:.1f}"}
    ET.SubElement(parent, "text", {**place, **({"class": kind} if kind else {})}).text = printable(text)


def add_line(parent: ET.Element, start: Place, end: Place, kind: str) -> None:
    """Draw a line of the class ``kind``."""
    names = zip(("x1", "y1", "x2", "y2"), (*start, *end), strict=True)
    ET.SubElement(parent, "line", {"class": kind, **{name: f"{value:.1f}" for name, value in names}})
