"""Result of ``capacity``: what the engines of a serving job hold, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.serving.capacity import CapacityPrediction
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["CapacityAnswer", "CapacityKnob", "LayoutCapacity"]


@dataclass(frozen=True, slots=True)
class LayoutCapacity:
    """A layout with its capacity."""

    layout: EngineLayout
    predicted: CapacityPrediction


@dataclass(frozen=True, slots=True)
class CapacityKnob:
    """One change of settings, and what the caches hold with it.

    ``key`` is the key of the job file and ``value`` its new value. ``lossless``: answers stay the same.
    """

    key: str
    value: str
    sentence: str
    lossless: bool
    predicted: CapacityPrediction

    @property
    def fits(self) -> bool:
        """Whether the engines start with it."""
        return self.predicted.fits


@dataclass(frozen=True, slots=True)
class CapacityAnswer:
    """The capacity of a job under one layout, that of the other layouts, and the knobs."""

    job: ServingJob
    layout: EngineLayout
    predicted: CapacityPrediction
    #: Whether the job's choices gave the layout rather than the user.
    chosen: bool
    #: Why engines do not start; empty where they do.
    reasons: tuple[str, ...]
    #: The knobs, those that buy most first.
    knobs: tuple[CapacityKnob, ...]
    #: Other layouts of the search space, the most usual first.
    others: tuple[LayoutCapacity, ...]
    #: The layout that holds most tokens in the widest formats.
    most: LayoutCapacity

    @property
    def fits(self) -> bool:
        """Whether the engines start and admit the longest request."""
        return self.predicted.fits
