"""Check of the reasons, the conflict and the suggestions of an answer without plans."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from autoplan.deadline import Deadline
from autoplan.results import Front, Suggestion
from autoplan.results.plan import layout_fields
from autoplan.results.verdict import Check
from autoplan.schema.job import Job
from autoplan.schema.saved_front import SavedFront, SavedSuggestion
from autoplan.verification.stated_choices import Stated
from autoplan.verification.value_comparison import differences

__all__ = ["Replanned", "explanations_check", "lines_stated"]

#: Returns the front of a job without plans, planned again; with suggestions where the flag is set.
Replanned: TypeAlias = Callable[[Job, bool], Front]

_OF_NO_PLAN: Final = ("reasons", "conflict", "further_conflicts", "suggestions", "suggestions_stopped")
_CLAIM: Final = "reasons, conflict and suggestions are those of the job"

#: What a reason says that was not found before a deadline.
_STOPPED: Final = "before it was found which limit excludes the last layouts"

#: The line of a rule in the job file, which is no part of the question.
_LINE: Final = re.compile(r"(?<=\]) \(line \d+\)")


def explanations_check(stated: Stated, replanned: Replanned, deadline: Deadline) -> Check:
    """Return the check of what is said of answers without plans, which are planned again by the same code.

    A deadline may have ended the planning before it had found all that helps: what is missing is not checked.
    """
    wrong = list(_superfluous(stated))
    if wrong or all(answer.plans for answer in stated.answers):
        return Check(_CLAIM, "fails" if wrong else "holds", tuple(wrong))
    errors_of_answer: list[_Error] = []
    if not deadline.over:
        errors = _errors_of_answers if stated.saved.front else _errors
        errors_of_answer = list(errors(stated, replanned))
    if deadline.over:
        return Check(_CLAIM, "not checked", (f"not planned again: {deadline.reason}",))
    if false := [error.sentence for error in errors_of_answer if error.false]:
        return Check(_CLAIM, "fails", tuple(false))
    if errors_of_answer:
        return Check(_CLAIM, "not checked", tuple(error.sentence for error in errors_of_answer))
    return Check(_CLAIM, "holds", ("recomputed by the code that planned, not independently of it",))


def lines_stated(saved: SavedFront) -> bool:
    """Return whether ``saved`` names lines of its job file, which it does not hold."""
    texts = [*saved.reasons, *saved.conflict, *(text for texts in saved.further_conflicts for text in texts)]
    texts += [reason for answer in saved.answers for reason in answer.reasons]
    return any(_LINE.search(text) for text in texts)


def _without_lines(texts: Sequence[str]) -> list[str]:
    return [_LINE.sub("", text) for text in texts]


@dataclass(frozen=True, slots=True)
class _Error:
    """A difference from what planning again says; not ``false`` where the planning may have been stopped."""

    sentence: str
    false: bool = True


def _superfluous(stated: Stated) -> Iterator[str]:
    """Yield what is said of an answer with plans as if it had none."""
    for name in _OF_NO_PLAN if stated.saved.front else ():
        if getattr(stated.saved, name):
            yield f"{name} are stated, and there are plans"
    for answer in stated.answers:
        if answer.plans and answer.reasons:
            yield answer.about("reasons are stated, and there are plans")


def _errors(stated: Stated, replanned: Replanned) -> Iterator[_Error]:
    """Yield the differences where no answer has a plan."""
    saved, recomputed = stated.saved, replanned(stated.job, True)  # noqa: FBT003 - see Replanned
    if recomputed.plans:
        yield _Error(f"planned again, there are {len(recomputed.plans)} plans")
        return
    yield from _reason_errors(saved.reasons, recomputed.reasons, "reasons")
    yield from _conflict_errors(saved, recomputed)
    yield from _suggestion_errors(saved.suggestions, recomputed.suggestions)
    if saved.suggestions_stopped is not None:
        yield _Error(f"suggestions_stopped: {saved.suggestions_stopped}, as stated", false=False)
    for answer, part in zip(stated.answers, recomputed.answers or (recomputed,), strict=False):
        yield from _reason_errors(answer.reasons, part.reasons, answer.about("reasons"))


def _conflict_errors(saved: SavedFront, recomputed: Front) -> Iterator[_Error]:
    """Yield the differences in the conflicts; an answer of ``plan`` in Python states none of them."""
    if recomputed.conflict and not (saved.conflict or saved.further_conflicts):
        yield _Error("conflict: none is stated, and planned again there is one", false=False)
        return
    yield from map(_Error, differences(_without_lines(saved.conflict), recomputed.conflict, "conflict"))
    complete = saved.suggestions_stopped is None and recomputed.suggestions_stopped is None
    others = [_without_lines(texts) for texts in saved.further_conflicts]
    further = differences(others, recomputed.further_conflicts, "further_conflicts")
    yield from (_Error(sentence, false=complete) for sentence in further)


def _errors_of_answers(stated: Stated, replanned: Replanned) -> Iterator[_Error]:
    """Yield the differences in the reasons of the answers without plans, where other answers have some."""
    for answer in stated.answers:
        if not answer.plans and answer.certificate.stopped is not None:
            yield _Error(answer.about("no plan is stated, since the search was stopped"), false=False)
        elif not answer.plans:
            second_answer = replanned(answer.job, False)  # noqa: FBT003 - see Replanned
            if second_answer.plans:
                yield _Error(answer.about(f"planned again, there are {len(second_answer.plans)} plans"))
            yield from _reason_errors(answer.reasons, second_answer.reasons, answer.about("reasons"))


def _reason_errors(stated: Sequence[str], recomputed: Sequence[str], place: str) -> Iterator[_Error]:
    """Yield the differences between reasons; a search that was stopped says so instead."""
    stopped = any(_STOPPED in reason for reason in stated)
    reason_differences = differences(_without_lines(stated), list(recomputed), place)
    yield from (_Error(sentence, false=not stopped) for sentence in reason_differences)


def _suggestion_errors(
    stated: Sequence[SavedSuggestion], recomputed: Sequence[Suggestion]
) -> Iterator[_Error]:
    """Yield the suggestions that are not found again, in their order, and how many are missing."""
    left = [_suggestion(suggestion) for suggestion in recomputed]
    for number, suggestion in enumerate(stated):
        if suggestion.number != number + 1:
            yield _Error(f"suggestions[{number}].number is {suggestion.number}")
        own = next((i for i, one in enumerate(left) if one["kind"] == suggestion.kind), None)
        if own is None:
            yield _Error(f"suggestions[{number}] ({suggestion.kind}) is not found again, or in another order")
            continue
        one, left = left[own], left[own + 1 :]
        yield from map(_Error, differences(_plain(suggestion), one, f"suggestions[{number}]"))
    if len(stated) < len(recomputed):
        missing = (
            f"{len(stated)} of {len(recomputed)} suggestions: a deadline may have ended the search for more"
        )
        yield _Error(missing, false=False)


def _plain(stated: SavedSuggestion) -> dict[str, Any]:
    return stated.model_dump(mode="json", exclude={"number"})


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    plan = suggestion.plan
    return {
        "kind": suggestion.kind,
        "edits": [dataclasses.asdict(edit) for edit in suggestion.edits],
        "devices": suggestion.devices,
        "layout": layout_fields(plan.layout),
        "layout_string": plan.layout_string,
        "predicted": plan.predicted,
    }
