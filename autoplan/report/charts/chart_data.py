"""What charts show, the same for a page and a terminal: an axis, memory by event, pieces of a step.

Breakdown of step time and of device memory, as rows with bars.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from autoplan.costs.core.prediction import (
    CATEGORIES,
    EventMemory,
    MemoryPrediction,
    Prediction,
    StageMemory,
    StepSlice,
    StepTimeline,
    TimePrediction,
)
from autoplan.report.render.blocks import Beside, Block, Heading, Look, ShareBar, ShareBars
from autoplan.report.render.terminal import SIDE_BY_SIDE_WIDTH, Terminal, spread
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS, TIME_NAMES
from autoplan.units import format_seconds


@dataclass(frozen=True, slots=True)
class EventBar:
    """Memory of one event by category; ``high`` is with fragmentation, at the peak only."""

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
    """Return the largest value on the axis of a chart [byte]: peak, with fragmentation, or limit."""
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


#: Parts of the step below this share of its time are not shown.
_NEGLIGIBLE: Final = 5e-5


Row = tuple[str, float]


def time_rows(time: TimePrediction) -> list[Row]:
    """Return the parts of a step [s] by name, in order, without negligible ones."""
    rows = [(name, float(getattr(time, field))) for field, name in TIME_NAMES.items()]
    step = sum(seconds for _, seconds in rows)
    return [(name, seconds) for name, seconds in rows if seconds > _NEGLIGIBLE * step]


def memory_rows(memory: MemoryPrediction | StageMemory) -> list[Row]:
    """Return the memory of a device [byte] by category, without empty categories."""
    rows = ((name, float(getattr(memory, name))) for name in MEMORY_PARTS)
    return [(name, size) for name, size in rows if size > 0]


def fullest_stage(predicted: Prediction) -> StageMemory:
    """Return the stage with the largest peak memory."""
    return max(predicted.memory.stages, key=lambda stage: stage.total)


def time_table(predicted: Prediction, terminal: Terminal) -> tuple[Block, ...]:
    """Return the breakdown of step time; overlapped communication is not part of it."""
    step = predicted.step_seconds
    scale, unit = (1.0, "s") if step >= 1 else (1e3, "ms")
    bars = [
        _share_bar(name, f"{seconds * scale:,.2f} {unit}", seconds / step)
        for name, seconds in time_rows(predicted.time)
    ]
    return Heading(f"step time: {format_seconds(step)}"), _share_bars(bars, terminal, "time")


def memory_table(predicted: Prediction, terminal: Terminal) -> tuple[Block, ...]:
    """Return the breakdown of peak memory of the fullest stage, as shares of the memory limit."""
    stage, limit = fullest_stage(predicted), predicted.memory_limit_bytes
    where = f" of stage {stage.stage}" if len(predicted.memory.stages) > 1 else ""
    bars = [_share_bar(name, f"{size / GIB:,.1f} GiB", size / limit) for name, size in memory_rows(stage)]
    free = limit - stage.total
    if free > 0:
        bars.append(_share_bar("free", f"{free / GIB:,.1f} GiB", free / limit, free=True))
    title = f"peak memory of a device{where} (in {stage.event})"
    return Heading(title), _share_bars(bars, terminal, "memory")


def breakdown(predicted: Prediction, terminal: Terminal) -> Beside:
    """Return where step time and memory go, side by side where there is room."""
    return Beside((time_table(predicted, terminal), memory_table(predicted, terminal)))


def _share_bar(name: str, amount: str, share: float, *, free: bool = False) -> ShareBar:
    return ShareBar(name, (amount, f"{share * 100:.1f} %"), share, free)


def _share_bars(bars: Sequence[ShareBar], terminal: Terminal, look: Look) -> ShareBars:
    """Return bars as long as the terminal has room for next to their numbers."""
    width = (terminal.width - 4) // 2 if terminal.width >= SIDE_BY_SIDE_WIDTH else terminal.width
    texts = max(len(bar.name) for bar in bars) + max(len(bar.numbers[0]) for bar in bars)
    return ShareBars(tuple(bars), max(6, min(40, width - texts - 16)), look)
