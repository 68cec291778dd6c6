"""Answers of the page: what ``plan``, ``suggested``, ``evaluate`` and ``emit`` say, as JSON.

Numbers and sentences are those of the documents and tables of the command line; nothing is computed here.

The job of a question: the job file that the page shows, read as any job file is.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from autoplan.answers.configure.ask import emit
from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.programs import any_layout, written_for
from autoplan.deadline import Deadline, DeadlineOver
from autoplan.errors import AutoplanError, LayoutError, UnsupportedError
from autoplan.kinds import kind_of
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.playground.questions import (
    Ask,
    Question,
    ServingJobQuestion,
    TrainingQuestion,
    UnknownNameError,
    linked_query,
    query_of,
)
from autoplan.playground.serving_question_jobs import (
    changed_serving_query,
    serving_file_name,
    serving_job_of,
    serving_job_text,
)
from autoplan.report.document_fields import front_document
from autoplan.report.render.blocks import DataTable
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_document import serving_front_document
from autoplan.report.serving.serving_report import (
    PERCENTILES,
    class_blocks,
    front_ends,
    percentile_rows,
    serving_facts,
    serving_sentences,
    serving_verdict,
)
from autoplan.report.serving.serving_words import load_words, plan_parts, served_words, time_words
from autoplan.report.wording.sentences import (
    fits_sentence,
    front_sentences,
    job_lines,
    layout_parts,
    number_words,
    space_sentence,
)
from autoplan.report.wording.suggestion_words import conflict_sentences, suggestion_sentences
from autoplan.results.front import Edit, Front
from autoplan.results.plan import Plan
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan
from autoplan.schema.job import Job, JobSpec
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.schema.yaml.writer import file_text
from autoplan.units import format_bytes, format_seconds, format_share

#: Heads of the table of plans, and whether a column has numbers.
_SERVING_COLUMNS: Final = (
    ("Layout", False),
    ("Time/token", True),
    ("First token", True),
    ("Tokens/s per device", True),
    ("Tokens/s", True),
    ("Devices", True),
)


def _serving_parts(question: ServingJobQuestion, front: ServingFront) -> dict[str, Any]:
    """Return the parts of a serving front that the page shows; without a plan also the changes that help."""
    screen = Terminal()
    what, conditions = serving_job_lines(front.job, screen)
    return {
        "about": [what, f"{conditions} {screen.dot} {load_words(front.job)}"],
        "verdict": _verdict(front, _serving_head(front), front_ends(front)),
        "columns": [list(column) for column in _SERVING_COLUMNS],
        "plans": [_plan(plan, front.job.longest_request) for plan in front.plans],
        "sentences": serving_sentences(front),
        "conflicts": list(front.conflict),
        "remedies": [_remedy(question, change) for change in front.changes],
        "remedies_complete": True,
        "answer": serving_front_document(front),
    }


def _remedy(question: ServingJobQuestion, change: ServingChange) -> dict[str, Any]:
    """Return a change that makes a plan possible, with the link that makes it where controls can."""
    edits = "; ".join(f"{key}: {value}" for key, value in change.edits)
    sentence = f"{change.sentence} ({edits})"
    return {"sentence": sentence, "query": changed_serving_query(question, change)}


def _serving_head(front: ServingFront) -> str:
    if not front.plans:
        return ""
    most = max(plan.output_tokens_per_second_per_device for plan in front.plans)
    times = [plan.time_per_output_token for plan in front.plans if plan.time_per_output_token is not None]
    fastest = f", or {format_seconds(min(times))} a token" if times and len(front.plans) > 1 else ""
    return f"{most:,.0f} tokens/s per device{fastest}"


def _plan(plan: ServingPlan, longest_request: int) -> dict[str, Any]:
    """Return a plan as the page shows it: cells of its row, words of its point, and its tables.

    ``longest_request`` is that of the job [tokens].
    """
    layout = " + ".join(f" {Terminal().dot} ".join(parts) for parts in plan_parts(plan))
    cells = [
        layout,
        time_words(plan.time_per_output_token),
        time_words(plan.time_to_first_token),
        f"{plan.output_tokens_per_second_per_device:,.0f}",
        f"{plan.output_tokens_per_second:,.0f}",
        f"{plan.devices:,}",
    ]
    return {
        "layout": layout,
        "cells": cells,
        "words": served_words(plan),
        "fits": "; ".join(serving_verdict(plan, longest_request)),
        "tables": [
            {"title": "Predicted", "heads": [], "rows": [list(row) for row in serving_facts(plan)]},
            *_classes(plan),
            *_simulated(plan),
        ],
    }


def _classes(plan: ServingPlan) -> list[dict[str, Any]]:
    """Return the table of the classes of requests under a plan; none where there is one class."""
    tables = [block for block in class_blocks([(1, plan)]) if isinstance(block, DataTable)]
    return [
        {
            "title": "Classes of requests",
            "heads": [column.head for column in table.columns],
            "rows": [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)],
        }
        for table in tables
    ]


def _simulated(plan: ServingPlan) -> list[dict[str, Any]]:
    rows = percentile_rows(plan)
    if not rows:
        return []
    return [
        {
            "title": "Latencies of a simulation",
            "heads": ["", *PERCENTILES],
            "rows": [list(row) for row in rows],
        }
    ]


#: Keys of a job file that are controls of the page.
_CONTROLS: Final = {
    "hardware": "hardware",
    "devices": "devices",
    "precision": "precision",
    "optimizer": "optimizer",
    "stack": "stack",
    "adapters": "adapter_rank",
    "search.offload": "offload",
    "workload.sequence_length": "sequence_length",
    "workload.global_batch_size": "global_batch_size",
    "limits.memory_headroom": "headroom_percent",
}
_RANK: Final = re.compile(r"\{rank: ([0-9]{1,6})\}")
#: A share as a job file has it; of the whole percents of the slider, the lower one leaves plans more room.
_PERCENT: Final = re.compile(r"([0-9]{1,2})(?:\.[0-9]+)? %")


def file_name(question: TrainingQuestion) -> str:
    """Return the name under which the page offers the job file."""
    return f"{question.model}-on-{question.hardware}.yaml"


def job_text(question: TrainingQuestion) -> str:
    """Return the job file of ``question``; what is at its default is left out."""
    headroom, rank = question.headroom_percent / 100, question.adapter_rank
    fields = {
        "schema": 1,
        "kind": "training",
        "model": question.model,
        "hardware": question.hardware,
        "devices": question.devices,
        **({"stack": question.stack} if question.stack else {}),
        "workload": {
            "sequence_length": question.sequence_length,
            "global_batch_size": question.global_batch_size,
        },
        "precision": question.precision,
        "optimizer": question.optimizer,
        **({"adapters": {"rank": rank}} if rank else {}),
        **({"search": {"offload": tuple(question.offload.split(","))}} if question.offload != "none" else {}),
        **({"limits": {"memory_headroom": headroom}} if headroom else {}),
        "objectives": tuple(question.objectives.split("+")),
    }
    return file_text(JobSpec.model_validate(fields))


def job_of(question: TrainingQuestion) -> Job:
    """Return the job of ``question``; raises SpecError, such as for devices that fill no nodes."""
    name = file_name(question)
    return job_of_text(job_text(question), name, name=name.removesuffix(".yaml"), base=Path(), reference=name)


def changed_query(question: TrainingQuestion, edits: Sequence[Edit]) -> str | None:
    """Return the link of ``question`` with ``edits`` of its job file; None where a control is missing."""
    changes = {}
    for edit in edits:
        control = _CONTROLS.get(edit.key)
        value = None if control is None else _control_value(control, edit.after)
        if control is None or value is None:
            return None
        changes[control] = value
    return linked_query({**question.model_dump(), **changes})


def _control_value(control: str, text: str) -> str | int | None:
    """Return what a control shows for the ``text`` of a job file; None where it cannot."""
    numbers = {"headroom_percent": _PERCENT, "adapter_rank": _RANK}
    if control in numbers:
        match = numbers[control].fullmatch(text)
        return None if match is None else int(match[1])
    if control == "offload":
        return text.strip("[]").replace(" ", "")
    return int(text) if text.isascii() and text.isdigit() else text


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

    def answer(self, request: Ask, deadline: Deadline) -> Answer:
        """Return the answer to ``request``; errors of the question are answers, too."""
        try:
            document = self._answered(request, deadline)
        except AutoplanError as error:
            return Answer(_REFUSED, _written(error_document(error)))
        except DeadlineOver:
            late = AutoplanError(f"{deadline.reason} before there was an answer: ask for less")
            return Answer(_REFUSED, _written(error_document(late)))
        return Answer(_ANSWERED, _written(document), lasting=not deadline.over)

    def _answered(self, request: Ask, deadline: Deadline) -> dict[str, Any]:
        question = request.question
        if request.path == "launch":
            return self._launch(request, deadline)
        front, suggested = self._front(question, deadline), kind_of(question).suggested
        if request.path == "remedies" and suggested is not None and not front.feasible:
            with deadline.in_force():
                front = suggested(front)
        return _document(question, front)

    def _front(self, question: Question, deadline: Deadline) -> Any:  # noqa: ANN401 - of the question's kind
        """Return the front of a question, and remember it where no deadline has cut it."""
        if question in self.fronts:
            self.fronts.move_to_end(question)
            return self.fronts[question]
        front = kind_of(question).plan(_KINDS[question.kind].job_of(question), deadline=deadline)
        if front.certificate.stopped is None:
            self.fronts[question] = front
            if len(self.fronts) > _MOST_FRONTS:
                self.fronts.popitem(last=False)
        return front

    def _launch(self, request: Ask, deadline: Deadline) -> dict[str, Any]:
        question = request.question
        if isinstance(question, TrainingQuestion):
            return _launch_document(request, *_trained(question, request))
        return _launch_document(request, *self._served(question, request.layout, deadline))

    def _served(
        self, question: ServingJobQuestion, layout: str, deadline: Deadline
    ) -> tuple[ServingJob, ServingPlan, list[str]]:
        """Return the job, the plan of a layout, and the words of ``emit`` that choose it.

        Engines that differ have no layout to type: they are a plan of the front, by its number.
        """
        from autoplan.planning.serving_plans import evaluate_serving

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
    """Return an error with each problem, and the valid names in the case of an unknown one."""
    listed = getattr(error, "problems", None) or getattr(error, "reasons", None) or ()
    # The job file of a question is the page's own, so that its lines mean nothing to the reader.
    problems = [f"{p.path}: {p.message}" if hasattr(p, "path") else str(p) for p in listed]
    message = "; ".join(problems) if problems else str(error)
    known = list(error.known) if isinstance(error, UnknownNameError) else []
    return {"error": message, "problems": problems, "known": known}


def _document(question: Question, front: Any) -> dict[str, Any]:  # noqa: ANN401 - of the question's kind
    """Return the answer to a question: its link and job file, and what the page shows of its front."""
    kind = _KINDS[question.kind]
    name, text = kind.file_name(question), kind.job_text(question)
    return {
        "question": question.model_dump(),
        "query": query_of(question),
        "job_file": {"name": name, "text": text, "command": f"autoplan plan {name}"},
        **kind.parts(question, front),
    }


def _training_parts(question: TrainingQuestion, front: Front) -> dict[str, Any]:
    fits = [fits_sentence(front.fastest.predicted)] if front.plans else []
    return {
        "about": list(job_lines(front.job, front.facts, Terminal())),
        "verdict": _verdict(front, _training_head(front), fits),
        "columns": [list(column) for column in _COLUMNS],
        "plans": [_row(plan) for plan in front.plans],
        "sentences": front_sentences(front) if front.plans else [space_sentence(front)],
        "conflicts": conflict_sentences(front),
        "remedies": _remedies(question, front),
        "remedies_complete": front.feasible or bool(front.suggestions),
        "answer": front_document(front),
    }


@dataclass(frozen=True, slots=True)
class _PageKind:
    """What a question of one kind becomes: the job file, the job, and what is shown of its front."""

    file_name: Callable[[Any], str]
    job_text: Callable[[Any], str]
    job_of: Callable[[Any], Job | ServingJob]
    parts: Callable[[Any, Any], dict[str, Any]]


_KINDS: Final = {
    "training": _PageKind(file_name, job_text, job_of, _training_parts),
    "serving": _PageKind(serving_file_name, serving_job_text, serving_job_of, _serving_parts),
}


def _verdict(front: Front | ServingFront, best: str, sentences: Iterable[str]) -> dict[str, Any]:
    """Return whether there is a plan, with its ``best`` value and ``sentences``, or the reasons."""
    if not front.plans:
        return {"feasible": False, "head": "Nothing is feasible", "sentences": list(front.reasons)}
    head = f"Feasible: {number_words(len(front.plans), 'plan')}, {best}"
    stopped = front.certificate.stopped
    cut = [f"not proven optimal: {stopped}"] if stopped else []
    return {"feasible": True, "head": head, "sentences": [*sentences, *cut]}


def _training_head(front: Front) -> str:
    return (
        f"the fastest takes {format_seconds(front.fastest.predicted.step_seconds)} a step"
        if front.plans
        else ""
    )


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


def _trained(question: TrainingQuestion, request: Ask) -> tuple[Job, Plan, list[str]]:
    """Return the job, the plan of a layout, and the words of ``emit`` that choose it."""
    question_job = job_of(question)
    job = written_for(question_job, request.target)
    try:
        plan = evaluate(job, request.layout)
    except LayoutError:  # no program of the target has it: the target says itself what it lacks
        job = any_layout(question_job)
        plan = evaluate(job, request.layout)
    return job, plan, ["--layout", plan.layout_string]


def _launch_document(
    request: Ask, job: Job | ServingJob, plan: Plan | ServingPlan, chosen: list[str]
) -> dict[str, Any]:
    """Return the files of a target, or what it cannot express, which is an answer too."""
    name, target = _KINDS[request.question.kind].file_name(request.question), request.target
    image = ["--image", request.image] if request.image else []
    line = " ".join(["autoplan", "emit", name, "--for", target, *chosen, *image])
    document = {"target": target, "layout": plan.layout_string, "command": line}
    try:
        made = emit(plan, target, job=job, command=line, image=request.image)
    except UnsupportedError as error:
        return {**document, "files": [], "notes": [], "refusal": str(error)}
    files = [{"name": file.name, "text": file.text} for file in made.files]
    return {**document, "files": files, "notes": list(made.notes), "refusal": ""}


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
