"""What the pictures of memory show: stages, their moments, and the parts of which each is stacked."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.prediction import CATEGORIES, MomentMemory, Prediction, StageMemory
from autoplan.report.render.bars import spread

__all__ = ["MomentBar", "moment_bars", "picked_stages", "scale_bytes"]


@dataclass(frozen=True, slots=True)
class MomentBar:
    """The bytes of one moment by part; ``high`` is the upper end of the interval, known at the worst one."""

    moment: str
    parts: tuple[tuple[str, float], ...]
    high: float | None

    @property
    def total(self) -> float:
        """All parts."""
        return sum(size for _, size in self.parts)


def moment_bars(stage: StageMemory) -> tuple[MomentBar, ...]:
    """Return the moments of ``stage`` in order of time.

    The framework's part is that of the worst moment at all of them: neither it nor what the allocator has
    reserved is given back in between.
    """
    return tuple(_bar(stage, moment) for moment in stage.moments)


def _bar(stage: StageMemory, moment: MomentMemory) -> MomentBar:
    sizes = [(name, float(getattr(moment, name))) for name in CATEGORIES]
    high = stage.total_high if moment.moment == stage.moment else None
    return MomentBar(moment.moment, (*sizes, ("framework", stage.framework)), high)


def scale_bytes(predicted: Prediction) -> float:
    """Return the bytes that the longest bar of a picture must hold: the limit too is in it."""
    highest = (max(stage.total, stage.total_high) for stage in predicted.memory.stages)
    return max(predicted.memory_limit_bytes, *highest)


def picked_stages(predicted: Prediction, fullest: StageMemory, most: int) -> list[StageMemory]:
    """Return at most ``most`` stages, in order: the fullest, the first, the last, and some between."""
    stages = predicted.memory.stages
    if len(stages) <= most:
        return list(stages)
    chosen = {stages.index(fullest), 0, len(stages) - 1}
    for index in spread(len(stages), most):
        if len(chosen) < most:
            chosen.add(index)
    return [stages[index] for index in sorted(chosen)]
