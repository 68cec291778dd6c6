"""Checks of a certificate: whether status, bound, gap and thinning go together and with the plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.results.merged_front import inner_objectives
from autoplan.rules.search_menus import unsearched
from autoplan.schema.saved_front import SavedCertificate
from autoplan.verification.stated_answers import StatedAnswer

__all__ = ["THINNING", "answer_certificate_errors"]

#: Share within which the plans of a front dominate all layouts: every job is planned with it.
THINNING: Final = 0.01

#: Relative tolerance: sums may be rounded in another order.
_SAME: Final = 1e-9
#: Largest gap of a proven optimum, from the rounding to the solver's ticks.
_ROUNDING: Final = 1e-3


def answer_certificate_errors(answer: StatedAnswer) -> Iterator[str]:
    """Yield the inconsistencies of an answer's certificate with itself or with its plans."""
    stated = answer.certificate
    # One of several answers may have no plan yet, where the search of all was stopped.
    unsolved = answer.words and stated.status == "feasible" and not answer.plans
    if (stated.status == "infeasible") == bool(answer.plans) and not unsolved:
        yield f"status {stated.status} with {len(answer.plans)} plans"
    if (stated.status == "feasible") != (stated.stopped is not None):
        stopped = stated.stopped or "nothing"
        yield f"status {stated.status}, and what stopped the search is stated as: {stopped}"
    if stated.candidates_solved > stated.candidates:
        yield f"{stated.candidates_solved} choices of {stated.candidates} are said to be solved"
    if stated.unsearched != unsearched(answer.job):
        yield f"what is not searched is stated as {stated.unsearched} and is {unsearched(answer.job)}"
    if stated.status == "optimal":
        yield from _thinning_errors(stated)
    if stated.status == "infeasible":
        yield from _infeasible_errors(stated)
    elif answer.points:
        yield from _gap_errors(answer)
    elif unsolved and stated.gap != 1.0:
        yield f"the gap is stated as {stated.gap} where no plan is known, and is 1"


def _thinning_errors(stated: SavedCertificate) -> Iterator[str]:
    if stated.thinning != THINNING:
        yield f"the thinning is stated as {stated.thinning} and is {THINNING} for every job"


def _infeasible_errors(stated: SavedCertificate) -> Iterator[str]:
    """Yield the numbers that a certificate of infeasibility has no use for."""
    for name in ("best_bound_step_seconds", "gap", "fastest_gap"):
        if (value := getattr(stated, name)) is not None:
            yield f"{name} is stated as {value} where nothing is feasible"
    for name in ("thinning", "solves", "candidates_solved"):
        if value := getattr(stated, name):
            yield f"{name} is stated as {value} where nothing is feasible"


def _gap_errors(answer: StatedAnswer) -> Iterator[str]:
    """Yield the errors of bound and gap; the bound itself is checked against the layouts."""
    stated, fastest = answer.certificate, answer.points[0][0]
    bound, gap = stated.best_bound_step_seconds, stated.gap
    if bound is None or gap is None:
        yield "a bound and a gap are missing"
        return
    if not 0 <= bound <= fastest * (1 + _SAME):
        yield f"the bound of {bound} s is above the fastest step of {fastest} s, or negative"
    timed = "step_time" in inner_objectives(answer.job.objectives)
    distance = max(0.0, 1 - bound / fastest) if timed else 0.0
    if stated.fastest_gap is None or abs(stated.fastest_gap - distance) > _SAME:
        yield f"fastest_gap is stated as {stated.fastest_gap} and is {distance}, that of the fastest plan"
    if stated.status == "optimal" and abs(gap - distance) > _SAME:
        yield f"the gap is stated as {gap} and is {distance}, the distance of the fastest plan from its bound"
    if stated.status == "optimal" and gap > _ROUNDING:
        yield f"status optimal with a gap of {gap}"
    if stated.status == "feasible" and not distance - _SAME <= gap <= 1:
        yield f"the gap of {gap} is less than the distance of the fastest plan from its bound, {distance}"
