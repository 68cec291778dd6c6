"""What a serving plan gives the requests of each class, over all engines that get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, TypeAlias

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    Distribution,
    PooledPrediction,
    ServedClass,
    ServedPrediction,
)
from autoplan.results.serving.serving_front import EngineGroup, ServingPlan

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClassOutcome:
    """One class of requests under a plan; times are those of the slowest engines that get it.

    So a limit that holds here is held by every engine. Means are in closed form, None without a load or
    without end; the distributions are those of simulations, None where there was none.
    """

    name: str
    #: Part of all requests.
    share: float
    groups: tuple[EngineGroup, ...]
    #: Whether these engines get no other class.
    dedicated: bool
    time_to_first_token: float | None
    time_per_output_token: float | None
    request_latency: float | None
    output_tokens_per_second: float
    simulated_first_token: Distribution | None
    simulated_token: Distribution | None
    simulated_latency: Distribution | None
    #: Least share of its requests that hold every limit on them.
    goodput: float | None


def class_outcomes(plan: ServingPlan) -> tuple[ClassOutcome, ...]:
    """Return the outcome of each class, in the order in which engines name them; empty for one class."""
    served = _serving(plan)
    names = dict.fromkeys(one.name for part in served for one in part.predicted.classes)
    return tuple(_outcome([part for part in served if part.has(name)], name) for name in names)


@dataclass(frozen=True, slots=True)
class _Serving:
    """What serves whole requests: engines that are alike, or both pools, with their part of all requests."""

    groups: tuple[EngineGroup, ...]
    share: float
    predicted: ServedPrediction | PooledPrediction

    def has(self, name: str) -> bool:
        """Whether it gets requests of a class."""
        return any(one.name == name for one in self.predicted.classes)


def _serving(plan: ServingPlan) -> list[_Serving]:
    if plan.pooled is not None:
        return [_Serving(plan.groups, 1.0, plan.pooled)]
    return [_Serving((group,), group.share, group.predicted) for group in plan.groups]


def _outcome(parts: Sequence[_Serving], name: str) -> ClassOutcome:
    served = [next(one for one in part.predicted.classes if one.name == name) for part in parts]
    runs = [run for part in parts if (run := _simulated(part.predicted, name)) is not None]
    loaded = all(part.predicted.load.kind != "maximum" for part in parts)
    share = sum(part.share * one.share for part, one in zip(parts, served, strict=True))
    rate = sum(
        part.predicted.requests_per_second * one.share * one.output_tokens
        for part, one in zip(parts, served, strict=True)
    )
    tokens = [run.time_per_output_token for run in runs if run.time_per_output_token is not None]
    return ClassOutcome(
        name=name,
        share=share,
        groups=tuple(group for part in parts for group in part.groups),
        dedicated=all(len(part.predicted.classes) == 1 for part in parts),
        time_to_first_token=_longest(served, lambda of_time: of_time.time_to_first_token) if loaded else None,
        time_per_output_token=_longest(served, lambda of_time: of_time.time_per_output_token),
        request_latency=_longest(served, lambda of_time: of_time.request_latency) if loaded else None,
        output_tokens_per_second=rate,
        simulated_first_token=_slowest([run.time_to_first_token for run in runs]),
        simulated_token=_slowest(tokens),
        simulated_latency=_slowest([run.request_latency for run in runs]),
        goodput=min((run.goodput for run in runs), default=None),
    )


def _simulated(predicted: ServedPrediction | PooledPrediction, name: str) -> ClassStatistics | None:
    run = predicted.simulation.statistics if predicted.simulation else None
    return next((one for one in run.classes if one.name == name), None) if run else None


def _longest(served: list[ServedClass], time: Callable[[ServedClass], float]) -> float | None:
    longest = max(time(outcome) for outcome in served)
    return longest if isfinite(longest) else None


def _slowest(times: list[Distribution]) -> Distribution | None:
    """Return the largest mean and the largest of each quantile."""
    if not times:
        return None
    return Distribution(
        *(max(getattr(distribution, x.name) for distribution in times) for x in fields(Distribution))
    )


def class_values(plan: ServingPlan) -> list[Values]:
    """Return what an answer says of each class under a plan."""
    return [_values(outcome) for outcome in class_outcomes(plan)]


def _values(outcome: ClassOutcome) -> Values:
    simulated = {
        "time_to_first_token_seconds": outcome.simulated_first_token,
        "time_per_output_token_seconds": outcome.simulated_token,
        "request_latency_seconds": outcome.simulated_latency,
    }
    return {
        "name": outcome.name,
        "share_of_requests": outcome.share,
        "engines": [str(group.layout) for group in outcome.groups],
        "dedicated": outcome.dedicated,
        "time_to_first_token_seconds": outcome.time_to_first_token,
        "time_per_output_token_seconds": outcome.time_per_output_token,
        "request_latency_seconds": outcome.request_latency,
        "output_tokens_per_second": outcome.output_tokens_per_second,
        "percentiles": {key: asdict(times) if times else None for key, times in simulated.items()},
        "goodput": outcome.goodput,
    }


def predicted_class_values(group: EngineGroup) -> list[Values]:
    """Return what an answer says of each class on one group of engines."""
    return list(_of_group(group))


def _of_group(group: EngineGroup) -> Iterator[Values]:
    loaded = group.predicted.load.kind != "maximum"
    for one in group.predicted.classes:
        first, latency = one.time_to_first_token, one.request_latency
        yield {
            "name": one.name,
            "share_of_requests": one.share,
            "time_to_first_token_seconds": first if loaded and isfinite(first) else None,
            "time_per_output_token_seconds": one.time_per_output_token,
            "request_latency_seconds": latency if loaded and isfinite(latency) else None,
        }
