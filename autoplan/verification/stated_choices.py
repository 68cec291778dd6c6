"""Check of the front over several numbers of devices and batches against the answers for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Final

from autoplan.results.merged_front import ChoiceKey, choice_key, values_of
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.saved_front import SavedCertificate, SavedFront
from autoplan.verification.stated_answers import StatedAnswer, StatedPlan, answers_of, front_of
from autoplan.verification.value_comparison import differences

#: Relative tolerance: sums may be rounded in another order.
_SAME: Final = 1e-9
#: Statuses in ascending order: the merged status is the last one of the parts.
_WEAKEST: Final = ("infeasible", "optimal", "feasible")


@dataclass(frozen=True, slots=True)
class Stated:
    """A saved answer and its job: its answers, and the plans of the front over several choices.

    ``wrong`` says which answers are missing or too many.
    """

    saved: SavedFront
    job: Job
    answers: tuple[StatedAnswer, ...]
    front: tuple[tuple[StatedPlan, Job], ...]
    wrong: tuple[str, ...]

    @staticmethod
    def of(saved: SavedFront, job: Job) -> Stated:
        """Return the parsed form of ``saved``, the answer to ``job``."""
        answers, wrong = answers_of(saved, job)
        return Stated(saved, job, answers, front_of(saved, job) if job.choices else (), tuple(wrong))


@dataclass(frozen=True, slots=True)
class _Rated:
    """A plan of an answer, and the values of its objectives, to be minimised."""

    words: str
    layout: str
    values: tuple[float, ...]
    key: tuple[object, ...]
    marked: bool

    def weakly_dominates(self, other: _Rated) -> bool:
        """Return whether this is no worse than ``other`` in every objective."""
        return all(a <= b + _SAME * abs(b) for a, b in zip(self.values, other.values, strict=True))

    def precedes(self, other: _Rated) -> bool:
        """Return whether this precedes ``other`` on a front: lexicographic order of the values."""
        pairs = zip(self.values, other.values, strict=True)
        return next((a < b for a, b in pairs if not isclose(a, b, rel_tol=_SAME)), False)

    def dominates(self, other: _Rated) -> bool:
        """Return whether this is no worse in every objective and better in one."""
        pairs = zip(self.values, other.values, strict=True)
        return self.weakly_dominates(other) and any(a < b - _SAME * abs(b) for a, b in pairs)


def front_errors(stated: Stated) -> Iterator[str]:
    """Yield the dominated plans of the front over all choices, and the non-dominated ones that it lacks."""
    if not stated.job.choices:
        return
    rated = [_rated(answer, plan) for answer in stated.answers for plan in answer.plans if plan.plan]
    by_key = {plan.key: plan for plan in rated}
    on_front: list[_Rated] = []
    for plan, job in stated.front:
        if plan.layout is None:
            continue
        rated_plan = by_key.get(_key(plan.layout, job))
        if rated_plan is None:
            yield f"{plan.name} is in none of the answers: {plan.layout_string}"
        else:
            yield from _position_errors(plan.name, rated_plan, on_front, rated)
            on_front.append(rated_plan)
    for other in rated:
        is_on_front = other in on_front
        if not is_on_front and not any(plan.weakly_dominates(other) for plan in on_front):
            yield f"no plan of the front is as good as one on {other.words}: {other.layout}"
        if is_on_front != other.marked:
            is_ = "is" if is_on_front else "is not"
            yield f"{other.words}: on_front is stated as {other.marked} of {other.layout}, which {is_} there"


def _position_errors(
    name: str, position: _Rated, before: Sequence[_Rated], others: Sequence[_Rated]
) -> Iterator[str]:
    """Yield the errors of a plan's position on the front, after the plans ``before``."""
    better = next((other for other in others if other.dominates(position)), None)
    if better is not None:
        yield f"{name} is dominated by one on {better.words}: {better.layout}"
    if position in before:
        yield f"{name} is on the front twice"
    elif before and position.precedes(before[-1]):
        yield f"{name} is before one that it should follow"


def _key(layout: Layout, job: Job) -> tuple[Layout, ChoiceKey]:
    return layout, choice_key(job)


def _rated(answer: StatedAnswer, stated: StatedPlan) -> _Rated:
    plan = stated.plan
    assert plan is not None  # noqa: S101 - the caller leaves out what is not valid
    values, key = values_of(answer.job, plan), _key(plan.layout, answer.job)
    return _Rated(answer.words, stated.layout_string, values, key, stated.marked)


def certificate_errors(stated: Stated) -> Iterator[str]:
    """Yield the differences of the certificate over all choices from that merged from the answers."""
    if not stated.job.choices or len(stated.answers) < len(stated.job.choices):
        return
    overall, parts = stated.saved.certificate, [answer.certificate for answer in stated.answers]
    for name, computed in _merged_certificate(parts).items():
        stated_value = getattr(overall, name)
        yield from differences(stated_value, computed, f"over all, {name}")
    if bool(stated.saved.front) == (overall.status == "infeasible"):
        yield f"over all, status {overall.status} with {len(stated.saved.front)} plans"


def _merged_certificate(parts: Sequence[SavedCertificate]) -> dict[str, object]:
    """Return the certificate that follows from ``parts``."""
    feasible = [part for part in parts if part.status != "infeasible"]
    bounds = [part.best_bound_step_seconds for part in feasible if part.best_bound_step_seconds is not None]
    merged: dict[str, object] = {
        "status": max((part.status for part in parts), key=_WEAKEST.index),
        "best_bound_step_seconds": min(bounds, default=None),
        "gap": max((part.gap for part in feasible if part.gap is not None), default=None),
        "fastest_gap": max((x.fastest_gap for x in feasible if x.fastest_gap is not None), default=None),
        "thinning": max(part.thinning for part in parts),
    }
    for name in ("layouts_total", "layouts_covered", "candidates", "candidates_solved", "solves"):
        merged[name] = sum(getattr(part, name) for part in parts)
    merged["unsearched"] = tuple(dict.fromkeys(words for part in parts for words in part.unsearched))
    # The rest is that of the first answer that is as weak as the whole.
    weakest = next(part for part in parts if part.status == merged["status"])
    for name in ("stopped", "solver", "solver_parameters", "cost_model_hash", "autoplan_version"):
        merged[name] = getattr(weakest, name)
    return merged
