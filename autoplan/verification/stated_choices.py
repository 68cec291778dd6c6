"""The front over several numbers of devices and batches, against the answers for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Final

from autoplan.results.merged_front import values_of
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.saved_front import SavedCertificate, SavedFront
from autoplan.verification.stated_answers import StatedAnswer, StatedPlan, answers_of, front_of
from autoplan.verification.value_comparison import differences

__all__ = ["Stated", "beaten_or_missing", "not_of_all"]

#: Rounding of sums in another order, as a share.
_SAME: Final = 1e-9
#: Of several parts the last of these is what is proven of all.
_WEAKEST: Final = ("infeasible", "optimal", "feasible")


@dataclass(frozen=True, slots=True)
class Stated:
    """A saved answer and its job: the answers it holds, and the plans of a front over several.

    ``wrong`` says which answers are missing.
    """

    saved: SavedFront
    job: Job
    answers: tuple[StatedAnswer, ...]
    front: tuple[tuple[StatedPlan, Job], ...]
    wrong: tuple[str, ...]

    @staticmethod
    def of(saved: SavedFront, job: Job) -> Stated:
        """Return ``saved``, the answer to ``job``, taken apart."""
        answers, wrong = answers_of(saved, job)
        return Stated(saved, job, answers, front_of(saved, job) if job.choices else (), tuple(wrong))


@dataclass(frozen=True, slots=True)
class _Rated:
    """A plan of an answer, and what its objectives make small."""

    words: str
    layout: str
    values: tuple[float, ...]
    key: tuple[object, ...]
    marked: bool

    def matches(self, other: _Rated) -> bool:
        """Return whether this is as good as ``other`` in everything."""
        return all(a <= b + _SAME * abs(b) for a, b in zip(self.values, other.values, strict=True))

    def precedes(self, other: _Rated) -> bool:
        """Return whether this comes first on a front: the first of its values that differs is smaller."""
        pairs = zip(self.values, other.values, strict=True)
        return next((a < b for a, b in pairs if not isclose(a, b, rel_tol=_SAME)), False)

    def beats(self, other: _Rated) -> bool:
        """Return whether this is better in something, too."""
        pairs = zip(self.values, other.values, strict=True)
        return self.matches(other) and any(a < b - _SAME * abs(b) for a, b in pairs)


def beaten_or_missing(stated: Stated) -> Iterator[str]:
    """Yield which plans of the front over all choices another beats, and which of the others none matches."""
    if not stated.job.choices:
        return
    rated = [_rated(answer, plan) for answer in stated.answers for plan in answer.plans if plan.plan]
    known = {plan.key: plan for plan in rated}
    on_front: list[_Rated] = []
    for plan, job in stated.front:
        if plan.layout is None:
            continue
        own = known.get(_key(plan.layout, job))
        if own is None:
            yield f"{plan.name} is in none of the answers: {plan.layout_string}"
        else:
            yield from _out_of_place(plan.name, own, on_front, rated)
            on_front.append(own)
    for other in rated:
        here = other in on_front
        if not here and not any(plan.matches(other) for plan in on_front):
            yield f"no plan of the front is as good as one on {other.words}: {other.layout}"
        if here != other.marked:
            is_ = "is" if here else "is not"
            yield f"{other.words}: on_front is stated as {other.marked} of {other.layout}, which {is_} there"


def _out_of_place(
    name: str, own: _Rated, before: Sequence[_Rated], others: Sequence[_Rated]
) -> Iterator[str]:
    """Yield what is wrong with a plan's place on the front, where ``before`` comes first."""
    better = next((other for other in others if other.beats(own)), None)
    if better is not None:
        yield f"{name} is beaten by one on {better.words}: {better.layout}"
    if own in before:
        yield f"{name} is on the front twice"
    elif before and own.precedes(before[-1]):
        yield f"{name} is before one that it should follow"


def _key(layout: Layout, job: Job) -> tuple[Layout, int]:
    return layout, job.workload.global_batch_size


def _rated(answer: StatedAnswer, stated: StatedPlan) -> _Rated:
    plan = stated.plan
    assert plan is not None  # noqa: S101 - the caller leaves out what is not valid
    values, key = values_of(answer.job, plan), _key(plan.layout, answer.job)
    return _Rated(answer.words, stated.layout_string, values, key, stated.marked)


def not_of_all(stated: Stated) -> Iterator[str]:
    """Yield where the certificate over all choices is not what those of the answers come to."""
    if not stated.job.choices or len(stated.answers) < len(stated.job.choices):
        return
    whole, parts = stated.saved.certificate, [answer.certificate for answer in stated.answers]
    for name, own in _of_parts(parts).items():
        given = getattr(whole, name)
        if not isinstance(given, str) or name == "status":
            yield from differences(given, own, f"over all, {name}")
    if bool(stated.saved.front) == (whole.status == "infeasible"):
        yield f"over all, status {whole.status} with {len(stated.saved.front)} plans"


def _of_parts(parts: Sequence[SavedCertificate]) -> dict[str, object]:
    """Return what is proven of all where ``parts`` are proven; without counts that nobody could write."""
    found = [part for part in parts if part.status != "infeasible"]
    bounds = [part.best_bound_step_seconds for part in found if part.best_bound_step_seconds is not None]
    own: dict[str, object] = {
        "status": max((part.status for part in parts), key=_WEAKEST.index),
        "best_bound_step_seconds": min(bounds, default=None),
        "gap": max((part.gap for part in found if part.gap is not None), default=None),
        "thinning": max(part.thinning for part in parts),
    }
    for name in ("layouts_total", "layouts_covered", "candidates"):
        counts = [getattr(part, name) for part in parts]
        if all(isinstance(count, int) for count in counts):
            own[name] = sum(counts)
    return own
