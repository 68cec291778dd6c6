"""The guide to a model on hardware as a page."""

from __future__ import annotations

from autoplan.answers.guide.blocks import guide_blocks, guide_document
from autoplan.answers.guide.scaling_picture import scaling_picture
from autoplan.answers.guide.value import TrainingGuide
from autoplan.report.document_fields import plan_document
from autoplan.report.pages.html import html_of
from autoplan.report.pages.page_frame import element, page
from autoplan.report.pages.page_sections import (
    command_section,
    headings,
    json_section,
    provenance_section,
    rejected_section,
)
from autoplan.report.pages.plan_details import PicturesOf, plan_details
from autoplan.report.render.blocks import below_heading
from autoplan.report.render.terminal import WIDE

__all__ = [
    "guide_page",
]


def guide_page(guide: TrainingGuide, command: str, pictures_of: PicturesOf) -> str:
    """Return the guide as a self-contained page; ``command`` is what was typed."""
    job, best = guide.job, guide.best
    parts = guide_blocks(guide, WIDE)
    # The title and its conditions are those of the page.
    body = [
        *headings(job, guide.front.facts),
        element("h2", "The answer"),
        *html_of(below_heading(parts)),
        *(x for line in guide.scaling for x in scaling_picture(line)),
    ]
    if best is not None:
        document = plan_document(job, best)
        body += [
            element("h2", "The best layout"),
            *plan_details(best, document["job"]["limits"], document["predicted"], pictures_of),
        ]
    body += [
        *rejected_section(guide.front),
        *provenance_section(job),
        *command_section(command),
        *json_section("the guide as JSON", guide_document(guide)),
    ]
    return page(f"{job.name}: a guide", body)
