"""The front of a serving job: searched, compared, and explained where nothing holds the limits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import ENDLESS, Deadline, DeadlineOver
from autoplan.results.serving.serving_front import (
    SERVING_THINNING,
    FormatComparison,
    ServingFront,
    loss,
)
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.plans_so_far import front_so_far
from autoplan.search.serving.pool_comparison import compared_pools
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.size_gaps import between_sizes
from autoplan.search.serving.unmet_limits import explained, with_options

__all__ = ["search_serving"]


def search_serving(
    job: ServingJob,
    costs: ServingCosts,
    *,
    deadline: Deadline = ENDLESS,
    thinning: float = SERVING_THINNING,
    explains: bool = True,
    may_be_empty: bool = False,
) -> ServingFront:
    """Return the front of a serving job, thinned; without a plan, with the reasons why where it ``explains``.

    Where the deadline ends first, the front has the plans so far, and its certificate says so. Raises
    UnsupportedError where there are none, and none is found within a short grace either; with
    ``may_be_empty`` nothing is looked for then, and the front is empty.
    """
    search, front = ServingSearch(job, costs, thinning), None
    with deadline.in_force(), suppress(DeadlineOver):
        front = search.front()
        if front.plans or front.certificate.stopped is None:
            gap = between_sizes(job, search.priced)
            certificate = replace(front.certificate, between_sizes=gap)
            front = replace(front, certificate=certificate, comparison=compared_pools(search))
            front = replace(front, mixing=_compared_formats(search, front))
            return front if front.plans or not explains else explained(search, front)
    if front is not None and (front.plans or front.certificate.stopped is None):
        return front
    return front_so_far(search, deadline.reason or "the search was stopped", may_be_empty=may_be_empty)


def _compared_formats(search: ServingSearch, front: ServingFront) -> FormatComparison | None:
    """Return the best plan of unlike formats by the first objective, where it beats those of ``front``."""
    job, options = search.job, search.options.all
    if job.search.mixed_formats or not front.plans or len({option.formats for option in options}) == 1:
        return None
    objective = job.objectives[0]
    mixed = job.search.model_copy(update={"mixed_formats": True})
    asked = replace(job, objectives=(objective,), search=mixed)
    plan = next(iter(with_options(search, asked, options).front(most_plans=1).plans), None)
    gain = 0.0 if plan is None else -loss(front.best, plan, objective)
    return None if plan is None or gain < search.thinning else FormatComparison(objective, plan, gain)
