"""What charts show, the same for a page and a terminal: an axis, memory by event, pieces of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from autoplan.costs.core.prediction import (
    CATEGORIES,
    EventMemory,
    Prediction,
    StageMemory,
    StepSlice,
    StepTimeline,
)
from autoplan.report.render.terminal import spread


@dataclass(frozen=True, slots=True)
class EventBar:
    """Memory of one event by category; ``high`` is the upper end of the interval, at the peak only."""

    event: str
    parts: tuple[tuple[str, float], ...]
    high: float | None

    @property
    def total(self) -> float:
        """Sum of all categories."""
        return sum(size for _, size in self.parts)


def event_bars(stage: StageMemory) -> tuple[EventBar, ...]:
    """Return the events of ``stage`` in order of time.

    Framework memory is that of the peak in all events: neither it nor memory reserved by the allocator is
    released in between.
    """
    return tuple(_bar(stage, event) for event in stage.events)


def _bar(stage: StageMemory, event: EventMemory) -> EventBar:
    sizes = [(name, float(getattr(event, name))) for name in CATEGORIES]
    high = stage.total_high if event.event == stage.event else None
    return EventBar(event.event, (*sizes, ("framework", stage.framework)), high)


def scale_bytes(predicted: Prediction) -> float:
    """Return the largest value on the axis of a chart [byte]: peak, upper end or limit."""
    highest = (max(stage.total, stage.total_high) for stage in predicted.memory.stages)
    return max(predicted.memory_limit_bytes, *highest)


def picked_stages(predicted: Prediction, fullest: StageMemory, most: int) -> list[StageMemory]:
    """Return at most ``most`` stages in order: the fullest, the first, the last, and others evenly spread."""
    stages = predicted.memory.stages
    if len(stages) <= most:
        return list(stages)
    chosen = {stages.index(fullest), 0, len(stages) - 1}
    for index in spread(len(stages), most):
        if len(chosen) < most:
            chosen.add(index)
    return [stages[index] for index in sorted(chosen)]


def round_values(low: float, high: float, most: int) -> list[float]:
    """Return the multiples of a round step from ``low`` to ``high``, about ``most`` of them.

    >>> round_values(0.0, 79.2, 6), round_values(37.4, 66.7, 4)
    ([0.0, 20.0, 40.0, 60.0], [40.0, 50.0, 60.0])
    """
    width = high - low
    if not width > 0:
        return [low]
    lowest = math.floor(math.log10(width / most))
    steps = (digit * 10.0**power for power in range(lowest, lowest + 3) for digit in (1, 2, 5))
    step = next(step for step in steps if width / step <= most)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high``, which lie at ``start`` and ``end`` [px]."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of ``value`` [px]."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class PieceLooks(NamedTuple):
    """How a kind of piece is shown: colour (Okabe and Ito 2008; Tol 2021), letter and terminal style."""

    colour: str
    letter: str
    style: str


PIECE_KINDS: Final = {
    "forward": PieceLooks("#56b4e9", "F", "black on bright_blue"),
    "backward": PieceLooks("#44aa99", "B", "black on green"),
    "weight gradient": PieceLooks("#cc79a7", "W", "black on magenta"),
    "recompute": PieceLooks("#f0e442", "R", "black on yellow"),
    "communication": PieceLooks("#cc3311", "C", "white on red"),
    "offload": PieceLooks("#999933", "H", "black on cyan"),
    "optimizer": PieceLooks("#aa4499", "O", "black on white"),
    "idle": PieceLooks("#8c8c8c", ".", "dim"),
}
_KIND_OF_PART: Final = {
    "bubble": "idle",
    "recompute": "recompute",
    "overhead": "offload",
    "optimizer": "optimizer",
}


@dataclass(frozen=True, slots=True)
class StepPiece:
    """Slices of one pass, one after another, in which a stage does the same: start and end [s]."""

    stage: int
    kind: str
    microbatch: int | None
    start: float
    end: float


def pieces_of(timeline: StepTimeline) -> Iterator[StepPiece]:
    """Yield what each stage does, stage by stage in the order of time."""
    for (stage, kind, microbatch, _, _), same in groupby(timeline.slices, _kind_of_pass):
        pieces = list(same)
        yield StepPiece(stage, kind, microbatch, pieces[0].start, pieces[-1].start + pieces[-1].seconds)


def _kind_of_pass(x: StepSlice) -> tuple[int, str, int | None, int, str]:
    kind = "communication" if x.part.endswith("_exposed") else _KIND_OF_PART.get(x.part, x.phase)
    return x.stage, kind, x.microbatch, x.chunk, x.phase
