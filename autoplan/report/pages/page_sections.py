"""Sections that pages share: limits, what is proven, what was rejected, provenance, the command, the JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from autoplan.costs.core.prediction import JobFacts
from autoplan.report.pages.page_frame import (
    element,
    folded,
    number_cell,
    preformatted,
    sentences_list,
    table,
    text_cell,
)
from autoplan.report.render.serialization import dump
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import count_words, job_lines
from autoplan.results.front import Front
from autoplan.results.job_summary import number_kinds
from autoplan.schema.base import Sourced
from autoplan.schema.hardware import sourced_numbers
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds, format_share

#: Longest text of a source or a note.
_LONGEST: Final = 300

#: Limits of a job: name, where the prediction is in the document, and whether it is the least or the most.
_LIMITS: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    "step_time_seconds": ("step time", ("step_seconds",), "most"),
    "tokens_per_second": ("tokens/s", ("tokens_per_second",), "least"),
    "devices": ("devices", ("devices",), "most"),
    "cost_per_billion_tokens": ("cost of 1e9 tokens", ("cost", "per_billion_tokens"), "most"),
    "energy_joules_per_billion_tokens": (
        "energy of 1e9 tokens (J)",
        ("energy", "joules_per_billion_tokens"),
        "most",
    ),
}


def headings(job: Job, facts: JobFacts) -> list[str]:
    """Return what is planned and its conditions."""
    what, conditions = job_lines(job, facts, Terminal())
    return [element("h1", what), element("p", conditions, "quiet")]


def step_sentence(predicted: Mapping[str, Any]) -> str:
    """Return step time, throughput and MFU of a prediction of a document."""
    low, high = (format_seconds(predicted[f"step_seconds_{end}"]) for end in ("low", "high"))
    return (
        f"{format_seconds(predicted['step_seconds'])} a step (90 % interval {low} to {high}),"
        f" {predicted['tokens_per_second']:,.0f} tokens/s,"
        f" {format_share(predicted['model_flops_utilization'])} MFU"
    )


def limits_table(limits: Mapping[str, Any], predicted: Mapping[str, Any]) -> str:
    """Return the predicted values beside their limits; both are of documents."""
    heads = [("of a device or a step", ""), ("predicted", "number"), ("limit", "number"), ("within", "")]
    return table("predicted against limits", heads, _limit_rows(limits, predicted))


def _limit_rows(limits: Mapping[str, Any], predicted: Mapping[str, Any]) -> Iterator[str]:
    limit = predicted["memory_limit_bytes"]
    for name, field in (
        ("peak memory of a device", "peak_memory_bytes_per_device"),
        ("memory needed, with fragmentation", "memory_needed_bytes"),
    ):
        cells = number_cell(predicted[field], format_bytes(predicted[field]))
        yield (
            element("th", name)
            + cells
            + number_cell(limit, format_bytes(limit))
            + _within(predicted[field] <= limit)
        )
    for key, (name, where, kind) in _LIMITS.items():
        allowed, value = limits[key], _predicted(predicted, where)
        if allowed is not None and value is not None:
            cells = number_cell(value, _amount(key, value))
            cells += number_cell(allowed, f"at {kind} {_amount(key, allowed)}")
            inside = value <= allowed if kind == "most" else value >= allowed
            yield element("th", name) + cells + _within(inside)


def _predicted(predicted: Mapping[str, Any], where: Sequence[str]) -> float | None:
    value: Any = predicted
    for key in where:
        value = None if value is None else value[key]
    return None if value is None else float(value)


def _amount(key: str, value: float) -> str:
    return format_seconds(value) if key.endswith("_seconds") else f"{value:,.6g}"


def _within(inside: bool) -> str:  # noqa: FBT001 - it is what is shown
    return text_cell("yes" if inside else "no", "yes" if inside else "no")


def proof_section(front: Front, sentences: Sequence[str]) -> list[str]:
    """Return what is proven of a front, and the hashes of its job and cost model."""
    certificate = front.certificate
    rows = [
        element("th", name) + text_cell(text)
        for name, text in (
            ("status", certificate.status),
            ("job hash", certificate.job_hash),
            ("cost model hash", certificate.cost_model_hash),
            ("solver", certificate.solver),
            ("autoplan", certificate.autoplan_version),
        )
    ]
    heads = [("certificate", ""), ("value", "")]
    return [
        element("h2", "What is proven"),
        sentences_list(sentences),
        table("certificate", heads, rows),
    ]


def rejected_section(front: Front) -> list[str]:
    """Return how many layouts fell to which reason, the most frequent first."""
    ranked = sorted(front.rejected, key=lambda x: (-x.layouts, x.reason))
    rows = [
        text_cell(x.reason) + text_cell(x.kind) + text_cell(count_words(x.layouts), "number")
        for x in ranked
        if x.layouts
    ]
    heads = [("reason", ""), ("kind", ""), ("layouts", "number")]
    return (
        [element("h2", "What was rejected, and why"), table("rejected layouts", heads, rows)] if rows else []
    )


def provenance_section(job: Job) -> list[str]:
    """Return the catalogue entries of ``job``, and every coefficient with its kind and source."""
    cluster = job.cluster
    return coefficients_section(
        [
            ("device", cluster.device.name, cluster.device, cluster.device.sources),
            ("node", cluster.node.name, cluster.node, cluster.node.sources),
            ("kernel curves", job.kernels.name, job.kernels, job.kernels.sources),
            ("stack", job.stack.name, job.stack, job.stack.sources),
        ]
    )


#: What an entry is for, its name, its numbers, and their sources by key.
Entry = tuple[str, str, BaseModel, Mapping[str, str]]


def coefficients_section(entries: Sequence[Entry]) -> list[str]:
    """Return catalogue entries, and every coefficient with its kind and source."""
    rows = [
        text_cell(what)
        + text_cell(path)
        + text_cell(_value(number))
        + text_cell(number.kind)
        + text_cell(source)
        for what, _, numbers, sources in entries
        for path, number, source in _numbers(numbers, sources)
    ]
    heads = [("entry", ""), ("coefficient", ""), ("value", ""), ("kind", ""), ("source", "")]
    return [
        element("h2", "Where the numbers come from"),
        _entries(entries),
        folded(f"all {len(rows)} coefficients", table("coefficients", heads, rows)),
    ]


def _entries(entries: Sequence[Entry]) -> str:
    rows = []
    for what, name, numbers, _ in entries:
        kinds = ", ".join(f"{count} {kind}" for kind, count in number_kinds(numbers).items() if count)
        rows.append(text_cell(what) + text_cell(name) + text_cell(kinds))
    return table("catalogue entries", [("entry", ""), ("name", ""), ("numbers by kind", "")], rows)


def _numbers(entry: BaseModel, sources: Mapping[str, str]) -> Iterator[tuple[str, Sourced, str]]:
    for path, number in sourced_numbers(entry):
        source = sources.get(number.source, number.source)
        words = f"{source}; {number.note}" if number.note else source
        yield path, number, words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "..."


def _value(number: Sourced) -> str:
    value = getattr(number, "value", None)
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def command_section(command: str) -> list[str]:
    """Return the command that makes the page again."""
    return [element("h2", "The command"), preformatted("command", command)]


def json_section(title: str, document: dict[str, Any]) -> list[str]:
    """Return ``document`` as text to copy."""
    return [folded(title, preformatted(title, dump(document, "json")))]
