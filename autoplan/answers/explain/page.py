"""Why a layout does or does not fit, and why the fastest plan wins, as pages."""

from __future__ import annotations

from autoplan.answers.explain.blocks import (
    bound_sentence,
    choice_document,
    choices_table,
    limited_sentence,
    refusal_blocks,
    refusal_document,
    remedy_columns,
    remedy_note,
    remedy_title,
    standing_lines,
    verdict_sentences,
)
from autoplan.report.charts.memory_svg import memory_svg
from autoplan.report.document_fields import explanation_document
from autoplan.report.pages.html import element, html_of, page, region
from autoplan.report.pages.page_sections import (
    PageRequest,
    closing_sections,
    headings,
    prediction_details,
)
from autoplan.report.pages.pictures.stacked_bars import share_bars
from autoplan.report.render.blocks import Block, Column, Heading, below_heading, data_table
from autoplan.report.render.terminal import WIDE
from autoplan.report.wording.sentences import surety_sentences
from autoplan.results.explanation import Choice, Explanation, Refusal
from autoplan.schema.job import Job


def explanation_page(job: Job, explanation: Explanation, request: PageRequest) -> str:
    """Return a layout with its memory, step and remedies as a page."""
    plan = explanation.plan
    verdict, *more = verdict_sentences(job, plan.predicted)
    document, sure = explanation_document(job, explanation), surety_sentences(job, [plan.predicted])
    body = [
        *headings(job, plan.facts),
        element("h2", "The layout"),
        element("p", verdict, "yes" if plan.predicted.fits else "no"),
        *(element("p", sentence) for sentence in more),
        *_remedies(explanation),
        element("p", remedy_note(job), "quiet"),
        element("h2", "Against the front"),
        *html_of(standing_lines(explanation.standing)),
        element("h2", "What the step waits for"),
        element("p", bound_sentence(explanation)),
        *share_bars([(x.name, x.seconds) for x in explanation.bottlenecks]),
        element("h2", "Memory by event of a step"),
        region("memory by event of a step", memory_svg(job, plan), "picture drawn"),
        element("h2", "The prediction"),
        *prediction_details(job, plan, request),
        *closing_sections(job, request, "the explanation as JSON", document, sure=sure),
    ]
    return page(f"{job.name}: {plan.layout_string}", body)


def choice_page(job: Job, choice: Choice, request: PageRequest) -> str:
    """Return why the fastest plan is the fastest as a page."""
    best, sure = choice.best, surety_sentences(job, [choice.best.predicted])
    body = [
        *headings(job, best.facts),
        element("h2", "The fastest layout"),
        element("p", limited_sentence(choice)),
        element("h2", "What if: one choice changed, each one solved"),
        *html_of([choices_table(choice)]),
        element("h2", "The prediction"),
        *prediction_details(job, best, request),
        *closing_sections(job, request, "the choice as JSON", choice_document(job, choice), sure=sure),
    ]
    return page(f"{job.name}: the fastest layout", body)


def refusal_page(job: Job, refusal: Refusal, request: PageRequest) -> str:
    """Return why a layout cannot run as a page."""
    body = [
        *headings(job, refusal.facts),
        element("h2", "The layout"),
        *html_of(below_heading(refusal_blocks(job, refusal, WIDE))),
        *closing_sections(job, request, "the refusal as JSON", refusal_document(job, refusal)),
    ]
    return page(f"{job.name}: {refusal.layout}", body)


def _remedies(explanation: Explanation) -> list[str]:
    """Return what makes the layout fit, with the changes of each remedy."""
    blocks: list[Block] = [Heading(remedy_title(explanation))]
    if explanation.remedies:
        changes = Column("change", tuple(remedy.change for remedy in explanation.remedies), "layout")
        blocks.append(data_table([*remedy_columns(explanation, WIDE), changes], "remedies"))
    return html_of(blocks)
