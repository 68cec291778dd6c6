"""Marks on logarithmic axes: what pictures of the benchmarks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final
from xml.etree import ElementTree as ET

from autoplan.report.render.svg import Place

__all__ = ["COLOURS", "MARKS", "LogAxis", "add_mark", "add_shapes"]

#: Visible on light and on dark. The first seven are told apart by people who see colours differently (Okabe
#: and Ito 2008); shapes take turns, too.
COLOURS: Final = (
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
#: The style of a group of marks that may lie on each other.
MARKS: Final = ".NAME .marks { fill-opacity: 0.7 }"

#: Room beyond the outermost marks, in powers of ten.
_ROOM: Final = 0.1


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis from 10 to the ``low`` to 10 to the ``high``."""

    low: float
    high: float

    @staticmethod
    def over(values: Iterable[float]) -> LogAxis:
        """Return the axis that holds ``values``, with a little room; one around 1 where there are none."""
        held = list(values) or [1.0]
        return LogAxis(log10(min(held)) - _ROOM, log10(max(held)) + _ROOM)

    @property
    def ends(self) -> tuple[float, float]:
        """The values at which the axis begins and ends."""
        return 10.0**self.low, 10.0**self.high

    @property
    def powers(self) -> list[float]:
        """The powers of ten between the ends."""
        return [10.0**power for power in range(ceil(self.low), floor(self.high) + 1)]

    def share(self, value: float) -> float:
        """Return where ``value`` lies between the ends, which are 0 and 1.

        >>> LogAxis(0.0, 2.0).share(10.0)
        0.5
        """
        return (log10(value) - self.low) / (self.high - self.low)


def add_shapes(svg: ET.Element) -> None:
    """Define the shapes of ``add_mark`` in ``svg``."""
    defs = ET.SubElement(svg, "defs")
    for number, shape in enumerate(_SHAPES):
        ET.SubElement(defs, "path", {"id": f"mark{number}", "d": shape})


def add_mark(parent: ET.Element, number: int, place: Place) -> None:
    """Draw the ``number``-th shape, counted round, at ``place``."""
    shape = f"#mark{number % len(_SHAPES)}"
    ET.SubElement(parent, "use", {"href": shape, "x": f"{place[0]:.1f}", "y": f"{place[1]:.1f}"})
