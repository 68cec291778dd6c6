"""Explanation of one layout: its memory, the remedies that reduce it, and why it is not on the front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autoplan.costs.predict import facts_of, predict
from autoplan.deadline import Deadline
from autoplan.planning.explaining.bottlenecks import bottlenecks
from autoplan.planning.explaining.dominance import refusal_of, standing_of
from autoplan.planning.explaining.remedies import remedies_of
from autoplan.planning.plan_and_evaluate import chosen, plannable, read_layout
from autoplan.results import Plan
from autoplan.results.explanation import Explanation
from autoplan.results.standing import Refusal, Standing
from autoplan.rules import broken_rules
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["explain"]


def explain(
    job: Job | str | Path,
    layout: Layout | str,
    *,
    progress: Callable[[int, float], None] | None = None,
    deadline: Deadline | float | None = None,
) -> Explanation | Refusal:
    """Return the explanation of ``layout``: its prediction, remedies, and standing relative to the front.

    For a layout that does not fit, the remedies are the changes that make it fit; for one that fits, those
    that save memory. Only for the latter the front is searched, with ``progress`` and ``deadline`` as in
    ``plan``. For a layout that violates rules, return these and the nearest valid layout. Raises LayoutError
    for a text that is no layout.
    """
    job = chosen(plannable(job), layout)
    limit = Deadline.of(deadline, job.deadline)
    layout = read_layout(job, layout)
    if broken_rules(job, layout):
        return refusal_of(job, layout)
    plan = Plan(layout, predict(job, layout), facts_of(job))
    standing = Standing("does not fit", 0)
    if plan.predicted.fits:
        from autoplan.search import search

        standing = standing_of(job, plan, search(job, progress=progress, deadline=limit))
    return Explanation(plan, remedies_of(job, plan), standing, bottlenecks(job, plan))
