"""Check of answers whose search is said to have been stopped: whether they are better than they say.

That a search was stopped leaves no trace. Whether its plans are the best all the same can be found, as for an
answer that says so: then the status says less than holds, be it by chance or since somebody changed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.deadline import Deadline
from autoplan.results.verdict import Check, Finding
from autoplan.verification.certificate_checks import THINNING
from autoplan.verification.examination import examined
from autoplan.verification.optimality_check import optimal_boxes
from autoplan.verification.stated_answers import StatedAnswer

__all__ = ["stopped_checks"]

_CLAIM: Final = "a search that is said to have been stopped may have left better layouts out"

#: The most telling first: of several answers, the check has the first finding that one of them has.
_ORDER: Final[tuple[tuple[Finding, bool], ...]] = (
    ("not checked", True),
    ("not checked", False),
    ("holds", False),
)


def stopped_checks(answers: Sequence[StatedAnswer], deadline: Deadline) -> Iterator[Check]:
    """Yield the check of the ``answers`` of stopped searches, where there are any.

    It holds where a layout is better. Where none is, what stopped the search matters and is not checked.
    """
    stopped = [answer for answer in answers if answer.certificate.status == "feasible"]
    outcomes = [(answer, *_outcome(answer, deadline)) for answer in stopped]
    if not outcomes:
        return
    finding, matters = min((outcome[1] for outcome in outcomes), key=_ORDER.index)
    yield Check(_CLAIM, finding, tuple(answer.about(words) for answer, _, words in outcomes), matters=matters)


def _outcome(answer: StatedAnswer, deadline: Deadline) -> tuple[tuple[Finding, bool], str]:
    """Return the finding on an answer, whether it matters, and a sentence."""
    if len(answer.points) < len(answer.plans):
        return ("not checked", False), "the front itself is wrong"
    known = examined(answer.job, optimal_boxes(answer, THINNING), deadline)
    if known.violations:
        return ("holds", False), f"better is {known.violations[0].split(' takes ')[0]}"
    if known.counts is None or known.open:
        return ("not checked", False), f"whether any is better: {deadline.reason or 'too many to list'}"
    what = "no layout is better than its plans" if answer.plans else "no layout keeps the limits"
    said = f"{what}: status feasible says less than holds, and stopped ({answer.certificate.stopped}) leaves"
    return ("not checked", True), f"{said} no trace"
