"""Why a layout does or does not fit, and what would make room, as a page that stands on its own (HTML)."""

from __future__ import annotations

from typing import Final

from autoplan.report.charts.memory_svg import memory_svg
from autoplan.report.pages.page_frame import code_cell, element, page, region, safe, table, text_cell
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.bottleneck_words import bound_sentence
from autoplan.report.wording.remedy_words import (
    REMEDY_HEADS,
    remedy_note,
    remedy_rows,
    remedy_title,
    verdict_sentences,
)
from autoplan.report.wording.sentences import job_lines, surety_sentences
from autoplan.report.wording.standing_words import standing_sentence
from autoplan.results import Explanation
from autoplan.schema.job import Job

__all__ = ["explanation_page"]

#: Columns of text; the others are numbers.
_TEXT_COLUMNS: Final = frozenset({"remedy", "fits", "change"})


def explanation_page(job: Job, explanation: Explanation) -> str:
    """Return the memory timeline of a layout and its remedies as a self-contained HTML page."""
    plan = explanation.plan
    what, conditions = job_lines(job, plan.facts, Terminal())
    verdict, *more = verdict_sentences(job, plan.predicted)
    notes = [remedy_note(job), *surety_sentences(job, [plan.predicted])]
    body = [
        element("h1", what),
        element("p", conditions, "quiet"),
        f"<p><code>{safe(plan.layout_string)}</code></p>",
        element("p", verdict, "yes" if plan.predicted.fits else "no"),
        *(element("p", sentence) for sentence in more),
        element("p", standing_sentence(explanation.standing)),
        element("p", bound_sentence(explanation)),
        region("memory by event of a step", memory_svg(job, plan), "picture"),
        element("h2", remedy_title(explanation)),
        *([_table(explanation)] if explanation.remedies else []),
        *(element("p", note, "quiet") for note in notes),
    ]
    return page(f"{job.name}: {plan.layout_string}", body)


def _table(explanation: Explanation) -> str:
    heads = [head.replace("\n", " ") for head in (*REMEDY_HEADS, "change")]
    rows = (
        "".join(map(_cell, heads, cells)) + code_cell(remedy.change)
        for cells, remedy in zip(remedy_rows(explanation), explanation.remedies, strict=True)
    )
    return table("remedies", [(head, _kind(head)) for head in heads], rows)


def _kind(head: str) -> str:
    return "" if head in _TEXT_COLUMNS else "number"


def _cell(head: str, text: str) -> str:
    if head == "fits":
        return text_cell(text, "yes" if text == "yes" else "no")
    return text_cell(text, _kind(head))
