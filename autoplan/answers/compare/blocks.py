"""Layouts side by side as blocks and as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from autoplan.answers.compare.comparison_words import KNOB_NAMES, conclusion, knob_value, noise_words
from autoplan.answers.compare.value import (
    AxisDegree,
    BestAtLoads,
    CollectiveTraffic,
    ComparedEngines,
    ComparedLayout,
    Crossing,
    EngineComparison,
    KnobRange,
    LayoutComparison,
)
from autoplan.report.document_fields import SCHEMA, Document, brief, difference_document, plain
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Heading,
    LayoutLine,
    Sentence,
    columns_of,
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_words import load_words
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS, TIME_NAMES
from autoplan.report.wording.sentences import fits_sentence, job_lines, surety_sentences
from autoplan.results.job_summary import job_document, provenance, serving_job_document
from autoplan.results.serving.plan_values import serving_plan_values
from autoplan.results.serving.serving_front import SERVING_THINNING, loss
from autoplan.units import format_bytes, format_seconds

# Where the collectives of a layout land in a step, in words.


#: Operations as a table shows them.
OPERATION_WORDS: Final = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "send": "send",
}

_TENSOR_PLACES: Final = {
    ("forward", True): "before attention, MLP",
    ("forward", False): "after attention, MLP",
    ("backward", True): "before their backward",
    ("backward", False): "after input gradients",
    ("weight gradient", True): "for weight gradients",
    ("recompute", True): "before recompute",
    ("recompute", False): "after recompute",
}

_DATA_PLACES: Final = {
    "forward": "before forward",
    "backward": "before backward",
    "reduction": "after backward",
    "step reduction": "once, last backward on",
    "step gather": "once, after optimizer",
}

_PARTS: Final = {
    "attention": "in attention",
    "dispatch": "experts",
    "boundary": "to a stage",
    "norms": "norm gradients",
    "loss": "in the loss",
}


def place_words(traffic: CollectiveTraffic) -> str:
    """Return where in a step the messages land.

    >>> message = CollectiveTraffic("tp", "all_gather", "layers", "forward", 2, False, 1.0, 2.0, 2.0, 1.0)
    >>> place_words(message)
    'before attention, MLP'
    """
    if traffic.part in _PARTS:
        return f"{_PARTS[traffic.part]}, {traffic.phase}"
    if traffic.axis == "tp" and traffic.part == "layers":
        return _TENSOR_PLACES.get((traffic.phase, traffic.operation == "all_gather"), traffic.phase)
    if traffic.part in {"layers", "experts"}:
        of = "experts, " if traffic.part == "experts" else ""
        return of + _DATA_PLACES.get(traffic.phase, traffic.phase)
    return f"{traffic.part}, {traffic.phase}"


# Layouts side by side as a document.


def layouts_document(comparison: LayoutComparison) -> Document:
    """Return the comparison as a document; layouts have numbers from 1, in the order asked for."""
    noise = comparison.noise
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "job": job_document(comparison.job, comparison.plans[0].facts),
        "conclusion": conclusion(comparison),
        "winner": comparison.order[0] + 1,
        "order": [number + 1 for number in comparison.order],
        "order_noise": plain(noise),
        "layouts": [_layout(comparison, number) for number in range(len(comparison.layouts))],
        "replanned": comparison.replanned,
        "crossovers": [_knob(knob) for knob in comparison.knobs],
        "best": brief(comparison.best) if comparison.best else None,
        "best_proven": comparison.best_proven,
        "best_why": comparison.best_why,
        "missing": plain(comparison.missing),
        "notes": list(comparison.notes),
        "provenance": plain(provenance(comparison.job)),
    }


def _layout(comparison: LayoutComparison, number: int) -> Document:
    compared: ComparedLayout = comparison.layouts[number]
    return {
        "name": compared.name,
        **brief(compared.plan),
        "latency_seconds": compared.latency_seconds,
        "splits": plain(compared.splits),
        "collectives": [_traffic_document(x) for x in compared.traffic],
        "communication": [{**plain(x), "hidden_seconds": x.hidden_seconds} for x in compared.axes],
        "losses": [difference_document(x) for x in comparison.losses(number)],
    }


def _traffic_document(traffic: CollectiveTraffic) -> Document:
    return {
        **plain(traffic),
        "sent_bytes_per_layer": traffic.sent_bytes_per_layer,
        "place": place_words(traffic),
    }


def _knob(solved: KnobRange) -> Document:
    """Return a knob with its crossings; winners are numbers of layouts from 1."""
    document: Document = plain(solved)
    for key in ("winner_at_least", "winner_at_most"):
        document[key] = _numbered(document[key])
    for crossing in document["crossings"]:
        for side in ("below", "above"):
            crossing[side]["winner"] = _numbered(crossing[side]["winner"])
    return document


def _numbered(index: int | None) -> int | None:
    return None if index is None else index + 1


# Layouts of engines side by side, as a table and as a document.


#: Objectives as the table calls their rows; it marks the best.
_ROWS: Final = {
    "time_per_output_token": "time/token",
    "time_to_first_token": "first token",
    "request_latency": "latency",
    "throughput": "tokens/s",
    "throughput_per_device": "tokens/s/device",
    "devices": "devices",
}


def engine_comparison_document(answer: EngineComparison) -> Document:
    """Return the comparison as a document; places of layouts count from 1."""
    return {
        "schema": SCHEMA,
        "kind": "serving comparison",
        "job": serving_job_document(answer.job),
        "layouts": [{"name": one.name, **serving_plan_values(one.job, one.plan)} for one in answer.layouts],
        "decision": _decision_document(answer),
        "best": {name: place + 1 for name, place in answer.best},
        "loads": [
            {
                "from": loads.first,
                "to": loads.last,
                "best": None if loads.layout is None else loads.layout + 1,
            }
            for loads in answer.loads
        ],
    }


def _decision_document(answer: EngineComparison) -> Document | None:
    """Return the layout to pick and the objective that decides; null where none holds the limits."""
    decision = answer.decision
    if decision is None:
        return None
    tied = [place + 1 for place in decision.tied]
    return {"layout": decision.place + 1, "objective": decision.objective, "tied": tied}


def engine_comparison_blocks(answer: EngineComparison, terminal: Terminal) -> list[Block]:
    """Return the comparison as blocks."""
    names = [Sentence(f"{n}  {one.plan.layout_string}") for n, one in enumerate(answer.layouts, 1)]
    parts: list[Block] = [
        *heading((*serving_job_lines(answer.job, terminal), load_words(answer.job))),
        *names,
        GAP,
    ]
    parts += [_side_by_side(answer), GAP]
    return [*parts, items(_sentences(answer))]


def _side_by_side(answer: EngineComparison) -> DataTable:
    best = {_ROWS[name]: place for name, place in answer.best if name in _ROWS}
    columns = [
        Column("* best", (*_ROWS.values(), "fits at once", "memory", "first limit", "verdict"), "text")
    ]
    for place, one in enumerate(answer.layouts):
        marked = [
            f"{'* ' if best.get(row) == place else ''}{value}"
            for row, value in zip(_ROWS.values(), _figures(one), strict=True)
        ]
        columns.append(Column(str(place + 1), (*marked, *_facts(one))))
    return data_table(columns)


def _figures(one: ComparedEngines) -> Iterator[str]:
    plan = one.plan
    for seconds in (plan.time_per_output_token, plan.time_to_first_token, plan.request_latency):
        yield "-" if seconds is None or not plan.starts else format_seconds(seconds)
    yield f"{plan.output_tokens_per_second:,.0f}"
    yield f"{plan.output_tokens_per_second_per_device:,.0f}"
    yield f"{plan.devices}"


def _facts(one: ComparedEngines) -> Iterator[str]:
    plan, predicted = one.plan, one.plan.groups[0].predicted
    yield f"{plan.max_concurrency:,}" if plan.starts else "-"
    yield format_bytes(plan.peak_memory_bytes_per_device)
    yield f"{predicted.point.cause}{', reached' if plan.saturated else ''}" if plan.starts else "-"
    yield _verdict(one)


def _verdict(one: ComparedEngines) -> str:
    shortage = one.plan.groups[0].predicted.shortage
    if shortage is not None:
        return "does not start"
    if not one.plan.fits:
        return "falls behind"
    return "breaks a limit" if one.plan.broken else "holds every limit"


def _sentences(answer: EngineComparison) -> Iterator[str]:
    yield from _decision_words(answer)
    for place, one in enumerate(answer.layouts, 1):
        shortage = one.plan.groups[0].predicted.shortage
        if shortage is not None:
            yield f"{place} does not start: {shortage}"
        for sentence in one.plan.broken:
            yield f"{place} breaks a limit{_holders(answer, sentence)}: {sentence}"
    closed = answer.job.workload.concurrency is not None
    unit = "clients" if closed else "requests a second"
    for loads in answer.loads:
        yield f"{_range(loads)} {unit}: {_best_words(answer, loads)}"


def _decision_words(answer: EngineComparison) -> Iterator[str]:
    """Yield which layout to pick and what decides it, and by what another one is better."""
    decision = answer.decision
    if decision is None:
        yield "none of these layouts holds every limit"
        return
    number, picked = decision.place + 1, answer.layouts[decision.place].plan
    if decision.tied:
        tied = ", ".join(str(place + 1) for place in decision.tied)
        yield f"{tied} are alike in every objective of the job"
        return
    if decision.objective is None:
        yield f"pick {number}: it alone holds every limit"
        return
    others = [place for place in answer.feasible if place != decision.place]
    worse = min(loss(picked, answer.layouts[place].plan, decision.objective) for place in others)
    order = answer.job.objectives.index(decision.objective)
    which = "the first objective" if order == 0 else "where objectives before it are alike"
    yield f"pick {number}: {decision.objective} decides, {which}; the next is {worse * 100:.0f} % worse"
    for place in others:
        gains = {name: -loss(picked, answer.layouts[place].plan, name) for name in dict(answer.best)}
        gained = [
            f"{name} (by {gain * 100:.0f} %)" for name, gain in gains.items() if gain > SERVING_THINNING
        ]
        if gained:
            yield f"{place + 1} is better by {', '.join(gained)}"


def _holders(answer: EngineComparison, sentence: str) -> str:
    """Return which layouts hold the limit that ``sentence`` says is broken; empty where none does."""
    limit = _limit_of(sentence)
    holding = [
        str(place)
        for place, one in enumerate(answer.layouts, 1)
        if one.plan.fits and limit not in map(_limit_of, one.plan.broken)
    ]
    return f" that {', '.join(holding)} {'holds' if len(holding) == 1 else 'hold'}" if holding else ""


def _limit_of(sentence: str) -> str:
    """Return what a sentence on a broken limit is about: its words before the value."""
    return sentence.partition(" is ")[0]


def _range(loads: BestAtLoads) -> str:
    ends = f"{loads.first:,.4g}", f"{loads.last:,.4g}"
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _best_words(answer: EngineComparison, loads: BestAtLoads) -> str:
    if loads.layout is None:
        return "no layout serves them within the limits"
    return f"{loads.layout + 1} is best by {answer.job.objectives[0]}"


#: Heads of the table of values at which another layout wins, and of the table of collectives.
_CROSSOVER_HEADS: Final = ("what changes", "now", "flips at", "below", "above", "too close to call")
_TRAFFIC_HEADS: Final = (
    *("#", "axis", "operation", "a call", "calls\n/layer", "calls\n/step"),
    *("sent\n/layer", "sent\n/step", "where in the step"),
)

#: Messages below this share of what a layout sends are left out of the table.
_LEAST_SENT: Final = 0.02
#: Narrowest column of a layout.
_NARROWEST: Final = 9
_NOTHING: Final = "-"


def layouts_blocks(comparison: LayoutComparison, terminal: Terminal) -> list[Block]:
    """Return the comparison as blocks: the conclusion, then what it rests on."""
    job, plans = comparison.job, comparison.plans
    return [
        *heading(job_lines(job, plans[0].facts, terminal)),
        Sentence(" ".join(conclusion(comparison))),
        GAP,
        *_layouts(comparison),
        GAP,
        *comparison_tables(comparison, terminal),
        items(
            [
                *comparison.notes,
                *missing_sentences(comparison),
                *surety_sentences(job, [plan.predicted for plan in plans]),
            ]
        ),
    ]


def _layouts(comparison: LayoutComparison) -> Iterator[Block]:
    """Yield the layouts on a line each, so that they can be copied."""
    for number, compared in enumerate(comparison.layouts, start=1):
        plan = compared.plan
        name = f"{compared.name}: " if compared.name != plan.layout_string else ""
        yield LayoutLine(plan.layout_string, f"{number}  {name}")


def comparison_tables(comparison: LayoutComparison, terminal: Terminal) -> Iterator[Block]:
    """Yield the numbers of each layout, where another wins, what is split over what, and the collectives."""
    # Rows without a name part the others.
    rows = [*_step_rows(comparison), *_part_rows(comparison), *_memory_rows(comparison)]
    yield _by_layout(comparison, terminal, "numbers", rows)
    yield GAP
    yield from _crossovers(comparison)
    yield from _splits(comparison, terminal)
    yield from _traffic(comparison)


def _by_layout(
    comparison: LayoutComparison, terminal: Terminal, label: str, rows: Sequence[tuple[str, Sequence[str]]]
) -> DataTable:
    names = Column("", tuple(name for name, _ in rows), "text")
    count = len(comparison.layouts)
    room = max(_NARROWEST, (terminal.width - names.width) // count - 2)
    columns = [names]
    for number, compared in enumerate(comparison.layouts):
        head = f"{number + 1} {compared.name}"
        head = head if len(head) <= room else head[: room - 1].rstrip() + terminal.ellipsis[:1]
        columns.append(Column(head, tuple(cells[number] for _, cells in rows)))
    return DataTable(tuple(columns), label, named=True)


def _of_all(comparison: LayoutComparison, text: Callable[[ComparedLayout], str]) -> list[str]:
    return [text(compared) for compared in comparison.layouts]


def _step_rows(comparison: LayoutComparison) -> Iterator[tuple[str, Sequence[str]]]:
    fastest = comparison.winner.plan.predicted.step_seconds

    def slower(compared: ComparedLayout) -> str:
        return f"{(compared.plan.predicted.step_seconds / fastest - 1) * 100:+.1f} %"

    yield "step", _of_all(comparison, lambda x: format_seconds(x.plan.predicted.step_seconds))
    yield "against the winner", _of_all(comparison, slower)
    yield "tokens/s", _of_all(comparison, lambda x: f"{x.plan.predicted.tokens_per_second:,.0f}")
    yield "latency of a microbatch", _of_all(comparison, lambda x: format_seconds(x.latency_seconds))
    yield "microbatches", _of_all(comparison, lambda x: f"{x.plan.predicted.microbatches:,}")
    yield "communication, exposed", _of_all(comparison, lambda x: _sum(x.axes, "exposed_seconds"))
    yield "communication, hidden", _of_all(comparison, lambda x: _sum(x.axes, "hidden_seconds"))
    yield "", [""] * len(comparison.layouts)


def _sum(axes: Sequence[object], field: str) -> str:
    return format_seconds(sum(getattr(axis, field) for axis in axes)) if axes else _NOTHING


def _part_rows(comparison: LayoutComparison) -> Iterator[tuple[str, Sequence[str]]]:
    for part, name in TIME_NAMES.items():
        seconds = [getattr(plan.predicted.time, part) for plan in comparison.plans]
        if any(seconds):
            yield name, [format_seconds(x) if x else _NOTHING for x in seconds]
    yield "", [""] * len(comparison.layouts)


def _memory_rows(comparison: LayoutComparison) -> Iterator[tuple[str, Sequence[str]]]:
    for part in MEMORY_PARTS:
        sizes = [getattr(plan.predicted.memory.fullest, part) for plan in comparison.plans]
        if any(sizes):
            yield f"{part} (GiB)", [f"{size / GIB:.1f}" for size in sizes]
    peaks = [plan.predicted for plan in comparison.plans]
    yield "peak of a device (GiB)", [f"{x.peak_memory_bytes_per_device / GIB:.1f}" for x in peaks]
    yield "fits", ["yes" if x.fits else "no" for x in peaks]


def _crossovers(comparison: LayoutComparison) -> Iterator[Block]:
    """Yield the values at which another layout wins."""
    yield Heading(_crossover_title(comparison))
    rows = [row for knob in comparison.knobs for row in _knob_rows(knob)]
    columns = columns_of(_CROSSOVER_HEADS, rows, dict.fromkeys(_CROSSOVER_HEADS, "text"))
    yield data_table(columns, "crossovers")
    yield GAP


def _crossover_title(comparison: LayoutComparison) -> str:
    """Return what the table of crossovers shows."""
    planned_at_each = "kind wins, each planned again there" if comparison.replanned else "layout wins"
    return f"where another {planned_at_each}"


def _knob_rows(solved: KnobRange) -> Iterator[tuple[str, ...]]:
    knob, name = solved.knob, KNOB_NAMES[solved.knob.name]
    now = knob_value(knob, knob.present)
    if solved.why:
        yield name, now, solved.why, "", "", ""
    elif not solved.crossings:
        between = f"not from {knob_value(knob, solved.least)} to {knob_value(knob, solved.most)}"
        yield name, now, between, _winner(solved.winner_at_least), _winner(solved.winner_at_most), ""
    for crossing in solved.crossings:
        winners = _winner(crossing.below.winner), _winner(crossing.above.winner)
        yield name, now, _flips_at(solved, crossing), *winners, noise_words(knob, crossing)


def _flips_at(solved: KnobRange, crossing: Crossing) -> str:
    value = knob_value(solved.knob, crossing.value)
    if not crossing.microbatches:
        return value
    counts = "/".join(f"{count:g}" for count in dict.fromkeys(crossing.microbatches))
    return f"{value} ({counts} microbatches)"


def _winner(number: int | None) -> str:
    return "none" if number is None else str(number + 1)


def _splits(comparison: LayoutComparison, terminal: Terminal) -> Iterator[Block]:
    """Yield what is split over which axes, and copied over which."""
    yield Heading("split over | copied over")
    yield _by_layout(comparison, terminal, "splits", _split_rows(comparison))
    yield GAP


def _split_rows(comparison: LayoutComparison) -> list[tuple[str, Sequence[str]]]:
    """Return each kind of tensors, and how each layout spreads it."""
    tensors = dict.fromkeys(x.tensor for compared in comparison.layouts for x in compared.splits)
    return [(tensor, _of_all(comparison, lambda x, t=tensor: _split_cell(x, t))) for tensor in tensors]  # type: ignore[misc]


def _split_cell(compared: ComparedLayout, tensor: str) -> str:
    split = next((x for x in compared.splits if x.tensor == tensor), None)
    if split is None:
        return _NOTHING
    return f"{_axes(split.split)} | {_axes(split.copied)}"


def _axes(axes: Sequence[AxisDegree]) -> str:
    return " ".join(f"{axis.axis}{axis.degree}" for axis in axes) or _NOTHING


def _traffic(comparison: LayoutComparison) -> Iterator[Block]:
    """Yield the collectives of each layout, those that send most."""
    rows = _traffic_rows(comparison)
    if not rows:
        return
    yield Heading("collectives of a rank on the stage that sends most")
    columns = columns_of(
        _TRAFFIC_HEADS, rows, {"axis": "text", "operation": "text", "where in the step": "text"}
    )
    yield data_table(columns, "collectives")
    yield GAP


def _traffic_rows(comparison: LayoutComparison) -> list[tuple[str, ...]]:
    """Return the rows below ``_TRAFFIC_HEADS``: the collectives that send most, layout by layout."""
    return [
        _traffic_row(number, traffic)
        for number, compared in enumerate(comparison.layouts, start=1)
        for traffic in compared.traffic
        if traffic.sent_bytes >= _LEAST_SENT * sum(x.sent_bytes for x in compared.traffic)
    ]


def _traffic_row(number: int, traffic: CollectiveTraffic) -> tuple[str, ...]:
    layer = traffic.sent_bytes_per_layer
    across = " across nodes" if traffic.spans_nodes else ""
    return (
        str(number),
        f"{traffic.axis} {traffic.ranks}{across}",
        OPERATION_WORDS[traffic.operation],
        format_bytes(traffic.message_bytes),
        _NOTHING if traffic.calls_per_layer is None else f"{traffic.calls_per_layer:.3g}",
        f"{traffic.calls:,.0f}",
        _NOTHING if layer is None else format_bytes(layer),
        format_bytes(traffic.sent_bytes),
        place_words(traffic),
    )


def missing_sentences(comparison: LayoutComparison) -> Iterator[str]:
    """Yield why a layout does not fit, and which kinds of layouts the job has none of."""
    for compared in comparison.layouts:
        if not compared.plan.predicted.fits:
            verdict = fits_sentence(compared.plan.predicted)
            yield f"{compared.name} {verdict}: `autoplan explain --layout` says what makes room"
    for kind in comparison.missing:
        yield f"{kind.name}: none, {kind.why}"
