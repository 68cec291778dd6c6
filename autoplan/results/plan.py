"""A plan: a layout with its prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from autoplan.costs.core.prediction import JobFacts, Prediction
from autoplan.schema.job import ChosenProgram
from autoplan.schema.layout import LAYOUT_KEYS, Layout


@dataclass(frozen=True, slots=True)
class StackStep:
    """Step of a layout under the stack called ``stack`` [s], and whether the layout fits there."""

    stack: str
    step_seconds: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One layout and its prediction, with the facts of its job.

    ``stacks`` are its steps under the stacks that may be meant, where ``evaluate`` was asked for one of a job
    that names none; they are not compared. ``program`` is what runs it, where a job looks at several.
    """

    kind: ClassVar[Literal["training"]] = "training"
    layout: Layout
    predicted: Prediction
    facts: JobFacts
    stacks: tuple[StackStep, ...] = field(default=(), compare=False)
    program: ChosenProgram | None = None

    @property
    def layout_string(self) -> str:
        """The layout string."""
        return str(self.layout)


def preference(plan: Plan) -> tuple[bool, float]:
    """Return what sorts plans: those that fit first, the fastest of them, the smallest of the others."""
    predicted = plan.predicted
    value = predicted.step_seconds if predicted.fits else predicted.peak_memory_bytes_per_device
    return (not predicted.fits, value)


def layout_fields(layout: Layout) -> dict[str, Any]:
    """Return ``layout`` as plain values of a document."""
    values = {key.name: key.value(layout) for key in LAYOUT_KEYS}
    unused = {key.name for key in LAYOUT_KEYS if key.counted and not any(layout.counts(key.name))}
    return {name: value for name, value in values.items() if name not in unused}


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """The parameters of a model: all, and those that are active for a token."""

    total: int
    active: int
