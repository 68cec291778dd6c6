"""Answers of the page: what ``plan``, ``suggested``, ``evaluate`` and ``emit`` say, as JSON.

Numbers and sentences are those of the documents and tables of the command line; nothing is computed here.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from autoplan import planning
from autoplan.catalog.programs import written_for
from autoplan.deadline import Deadline, DeadlineOver
from autoplan.errors import AutoplanError, LayoutError, UnsupportedError
from autoplan.kinds import kind_of
from autoplan.launch.target import Emission
from autoplan.playground.job_questions import Question, ServingJobQuestion, TrainingQuestion
from autoplan.playground.question_jobs import changed_query, file_name, job_of, job_text
from autoplan.playground.questions import (
    Ask,
    LaunchAsk,
    RemediesAsk,
    UnknownNameError,
    query_of,
)
from autoplan.playground.serving_page_answers import serving_document_of
from autoplan.playground.serving_question_jobs import serving_file_name, serving_job_of
from autoplan.report.document_fields import front_document
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import (
    fits_sentence,
    front_sentences,
    job_lines,
    layout_parts,
    number_words,
    space_sentence,
)
from autoplan.report.wording.suggestion_words import conflict_sentences, suggestion_sentences
from autoplan.results import Front, Plan
from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.schema.job import Job
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_seconds, format_share

__all__ = ["Answer", "Answers", "error_document"]

#: Fronts that a worker remembers, so that remedies do not search again.
_MOST_FRONTS: Final = 4

#: Heads of the table of plans, and whether a column has numbers.
_COLUMNS: Final = (
    ("Layout", False),
    ("Step", True),
    ("90 % interval", True),
    ("Tokens/s per device", True),
    ("MFU", True),
    ("Memory", True),
    ("Of limit", True),
)

#: Status of an answer, and of a valid question that has none, such as devices that fill no nodes.
_ANSWERED: Final = 200
_REFUSED: Final = 422


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its HTTP status, its JSON, and whether the same question has the same answer again."""

    status: int
    body: bytes
    lasting: bool = False


@dataclass(slots=True)
class Answers:
    """Answers one question after the other, and remembers the last fronts."""

    fronts: OrderedDict[Question, Front | ServingFront] = field(default_factory=OrderedDict)

    def answer(self, asked: Ask, deadline: Deadline) -> Answer:
        """Return the answer to what is ``asked``; errors of the question are answers, too."""
        try:
            document = self._document(asked, deadline)
        except AutoplanError as error:
            return Answer(_REFUSED, _written(error_document(error)))
        except DeadlineOver:
            late = AutoplanError(f"{deadline.reason} before there was an answer: ask for less")
            return Answer(_REFUSED, _written(error_document(late)))
        return Answer(_ANSWERED, _written(document), lasting=not deadline.over)

    def _document(self, asked: Ask, deadline: Deadline) -> dict[str, Any]:
        question = asked.question
        if isinstance(asked, LaunchAsk):
            return self._launch(asked, deadline)
        front, suggested = self._front(question, deadline), kind_of(question).suggested
        if isinstance(asked, RemediesAsk) and suggested is not None and not front.feasible:
            with deadline.in_force():
                front = suggested(front)
        return _DOCUMENTS[question.kind](question, front)

    def _front(self, question: Question, deadline: Deadline) -> Any:  # noqa: ANN401 - of the question's kind
        front = self._known(question)
        if front is None:
            front = kind_of(question).plan(_JOBS[question.kind](question), deadline=deadline)
            self._remember(question, front, front.certificate.stopped)
        return front

    def _known(self, question: Question) -> Front | ServingFront | None:
        known = self.fronts.get(question)
        if known is not None:
            self.fronts.move_to_end(question)
        return known

    def _remember(self, question: Question, front: Front | ServingFront, stopped: str | None) -> None:
        """Remember a front that no deadline has cut."""
        if stopped is not None:
            return
        self.fronts[question] = front
        if len(self.fronts) > _MOST_FRONTS:
            self.fronts.popitem(last=False)

    def _launch(self, asked: LaunchAsk, deadline: Deadline) -> dict[str, Any]:
        question = asked.question
        if isinstance(question, TrainingQuestion):
            return _launch_document(asked, question)
        job, plan, chosen = self._served(question, asked.layout, deadline)
        return _serving_launch_document(asked, question, (job, plan, chosen))

    def _served(
        self, question: ServingJobQuestion, layout: str, deadline: Deadline
    ) -> tuple[ServingJob, ServingPlan, list[str]]:
        """Return the job, the plan of a layout, and the words of ``emit`` that choose it.

        Engines that differ have no layout to type: they are a plan of the front, by its number.
        """
        from autoplan.planning.serving.serving_plans import evaluate_serving

        if " + " not in layout:
            job, plan = evaluate_serving(serving_job_of(question), layout)
            return job, plan, ["--layout", plan.layout_string]
        front = self._front(question, deadline)
        layouts = [plan.layout_string for plan in front.plans]
        if layout not in layouts:
            raise LayoutError([f"{layout[:200]!r} is no plan of the front"])
        number = layouts.index(layout)
        return front.job, front.plans[number], ["--plan", str(number + 1)]


def error_document(error: AutoplanError) -> dict[str, Any]:
    """Return what is wrong, with each problem, and the names that are known where one is not."""
    listed = getattr(error, "problems", None) or getattr(error, "reasons", None) or ()
    # The job file of a question is the page's own, so that its lines mean nothing to the reader.
    problems = [f"{p.path}: {p.message}" if hasattr(p, "path") else str(p) for p in listed]
    message = "; ".join(problems) if problems else str(error)
    known = list(error.known) if isinstance(error, UnknownNameError) else []
    return {"error": message, "problems": problems, "known": known}


def _front_document(question: TrainingQuestion, front: Front) -> dict[str, Any]:
    name, screen = file_name(question), Terminal()
    return {
        "question": question.model_dump(),
        "query": query_of(question),
        "job_file": {"name": name, "text": job_text(question), "command": f"autoplan plan {name}"},
        "about": list(job_lines(front.job, front.facts, screen)),
        "verdict": _verdict(front),
        "columns": [list(column) for column in _COLUMNS],
        "plans": [_row(plan) for plan in front.plans],
        "sentences": front_sentences(front) if front.plans else [space_sentence(front)],
        "conflicts": conflict_sentences(front),
        "remedies": _remedies(question, front),
        "remedies_complete": front.feasible or bool(front.suggestions),
        "answer": front_document(front),
    }


#: What a question of each kind becomes: the job that is planned, and the document of its front.
_JOBS: Final[Mapping[str, Callable[[Any], Job | ServingJob]]] = {
    "training": job_of,
    "serving": serving_job_of,
}
_DOCUMENTS: Final[Mapping[str, Callable[[Any, Any], dict[str, Any]]]] = {
    "training": _front_document,
    "serving": serving_document_of,
}


def _verdict(front: Front) -> dict[str, Any]:
    """Return whether there is a plan, and the sentence on its memory or the reasons."""
    if not front.plans:
        return {"feasible": False, "head": "Nothing is feasible", "sentences": list(front.reasons)}
    predicted = front.fastest.predicted
    number = number_words(len(front.plans), "plan")
    head = f"Feasible: {number}, the fastest takes {format_seconds(predicted.step_seconds)} a step"
    stopped = front.certificate.stopped
    cut = [f"not proven optimal: {stopped}"] if stopped else []
    return {"feasible": True, "head": head, "sentences": [fits_sentence(predicted), *cut]}


def _row(plan: Plan) -> dict[str, Any]:
    """Return a plan as the page shows it: cells of its row, words of its point, whether it fits."""
    predicted, screen = plan.predicted, Terminal()
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    size = predicted.peak_memory_bytes_per_device
    run = [plan.program.words] if plan.program else []
    layout = f" {screen.dot} ".join([*layout_parts(plan.layout, screen), *run])
    step, memory = format_seconds(predicted.step_seconds), format_bytes(size)
    return {
        "layout": layout,
        "cells": [
            layout,
            step,
            f"{low} to {high}",
            f"{predicted.tokens_per_second_per_device:,.0f}",
            format_share(predicted.model_flops_utilization),
            memory,
            format_share(size / predicted.memory_limit_bytes),
        ],
        "words": f"{step}, {memory}",
        "fits": fits_sentence(predicted),
        "tables": [],
    }


def _remedies(question: TrainingQuestion, front: Front) -> list[dict[str, Any]]:
    """Return each change that makes a plan possible, with the link that makes it where controls can."""
    return [
        {"sentence": sentence, "query": changed_query(question, suggestion.edits)}
        for sentence, suggestion in zip(suggestion_sentences(front), front.suggestions, strict=True)
    ]


def _launch_document(asked: LaunchAsk, question: TrainingQuestion) -> dict[str, Any]:
    job = written_for(job_of(question), asked.target)
    plan = planning.evaluate(job, asked.layout)
    line = _emit_line(asked, file_name(question), ["--layout", plan.layout_string])

    def emission() -> Emission:
        return planning.emit(plan, asked.target, job=job, command=line, image=asked.image)

    return _emitted(asked, plan.layout_string, line, emission)


def _serving_launch_document(
    asked: LaunchAsk, question: ServingJobQuestion, served: tuple[ServingJob, ServingPlan, list[str]]
) -> dict[str, Any]:
    from autoplan.answers.configure.engine_launches import emit_engines

    job, plan, chosen = served
    line = _emit_line(asked, serving_file_name(question), chosen)

    def emission() -> Emission:
        return emit_engines(job, plan, asked.target, command=line, image=asked.image)

    return _emitted(asked, plan.layout_string, line, emission)


def _emit_line(asked: LaunchAsk, name: str, chosen: list[str]) -> str:
    """Return the command that writes the same files."""
    image = ["--image", asked.image] if asked.image else []
    return " ".join(["autoplan", "emit", name, "--for", asked.target, *chosen, *image])


def _emitted(asked: LaunchAsk, layout: str, line: str, emission: Callable[[], Emission]) -> dict[str, Any]:
    """Return the files of a target, or what it cannot express, which is an answer too."""
    document = {"target": asked.target, "layout": layout, "command": line}
    try:
        made = emission()
    except UnsupportedError as error:
        return {**document, "files": [], "notes": [], "refusal": str(error)}
    files = [{"name": file.name, "text": file.text} for file in made.files]
    return {**document, "files": files, "notes": list(made.notes), "refusal": ""}


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
