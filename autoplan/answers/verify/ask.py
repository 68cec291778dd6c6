"""Verification of a saved front, independent of the search and its solver; comparison of two saved fronts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from autoplan.catalog import read_file, serving_hashes
from autoplan.deadline import Deadline
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.kinds import kind_of_document, loaded_job
from autoplan.planning.plan_and_evaluate import plan, plannable
from autoplan.planning.serving_plans import plan_serving, serving_costs, serving_job
from autoplan.results.front import Front
from autoplan.results.serving.plan_values import serving_change_values
from autoplan.results.verdict import AnswerComparison, Verdict
from autoplan.schema.job import Job
from autoplan.schema.resolved_job import job_from, values_from, with_file_facts
from autoplan.schema.saved_front import front_from, read_document
from autoplan.schema.serving.saved_serving import SavedServingFront, serving_front_from
from autoplan.schema.serving.serving_spec import ServingJob

#: How long layouts are looked for by default [s].
VERIFY_SECONDS: Final = 60.0
#: Largest saved answer [byte].
_LARGEST: Final = 2**28


def verify(
    file: str | Path,
    *,
    job: Job | ServingJob | str | Path | None = None,
    deadline: Deadline | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Verdict:
    """Return the verdict on the front in ``file``, the JSON of ``autoplan plan``: its claims, one by one.

    Without the solver: rules, predictions and counts are recomputed, and every choice of degrees is bounded
    independently of the search; layouts of those that bounds leave open are listed until ``deadline``, 60 s
    unless given. Reasons and suggestions of an answer without plans are those of planning it again. With
    ``job``, the front also has to be that of ``job`` as it is now. ``progress`` is called with the choices
    done, the choices in all, and the next one. Raises SpecError or CatalogError for a file that is no answer.
    """
    document = _document(file)
    kind, current = kind_of_document(document), None if job is None else loaded_job(job)
    if current is not None and current.kind != kind.name:
        raise UnsupportedError(f"the answer is to a {kind.name} job, and the job is one of {current.kind}")
    return kind.verdict(document, str(file), current, deadline or Deadline(VERIFY_SECONDS), progress)


def training_verdict(
    document: dict[str, Any],
    name: str,
    job: Job | None,
    deadline: Deadline,
    progress: Callable[[int, int, str], None],
) -> Verdict:
    """Return the verdict on the answer to a training job in ``document``, as ``verify`` does."""
    saved = front_from(document, name=name)
    planned = plannable(job_from(saved.resolved, name=name))
    if saved.job_file is not None:
        planned = with_file_facts(planned, saved.job_file.model_dump(mode="json"), name=name)
    current = None if job is None else plannable(job)
    from autoplan.verification import Stated, checks_of

    replanned = partial(_replanned, deadline)
    checks = checks_of(Stated.of(saved, planned), document, current, replanned, deadline, progress)
    return Verdict(name, checks)


def serving_verdict(
    document: dict[str, Any],
    name: str,
    job: ServingJob | None,
    deadline: Deadline,
    progress: Callable[[int, int, str], None],  # noqa: ARG001 - as of any kind: engines are few
) -> Verdict:
    """Return the verdict on the answer to a serving job in ``document``, as ``verify`` does."""
    saved = serving_front_from(document, name=name)
    answered = serving_job(values_from(ServingJob, saved.resolved, name=name))
    now = None if job is None else serving_job(job)
    if now is not None:
        answered = replace(answered, source=now.source)
    from autoplan.verification import ServingQuestion, examined_answers, serving_checks

    unknown = _unknown_prices(saved, answered)
    answers = examined_answers(saved, answered, None if unknown else serving_costs(answered), deadline)
    serving_replanned = partial(_serving_replanned, answered, deadline)
    question = ServingQuestion(saved, document, answered, now, answers, unknown, serving_replanned)
    return Verdict(name, serving_checks(question, deadline))


def _unknown_prices(saved: SavedServingFront, job: ServingJob) -> str | None:
    """Return why the prices of an answer cannot be derived here."""
    try:
        today = serving_hashes(job)[1]
    except AutoplanError as error:
        return f"the trace of the requests is needed: --job JOB ({error})"
    if today != saved.certificate.cost_model_hash:
        return f"the kernels, the intervals or the trace are {today} here, which the answer does not rest on"
    return None


def _serving_replanned(job: ServingJob, deadline: Deadline) -> dict[str, Any] | None:
    """Return reasons, conflict and changes of a job planned again; None where the deadline ended first."""
    front = plan_serving(job, deadline=deadline)
    if front.certificate.stopped is not None:
        return None
    return {
        "reasons": list(front.reasons),
        "conflict": list(front.conflict),
        "changes": serving_change_values(front.job, front.changes),
    }


def compared(file: str | Path, other: str | Path) -> AnswerComparison:
    """Return the fields in which the saved answers in two files differ.

    Raises SpecError or CatalogError for a file that cannot be read.
    """
    documents = [_document(path) for path in (file, other)]
    for document, path in zip(documents, (file, other), strict=True):
        kind_of_document(document).read_saved(document, name=str(path))
    from autoplan.verification import field_differences

    return AnswerComparison(str(file), str(other), tuple(field_differences(documents[0], documents[1])))


def _document(file: str | Path) -> dict[str, Any]:
    return read_document(read_file(Path(file), largest=_LARGEST), name=str(file))


def _replanned(deadline: Deadline, job: Job, with_suggestions: bool) -> Front:  # noqa: FBT001
    """Return the front of ``job`` planned again until ``deadline``, with suggestions where it has no plan."""
    from autoplan.planning.infeasible.smallest_relaxations import suggested

    with deadline.in_force():
        front = plan(job, deadline=deadline)
        return suggested(front) if with_suggestions else front
