"""Closed forms against the simulation of the same load: where they differ, the simulation counts.

Notation (this file only)::

    times are means over requests                                                    [s]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoplan.costs.core.served_prediction import (
    ClassStatistics,
    Distribution,
    LatencyStatistics,
    PooledPrediction,
    ServedClass,
    ServedMeans,
    ServedPrediction,
)


def settled(predicted: ServedPrediction) -> ServedPrediction:
    """Return engines with the means of their simulation, where it contradicts the closed form.

    Throughput, too, but for an open loop, which answers what arrives. Without a simulation, or with
    one that agrees, ``predicted`` itself.

    >>> predicted, run = h100_served()
    >>> settled(replace(predicted, simulation=run)).closed_form is None
    True
    >>> settled(replace(predicted, simulation=replace(run, gap=0.5))).closed_form is None
    False
    """
    run = _contradicting(predicted)
    if run is None:
        return predicted
    return replace(
        predicted,
        point=replace(predicted.point, **_simulated(predicted, run)),
        classes=_classes(predicted.classes, run),
        closed_form=_means(predicted),
    )


def settled_pools(predicted: PooledPrediction) -> PooledPrediction:
    """Return pools with the means of their simulation, where it contradicts the closed form.

    >>> settled_pools(SimpleNamespace(simulation=None)).simulation is None
    True

    Source: ``settled``.
    """
    run = _contradicting(predicted)
    if run is None:
        return predicted
    latency = run.request_latency.mean
    return replace(
        predicted,
        **_simulated(predicted, run),
        request_latency=latency,
        classes=_classes(predicted.classes, run),
        closed_form=_means(predicted),
    )


def _contradicting(predicted: ServedPrediction | PooledPrediction) -> LatencyStatistics | None:
    """Return the run that contradicts a closed form; None where none does."""
    simulation = predicted.simulation
    if simulation is None or not simulation.contradicts or not predicted.starts:
        return None
    return simulation.statistics


def _simulated(predicted: ServedPrediction | PooledPrediction, run: LatencyStatistics) -> dict[str, Any]:
    """Return the means of ``run`` by field; an open loop keeps the rates that it is asked for."""
    tpot = _mean(run.time_per_output_token)
    times = {
        "time_to_first_token": _first_token(predicted.time_to_first_token, run),
        "time_per_output_token": predicted.time_per_output_token if tpot is None else tpot,
    }
    if predicted.load.kind == "open loop":
        return times
    rates = ("requests_per_second", "output_tokens_per_second")
    return times | {name: getattr(run, name) for name in rates}


def _means(predicted: ServedPrediction | PooledPrediction) -> ServedMeans:
    return ServedMeans(
        predicted.time_to_first_token,
        predicted.time_per_output_token,
        predicted.request_latency,
        predicted.output_tokens_per_second,
    )


def _mean(times: Distribution | None) -> float | None:
    return None if times is None else times.mean


def _first_token(closed: float, run: LatencyStatistics) -> float:
    """Return the simulated time to the first token; infinite where the rate exceeds the maximum."""
    return closed if closed == float("inf") else run.time_to_first_token.mean


def _classes(classes: tuple[ServedClass, ...], run: LatencyStatistics) -> tuple[ServedClass, ...]:
    simulated = {statistics.name: statistics for statistics in run.classes}
    return tuple(_simulated_class(served, simulated.get(served.name)) for served in classes)


def _simulated_class(served: ServedClass, run: ClassStatistics | None) -> ServedClass:
    if run is None:
        return served
    tpot = _mean(run.time_per_output_token)
    return replace(
        served,
        time_to_first_token=run.time_to_first_token.mean,
        time_per_output_token=served.time_per_output_token if tpot is None else tpot,
    )
