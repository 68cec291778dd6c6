"""Why a layout does or does not fit, and why the fastest plan wins, as pages."""

from __future__ import annotations

from collections.abc import Iterator

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
from autoplan.report.document_fields import explanation_document, plan_document
from autoplan.report.pages.html import element, html_of, page, region, sentences_list
from autoplan.report.pages.page_sections import (
    PicturesOf,
    command_section,
    headings,
    json_section,
    plan_details,
    provenance_section,
)
from autoplan.report.pages.pictures.stacked_bars import share_bars
from autoplan.report.render.blocks import Block, Column, Heading, below_heading, data_table
from autoplan.report.render.terminal import WIDE
from autoplan.report.wording.sentences import surety_sentences
from autoplan.results.explanation import Choice, Explanation, Refusal
from autoplan.schema.job import Job


def explanation_page(job: Job, explanation: Explanation, command: str, pictures_of: PicturesOf) -> str:
    """Return a layout with its memory, step and remedies as a page; ``command`` is what was typed."""
    plan = explanation.plan
    verdict, *more = verdict_sentences(job, plan.predicted)
    document = plan_document(job, plan)
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
        *plan_details(plan, document["job"]["limits"], document["predicted"], pictures_of),
        *_end(job, surety_sentences(job, [plan.predicted]), command),
        *json_section("the explanation as JSON", explanation_document(job, explanation)),
    ]
    return page(f"{job.name}: {plan.layout_string}", body)


def choice_page(job: Job, choice: Choice, command: str, pictures_of: PicturesOf) -> str:
    """Return why the fastest plan is the fastest as a page; ``command`` is what was typed."""
    best = choice.best
    document = plan_document(job, best)
    body = [
        *headings(job, best.facts),
        element("h2", "The fastest layout"),
        element("p", limited_sentence(choice)),
        element("h2", "What if: one choice changed, each one solved"),
        *html_of([choices_table(choice)]),
        element("h2", "The prediction"),
        *plan_details(best, document["job"]["limits"], document["predicted"], pictures_of),
        *_end(job, surety_sentences(job, [best.predicted]), command),
        *json_section("the choice as JSON", choice_document(job, choice)),
    ]
    return page(f"{job.name}: the fastest layout", body)


def refusal_page(job: Job, refusal: Refusal, command: str) -> str:
    """Return why a layout cannot run as a page; ``command`` is what was typed."""
    body = [
        *headings(job, refusal.facts),
        element("h2", "The layout"),
        *html_of(below_heading(refusal_blocks(job, refusal, WIDE))),
        *provenance_section(job),
        *command_section(command),
        *json_section("the refusal as JSON", refusal_document(job, refusal)),
    ]
    return page(f"{job.name}: {refusal.layout}", body)


def _end(job: Job, sentences: list[str], command: str) -> Iterator[str]:
    yield element("h2", "How sure this is")
    yield sentences_list(sentences)
    yield from provenance_section(job)
    yield from command_section(command)


def _remedies(explanation: Explanation) -> list[str]:
    """Return what makes the layout fit, with the changes of each remedy."""
    blocks: list[Block] = [Heading(remedy_title(explanation))]
    if explanation.remedies:
        changes = Column("change", tuple(remedy.change for remedy in explanation.remedies), "layout")
        blocks.append(data_table([*remedy_columns(explanation, WIDE), changes], "remedies"))
    return html_of(blocks)
