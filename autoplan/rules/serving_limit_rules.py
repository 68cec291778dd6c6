"""Limits of a serving job, as sentences: means, percentiles of a simulation, throughput, cost and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final, TypeAlias

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    Distribution,
    LatencyStatistics,
    PooledPrediction,
    ServedPrediction,
)
from autoplan.schema.serving.request_lengths import RequestClass
from autoplan.schema.serving.serving_choices import Percentiles, ServingLimits, TimeLimit, TimeLimits
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_seconds, format_share

#: Whether a request with these times to its first token, per output token and in all [s], and the number of
#: its class, holds every limit.
RequestTest: TypeAlias = Callable[[float, float, float, int], bool]
#: Times that a job may limit.
LIMITED_TIMES: Final = ("time_to_first_token", "time_per_output_token", "request_latency")
_PERCENTILES: Final = ("p50", "p90", "p99")
_MILLION: Final = 1e6
#: Rounding of a value that lies on its limit.
_ROUNDING: Final = 1e-9


def mean_limit(limit: TimeLimit | None) -> float:
    """Return a limit on the mean of a time [s]; infinite where there is none."""
    if isinstance(limit, Percentiles):
        return limit.mean if limit.mean is not None else inf
    return inf if limit is None else limit


def broken_mean_limits(limits: TimeLimits, times: Mapping[str, float], where: str = "") -> Iterator[str]:
    """Yield a sentence for each limit on a mean that ``times`` exceed; infinite: they grow without end."""
    for name, value in times.items():
        most = mean_limit(getattr(limits, name))
        if value > most * (1 + _ROUNDING):
            predicted_text = format_seconds(value) if value < inf else "without end"
            yield f"{name} is {predicted_text}{where}, over {format_seconds(most)}"


def simulated_limits(limits: TimeLimits) -> tuple[str, ...]:
    """Return the limits that only a simulation decides, by name: the closed form has means alone."""
    names = [
        f"{name}.{percentile}"
        for name in LIMITED_TIMES
        for percentile in _PERCENTILES
        if isinstance(getattr(limits, name), Percentiles) and getattr(getattr(limits, name), percentile)
    ]
    return (*names, *(["goodput"] if limits.goodput is not None else []))


def good_requests(limits: TimeLimits) -> RequestTest | None:
    """Return the test whether a request holds every limit on a time; None where there is none.

    A single request may take what the limit on the mean, or on the highest percentile, says.
    """
    bounds = [_longest(getattr(limits, name)) for name in LIMITED_TIMES]
    if all(bound is None for bound in bounds):
        return None

    def good(ttft: float, tpot: float, latency: float, _kind: int = 0) -> bool:
        times = zip((ttft, tpot, latency), bounds, strict=True)
        return all(bound is None or time <= bound for time, bound in times)

    return good


def _longest(limit: TimeLimit | None) -> float | None:
    if not isinstance(limit, Percentiles):
        return limit
    return limit.p99 or limit.p90 or limit.p50 or limit.mean


def broken_simulated_limits(limits: TimeLimits, run: LatencyStatistics | ClassStatistics) -> Iterator[str]:
    """Yield a sentence for each limit on a mean, a percentile or goodput that a simulated ``run`` breaks."""
    means = {name: getattr(run, name).mean for name in LIMITED_TIMES if getattr(run, name) is not None}
    yield from broken_mean_limits(limits, means, " in a simulation")
    for name in LIMITED_TIMES:
        limit, times = getattr(limits, name), getattr(run, name)
        if isinstance(limit, Percentiles) and isinstance(times, Distribution):
            for percentile in _PERCENTILES:
                most, simulated = getattr(limit, percentile), getattr(times, percentile)
                if most is not None and simulated > most:
                    took, allowed = format_seconds(simulated), format_seconds(most)
                    yield f"{name}.{percentile} is {took} in a simulation, over {allowed}"
    if limits.goodput is not None and run.goodput < limits.goodput:
        share, least = format_share(run.goodput), format_share(limits.goodput)
        yield f"goodput is {share} in a simulation, under {least}"


def least_rate_per_device(job: ServingJob) -> float:
    """Return the tokens a second and device that the limits on cost and energy ask for [1/s]; 0: none.

    A million tokens cost c / 3600 / rate x 1e6 for c an hour and device, and take P / rate x 1e6 joules.
    """
    rates = [0.0]
    if job.limits.cost is not None and job.price is not None:
        rates.append(job.price.per_device_hour / 3600 * _MILLION / job.limits.cost)
    power = job.cluster.device.power
    if job.limits.energy is not None and power is not None:
        rates.append(power.value * _MILLION / job.limits.energy)
    return max(rates)


def broken_rate_limits(job: ServingJob, tokens_per_second: float, devices: int) -> Iterator[str]:
    """Yield a sentence for each limit on throughput, cost, energy and devices that engines break."""
    limits = job.limits
    if limits.throughput is not None and tokens_per_second < limits.throughput * (1 - _ROUNDING):
        yield f"throughput is {tokens_per_second:,.0f} tokens a second, under {limits.throughput:,.0f}"
    least = least_rate_per_device(job)
    if least and tokens_per_second / devices < least * (1 - _ROUNDING):
        names = " and ".join(name for name in ("cost", "energy") if getattr(limits, name) is not None)
        each = tokens_per_second / devices
        yield f"{names}: {each:,.0f} tokens a second and device, under the {least:,.0f} that the limit needs"
    if limits.devices is not None and devices > limits.devices:
        yield f"the layout takes {devices} devices, over {limits.devices}"


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
