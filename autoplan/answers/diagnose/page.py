"""The diagnosis of a run as a page: measured next to predicted, and why the run is slower."""

from __future__ import annotations

from typing import Final

from autoplan.answers.diagnose.blocks import MEASURED_NAMES, diagnosis_blocks, diagnosis_document
from autoplan.answers.diagnose.value import Diagnosis
from autoplan.report.pages.html import (
    colour_keys,
    drawn_cell,
    element,
    html_of,
    number_cell,
    page,
    preformatted,
    table,
)
from autoplan.report.pages.page_sections import (
    PageRequest,
    command_section,
    headings,
    json_section,
    prediction_details,
    provenance_section,
)
from autoplan.report.pages.pictures.stacked_bars import Part, stacked_bar
from autoplan.report.render.blocks import below_heading
from autoplan.report.render.terminal import WIDE
from autoplan.report.wording.part_names import TIME_COLOURS
from autoplan.schema.job import Job
from autoplan.units import format_seconds

_OTHER: Final = ("#bbbbbb", "#666666", "#9ecf6a", "#f2a48b", "#332288", "#882255")


def diagnosis_page(job: Job, diagnosis: Diagnosis, run: str, request: PageRequest) -> str:
    """Return the diagnosis as a self-contained page; ``run`` is the run as a file for ``calibrate``."""
    plan = diagnosis.plan
    parts = diagnosis_blocks(job, diagnosis, WIDE)
    body = [
        *headings(job, plan.facts),
        element("p", _answer(diagnosis), "answer"),
        element("h2", "Measured and predicted"),
        *_bars(diagnosis),
        *html_of(below_heading(parts)),
        element("h2", "The prediction"),
        *prediction_details(job, plan, request),
        *provenance_section(job),
        element("h2", "The run, for autoplan calibrate --runs"),
        preformatted("run", run),
        *command_section(request.command),
        *json_section("the diagnosis as JSON", diagnosis_document(job, diagnosis, run)),
    ]
    return page(f"{job.name}: a run of {plan.layout_string}", body)


def _answer(diagnosis: Diagnosis) -> str:
    """Return how much longer the step takes than predicted, and what costs most of that."""
    predicted = diagnosis.predicted_seconds
    ratio = diagnosis.measured_seconds / predicted
    sentence = (
        f"Measured {format_seconds(diagnosis.measured_seconds)} a step, predicted"
        f" {format_seconds(predicted)}: {ratio:.2f} times as long"
    )
    worst = max(diagnosis.findings, key=lambda x: x.lost_seconds, default=None)
    return (
        f"{sentence}; most is lost to: {worst.kind}, {format_seconds(worst.lost_seconds)}"
        if worst
        else sentence
    )


def _bars(diagnosis: Diagnosis) -> list[str]:
    """Return the parts as measured and as predicted, as two bars on one scale."""
    names = [x.part for x in diagnosis.parts if x.measured or x.predicted]
    others = iter(_OTHER)
    colours = {name: TIME_COLOURS.get(name) or next(others, "#000000") for name in names}
    rows: dict[str, list[Part]] = {
        "measured": [_part(x.part, x.measured, colours) for x in diagnosis.parts if x.measured],
        "predicted": [_part(x.part, x.predicted, colours) for x in diagnosis.parts if x.predicted],
    }
    totals = {name: sum(seconds for _, seconds, _, _ in parts) for name, parts in rows.items()}
    longest = max(totals.values())
    cells = [
        element("th", name)
        + drawn_cell(stacked_bar(parts, longest))
        + number_cell(totals[name], format_seconds(totals[name]))
        for name, parts in rows.items()
    ]
    heads = [("step", ""), ("parts", ""), ("sum", "number")]
    return [
        colour_keys((MEASURED_NAMES[name], colours[name]) for name in names),
        table("measured and predicted step", heads, cells),
    ]


def _part(name: str, seconds: float, colours: dict[str, str]) -> Part:
    return name, seconds, colours[name], f"{MEASURED_NAMES[name]} {format_seconds(seconds)}"
