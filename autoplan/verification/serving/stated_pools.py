"""Pools for prefill and decode of a saved serving answer, repriced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoplan.costs.core.serving.pooled_prediction import PooledPrediction
from autoplan.costs.serving.disaggregated.paired_pools import pooled
from autoplan.costs.serving.disaggregated.pool_pricing import engine_pair
from autoplan.costs.serving.disaggregated.pooled_run import simulated_pools
from autoplan.costs.serving.served_layouts import ServingCosts, engine_load
from autoplan.costs.serving.settled_predictions import settled_pools
from autoplan.results.serving.serving_front import ServingPlan, plan_of_pools
from autoplan.rules.class_limit_rules import broken_means, broken_simulated, request_test
from autoplan.schema.serving.engine_layout import DisaggregatedLayout
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["broken_times", "repriced_pools"]


def repriced_pools(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts) -> ServingPlan:
    """Return the plan of pools, with its simulation."""
    pair = engine_pair(job, layout, costs)
    predicted = pooled(job, pair, engine_load(job, 1))
    run = simulated_pools(job, pair, predicted, costs.trace, request_test(job))
    return plan_of_pools(layout, settled_pools(replace(predicted, simulation=run)))


def broken_times(job: ServingJob, predicted: PooledPrediction) -> Iterator[str]:
    """Yield the limits on times that pools break."""
    yield from broken_means(job, predicted)
    if predicted.simulation is not None:
        yield from broken_simulated(job, predicted.simulation.statistics)
