"""Breakdown of step time and of device memory, as rows with bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autoplan.costs.core.prediction import MemoryPrediction, Prediction, StageMemory, TimePrediction
from autoplan.report.render.blocks import Beside, Block, Heading, Look, ShareBar, ShareBars
from autoplan.report.render.terminal import SIDE_BY_SIDE_WIDTH, Terminal
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS, TIME_NAMES
from autoplan.units import format_seconds

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
        _bar(name, f"{seconds * scale:,.2f} {unit}", seconds / step)
        for name, seconds in time_rows(predicted.time)
    ]
    return Heading(f"step time: {format_seconds(step)}"), _bars(bars, terminal, "time")


def memory_table(predicted: Prediction, terminal: Terminal) -> tuple[Block, ...]:
    """Return the breakdown of peak memory of the fullest stage, as shares of the memory limit."""
    stage, limit = fullest_stage(predicted), predicted.memory_limit_bytes
    where = f" of stage {stage.stage}" if len(predicted.memory.stages) > 1 else ""
    bars = [_bar(name, f"{size / GIB:,.1f} GiB", size / limit) for name, size in memory_rows(stage)]
    free = limit - stage.total
    if free > 0:
        bars.append(_bar("free", f"{free / GIB:,.1f} GiB", free / limit, free=True))
    title = f"peak memory of a device{where} (in {stage.event})"
    return Heading(title), _bars(bars, terminal, "memory")


def breakdown(predicted: Prediction, terminal: Terminal) -> Beside:
    """Return where step time and memory go, side by side where there is room."""
    return Beside((time_table(predicted, terminal), memory_table(predicted, terminal)))


def _bar(name: str, amount: str, share: float, *, free: bool = False) -> ShareBar:
    return ShareBar(name, (amount, f"{share * 100:.1f} %"), share, free)


def _bars(bars: Sequence[ShareBar], terminal: Terminal, look: Look) -> ShareBars:
    """Return bars as long as the terminal has room for next to their numbers."""
    width = (terminal.width - 4) // 2 if terminal.width >= SIDE_BY_SIDE_WIDTH else terminal.width
    texts = max(len(bar.name) for bar in bars) + max(len(bar.numbers[0]) for bar in bars)
    return ShareBars(tuple(bars), max(6, min(40, width - texts - 16)), look)
