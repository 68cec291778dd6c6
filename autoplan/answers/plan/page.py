"""The answer of ``plan`` as a page: the front, the chosen plan, what is proven, what was rejected."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autoplan.answers.plan.blocks import plans_table
from autoplan.report.choices_report import answers_table, question_sentences
from autoplan.report.document_fields import Document, front_document
from autoplan.report.pages.html import (
    choice_list,
    detail_section,
    element,
    folded,
    html_of,
    page,
    preformatted,
    sentences_list,
)
from autoplan.report.pages.page_sections import (
    PageRequest,
    command_section,
    headings,
    json_section,
    plan_details,
    proof_section,
    provenance_section,
    rejected_section,
    step_beside,
    step_sentence,
)
from autoplan.report.pages.pictures.scatter_picture import (
    ScatterAxis,
    ScatterPoint,
    scatter_picture,
    with_ends_labelled,
)
from autoplan.report.render.blocks import Heading
from autoplan.report.render.terminal import WIDE, Terminal, spread
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import front_sentences, layout_parts, number_words, space_sentence
from autoplan.report.wording.suggestion_words import conflict_sentences, suggestion_sentences
from autoplan.results.front import Front
from autoplan.results.merged_front import at_batch
from autoplan.units import format_bytes, format_seconds

__all__ = ["MOST_DETAILS", "MOST_PLANS", "front_picture", "plan_page"]

#: Most plans with a row and a point, and most of them that can be chosen.
MOST_PLANS: Final = 160
MOST_DETAILS: Final = 8
#: Characters of all plans that can be chosen; the first is there in any case.
_MOST_CHARACTERS: Final = 600_000


def plan_page(front: Front, request: PageRequest) -> str:
    """Return ``front`` as a self-contained page."""
    body = _feasible(front, request) if front.plans else _infeasible(front)
    parts = [
        *headings(front.job, front.facts),
        *body,
        *rejected_section(front),
        *provenance_section(front.job),
        *command_section(request.command),
    ]
    return page(f"{front.job.name}: plans", parts)


def _infeasible(front: Front) -> Iterator[str]:
    """Yield why nothing is feasible, and what would help."""
    yield element("p", "nothing is feasible", "no")
    yield sentences_list(front.reasons)
    if conflicts := conflict_sentences(front):
        yield element("h2", "Limits that conflict")
        yield sentences_list(conflicts)
    if front.suggestions:
        yield element("h2", "Changes that make a plan possible, each one solved")
        yield sentences_list(suggestion_sentences(front))
    yield from proof_section(front, [space_sentence(front)])


def _feasible(front: Front, request: PageRequest) -> Iterator[str]:
    document = front_document(front)
    numbers = [index + 1 for index in spread(len(front.plans), MOST_PLANS)]
    chosen = front.plans.index(front.fastest) + 1
    details = dict(_details(front, document, chosen, request))
    yield from _answer_sentences(front, document["front"])
    yield element("h2", f"The front: {number_words(len(front.plans), 'plan')}")
    yield front_picture({n: document["front"][n - 1] for n in numbers}, chosen)
    yield from _table(front, numbers, details, chosen)
    yield from _layouts(front, numbers)
    if len(numbers) < len(front.plans):
        yield element(
            "p", f"{number_words(len(front.plans) - len(numbers), 'more plan')}: --format json", "quiet"
        )
    yield element("h2", "The chosen plan")
    yield choice_list(details)
    for number, html in details.items():
        yield detail_section(number, html, chosen=number == chosen)
    if len(details) < len(front.plans):
        yield element(
            "p", f"{number_words(len(details), 'plan')} can be chosen; evaluate draws any layout", "quiet"
        )
    yield from _answers(front)
    yield from proof_section(front, [*question_sentences(front), *front_sentences(front)])


def _answer_sentences(front: Front, plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the plan that is fastest, and the one with least memory where that is another."""
    least = min(front.plans, key=lambda plan: plan.predicted.peak_memory_bytes_per_device)
    for words, plan in {"Fastest": front.fastest, "Least memory": least}.items():
        if words == "Fastest" or plan != front.fastest:
            number = front.plans.index(plan)
            layout = " · ".join(layout_parts(plan.layout, Terminal()))
            step = step_sentence(plans[number]["predicted"])
            memory = format_bytes(plan.predicted.peak_memory_bytes_per_device)
            yield element("p", f"{words}, plan {number + 1}: {layout}: {step}, {memory} per device", "answer")


def _details(
    front: Front, document: Document, chosen: int, request: PageRequest
) -> Iterator[tuple[int, str]]:
    """Yield plans that can be chosen, ``chosen`` first, as long as they leave the page small."""
    spent = 0
    others = [index + 1 for index in spread(len(front.plans), MOST_DETAILS)]
    for number in dict.fromkeys([chosen, *others]):
        html = "\n".join(_detail(front, document, number, request))
        spent += len(html)
        if number != chosen and spent > _MOST_CHARACTERS:
            return
        yield number, html


def _detail(front: Front, document: Document, number: int, request: PageRequest) -> list[str]:
    plan, entry = front.plans[number - 1], document["front"][number - 1]
    job, documents = at_batch(front.job, plan), (document["job"]["limits"], entry["predicted"])
    timeline = step_beside(job, plan, front.fastest, request)
    return [
        element("h3", f"Plan {number}"),
        *plan_details(job, plan, documents, request, timeline),
        *json_section(f"plan {number} as JSON", entry),
    ]


def _answers(front: Front) -> Iterator[str]:
    """Yield the answer for each program, number of devices and batch, where the job asks for several."""
    blocks = list(answers_table(front, WIDE))
    if blocks:
        programs = any(choice.program for choice in front.job.choices)
        yield from html_of([Heading("By program" if programs else "By devices and batch"), *blocks])


def _table(front: Front, numbers: Sequence[int], details: Collection[int], chosen: int) -> list[str]:
    """Return the table of a wide terminal, whose numbers lead to the plans that can be chosen."""
    plans = plans_table(front.job, [(number, front.plans[number - 1]) for number in numbers], WIDE)
    rows = {number: row for row, number in enumerate(numbers)}
    linked = tuple(rows[number] for number in details if number in rows)
    return html_of(
        [
            replace(
                plans,
                label="plans of the front",
                anchors="plan",
                detailed=linked,
                strong=rows.get(chosen),
            )
        ]
    )


def _layouts(front: Front, numbers: Sequence[int]) -> Iterator[str]:
    """Yield the layouts on a line each, so that they can be copied."""
    lines = [f"{number:>3}  {front.plans[number - 1].layout_string}" for number in numbers]
    yield folded("the layouts to copy", preformatted("layouts", "\n".join(lines)))


def front_picture(plans: Mapping[int, Mapping[str, Any]], chosen: int) -> str:
    """Return the picture of ``plans`` as HTML, with plan number ``chosen`` marked.

    ``plans`` are by number, as ``front_document`` has them.
    """
    limit = next(iter(plans.values()))["predicted"]["memory_limit_bytes"]
    across = ScatterAxis("step time", "data-step-seconds", format_seconds)
    up = ScatterAxis(
        "peak memory of a device (GiB)",
        "data-memory-bytes",
        lambda size: f"{size / GIB:g}",
        unit=GIB,
        from_zero=True,
        limit=(limit, f"limit {format_bytes(limit)}"),
    )
    points = [_point(number, plan, chosen=number == chosen) for number, plan in plans.items()]
    points = with_ends_labelled(points, "fastest", "least memory")
    return scatter_picture("front", "plans of the front: step time and memory", (across, up), points)


def _point(number: int, plan: Mapping[str, Any], *, chosen: bool) -> ScatterPoint:
    predicted = plan["predicted"]
    seconds, size = predicted["step_seconds"], predicted["peak_memory_bytes_per_device"]
    interval = predicted["step_seconds_low"], predicted["step_seconds_high"]
    low, high = map(format_seconds, interval)
    words = (
        f"plan {number}: {format_seconds(seconds)} a step (90 % interval {low} to {high}),"
        f" {format_bytes(size)} per device, {plan['layout_string']}"
    )
    return ScatterPoint(seconds, size, f"#plan-{number}", words, chosen=chosen, interval=interval)
