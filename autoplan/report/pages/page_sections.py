"""Sections that pages share: limits, what is proven, what was rejected, provenance, the command, the JSON.

One plan: verdict, limits, parts of the step, memory, timeline, roofline, ranks and links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree as ET

from pydantic import BaseModel

from autoplan.costs.core.prediction import (
    AxisTraffic,
    JobFacts,
    LayerProducts,
    MeshExtent,
    RankPlacement,
    StepTimeline,
)
from autoplan.report.document_fields import plan_document
from autoplan.report.pages.html import (
    element,
    folded,
    layout_line,
    number_cell,
    preformatted,
    region,
    sentences_list,
    table,
    text_cell,
)
from autoplan.report.pages.pictures.roofline_picture import layer_roofline
from autoplan.report.pages.pictures.stacked_bars import memory_bars, time_bars
from autoplan.report.pages.pictures.timeline_picture import timeline_picture
from autoplan.report.render.serialization import dump
from autoplan.report.render.svg import add_text, canvas, printable, written
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.sentences import count_words, fits_sentence, job_lines, number_words
from autoplan.results.front import Front
from autoplan.results.job_summary import number_kinds
from autoplan.results.plan import Plan
from autoplan.schema.base import Sourced
from autoplan.schema.hardware import sourced_numbers
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.units import format_bytes, format_rate, format_seconds, format_share

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


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The command that a page repeats, and what its pictures of a plan show.

    ``step_of`` returns the step, or why that is not drawn.
    """

    command: str
    step_of: Callable[[Job, Plan], StepTimeline | str]
    products_of: Callable[[Job, Layout], LayerProducts]
    placement_of: Callable[[Job, Layout], RankPlacement]


def closing_sections(
    job: Job, request: PageRequest, title: str, document: dict[str, Any], *, sure: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the end of a page: how sure the answer is, provenance, the command, and the ``document``."""
    if sure:
        yield element("h2", "How sure this is")
        yield sentences_list(sure)
    yield from provenance_section(job)
    yield from command_section(request.command)
    yield from json_section(title, document)


#: Forward passes of all stages, above which only the fastest plan has a timeline: simulating one takes long.
_MOST_SLOTS: Final = 3_000
_MANY_PASSES: Final = (
    "this step has many passes: `autoplan evaluate --layout ... --output` draws its timeline"
)


def step_beside(job: Job, plan: Plan, fastest: Plan, request: PageRequest) -> StepTimeline | str:
    """Return the step of ``plan`` beside the ``fastest``, which is drawn however many passes it has."""
    passes = plan.predicted.microbatches * plan.layout.pp * plan.layout.vpp
    return _MANY_PASSES if plan != fastest and passes > _MOST_SLOTS else request.step_of(job, plan)


def prediction_details(job: Job, plan: Plan, request: PageRequest) -> list[str]:
    """Return the elements of ``plan``: verdict, limits, parts of the step, memory, and pictures."""
    document = plan_document(job, plan)
    limits = document["job"]["limits"]
    return plan_details(job, plan, (limits, document["predicted"]), request, request.step_of(job, plan))


def plan_details(
    job: Job,
    plan: Plan,
    documents: tuple[dict[str, Any], dict[str, Any]],
    request: PageRequest,
    timeline: StepTimeline | str,
) -> list[str]:
    """Return the elements of ``plan``; ``documents`` are its limits and its prediction."""
    limits, predicted = documents
    low, high = format_seconds(predicted["step_seconds_low"]), format_seconds(predicted["step_seconds_high"])
    step = format_seconds(predicted["step_seconds"])
    drawn = [element("p", timeline, "quiet")] if isinstance(timeline, str) else timeline_picture(timeline)
    return [
        layout_line(plan.layout_string),
        element("p", fits_sentence(plan.predicted), "yes" if plan.predicted.fits else "no"),
        element("h3", "Predicted against limits"),
        limits_table(limits, predicted),
        element("h3", f"Step time: {step}, 90 % interval {low} to {high}"),
        *time_bars(predicted),
        element("h3", "Peak memory by stage"),
        *memory_bars(predicted),
        element("h3", "Timeline of the step"),
        *drawn,
        element("h3", "Matrix products and attention on the roofline"),
        *layer_roofline(request.products_of(job, plan.layout)),
        element("h3", "Ranks and links"),
        *placement_picture(request.placement_of(job, plan.layout)),
    ]


#: Most nodes that are drawn, and most rows of traffic.
MOST_NODES: Final = 4
_MOST_ROWS: Final = 64
_ACROSS: Final = 8
_CELL: Final = (92, 44)
_MARGIN: Final = 12
_HEAD: Final = 26
_GAP: Final = 18

#: Colours of stages, light enough for black text (Tol 2021, "light"), one after another.
STAGE_COLOURS: Final = (
    "#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#bbcc33", "#99bbff", "#aaaa00",
)  # fmt: skip

_LIGHT: Final = """
.NAME .node { fill: none; stroke: #59636e }
.NAME .inside { fill: #000000 }
.NAME .inside.small { fill: #000000 }
"""
_DARK: Final = ".NAME .node { stroke: #9198a1 }\n.NAME .inside, .NAME .inside.small { fill: #000000 }"


def placement_picture(placement: RankPlacement) -> list[str]:
    """Return the ranks on their nodes as a picture, and the traffic of links as a table."""
    used = [x for x in placement.axes if x.degree > 1]
    drawn = min(placement.nodes, MOST_NODES)
    left_out = placement.nodes - drawn
    more = f"; {number_words(left_out, 'more node')} continue the pattern" if left_out else ""
    strides = "; ".join(f"{x.axis} {x.degree}: every {_ordinal(x.stride)}" for x in used)
    text = (
        f"a box is a device, its colour the stage; neighbours on an axis by rank: {strides or 'none'}{more}"
    )
    return [
        element("p", text, "quiet"),
        region("ranks on nodes", _ranks_picture(placement, used, drawn), "picture placed"),
        *_traffic(placement),
    ]


def _ordinal(stride: int) -> str:
    return "rank" if stride == 1 else f"{stride}{'nd' if stride == 2 else 'rd' if stride == 3 else 'th'} rank"


def _ranks_picture(placement: RankPlacement, axes: Sequence[MeshExtent], nodes: int) -> str:
    per_node = placement.devices_per_node
    columns = min(per_node, _ACROSS)
    lines = -(-per_node // columns)
    width = 2 * _MARGIN + columns * _CELL[0] + 2 * _MARGIN
    height = _HEAD + lines * _CELL[1] + _MARGIN
    svg = canvas("placement", "ranks on nodes", (width, nodes * (height + _GAP)), light=_LIGHT, dark=_DARK)
    svg.set("role", "group")
    svg.set("aria-label", "ranks on nodes")
    for node in range(nodes):
        top = node * (height + _GAP) + 2
        box = {"x": f"{_MARGIN}", "y": f"{top}", "width": f"{width - 2 * _MARGIN}", "height": f"{height}"}
        ET.SubElement(svg, "rect", {**box, "class": "node", "rx": "6"})
        add_text(svg, (2 * _MARGIN, top + 18), f"node {node}", "small")
        first = node * per_node
        for rank in range(first, min(first + per_node, placement.devices)):
            row, column = divmod(rank - first, columns)
            at = (2 * _MARGIN + column * _CELL[0], top + _HEAD + row * _CELL[1])
            _device(svg, at, rank, node, axes)
    return written(svg)


def _device(
    svg: ET.Element, at: tuple[float, float], rank: int, node: int, axes: Sequence[MeshExtent]
) -> None:
    coordinates = {x.axis: x.coordinate(rank) for x in axes}
    words = ", ".join(f"{axis} {place}" for axis, place in coordinates.items())
    group = ET.SubElement(
        svg,
        "g",
        {"role": "img", "aria-label": printable(f"rank {rank} on node {node}{': ' if words else ''}{words}")},
    )
    box = {
        "x": f"{at[0]:.0f}",
        "y": f"{at[1]:.0f}",
        "width": f"{_CELL[0] - 6}",
        "height": f"{_CELL[1] - 6}",
        "rx": "3",
        "fill": STAGE_COLOURS[coordinates.get("pp", 0) % len(STAGE_COLOURS)],
    }
    ET.SubElement(group, "rect", box)
    add_text(group, (at[0] + 6, at[1] + 15), f"rank {rank}", "inside")
    short = " ".join(f"{axis[0]}{place}" for axis, place in coordinates.items())
    add_text(group, (at[0] + 6, at[1] + 31), short, "inside small")


def _traffic(placement: RankPlacement) -> list[str]:
    """Return what a device of each stage sends in a step, by axis and link."""
    rows = placement.traffic[:_MOST_ROWS]
    if not rows:
        return [element("p", "no link carries anything in a step", "quiet")]
    heads = [("stage", "number"), ("axis", ""), ("ranks", "number"), ("stride", "number")]
    heads += [("over the fabric", "number"), ("over the network", "number")]
    left_out = len(placement.traffic) - len(rows)
    more = f"; {number_words(left_out, 'more row')} left out" if left_out else ""
    fabric = format_rate(placement.fabric_bandwidth, "B/s")
    rates = f"the fabric reaches {fabric} one way"
    if placement.nodes > 1:
        rates += f", the network {format_rate(placement.network_bandwidth, 'B/s')}"
    return [
        table("bytes that a device sends in a step", heads, map(_traffic_row, rows)),
        element(
            "p",
            f"bytes that a device sends in a step, hidden or not; {rates}{more}",
            "quiet",
        ),
    ]


def _traffic_row(x: AxisTraffic) -> str:
    return (
        number_cell(x.stage, str(x.stage))
        + text_cell(x.axis)
        + number_cell(x.ranks, str(x.ranks))
        + number_cell(x.stride, str(x.stride))
        + number_cell(x.fabric_bytes, format_bytes(x.fabric_bytes))
        + number_cell(x.network_bytes, format_bytes(x.network_bytes))
    )
