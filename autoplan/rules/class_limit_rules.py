"""Limits of single request classes beside those of the job, as sentences: means, and what is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.core.serving.served_prediction import LatencyStatistics, ServedPrediction
from autoplan.rules.serving_limit_rules import (
    LIMITED_TIMES,
    RequestTest,
    broken_mean_limits,
    broken_rate_limits,
    broken_simulated_limits,
    good_requests,
    simulated_limits,
)
from autoplan.schema.serving.request_lengths import RequestClass
from autoplan.schema.serving.serving_limits import ServingLimits, TimeLimits
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = [
    "all_simulated_limits",
    "broken_limits",
    "broken_means",
    "broken_simulated",
    "limits_of_request",
    "limits_times",
    "request_test",
]

#: Times that a maximum, which has no load, decides.
_WITHOUT_LOAD: Final = ("time_per_output_token",)


def _limited(job: ServingJob) -> Iterator[tuple[RequestClass, TimeLimits]]:
    for requests in job.workload.classes:
        if requests.limits is not None:
            yield requests, requests.limits


def broken_means(job: ServingJob, predicted: ServedPrediction | PooledPrediction) -> Iterator[str]:
    """Yield a sentence for each limit on a mean that engines break: those of the job, then of each class."""
    names = LIMITED_TIMES if predicted.load.kind != "maximum" else _WITHOUT_LOAD
    for means in (predicted, predicted.closed_form):
        if means is not None:
            yield from broken_mean_limits(job.limits, {name: getattr(means, name) for name in names})
    times = {served.name: served for served in predicted.classes}
    for requests, limits in _limited(job):
        served = times.get(requests.name)
        if served is not None:
            for sentence in broken_mean_limits(limits, {name: getattr(served, name) for name in names}):
                yield f"class {requests.name}: {sentence}"


def broken_simulated(job: ServingJob, run: LatencyStatistics) -> Iterator[str]:
    """Yield a sentence for each limit of job or class that a run breaks: means, percentiles and goodput."""
    yield from broken_simulated_limits(job.limits, run)
    by_name = {statistics.name: statistics for statistics in run.classes}
    for requests, limits in _limited(job):
        statistics = by_name.get(requests.name)
        if statistics is not None:
            for sentence in broken_simulated_limits(limits, statistics):
                yield f"class {requests.name}: {sentence}"


def broken_limits(job: ServingJob, predicted: ServedPrediction | PooledPrediction) -> Iterator[str]:
    """Yield a sentence for each limit that engines alone, or pools, break; none where they do not start."""
    if not predicted.starts:
        return
    means = list(dict.fromkeys(broken_means(job, predicted)))
    yield from means
    if predicted.simulation is not None:
        broken = {_limit_of(sentence) for sentence in means}
        simulated = broken_simulated(job, predicted.simulation.statistics)
        yield from (sentence for sentence in simulated if _limit_of(sentence) not in broken)
    yield from broken_rate_limits(job, predicted.output_tokens_per_second, predicted.devices)


def _limit_of(sentence: str) -> str:
    """Return the limit that a sentence is about, with its class."""
    return sentence.partition(" is ")[0]


def limits_times(job: ServingJob) -> bool:
    """Whether the job or one of its classes limits a time or goodput."""
    every = [job.limits, *(limits for _, limits in _limited(job))]
    return any(getattr(limits, name) is not None for limits in every for name in (*LIMITED_TIMES, "goodput"))


def all_simulated_limits(job: ServingJob) -> tuple[str, ...]:
    """Return the limits of the job and of its classes that only a simulation decides, by name."""
    of_classes = (
        f"{requests.name}.{name}" for requests, limits in _limited(job) for name in simulated_limits(limits)
    )
    return (*simulated_limits(job.limits), *of_classes)


def limits_of_request(limits: ServingLimits, requests: RequestClass) -> TimeLimits:
    """Return the limits on a time that a request of a class holds: its own, else those of the job."""
    class_limits = requests.limits
    if class_limits is None:
        return limits
    limited = {name: getattr(class_limits, name) or getattr(limits, name) for name in LIMITED_TIMES}
    return TimeLimits.model_construct(**limited)


def request_test(job: ServingJob) -> RequestTest | None:
    """Return the test whether a request of a class, by its number, holds every limit; None without limits."""
    classes = job.workload.classes
    if not classes:
        return good_requests(job.limits)
    tests = [good_requests(limits_of_request(job.limits, requests)) for requests in classes]
    if all(test is None for test in tests):
        return None

    def holds(ttft: float, tpot: float, latency: float, kind: int = 0) -> bool:
        test = tests[kind]
        return test is None or test(ttft, tpot, latency, 0)

    return holds
