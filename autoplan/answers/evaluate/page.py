"""The prediction of one layout as a page."""

from __future__ import annotations

from autoplan.answers.configure.blocks import comparison_text
from autoplan.launch.configuration import FileComparison
from autoplan.report.charts.memory_svg import memory_svg
from autoplan.report.document_fields import plan_document
from autoplan.report.pages.html import element, page, preformatted, region
from autoplan.report.pages.page_sections import (
    PageRequest,
    closing_sections,
    headings,
    prediction_details,
    step_sentence,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import surety_sentences, uneven_chunks
from autoplan.results.plan import Plan
from autoplan.schema.job import Job


def evaluation_page(
    job: Job, plan: Plan, request: PageRequest, *, comparison: FileComparison | None = None
) -> str:
    """Return the prediction of ``plan`` as a self-contained page.

    ``comparison`` is that of a file that the layout was read from with the best layout.
    """
    document = plan_document(job, plan)
    sure = [*uneven_chunks(plan.layout), *surety_sentences(job, [plan.predicted], plan.stacks)]
    parts = [
        *headings(job, plan.facts),
        element("p", step_sentence(document["predicted"]), "answer"),
        *prediction_details(job, plan, request),
        element("h3", "Memory by event of a step"),
        region("memory by event of a step", memory_svg(job, plan), "picture drawn"),
        *_compared(comparison),
        *closing_sections(job, request, "the answer as JSON", document, sure=sure),
    ]
    return page(f"{job.name}: {plan.layout_string}", parts)


def _compared(comparison: FileComparison | None) -> list[str]:
    if comparison is None:
        return []
    text = comparison_text(comparison, Terminal())
    return [element("h2", "Against the best layout"), preformatted("against the best layout", text)]
