"""Whether what an answer says of pools against engines that do both is what the cost model gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isclose

from autoplan.results.serving.serving_front import PoolComparison, ServingPlan, loss
from autoplan.schema.serving.saved_serving import SavedFormatComparison, SavedPoolComparison
from autoplan.verification.serving.optimal_choices import Examined
from autoplan.verification.serving.stated_plans import stated_plan

__all__ = ["comparison_problems", "mixing_problems"]

_NEAR = 1e-9


def comparison_problems(stated: SavedPoolComparison | None, answers: tuple[Examined, ...]) -> Iterator[str]:
    """Yield what is wrong with a stated comparison: that it is missing, figures, the gain, the verdict.

    With several numbers of devices it is that of the first with a plan.
    """
    answer = next((answer for answer in answers if answer.plans), answers[0])
    job = answer.job
    asked = set(job.search.disaggregated) == {False, True}
    if asked != (stated is not None):
        yield "pools are compared where the job does not let the planner choose, or are not where it does"
    if stated is None or answer.costs is None:
        return
    plans: dict[str, ServingPlan | None] = {}
    for name, saved in (("pools", stated.pools), ("both", stated.both)):
        if saved is None:
            plans[name] = None
            continue
        repriced = stated_plan(job, saved, f"the plan of {name}", answer.costs)
        yield from (*repriced.wrong, *repriced.differing, *repriced.limits_broken)
        plans[name] = repriced.plan
        if repriced.plan is None:
            return
    pools, both = plans["pools"], plans["both"]
    if stated.objective != job.objectives[0]:
        yield f"they are compared by {stated.objective}, and the first objective is {job.objectives[0]}"
        return
    gain = None if pools is None or both is None else -loss(both, pools, stated.objective)
    alike = stated.gain == gain or (
        gain is not None and stated.gain is not None and isclose(gain, stated.gain, abs_tol=_NEAR)
    )
    if not alike:
        yield f"the gain is stated as {stated.gain} and is {gain}"
    if stated.worth_it != PoolComparison(stated.objective, pools, both, gain).worth_it:
        yield "whether pools are worth it does not follow from the gain"


def mixing_problems(stated: SavedFormatComparison, answers: tuple[Examined, ...]) -> Iterator[str]:
    """Yield what is wrong with a better plan of unlike formats: its figures, formats and limits, the gain."""
    answer = next((answer for answer in answers if answer.plans), answers[0])
    job, best = answer.job, [one.plan for one in answer.plans if one.plan is not None]
    if answer.costs is None:
        return
    mixed = replace(job, search=job.search.model_copy(update={"mixed_formats": True}))
    repriced = stated_plan(mixed, stated.plan, "the plan of unlike formats", answer.costs)
    yield from (*repriced.wrong, *repriced.differing, *repriced.limits_broken)
    if job.search.mixed_formats or stated.objective != job.objectives[0]:
        yield "what is compared is not what the job leaves out, by its first objective"
    elif repriced.plan is not None and best:
        gain = min(-loss(plan, repriced.plan, stated.objective) for plan in best)
        if not isclose(gain, stated.gain, abs_tol=_NEAR):
            yield f"the gain of unlike formats is stated as {stated.gain} and is {gain}"
        if len({group.layout.formats for group in repriced.plan.groups}) == 1:
            yield "the plan of unlike formats has one format"
