"""Evaluate pools for prefill and decode."""

from __future__ import annotations

from dataclasses import replace

from autoplan.costs.serving.disaggregated.paired_pools import pooled
from autoplan.costs.serving.disaggregated.pool_pricing import engine_pair
from autoplan.costs.serving.disaggregated.pooled_run import simulated_pools
from autoplan.costs.serving.served_layouts import ServingCosts, engine_load
from autoplan.costs.serving.settled_predictions import settled_pools
from autoplan.errors import LayoutError
from autoplan.results.serving.serving_front import ServingPlan, plan_of_pools
from autoplan.rules.class_limit_rules import broken_limits, request_test
from autoplan.rules.pool_rules import broken_pool_rules
from autoplan.schema.serving.engine_layout import DisaggregatedLayout
from autoplan.schema.serving.serving_spec import ServingJob

__all__ = ["evaluated_pools", "pools_with_formats"]


def evaluated_pools(job: ServingJob, layout: DisaggregatedLayout, costs: ServingCosts) -> ServingPlan:
    """Return pools with their prediction, whether or not they fit.

    Engines of a pool share its part evenly. Raises LayoutError with every rule that the pools break.
    """
    broken = broken_pool_rules(job, layout)
    if broken:
        raise LayoutError([f"{layout} breaks a rule: {sentence}" for sentence in broken])
    pair = engine_pair(job, layout, costs)
    predicted = pooled(job, pair, engine_load(job, 1))
    simulation = simulated_pools(job, pair, predicted, costs.trace, request_test(job))
    pools = settled_pools(replace(predicted, simulation=simulation))
    return replace(plan_of_pools(layout, pools), broken=tuple(broken_limits(job, pools)))


def pools_with_formats(job: ServingJob, text: str, layout: DisaggregatedLayout) -> DisaggregatedLayout:
    """Return pools of a layout string; a pool without a number of engines takes what the other one leaves.

    Where neither says a number, each pool has one engine. Drafts are made where answers are decoded.
    """
    prefill, decode = text.split("/", 1)
    said = ["x=" in part or "replicas=" in part for part in (prefill, decode)]
    pools = [replace(layout.prefill, spec=0) if "spec" not in prefill else layout.prefill, layout.decode]
    for own, other in ((0, 1), (1, 0)):
        if not said[own] and said[other]:
            left = job.cluster.devices - pools[other].devices
            pools[own] = replace(pools[own], replicas=max(1, left // pools[own].devices_per_engine))
    return DisaggregatedLayout(*pools)
