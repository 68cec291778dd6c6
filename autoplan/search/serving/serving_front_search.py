"""The front of a serving job: searched, compared, and explained where nothing holds the limits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.deadline import ENDLESS, Deadline, DeadlineOver
from autoplan.results.serving.serving_front import SERVING_THINNING, ServingFront
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.search.serving.plans_so_far import front_so_far
from autoplan.search.serving.pool_comparison import compared_pools
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.search.serving.size_gaps import between_sizes
from autoplan.search.serving.unmet_limits import explained

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
            return front if front.plans or not explains else explained(search, front)
    if front is not None and (front.plans or front.certificate.stopped is None):
        return front
    return front_so_far(search, deadline.reason or "the search was stopped", may_be_empty=may_be_empty)
