"""The predicted step as it unfolds: what each stage does when, as immutable records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["PREDICTED_PART", "Phase", "StepSlice", "StepTimeline"]

#: Argument of an event of a predicted trace that names its part: whoever reads the trace knows it by this.
PREDICTED_PART: Final = "autoplan part"

#: ``weight gradient`` is the deferred pass of a split backward.
Phase = Literal["forward", "backward", "weight gradient", "bubble", "end of step"]


@dataclass(frozen=True, slots=True)
class StepSlice:
    """A piece of a step in which a stage has one part of its time: start and length [s].

    ``part`` is a field of ``TimePrediction``; ``microbatch`` is None in the bubble and at the step's end.
    """

    stage: int
    phase: Phase
    part: str
    microbatch: int | None
    chunk: int
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A step as slices, stage by stage in the order of time [s].

    The parts of a prediction are those of ``slowest_stage`` until ``pipeline_seconds``, and of
    ``longest_end_stage`` after.
    """

    stages: int
    seconds: float
    pipeline_seconds: float
    slowest_stage: int
    longest_end_stage: int
    slices: tuple[StepSlice, ...]

    def part_seconds(self, stage: int, *, end_of_step: bool | None = None) -> dict[str, float]:
        """Return the seconds of a stage by part; before the end of the step, at it, or both where None."""
        seconds: dict[str, float] = {}
        for x in self.slices:
            chosen = end_of_step is None or (x.phase == "end of step") == end_of_step
            if x.stage == stage and chosen:
                seconds[x.part] = seconds.get(x.part, 0.0) + x.seconds
        return seconds
