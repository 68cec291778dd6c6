"""Result of ``capacity``: what the engines of a serving job hold, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.costs.core.served_prediction import CapacityPrediction
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_share


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
    #: Further keys with their new values, of which the change needs each.
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def edits(self) -> str:
        """The keys with their new values."""
        return "; ".join(f"{key}: {value}" for key, value in ((self.key, self.value), *self.beside))

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


def shortage_sentence(predicted: CapacityPrediction, longest_request: int) -> str:
    """Return why an engine does not start, with sizes; empty where it starts.

    ``longest_request`` is the longest that the job sends [tokens].
    """
    full = predicted.fullest
    weights, device = format_bytes(full.weights.total), format_bytes(full.device)
    if predicted.shortage == "loading the weights":
        return f"out of memory while loading the weights: {weights} on a device of {device}"
    if predicted.shortage == "no room for the cache":
        missing = f"{format_bytes(-full.room)} too much" if full.room < 0 else "less than a block is left"
        rest = format_bytes(full.activation + full.overhead + full.graphs + full.reserve)
        share = format_share(predicted.utilization)
        taken = f"weights take {weights} and the engine {rest} of {device}, with a share of {share}"
        return f"no room for the cache: {taken}: {missing}"
    if predicted.shortage == "longest request":
        most = f"the cache holds one of {predicted.pool.largest_context:,} at most"
        return f"a request of {longest_request:,} tokens cannot be admitted: {most}"
    if predicted.shortage == "CUDA graphs":
        graphs = f"{format_bytes(full.graphs)} outside of the engine's share"
        return f"out of memory while capturing CUDA graphs: they take {graphs}"
    return ""
