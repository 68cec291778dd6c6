"""Layouts side by side as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoplan.answers.compare.blocks import comparison_tables, layouts_document, missing_sentences
from autoplan.answers.compare.comparison_words import conclusion
from autoplan.answers.compare.value import LayoutComparison
from autoplan.report.pages.html import (
    code_cell,
    element,
    html_of,
    number_cell,
    page,
    table,
    text_cell,
)
from autoplan.report.pages.page_sections import (
    PageRequest,
    closing_sections,
    headings,
    step_beside,
)
from autoplan.report.pages.pictures.stacked_bars import memory_stacks, time_stacks
from autoplan.report.pages.pictures.timeline_picture import PictureRoom, timeline_picture
from autoplan.report.render.blocks import Heading
from autoplan.report.render.terminal import WIDE
from autoplan.report.wording.sentences import surety_sentences
from autoplan.results.plan import Plan
from autoplan.units import format_seconds, format_share


def comparison_page(comparison: LayoutComparison, request: PageRequest) -> str:
    """Return the comparison as a self-contained page."""
    job, document = comparison.job, layouts_document(comparison)
    facts = comparison.plans[0].facts
    predicted = [plan.predicted for plan in comparison.plans]
    sure = [*comparison.notes, *missing_sentences(comparison), *surety_sentences(job, predicted)]
    parts = [
        *headings(job, facts),
        *(element("p", sentence, "answer") for sentence in conclusion(comparison)),
        _layouts(document),
        *_bars(document),
        *_timelines(comparison, request),
        *html_of([Heading("numbers"), *comparison_tables(comparison, WIDE)]),
        *closing_sections(job, request, "the comparison as JSON", document, sure=sure),
    ]
    return page(f"{job.name}: layouts compared", parts)


def _layouts(document: dict[str, Any]) -> str:
    rows = [
        number_cell(number, str(number)) + text_cell(x["name"]) + code_cell(x["layout_string"])
        for number, x in enumerate(document["layouts"], start=1)
    ]
    return table("layouts", [("#", "number"), ("name", ""), ("layout", "")], rows)


def _bars(document: dict[str, Any]) -> Iterator[str]:
    """Yield the steps and the memory of the layouts as bars, each on one scale."""
    named = [(f"{n} {x['name']}", x["predicted"]) for n, x in enumerate(document["layouts"], start=1)]
    yield element("h2", "Step time")
    yield from time_stacks(named)
    yield element("h2", "Peak memory of a device")
    yield from memory_stacks(named)


def _timelines(comparison: LayoutComparison, request: PageRequest) -> Iterator[str]:
    """Yield the step of each layout, all on the time axis of the longest."""
    job, winner = comparison.job, comparison.winner.plan
    steps = [step_beside(job, plan, winner, request) for plan in comparison.plans]
    longest = max((step.seconds for step in steps if not isinstance(step, str)), default=0.0)
    yield element("h2", "Timeline of each layout")
    yield element("p", f"all on one time axis, to {format_seconds(longest)}", "quiet")
    for number, (layout, step) in enumerate(zip(comparison.layouts, steps, strict=True), start=1):
        yield element("h3", f"{number} {layout.name}: {_step_words(layout.plan)}")
        if isinstance(step, str):
            yield element("p", step, "quiet")
        else:
            yield from timeline_picture(step, PictureRoom(longest, len(steps), f" of layout {number}"))


def _step_words(plan: Plan) -> str:
    predicted = plan.predicted
    bubble = predicted.time.bubble / predicted.step_seconds
    return f"{format_seconds(predicted.step_seconds)} a step, {format_share(bubble)} of it bubble"
