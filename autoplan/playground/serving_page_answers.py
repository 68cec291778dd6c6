"""What the page shows of serving plans, as JSON; numbers and sentences are those of the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from autoplan.playground.job_questions import ServingJobQuestion
from autoplan.playground.questions import query_of
from autoplan.playground.serving_question_jobs import (
    changed_serving_query,
    serving_file_name,
    serving_job_text,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_document import serving_front_document
from autoplan.report.serving.serving_plan_report import (
    PERCENTILES,
    percentile_rows,
    serving_facts,
    serving_verdict,
)
from autoplan.report.serving.serving_report import front_ends, serving_sentences
from autoplan.report.serving.serving_words import engine_layout_words, load_words, served_words
from autoplan.report.wording.sentences import number_words
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan
from autoplan.units import format_seconds

__all__ = ["serving_document_of"]

#: Heads of the table of plans, and whether a column has numbers.
_COLUMNS: Final = (
    ("Layout", False),
    ("Time/token", True),
    ("First token", True),
    ("Tokens/s per device", True),
    ("Tokens/s", True),
    ("Devices", True),
)


def serving_document_of(question: ServingJobQuestion, front: ServingFront) -> dict[str, Any]:
    """Return the answer to a serving question; changes that help are in it where there is no plan."""
    name, screen = serving_file_name(question), Terminal()
    what, conditions = serving_job_lines(front.job, screen)
    return {
        "question": question.model_dump(),
        "query": query_of(question),
        "job_file": {
            "name": name,
            "text": serving_job_text(question),
            "command": f"autoplan plan {name}",
        },
        "about": [what, f"{conditions} {screen.dot} {load_words(front.job)}"],
        "verdict": _verdict(front),
        "columns": [list(column) for column in _COLUMNS],
        "plans": [_plan(plan) for plan in front.plans],
        "sentences": serving_sentences(front),
        "conflicts": list(front.conflict),
        "remedies": [_remedy(question, change) for change in front.changes],
        "remedies_complete": True,
        "answer": serving_front_document(front),
    }


def _remedy(question: ServingJobQuestion, change: ServingChange) -> dict[str, Any]:
    """Return a change that makes a plan possible, with the link that makes it where controls can."""
    sentence = f"{change.sentence} ({change.key}: {change.value})"
    return {"sentence": sentence, "query": changed_serving_query(question, change)}


def _verdict(front: ServingFront) -> dict[str, Any]:
    if not front.plans:
        return {"feasible": False, "head": "Nothing is feasible", "sentences": list(front.reasons)}
    most = max(plan.output_tokens_per_second_per_device for plan in front.plans)
    times = [plan.time_per_output_token for plan in front.plans if plan.time_per_output_token is not None]
    fastest = f", or {format_seconds(min(times))} a token" if times and len(front.plans) > 1 else ""
    head = f"Feasible: {number_words(len(front.plans), 'plan')}, {most:,.0f} tokens/s per device{fastest}"
    stopped = front.certificate.stopped
    cut = [f"not proven optimal: {stopped}"] if stopped else []
    return {"feasible": True, "head": head, "sentences": [*front_ends(front), *cut]}


def _plan(plan: ServingPlan) -> dict[str, Any]:
    """Return a plan as the page shows it: cells of its row, words of its point, and its tables."""
    groups = [replace(group.layout, replicas=group.predicted.engines) for group in plan.groups]
    layout = engine_layout_words(groups, Terminal())
    cells = [
        layout,
        _seconds(plan.time_per_output_token),
        _seconds(plan.time_to_first_token),
        f"{plan.output_tokens_per_second_per_device:,.0f}",
        f"{plan.output_tokens_per_second:,.0f}",
        f"{plan.devices:,}",
    ]
    return {
        "layout": layout,
        "cells": cells,
        "words": served_words(plan),
        "fits": "; ".join(serving_verdict(plan)),
        "tables": [
            {"title": "Predicted", "heads": [], "rows": [list(row) for row in serving_facts(plan)]},
            *_simulated(plan),
        ],
    }


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


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
