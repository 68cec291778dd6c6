"""Whether pools for prefill and decode are worth it: the best plan with them, and the best without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.results.serving.serving_front import PoolComparison, ServingPlan, loss
from autoplan.search.serving.engine_options import Option
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.unmet_limits import with_options

__all__ = ["compared_pools"]


def compared_pools(search: ServingSearch) -> PoolComparison | None:
    """Return the best plans by the first objective with pools and without; None where only one is allowed."""
    job = search.job
    if set(job.search.disaggregated) != {False, True}:
        return None
    objective = job.objectives[0]
    one_objective = replace(job, objectives=(objective,))

    def best(options: Sequence[Option]) -> ServingPlan | None:
        if not options:
            return None
        plans = with_options(search, one_objective, options).front(most_plans=1).plans
        return plans[0] if plans else None

    pools, both = best(search.pools.all), best(search.options.all)
    gain = None if pools is None or both is None else -loss(both, pools, objective)
    return PoolComparison(objective, pools, both, gain)
