"""What a serving plan says, as plain values: what documents print and `verify` derives again.

What it gives the requests of each class, over all engines that get them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, TypeAlias

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    DeviceMemoryUse,
    Distribution,
    DraftGain,
    LatencyStatistics,
    PooledPrediction,
    ServedClass,
    ServedPrediction,
)
from autoplan.results.serving.serving_front import EngineGroup, ServingChange, ServingPlan
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob

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
    return [_class_values(outcome) for outcome in class_outcomes(plan)]


def _class_values(outcome: ClassOutcome) -> Values:
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


def serving_plan_values(job: ServingJob, plan: ServingPlan) -> Values:
    """Return what an answer says of one plan."""
    return {
        "layout": _layout(plan.groups[0].layout),
        "layout_string": plan.layout_string,
        "predicted": _predicted(job, plan),
        "engines": [_group(group) for group in plan.groups],
        "broken_limits": list(plan.broken),
    }


def serving_change_values(job: ServingJob, changes: Sequence[ServingChange]) -> list[Values]:
    """Return what an answer says of changes that help, each with its plan."""
    return [
        {
            "key": change.key,
            "value": change.value,
            "beside": dict(change.beside),
            "sentence": change.sentence,
            "plan": serving_plan_values(job, change.plan),
        }
        for change in changes
    ]


def _layout(layout: EngineLayout) -> Values:
    return asdict(layout)


def _predicted(job: ServingJob, plan: ServingPlan) -> Values:
    predicted = plan.groups[0].predicted
    return {
        **_with_ends("time_to_first_token_seconds", plan.time_to_first_token, plan),
        **_with_ends("time_per_output_token_seconds", plan.time_per_output_token, plan),
        **_with_ends("request_latency_seconds", plan.request_latency, plan),
        **_with_ends("output_tokens_per_second", plan.output_tokens_per_second, plan),
        "interval_reasons": list(plan.intervals.reasons) if plan.intervals else [],
        "output_tokens_per_second_per_device": plan.output_tokens_per_second_per_device,
        "output_tokens_per_second_per_user": _over(plan.time_per_output_token),
        "requests_per_second": plan.requests_per_second,
        "max_concurrency": plan.max_concurrency,
        "devices": plan.devices,
        "saturated": plan.saturated,
        "saturated_by": predicted.point.cause,
        "step_bound": predicted.bound,
        "step_seconds": _finite(predicted.point.step_seconds),
        "decode_step_seconds": _finite(predicted.point.decode_step_seconds),
        "mean_decodes_per_step": predicted.point.decodes,
        "recomputed": predicted.point.recomputed,
        "cost_per_million_output_tokens": _cost(job, plan),
        "peak_memory_bytes_per_device": plan.peak_memory_bytes_per_device,
        "memory": [_memory(stage) for stage in predicted.capacity.stages],
        "cache_tokens": predicted.capacity.pool.tokens,
        "fits": plan.fits,
        "shortage": predicted.shortage,
        "speculation": _drafts(predicted.drafts),
        "percentiles": _percentiles(plan.statistics),
        "classes": class_values(plan),
        "simulation": _simulation(plan),
        "disaggregated": _pools(plan),
    }


def _pools(plan: ServingPlan) -> Values | None:
    """Return what pools for prefill and decode do, and what goes between them; null where engines do both."""
    pooled = plan.pooled
    if pooled is None:
        return None
    first = pooled.prefill.time_to_first_token
    return {
        "prefill_seconds": _finite(first) if pooled.load.kind != "maximum" else None,
        "transferred_bytes": pooled.transfer.bytes,
        "transferred_bytes_per_link": pooled.transfer.bytes_per_link,
        "transfer_seconds": pooled.transfer.seconds,
        "exposed_transfer_seconds": pooled.transfer.exposed_seconds,
        "link_wait_seconds": _finite(pooled.link_wait_seconds),
        "decode_admission_seconds": _finite(pooled.decode.time_to_first_token),
        "most_prefilled_requests_per_second": pooled.most_prefilled,
        "most_decoded_requests_per_second": pooled.most_decoded,
        "most_transferred_requests_per_second": pooled.most_transferred,
        "limited_by": pooled.limit,
    }


def _drafts(gain: DraftGain | None) -> Values | None:
    """Return what drafts give; ``gains_up_to_batch`` is null where every batch gains."""
    if gain is None:
        return None
    return {
        "drafts": gain.drafts,
        "acceptance": gain.acceptance,
        "tokens_per_step": gain.tokens_per_step,
        "step_seconds": gain.step_seconds,
        "draft_seconds": gain.draft_seconds,
        "plain_step_seconds": gain.plain_step_seconds,
        "speedup": gain.speedup,
        "gains_up_to_batch": gain.gains_up_to,
    }


def _with_ends(name: str, value: float | None, plan: ServingPlan) -> Values:
    """Return a figure with the ends of its 90 % interval."""
    interval = getattr(plan.intervals, name.removesuffix("_seconds"), None)
    low, high = (interval.low, interval.high) if interval is not None else (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _over(seconds: float | None) -> float | None:
    return 1.0 / seconds if seconds else None


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _cost(job: ServingJob, plan: ServingPlan) -> float | None:
    if job.price is None or not plan.output_tokens_per_second:
        return None
    return job.price.per_device_hour / 3600 * 1e6 / plan.output_tokens_per_second_per_device


def _memory(stage: DeviceMemoryUse) -> Values:
    return {
        "stage": stage.stage,
        "weights": stage.weights.total,
        "draft_weights": stage.weights.draft,
        "kv_cache": stage.cache,
        "activation": stage.activation,
        "graphs": stage.graphs,
        "overhead": stage.overhead,
        "reserve": stage.reserve,
        "free": stage.free,
    }


def _group(group: EngineGroup) -> Values:
    predicted = group.predicted
    amount = predicted.load.amount if predicted.load.kind != "maximum" else None
    return {
        "layout": _layout(group.layout),
        "layout_string": str(group.layout),
        "role": group.role,
        "engines": predicted.engines,
        "devices": predicted.devices,
        "share_of_load": group.share,
        "classes": predicted_class_values(group),
        "load": predicted.load.kind,
        "load_of_an_engine": amount,
        "time_to_first_token_seconds": (
            _finite(predicted.time_to_first_token) if amount is not None else None
        ),
        "time_per_output_token_seconds": _finite(predicted.time_per_output_token),
        "output_tokens_per_second": predicted.output_tokens_per_second,
    }


def _percentiles(run: LatencyStatistics | None) -> Values | None:
    """Return the percentiles of a simulation; the closed form has means alone."""
    if run is None:
        return None
    return {
        "time_to_first_token_seconds": _distribution(run.time_to_first_token),
        "time_per_output_token_seconds": _distribution(run.time_per_output_token),
        "inter_token_seconds": _distribution(run.inter_token),
        "request_latency_seconds": _distribution(run.request_latency),
        "goodput": run.goodput,
        "good_requests_per_second": run.good_requests_per_second,
    }


def _distribution(times: Distribution | None) -> Values | None:
    return asdict(times) if times is not None else None


def _closed_form(plan: ServingPlan) -> Values | None:
    """Return the closed form of the first engines where the simulation's means stand in its place."""
    first = plan.pooled or plan.groups[0].predicted
    means = first.closed_form
    if means is None:
        return None
    return {
        "time_to_first_token_seconds": _finite(means.time_to_first_token),
        "time_per_output_token_seconds": _finite(means.time_per_output_token),
        "request_latency_seconds": _finite(means.request_latency),
        "output_tokens_per_second": means.output_tokens_per_second,
    }


def _simulation(plan: ServingPlan) -> Values | None:
    simulation = plan.simulation
    if simulation is None:
        return None
    run = simulation.statistics
    return {
        "requests": run.requests,
        "seconds": run.seconds,
        "seed": simulation.seed,
        "gap": simulation.gap,
        "first_token_gap": simulation.first_token_gap,
        "closed_form": _closed_form(plan),
        "preempted": run.preempted,
        "saturated_by": run.saturation,
    }
