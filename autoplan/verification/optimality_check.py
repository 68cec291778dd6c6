"""Check that no layout is in a box of objective space that an answer excludes."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.deadline import Deadline
from autoplan.results.merged_front import inner_objectives, step_limit
from autoplan.results.verdict import Check, Finding
from autoplan.verification.examination import Examination
from autoplan.verification.listing.dominated_boxes import Box, boxes_of, maximal
from autoplan.verification.stated_answers import StatedAnswer

__all__ = ["excluded_boxes", "nothing_better", "optimal_boxes"]

#: Relative tolerance of a bound: rounding to the solver's ticks.
_SAME = 1e-6


def excluded_boxes(answer: StatedAnswer) -> list[Box]:
    """Return the boxes of memory [byte] and step [s] in which an answer says that there is no layout.

    None where the plans themselves are wrong.
    """
    if len(answer.points) < len(answer.plans):
        return []
    stated = answer.certificate
    if stated.status == "infeasible":
        return optimal_boxes(answer, stated.thinning)
    bound = (stated.best_bound_step_seconds or 0.0) / (1 + _SAME)
    fastest = Box(memory_limit_bytes(answer.job), bound)
    if stated.status == "feasible":
        return [fastest]
    return maximal([fastest, *optimal_boxes(answer, stated.thinning)])


def optimal_boxes(answer: StatedAnswer, thinning: float) -> list[Box]:
    """Return the boxes that the plans of ``answer`` exclude if they are optimal; all where there is none."""
    job, most = answer.job, step_limit(answer.job)
    return boxes_of(
        answer.points,
        thinning=thinning,
        limit=memory_limit_bytes(job),
        longest=most[0] if most else float("inf"),
        objectives=inner_objectives(job.objectives),
        others=answer.others,
    )


def nothing_better(
    answers: Sequence[StatedAnswer], examinations: Sequence[Examination], deadline: Deadline
) -> list[Check]:
    """Return one check for each kind of claim that ``answers`` make about all other layouts."""
    outcomes_of_claim: dict[str, list[tuple[Finding, list[str]]]] = {}
    for answer, space in zip(answers, examinations, strict=True):
        finding, sentences = _outcome(answer, space, deadline)
        outcomes_of_claim.setdefault(_claim(answer), []).append(
            (finding, [answer.about(sentence) for sentence in sentences])
        )
    return [_check(claim, outcomes) for claim, outcomes in outcomes_of_claim.items()]


def _check(claim: str, outcomes: Sequence[tuple[Finding, list[str]]]) -> Check:
    order: tuple[Finding, ...] = ("fails", "not checked", "holds")
    ordered = sorted(outcomes, key=lambda outcome: order.index(outcome[0]))
    return Check(claim, ordered[0][0], tuple(sentence for _, sentences in ordered for sentence in sentences))


def _claim(answer: StatedAnswer) -> str:
    stated = answer.certificate
    if stated.status == "infeasible":
        return "no layout is feasible"
    if stated.status == "feasible":
        return "no layout is faster than the bound"
    return f"no layout dominates a plan, and every other is dominated, within {stated.thinning:.3g}, by one"


def _outcome(answer: StatedAnswer, space: Examination, deadline: Deadline) -> tuple[Finding, list[str]]:
    if len(answer.points) < len(answer.plans):
        return "not checked", ["the front itself is wrong"]
    if space.counts is None:
        return "not checked", [f"the choices of degrees were not all enumerated: {deadline.reason}"]
    choices = (
        f"{space.choices:,} choices of degrees, {space.counts.covered:,} layouts: each choice bounded"
        f" ({space.listed:,} partial layouts listed); status {answer.certificate.status}"
    )
    if space.violations:
        return "fails", space.violations
    if space.open:
        why = deadline.reason or "too many layouts to list"
        return "not checked", [f"{space.open:,} of {space.choices:,} choices of degrees are left open: {why}"]
    return "holds", [choices]
