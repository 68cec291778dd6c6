"""Explaining one layout: what fills its devices, and what would make room."""

from __future__ import annotations

from pathlib import Path

from autoplan.planning.answers import chosen, evaluate, plannable
from autoplan.planning.remedies import remedies_of
from autoplan.plans.explanation import Explanation
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["explain"]


def explain(job: Job | str | Path, layout: Layout | str) -> Explanation:
    """Return the prediction of ``layout`` for ``job``, moment by moment, and the remedies if it does not fit.

    For a layout that fits the remedies are what would make more room. Raises LayoutError with every rule
    that the layout breaks.
    """
    job = chosen(plannable(job), layout)
    plan = evaluate(job, layout)
    return Explanation(plan, remedies_of(job, plan))
