"""The serving job of a question: the job file that the page shows, read as any job file is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from autoplan.catalog import serving_job_of_text
from autoplan.playground.questions import ServingJobQuestion, linked_query
from autoplan.results.serving.serving_front import ServingChange
from autoplan.schema.serving.serving_spec import ServingJob, ServingSpec
from autoplan.schema.yaml.writer import file_text
from autoplan.units import parse_quantity

#: Keys of a job file that are limits of the page, in milliseconds.
_LIMITS: Final = {
    "limits.time_to_first_token": "first_token_ms",
    "limits.time_per_output_token": "token_ms",
}
#: The same of the two classes of requests, where there are two.
_CLASS_LIMITS: Final = {
    "workload.classes.0.limits.time_to_first_token": "first_token_ms",
    "workload.classes.0.limits.time_per_output_token": "token_ms",
    "workload.classes.1.limits.time_to_first_token": "other_first_token_ms",
}
#: Keys whose new value is what their control shows.
_NUMBERS: Final = {"devices": "devices", "workload.longest_request": "longest_request"}
_FORMATS: Final = {"precision.weights": "weights", "precision.kv_cache": "kv_cache"}
_PERCENTILE: Final = re.compile(r"\{(mean|p50|p90|p99): ([^{},]+)\}")


def serving_file_name(question: ServingJobQuestion) -> str:
    """Return the name under which the page offers the job file."""
    return f"{question.model}-served-on-{question.hardware}.yaml"


def serving_job_text(question: ServingJobQuestion) -> str:
    """Return the job file of ``question``; what is at its default is left out."""
    fields: dict[str, Any] = {
        "schema": 1,
        "kind": "serving",
        "model": question.model,
        "hardware": question.hardware,
        "devices": question.devices,
        "stack": question.engine,
        "workload": _workload(question),
        "precision": {
            "weights": tuple(question.weights.split(",")),
            "kv_cache": tuple(question.kv_cache.split(",")),
        },
        "objectives": tuple(question.trade.split("+")),
    }
    limits = {} if question.other_percent else _limits(question, _LIMITS)
    if question.headroom_percent:
        limits["memory_headroom"] = question.headroom_percent / 100
    if limits:
        fields["limits"] = limits
    if question.drafting != "none":
        fields["speculation"] = {
            "method": question.drafting,
            "tokens": (0, question.drafts),
            "acceptance": question.acceptance_percent / 100,
        }
    return file_text(ServingSpec.model_validate(fields))


def serving_job_of(question: ServingJobQuestion) -> ServingJob:
    """Return the job of ``question``; raises SpecError, such as for devices that fill no nodes."""
    name = serving_file_name(question)
    return serving_job_of_text(
        serving_job_text(question), name, name=name.removesuffix(".yaml"), base=Path(), reference=name
    )


def _workload(question: ServingJobQuestion) -> dict[str, Any]:
    lengths = {"input_tokens": question.input_tokens, "output_tokens": question.output_tokens}
    workload: dict[str, Any] = {"classes": _classes(question, lengths)} if question.other_percent else lengths
    if question.longest_request:
        workload["longest_request"] = question.longest_request
    if question.load == "clients":
        workload["concurrency"] = question.clients
    elif question.load == "requests":
        workload["request_rate"] = question.requests_per_minute / 60
    prefix = {"shared_tokens": question.shared_tokens, "hit_rate": question.hit_percent / 100}
    if any(prefix.values()):
        workload["prefix"] = prefix
    return workload


def _classes(question: ServingJobQuestion, lengths: dict[str, int]) -> tuple[dict[str, Any], ...]:
    """Return the two classes of requests, each with its lengths and the limits that the page has of it."""
    others = {"input_tokens": question.other_input_tokens, "output_tokens": question.other_output_tokens}
    classes = []
    for number, (name, tokens) in enumerate((("main", lengths), ("other", others))):
        percent = question.other_percent if number else 100 - question.other_percent
        prefix = f"workload.classes.{number}."
        keys = {key.removeprefix(prefix): x for key, x in _CLASS_LIMITS.items() if key.startswith(prefix)}
        limits = _limits(question, keys)
        limited = {"limits": limits} if limits else {}
        classes.append({"name": name, "weight": percent / 100, **tokens, **limited})
    return tuple(classes)


def _limits(question: ServingJobQuestion, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the limits on times that a question has, by keys that end with their names."""
    limits: dict[str, Any] = {}
    for key, field in fields.items():
        milliseconds = getattr(question, field)
        if milliseconds:
            seconds = milliseconds / 1000
            limits[key.removeprefix("limits.")] = (
                seconds if question.limit_on == "mean" else {question.limit_on: seconds}
            )
    return limits


def changed_serving_query(question: ServingJobQuestion, change: ServingChange) -> str | None:
    """Return the link of ``question`` with a ``change`` of its job file; None where no control shows it."""
    values = question.model_dump()
    for edit in change.edits:
        if (controls := _control_values(question, edit)) is None:
            return None
        values |= controls
    return linked_query(values)


def _control_values(question: ServingJobQuestion, edit: tuple[str, str]) -> dict[str, Any] | None:
    """Return the controls that an edit of the job file sets, with their values."""
    key, value = edit
    if key in _NUMBERS:
        return {_NUMBERS[key]: int(value)} if value.isascii() and value.isdigit() else None
    if key in _FORMATS:
        return {_FORMATS[key]: value.strip("[]").replace(" ", "")}
    field = (_CLASS_LIMITS if question.other_percent else _LIMITS).get(key)
    if field is None:
        return None
    percentile = _PERCENTILE.fullmatch(value)
    if percentile is None and question.limit_on != "mean":
        return None
    if percentile is not None and percentile[1] != question.limit_on:
        return None
    seconds = parse_quantity(value if percentile is None else percentile[2], "seconds")
    # A limit of whole milliseconds that is no shorter leaves the plan that was solved.
    return {field: -int(-seconds * 1000 // 1)}
