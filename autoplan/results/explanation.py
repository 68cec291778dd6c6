"""Result of ``explain``: memory timeline of a layout, remedies, and comparison with the front."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from autoplan.costs.core.prediction import JobFacts, Prediction, StageMemory, TimePrediction
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

Place = Literal[
    "on the front", "dominated", "dominated within tolerance", "does not fit", "too slow", "not searched"
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of a step's time in two plans [s]."""

    part: str
    own_seconds: float
    other_seconds: float

    @property
    def lost_seconds(self) -> float:
        """Excess of the first plan; negative if it is faster."""
        return self.own_seconds - self.other_seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """Comparison of a layout with the front, and the plan that it is compared with, if any.

    ``rank`` counts plans from the fastest, for a layout on the front its own, else that of ``against``.
    ``differences`` are in the layout's time to that of the plan, the largest loss first; they add up to the
    difference of the steps.
    """

    place: Place
    plans: int
    rank: int | None = None
    against: Plan | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A layout that cannot run: the rules that it breaks, and the nearest layout that breaks none."""

    layout: Layout
    rules: tuple[str, ...]
    nearest: Plan | None
    facts: JobFacts


@dataclass(frozen=True, slots=True)
class Contrast:
    """The fastest layout with one choice changed; without one, ``plan`` is None and ``why`` the reason."""

    key: str
    value: str
    plan: Plan | None
    why: str
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest plan of a job, and the fastest layout of every other choice."""

    best: Plan
    alternatives: tuple[Contrast, ...]


def differences(prediction: Prediction, other: Prediction) -> tuple[Difference, ...]:
    """Return the non-zero parts of two steps [s], the largest loss of the first step first."""
    parts = [
        Difference(f.name, getattr(prediction.time, f.name), getattr(other.time, f.name))
        for f in fields(TimePrediction)
    ]
    taken = [part for part in parts if part.own_seconds or part.other_seconds]
    return tuple(sorted(taken, key=lambda part: -part.lost_seconds))


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
