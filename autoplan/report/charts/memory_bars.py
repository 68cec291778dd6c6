"""Data of the memory timeline charts: stages, events, and stacked memory categories."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.prediction import CATEGORIES, EventMemory, Prediction, StageMemory
from autoplan.report.render.bars import spread

__all__ = ["EventBar", "event_bars", "picked_stages", "scale_bytes"]


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
