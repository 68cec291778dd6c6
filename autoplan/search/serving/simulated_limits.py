"""Limits that only a simulation decides: percentiles, and the share of requests that hold every limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autoplan.costs.core.serving.latencies import Distribution, LatencyStatistics
from autoplan.costs.core.serving.served_prediction import ServedPrediction, SimulatedPrediction
from autoplan.costs.serving.queueing.run_statistics import Good
from autoplan.costs.serving.served_layouts import PricedEngine, simulated
from autoplan.schema.serving.request_trace import RequestTrace
from autoplan.schema.serving.serving_limits import Percentiles, ServingLimits, TimeLimit
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_seconds, format_share

__all__ = ["LimitSimulation", "good_requests", "simulated_limits", "simulated_sentences"]

_TIMES = ("time_to_first_token", "time_per_output_token", "request_latency")
_PERCENTILES = ("p50", "p90", "p99")


def simulated_limits(limits: ServingLimits) -> tuple[str, ...]:
    """Return the limits that a simulation decides, by name."""
    names = [
        f"{name}.{percentile}"
        for name in _TIMES
        for percentile in _PERCENTILES
        if isinstance(getattr(limits, name), Percentiles) and getattr(getattr(limits, name), percentile)
    ]
    return (*names, *(["goodput"] if limits.goodput is not None else []))


def good_requests(limits: ServingLimits) -> Good | None:
    """Return the test whether a request holds every limit; None without limits on times."""
    bounds = [_longest(getattr(limits, name)) for name in _TIMES]
    if all(bound is None for bound in bounds):
        return None

    def good(ttft: float, tpot: float, latency: float) -> bool:
        times = zip((ttft, tpot, latency), bounds, strict=True)
        return all(bound is None or time <= bound for time, bound in times)

    return good


def _longest(limit: TimeLimit | None) -> float | None:
    """Return what a single request may take [s]: the limit on the mean, or that of the highest percentile."""
    if not isinstance(limit, Percentiles):
        return limit
    return limit.p99 or limit.p90 or limit.p50 or limit.mean


def simulated_sentences(limits: ServingLimits, run: LatencyStatistics) -> Iterator[str]:
    """Yield a sentence for each simulated limit that ``run`` breaks."""
    for name in _TIMES:
        limit, times = getattr(limits, name), getattr(run, name)
        if isinstance(limit, Percentiles) and isinstance(times, Distribution):
            for percentile in _PERCENTILES:
                most, found = getattr(limit, percentile), getattr(times, percentile)
                if most is not None and found > most:
                    found_text, most_text = format_seconds(found), format_seconds(most)
                    yield f"{name}.{percentile} is {found_text} in a simulation, over {most_text}"
    if limits.goodput is not None and run.goodput < limits.goodput:
        share, least = format_share(run.goodput), format_share(limits.goodput)
        yield f"goodput is {share} in a simulation, under {least}"


@dataclass
class LimitSimulation:
    """Simulations of engines under their loads, each done once."""

    job: ServingJob
    trace: RequestTrace | None = None
    done: dict[tuple[str, float], SimulatedPrediction | None] = field(default_factory=dict)

    def of(self, engine: PricedEngine, predicted: ServedPrediction) -> ServedPrediction:
        """Return ``predicted`` with its simulation."""
        key = (str(engine.layout), predicted.load.amount)
        if key not in self.done:
            good = good_requests(self.job.limits)
            self.done[key] = simulated(self.job, engine, predicted, self.trace, good)
        return replace(predicted, simulation=self.done[key])

    def breaks(self, engine: PricedEngine, predicted: ServedPrediction) -> list[str]:
        """Return the simulated limits that an engine breaks, as sentences."""
        found = self.of(engine, predicted).simulation
        return list(simulated_sentences(self.job.limits, found.statistics)) if found else []
