"""Result of ``explain``: memory timeline of a layout, remedies, and comparison with the front."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.prediction import Prediction, StageMemory
from autoplan.results.plan import Plan
from autoplan.results.standing import Standing
from autoplan.schema.job import Job

__all__ = ["BottleneckShare", "Explanation", "Remedy", "judged_bytes", "judged_stage"]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that saves memory: saving, slowdown, and whether the layout fits with it.

    ``saved_bytes`` are of the bytes by which the fullest stage is judged (see ``judged_bytes``), ``slowdown``
    is a share of the step's time and negative where the step gets shorter. ``change`` is what the user
    edits: a layout string, a policy of the stack, or one after the other.
    """

    name: str
    plan: Plan
    saved_bytes: float
    slowdown: float
    fits: bool
    change: str


@dataclass(frozen=True, slots=True)
class BottleneckShare:
    """Seconds of a step that one class of work takes, their share of it, and what would shorten them.

    ``bound`` is what the class waits for: compute, HBM bandwidth, host, network, PCIe, experts or pipeline.
    """

    name: str
    seconds: float
    share: float
    bound: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A layout with its prediction, and its remedies: first those that make it fit, the fastest first.

    ``standing`` is its comparison with the front, ``bottlenecks`` attribute its step.
    """

    plan: Plan
    remedies: tuple[Remedy, ...]
    standing: Standing
    bottlenecks: tuple[BottleneckShare, ...] = ()

    @property
    def bound(self) -> str:
        """What most of the step waits for; empty where the step was not attributed."""
        seconds: dict[str, float] = {}
        for x in self.bottlenecks:
            seconds[x.bound] = seconds.get(x.bound, 0.0) + x.seconds
        return max(seconds, key=seconds.__getitem__, default="")


def judged_bytes(job: Job, stage: StageMemory) -> float:
    """Return the memory of ``stage`` that is compared with the limit: upper end or centre of the interval."""
    central = job.limits.memory_confidence == "central"
    return stage.total if central else max(stage.total, stage.total_high)


def judged_stage(job: Job, predicted: Prediction) -> StageMemory:
    """Return the stage that decides whether a layout fits."""
    return max(predicted.memory.stages, key=lambda stage: judged_bytes(job, stage))
