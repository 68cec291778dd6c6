"""Plans of a serving job as pages: the front, each plan with its memory and latencies, what is proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from autoplan.report.pages.html import (
    choice_list,
    colour_keys,
    detail_section,
    drawn_cell,
    element,
    html_of,
    number_cell,
    page,
    row_head,
    table,
    text_cell,
)
from autoplan.report.pages.page_sections import (
    PageRequest,
    coefficients_section,
    command_section,
    json_section,
)
from autoplan.report.pages.pictures.scatter_picture import (
    ScatterAxis,
    ScatterPoint,
    scatter_picture,
    with_ends_labelled,
)
from autoplan.report.pages.pictures.stacked_bars import Part, stacked_bar
from autoplan.report.render.blocks import below_heading
from autoplan.report.render.terminal import WIDE, spread
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_document import serving_front_document, serving_plan_document
from autoplan.report.serving.serving_report import front_ends, serving_front_blocks, serving_plan_blocks
from autoplan.report.serving.serving_words import load_words, served_words
from autoplan.report.wording.part_names import GIB, SERVED_MEMORY
from autoplan.report.wording.sentences import number_words
from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.schema.serving.serving_choices import Percentiles, ServingLimits
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_seconds, format_share

#: Most plans with a row and a point, and most of them that can be chosen.
_MOST_PLANS: Final = 120
_MOST_DETAILS: Final = 12
_MOST_STAGES: Final = 16


def serving_front_page(front: ServingFront, request: PageRequest) -> str:
    """Return the front of a serving job as a self-contained page."""
    document = serving_front_document(front)
    listed = replace(front, plans=front.plans[:_MOST_PLANS])
    parts = serving_front_blocks(listed, WIDE, all_plans=True)
    left_out = len(front.plans) - len(listed.plans)
    body = [
        *_headings(front.job),
        *(element("p", sentence.capitalize(), "answer") for sentence in front_ends(front)),
        *(_front(document["front"][: len(listed.plans)]) if front.plans else ()),
        *html_of(below_heading(parts)),
        *([element("p", f"{left_out} more plans: --format json", "quiet")] if left_out else []),
        *(_choices(front, document) if front.plans else ()),
        *_rejected(front),
        *_certificate(document),
        *_provenance(front.job),
        *command_section(request.command),
        *(() if front.plans else json_section("the answer as JSON", document)),
    ]
    return page(f"{front.job.name}: serving plans", body)


def serving_plan_page(job: ServingJob, plan: ServingPlan, request: PageRequest) -> str:
    """Return the prediction of one plan as a self-contained page."""
    document = serving_plan_document(job, plan)
    parts = serving_plan_blocks(job, plan, WIDE, memory=plan.pooled is not None)
    body = [
        *_headings(job),
        element("p", f"{served_words(plan)}, {number_words(plan.devices, 'device')}", "answer"),
        element("h2", "The plan"),
        *html_of(below_heading(parts)),
        *served_limits_table(job.limits, document["predicted"]),
        *_memory(document["predicted"]),
        *_provenance(job),
        *command_section(request.command),
        *json_section("the answer as JSON", document),
    ]
    return page(f"{job.name}: {plan.layout_string}", body)


def _headings(job: ServingJob) -> Iterator[str]:
    what, conditions = serving_job_lines(job, WIDE)
    yield element("h1", what)
    yield element("p", f"{conditions} {WIDE.dot} {load_words(job)}", "quiet")


def _front(plans: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the plans as points: seconds for each token against tokens a second of each device."""
    yield element("h2", "The front")
    points = [
        ScatterPoint(
            x["predicted"]["time_per_output_token_seconds"],
            x["predicted"]["output_tokens_per_second_per_device"],
            f"#plan-{number}",
            _words(number, x),
            chosen=number == 1,
        )
        for number, x in enumerate(plans, start=1)
        if x["predicted"]["time_per_output_token_seconds"] is not None
    ]
    across = ScatterAxis("time for each output token", "data-token-seconds", format_seconds)
    up = ScatterAxis(
        "output tokens a second of each device",
        "data-tokens-per-second",
        lambda rate: f"{rate:,.0f}",
        from_zero=True,
    )
    points = with_ends_labelled(points, "fastest token", "most tokens/s")
    if points:
        yield scatter_picture("front", "plans of the front: latency and throughput", (across, up), points)


def _words(number: int, plan: Mapping[str, Any]) -> str:
    predicted = plan["predicted"]
    first = predicted["time_to_first_token_seconds"]
    first_words = "" if first is None else f", first token after {format_seconds(first)}"
    return (
        f"plan {number}: {format_seconds(predicted['time_per_output_token_seconds'])} a token{first_words},"
        f" {predicted['output_tokens_per_second_per_device']:,.0f} tokens/s of each device,"
        f" {plan['layout_string']}"
    )


def _choices(front: ServingFront, document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plans that can be chosen, the first one shown."""
    numbers = [index + 1 for index in spread(min(len(front.plans), _MOST_PLANS), _MOST_DETAILS)]
    yield element("h2", "The chosen plan")
    yield choice_list(numbers)
    for number in numbers:
        plan, entry = front.plans[number - 1], document["front"][number - 1]
        blocks = serving_plan_blocks(front.job, plan, WIDE, memory=plan.pooled is not None)
        html = [
            element("h3", f"Plan {number}"),
            *html_of(below_heading(blocks), "h4"),
            *served_limits_table(front.job.limits, entry["predicted"], f" of plan {number}"),
            *_memory(entry["predicted"], f" of plan {number}"),
            *json_section(f"plan {number} as JSON", dict(entry)),
        ]
        yield detail_section(number, "\n".join(html), chosen=number == 1)


def _memory(predicted: Mapping[str, Any], of: str = "") -> list[str]:
    """Return what a device of each stage holds as bars in a table; of pools the plan has both in tables."""
    stages = [] if predicted["disaggregated"] is not None else predicted["memory"]
    drawn = [stages[index] for index in spread(len(stages), _MOST_STAGES)]
    used = [name for name in SERVED_MEMORY if any(stage[name] > 0 for stage in drawn)]
    longest = max((sum(max(0.0, stage[name]) for name in used) for stage in drawn), default=0.0)
    if not longest:
        return []
    heads = [("stage", "number"), ("memory of a device", "")]
    heads += [(f"{SERVED_MEMORY[part][0]} (GiB)", "number") for part in used]
    rows = []
    for stage in drawn:
        parts: list[Part] = [
            (
                name,
                max(0.0, stage[name]),
                SERVED_MEMORY[name][1],
                f"{SERVED_MEMORY[name][0]} {stage[name] / GIB:,.2f} GiB",
            )
            for name in used
        ]
        cells = "".join(number_cell(stage[name], f"{stage[name] / GIB:,.2f}") for name in used)
        number = number_cell(stage["stage"], str(stage["stage"]))
        rows.append(number + drawn_cell(stacked_bar(parts, longest)) + cells)
    return [
        colour_keys(SERVED_MEMORY[part] for part in used),
        table(f"memory of a device by stage{of}", heads, rows),
    ]


def _rejected(front: ServingFront) -> list[str]:
    rows = [
        text_cell(x.reason) + number_cell(x.layouts, f"{x.layouts:,}")
        for x in sorted(front.rejected, key=lambda x: (-x.layouts, x.reason))
        if x.layouts
    ]
    heads = [("reason", ""), ("engines", "number")]
    if not rows:
        return []
    return [element("h2", "What was rejected, and why"), table("rejected engines", heads, rows)]


def _certificate(document: Mapping[str, Any]) -> list[str]:
    rows = [
        row_head(name.replace("_", " ")) + text_cell(_text(value))
        for name, value in document["certificate"].items()
    ]
    heads = [("certificate", ""), ("value", "")]
    return [element("h2", "What is proven"), table("certificate", heads, rows)]


def _text(value: Any) -> str:  # noqa: ANN401 - a value of a document
    if isinstance(value, list):
        return ", ".join(" ".join(map(str, x)) if isinstance(x, list) else str(x) for x in value) or "none"
    return "none" if value is None else str(value)


def _provenance(job: ServingJob) -> list[str]:
    device, node, engine = job.cluster.device, job.cluster.node, job.engine
    return coefficients_section(
        [
            ("device", device.name, device, device.sources),
            ("node", node.name, node, node.sources),
            ("engine", f"{engine.name} {engine.version}", engine.facts, engine.sources),
        ]
    )


_TIMES: Final = {
    "time_to_first_token": "time to the first token",
    "time_per_output_token": "time for each output token",
    "request_latency": "latency of a request",
}
#: Limits on numbers other than times: name, field of the prediction, whether it is the least.
_OTHERS: Final = (
    ("throughput", "output tokens a second", "output_tokens_per_second", True),
    ("devices", "devices", "devices", False),
    ("peak_memory", "peak memory of a device", "peak_memory_bytes_per_device", False),
    ("cost", "cost of a million output tokens", "cost_per_million_output_tokens", False),
)

#: A limit: its name, what is predicted, what is allowed, and whether that is the least.
_Row = tuple[str, float | None, float, bool]


def served_limits_table(limits: ServingLimits, predicted: Mapping[str, Any], of: str = "") -> list[str]:
    """Return the limits of a job with the numbers of a document; nothing where it has no limit.

    ``of`` tells the table from others on the page.
    """
    rows = [*_times(limits, predicted), *_numbers(limits, predicted)]
    if not rows:
        return []
    heads = [("limit", ""), ("predicted", "number"), ("allowed", "number"), ("within", "")]
    return [table(f"predicted against limits{of}", heads, map(_cells, rows))]


def _times(limits: ServingLimits, predicted: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield limits on means, by the closed form, and on percentiles, by a simulation."""
    simulated = predicted["percentiles"] or {}
    for key, name in _TIMES.items():
        limit, field = getattr(limits, key), f"{key}_seconds"
        if isinstance(limit, Percentiles):
            if limit.mean is not None:
                yield f"{name}, mean", predicted[field], limit.mean, False
            for percentile in ("p50", "p90", "p99"):
                most = getattr(limit, percentile)
                if most is not None:
                    value = (simulated.get(field) or {}).get(percentile)
                    yield f"{name}, {percentile} of a simulation", value, most, False
        elif limit is not None:
            yield f"{name}, mean", predicted[field], limit, False
    if limits.goodput is not None:
        yield "goodput of a simulation", simulated.get("goodput"), limits.goodput, True


def _numbers(limits: ServingLimits, predicted: Mapping[str, Any]) -> Iterator[_Row]:
    for key, name, field, least in _OTHERS:
        limit = getattr(limits, key)
        if limit is not None:
            yield name, predicted[field], float(limit), least


def _cells(row: _Row) -> str:
    name, value, limit, least = row
    inside = "not known"
    if value is not None:
        inside = "yes" if (value >= limit if least else value <= limit) else "no"
    return (
        element("th", name)
        + number_cell(value, "-" if value is None else _quantity(name, value))
        + number_cell(limit, f"at {'least' if least else 'most'} {_quantity(name, limit)}")
        + text_cell(inside, inside if inside in {"yes", "no"} else "quiet")
    )


def _quantity(name: str, value: float) -> str:
    if name.startswith(("time", "latency")):
        return format_seconds(value)
    if name.startswith("goodput"):
        return format_share(value)
    return format_bytes(value) if "memory" in name else f"{value:,.6g}"
