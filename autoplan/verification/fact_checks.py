"""Checks of the facts that an answer repeats of its job: summary, provenance, and the resolved job itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from autoplan.costs.predict import facts_of
from autoplan.deadline import Deadline
from autoplan.errors import LayoutError
from autoplan.results.front import Front, Suggestion, parts_of
from autoplan.results.job_summary import job_document, provenance
from autoplan.results.plan import layout_fields
from autoplan.results.verdict import Check
from autoplan.schema.base import SourcedShare
from autoplan.schema.job import Job
from autoplan.schema.layout import parse_layout
from autoplan.schema.resolved_job import hashes, resolved
from autoplan.schema.saved_front import SavedCertificate, SavedFront, SavedSuggestion
from autoplan.verification.stated_answers import Stated, differences


def fact_errors(saved: SavedFront, job: Job) -> Iterator[str]:
    """Yield the differences of the job's summary from the resolved job, and of that from its plain form."""
    yield from differences(saved.job, job_document(job, facts_of(job)), "job")
    yield from differences(saved.resolved, resolved(job), "resolved")


def hash_errors(certificate: SavedCertificate, job: Job) -> Iterator[str]:
    """Yield the hashes of a certificate that are not those of ``job``."""
    mine, model = hashes(job)
    if mine != certificate.job_hash:
        yield f"the certificate is for the job {certificate.job_hash}, the file holds {mine}"
    if model != certificate.cost_model_hash:
        yield f"the certificate is for the cost model {certificate.cost_model_hash}, the file holds {model}"


def stack_errors(saved: SavedFront, job: Job) -> Iterator[str]:
    """Yield where the steps under several stacks contradict the job or its fastest plan."""
    if bool(saved.stacks) != bool(job.stack_assumed and saved.front):
        yield "stacks: they are stated where the job names no stack and there is a plan, and nowhere else"
        return
    if not saved.stacks:
        return
    first, *others = saved.stacks
    times = [plan.predicted.get("step_seconds") for plan in saved.front]
    fastest = min((x for x in times if isinstance(x, float)), default=None)
    if (first.stack, first.step_seconds, first.fits) != (job.stack.name, fastest, True):
        yield f"stacks: the first is {first}, and the fastest plan takes {fastest} s under {job.stack.name}"
    names = [step.stack for step in saved.stacks]
    if len(set(names)) < len(names):
        yield "stacks: a stack is stated twice"
    if [x.step_seconds for x in others] != sorted(x.step_seconds for x in others):
        yield "stacks: they are not in the order of their steps"


def order_noise_errors(saved: SavedFront, job: Job) -> Iterator[str]:
    """Yield the errors in the list of plans whose step times the cost model cannot tell apart."""
    noise, order = saved.order_noise, _order_of_fastest(saved, job)
    steps, memory = _numbers_of(saved, "step_seconds"), _numbers_of(saved, "peak_memory_bytes_per_device")
    near: list[int] = []
    if order is not None and steps and memory:
        near = [n for n, step in enumerate(steps, start=1) if step <= min(steps) * (1 + order.value)]
    expected = tuple(near) if len(near) > 1 else ()
    if (noise.plans if noise else ()) != expected:
        yield f"order_noise: the plans within the noise of the model are {list(expected)}"
    elif noise is not None and order is not None:
        if noise.share != order.value or noise.smallest != min(near, key=lambda n: memory[n - 1]):
            yield "order_noise: its share is that of the stack, and the smallest plan that of least memory"
        parts = [_parts(plan.layout_string, job) for plan in saved.front]
        if noise.simplest != min(near, key=lambda n: (parts[n - 1], n)):
            yield "order_noise: the simplest plan is that whose layout has the fewest parts"


def _order_of_fastest(saved: SavedFront, job: Job) -> SourcedShare | None:
    """Return the noise of the stack that prices the fastest plan; None where ``job`` has several sizes."""
    choices = job.choices or (job,)
    if len({(one.cluster.devices, one.workload.global_batch_size) for one in choices}) > 1:
        return None
    steps = _numbers_of(saved, "step_seconds")
    if not steps:
        return None
    key = saved.front[steps.index(min(steps))].predicted.get("program")
    runs = (one for one in choices if one.program is not None and one.program.key == key)
    return next(runs, job).stack.uncertainty.order


def _parts(layout: str, job: Job) -> int:
    """Return the number of parts of a stated layout; 0 for an invalid one, which other checks report."""
    try:
        return parts_of(parse_layout(layout, layers=job.model.layers, devices=job.cluster.devices))
    except LayoutError:
        return 0


def _numbers_of(saved: SavedFront, key: str) -> list[float]:
    """Return a predicted value of every plan; empty where one is no number, which other checks report."""
    stated = [plan.predicted.get(key) for plan in saved.front]
    numbers = [float(x) for x in stated if isinstance(x, int | float)]
    return numbers if len(numbers) == len(stated) else []


def provenance_errors(saved: SavedFront, job: Job) -> Iterator[str]:
    """Yield the differences of the stated provenance from the entries in the resolved job."""
    stated, expected = (
        {key: value for key, value in entries.items() if key != "autoplan"}
        for entries in (saved.provenance, provenance(job))
    )
    yield from differences(stated, expected, "provenance")
    versions = {saved.provenance.get("autoplan"), saved.certificate.autoplan_version}
    versions |= {answer.certificate.autoplan_version for answer in saved.answers}
    if len(versions) > 1:
        yield f"the answer is of several versions of autoplan: {', '.join(sorted(map(str, versions)))}"


#: Returns the front of a job without plans, planned again; with suggestions where the flag is set.
Replanned: TypeAlias = Callable[[Job, bool], Front]

_OF_NO_PLAN: Final = ("reasons", "conflict", "further_conflicts", "suggestions", "suggestions_stopped")
_CLAIM: Final = "reasons, conflict and suggestions are those of the job"

#: What a reason says that was not found before a deadline.
_STOPPED: Final = "before it was found which limit excludes the last layouts"

#: The line of a rule in the job file, which is no part of the question.
_LINE: Final = re.compile(r"(?<=\]) \(line \d+\)")


def explanations_check(stated: Stated, replanned: Replanned, deadline: Deadline) -> Check:
    """Return the check of reasons and suggestions of answers without plans, planned again by the same code.

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
        same = next((i for i, one in enumerate(left) if one["kind"] == suggestion.kind), None)
        if same is None:
            yield _Error(f"suggestions[{number}] ({suggestion.kind}) is not found again, or in another order")
            continue
        one, left = left[same], left[same + 1 :]
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
