"""Comparison of a layout with the front, and costs of other choices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from autoplan.costs.core.prediction import JobFacts, Prediction, TimePrediction
from autoplan.results.plan import Plan
from autoplan.schema.layout import Layout

__all__ = ["Choice", "Contrast", "Difference", "Place", "Refusal", "Standing", "differences"]

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
