"""The guide as blocks and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from autoplan.answers.guide.value import (
    BatchFacts,
    DegreeChoice,
    LadderRung,
    PrecisionChange,
    ScalingLine,
    ScalingPoint,
    TrainingGuide,
)
from autoplan.report.document_fields import SCHEMA, Document, brief, difference_document, plain
from autoplan.report.render.blocks import (
    GAP,
    Block,
    ColumnKind,
    Heading,
    LayoutLine,
    Sentence,
    ShareBar,
    ShareBars,
    TypedLines,
    columns_of,
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.part_names import GIB, TIME_NAMES
from autoplan.report.wording.sentences import (
    fits_sentence,
    job_lines,
    layout_parts,
    number_words,
    surety_sentences,
    wrap_parts,
)
from autoplan.results.explanation import Contrast, Difference
from autoplan.results.job_summary import job_document, provenance
from autoplan.results.plan import Plan
from autoplan.units import format_bytes, format_count, format_rate, format_seconds

# Sentences of a guide: the answer, memory arithmetic, what sets a degree, scaling, the batch.


#: Differences below this share of a step are not named.
_NEGLIGIBLE: Final = 0.002
#: Most parts of a step that are named at once.
_MOST_PARTS: Final = 2
#: Microbatches for each stage below which the bubble is warned of.
_FEW_MICROBATCHES: Final = 4
#: Bytes of a token in a data set, at most.
_TOKEN_BYTES: Final = 4
_LAWS: Final = {"strong": "Amdahl's law", "weak": "Gustafson's law"}
_DEGREES: Final = {"tensor_parallel": "tp", "pipeline_parallel": "pp"}


def answer_sentences(guide: TrainingGuide) -> Iterator[str]:
    """Yield the answer: the best layout, the simplest that works, and what limits the step."""
    best, simplest = guide.best, guide.simplest
    if best is None:
        yield "Nothing fits on these devices:"
        yield from guide.front.reasons
        yield from _enough_devices(guide)
        return
    proven = "proven the fastest" if guide.front.certificate.status == "optimal" else "the fastest so far"
    speed = f"{best.predicted.tokens_per_second:,.0f} tokens/s"
    step = format_seconds(best.predicted.step_seconds)
    yield f"Best: {_degree_text(best)}, {step} a step, {speed}; {fits_sentence(best.predicted)}; {proven}."
    if simplest is not None and simplest.plan is not None:
        yield f"Simplest that works: no more than {simplest.name}, {_against(simplest.plan, best, guide)}."
    if guide.bottlenecks:
        first, *rest = guide.bottlenecks
        more = f", then {rest[0].name} {rest[0].share * 100:.1f} %" if rest else ""
        yield f"The step is {first.share * 100:.1f} % {first.name}{more}."


def _enough_devices(guide: TrainingGuide) -> Iterator[str]:
    points = [point for line in guide.scaling for point in line.points if line.kind == "strong"]
    enough = [point for point in points if point.plan is not None]
    if enough:
        yield f"{enough[0].devices} devices are enough: {_degree_text(enough[0].plan)}."


def _degree_text(plan: Plan | None) -> str:
    if plan is None:
        return "-"
    layout = plan.layout
    named = ("tp", "pp", "dp", "cp", "ep", "zero")
    parts = [f"{name}={getattr(layout, name)}" for name in named if getattr(layout, name) > (name == "ep")]
    parts = [part for part in parts if not part.endswith("=1") or part.startswith("zero")]
    recomputed = layout.recomputed_layers
    parts.append(f"mbs={layout.microbatch}")
    if recomputed:
        parts.append(f"recompute in {recomputed} of {sum(layout.layers)} layers")
    return ",".join(parts)


def _against(plan: Plan, best: Plan, guide: TrainingGuide) -> str:
    if plan.layout == best.layout:
        return "which is the best one"
    step, least = plan.predicted.step_seconds, best.predicted.step_seconds
    order = guide.job.stack.uncertainty.order
    text = f"{_degree_text(plan)}, {format_seconds(step)} a step, {slower_words(step, least)}"
    if order is not None and step <= least * (1 + order.value):
        text += ", less than the cost model can tell apart"
    return text


def slower_words(step: float, than: float) -> str:
    """Return how much slower or faster a step is.

    >>> slower_words(1.1, 1.0), slower_words(0.9, 1.0), slower_words(1.0, 1.0)
    ('10.0 % slower', '10.0 % faster', 'as fast')
    """
    change = step / than - 1.0
    if abs(change) < _NEGLIGIBLE / 4:
        return "as fast"
    return f"{abs(change) * 100:.1f} % {'slower' if change > 0 else 'faster'}"


def change_words(changes: Sequence[Difference]) -> str:
    """Return what changes of a step, the largest parts first."""
    step = sum(x.other_seconds for x in changes)
    parts = [x for x in changes if abs(x.lost_seconds) > step * _NEGLIGIBLE]
    largest = sorted(parts, key=lambda x: -abs(x.lost_seconds))[: 2 * _MOST_PARTS]
    return ", ".join(_signed(x) for x in largest)


def _signed(difference: Difference) -> str:
    sign = "+" if difference.lost_seconds > 0 else "-"
    return f"{TIME_NAMES[difference.part]} {sign}{format_seconds(abs(difference.lost_seconds))}"


def memory_sentences(guide: TrainingGuide) -> Iterator[str]:
    """Yield the memory arithmetic of one replica."""
    needs = guide.memory
    each = [
        f"{size / needs.parameters:.3g} {name}"
        for name, size in (
            ("parameters", needs.parameter_bytes),
            ("gradients", needs.gradient_bytes),
            ("optimizer", needs.optimizer_bytes),
        )
    ]
    least = f"{needs.least_devices} device{'s' if needs.least_devices > 1 else ''}"
    yield (
        f"states: {format_count(needs.parameters)} parameters x {needs.bytes_per_parameter:.3g} bytes"
        f" ({', '.join(each)}) = {format_bytes(needs.state_bytes)}: at least {least} of"
        f" {format_bytes(needs.limit_bytes)}"
    )
    modes = ", ".join(
        f"{format_bytes(x.activation_bytes)} with {x.mode} recompute"
        if x.mode != "none"
        else f"{format_bytes(x.activation_bytes)} without recompute"
        for x in needs.sequences
    )
    logits = max(x.logits_bytes for x in needs.sequences)
    yield (
        f"one sequence of {guide.job.workload.sequence_length:,} tokens: activations {modes}; logits and loss"
        f" {format_bytes(logits)}"
    )
    yield f"framework: {format_bytes(needs.framework_bytes)} of context, communicators and fragmentation"


def degree_sentence(choice: DegreeChoice) -> str:
    """Return what sets a degree: why the next lower and the next higher value lose."""
    name = _DEGREES[choice.key]
    below = [x for x in choice.others if int(x.value) < choice.value]
    above = [x for x in choice.others if int(x.value) > choice.value]
    sides = [_loses(name, side) for side in (below[-1:], above[:1]) if side]
    if not sides:
        return f"{name}={choice.value}: no other value is possible"
    return f"{name}={choice.value}: {'; '.join(sides)}"


def _loses(name: str, side: list[Contrast]) -> str:
    (other,) = side
    if other.plan is None:
        return f"{name}={other.value} has no plan, {other.why}"
    step = other.plan.predicted.step_seconds
    best = step - sum(x.lost_seconds for x in other.differences)
    lost = [x for x in other.differences if x.lost_seconds > _NEGLIGIBLE * best][:_MOST_PARTS]
    because = f" ({', '.join(map(_signed, lost))})" if lost else ""
    return f"{name}={other.value} is {slower_words(step, best)}{because}"


def scaling_sentence(line: ScalingLine) -> str:
    """Return where the devices stop to scale as the law through two of its points says."""
    if line.base is None or line.serial_share is None:
        return f"{line.kind} scaling: fewer than two numbers of devices have a plan"
    law = f"{line.kind} scaling: {_LAWS[line.kind]} from {number_words(line.base, 'device')} has a serial"
    text = f"{law} share of {line.serial_share * 100:.1f} %"
    if line.breaks_at is None:
        last = max(point.devices for point in line.points if point.plan is not None)
        return f"{text}, and holds up to {number_words(last, 'device')}"
    part = TIME_NAMES.get(line.broken_by or "", line.broken_by)
    return f"{text}, and breaks at {line.breaks_at} devices, where the share of {part} grew most"


def batch_sentences(guide: TrainingGuide) -> Iterator[str]:
    """Yield what the batch means for the best layout, and warnings."""
    batch, best = guide.batch, guide.best
    if batch is None or best is None:
        return
    passes = number_words(batch.microbatches, "microbatch")
    replicas = number_words(batch.most_replicas, "replica")
    yield (
        f"a batch of {batch.tokens:,} tokens is {passes} a step on each replica; no more than {replicas} can"
        " share it"
    )
    if best.layout.pp > 1 and batch.microbatches < _FEW_MICROBATCHES * best.layout.pp:
        yield (
            f"warning: a bubble of {best.predicted.bubble_share * 100:.1f} % comes from"
            f" {passes} on {best.layout.pp} stages: a larger batch would shrink it"
        )
    yield from _critical(batch, guide.job.cluster.devices)
    rate = best.predicted.tokens_per_second
    yield (
        f"data input is not priced: the step reads {rate:,.0f} tokens a second,"
        f" {format_rate(rate * _TOKEN_BYTES, 'B/s')} at {_TOKEN_BYTES} bytes each"
    )


def _critical(batch: BatchFacts, devices: int) -> Iterator[str]:
    if batch.critical_tokens is None or batch.tokens_over_least is None or batch.steps_over_least is None:
        yield "the critical batch size is not known here: give it with --critical-batch"
        return
    warned = "warning: " if batch.tokens > batch.critical_tokens else ""
    yield (
        f"{warned}at a critical batch of {batch.critical_tokens:,.0f} tokens, this batch takes"
        f" {batch.tokens_over_least:.2f} times the least tokens and {batch.steps_over_least:.2f} times the"
        " least steps to a loss"
    )
    reached = batch.devices_at_critical or 0.0
    if reached > devices:
        yield f"weak scaling reaches the critical batch at {reached:,.0f} devices"


# The guide as a document.


def guide_document(guide: TrainingGuide) -> Document:
    """Return the guide as a document."""
    needs = guide.memory
    return {
        "schema": SCHEMA,
        "kind": "guide",
        "job": job_document(guide.job, guide.front.facts),
        "job_file": guide.job.source.text if guide.job.source else None,
        "assumed": list(guide.assumed),
        "answer": list(answer_sentences(guide)),
        "feasible": guide.best is not None,
        "best": _brief(guide.best),
        "best_status": guide.front.certificate.status,
        "simplest": guide.simplest.name if guide.simplest else None,
        "reasons": list(guide.front.reasons),
        "memory": {
            **plain(needs),
            "state_bytes": needs.state_bytes,
            "bytes_per_parameter": needs.bytes_per_parameter,
            "sentences": list(memory_sentences(guide)),
        },
        "ladder": [_rung(rung) for rung in guide.rungs],
        "degrees": [_degree(choice) for choice in guide.degrees],
        "scaling": [_line(line) for line in guide.scaling],
        "bottlenecks": plain(guide.bottlenecks),
        "batch": {**plain(guide.batch), "sentences": list(batch_sentences(guide))} if guide.batch else None,
        "precisions": [
            {"precision": x.precision, "why": x.why, "plan": _brief(x.plan)} for x in guide.precisions
        ],
        "provenance": plain(provenance(guide.job)),
    }


def _brief(plan: Plan | None) -> Document | None:
    return None if plan is None else brief(plan)


def _rung(rung: LadderRung) -> Document:
    return {
        "name": rung.name,
        "precision": rung.precision,
        "plan": _brief(rung.plan),
        "proven": rung.proven,
        "why": rung.why,
        "least_memory_bytes_per_device": rung.least_bytes,
        "changes": [difference_document(x) for x in rung.changes],
        "forced": _brief(rung.forced),
        "forced_changes": [difference_document(x) for x in rung.forced_changes],
    }


def _degree(choice: DegreeChoice) -> Document:
    return {
        "key": choice.key,
        "value": choice.value,
        "sentence": degree_sentence(choice),
        "others": [
            {
                "value": other.value,
                "why": other.why,
                "plan": _brief(other.plan),
                "differences": [difference_document(x) for x in other.differences],
            }
            for other in choice.others
        ],
    }


def _line(line: ScalingLine) -> Document:
    return {
        "kind": line.kind,
        "base_devices": line.base,
        "serial_share": line.serial_share,
        "breaks_at_devices": line.breaks_at,
        "broken_by": line.broken_by,
        "sentence": scaling_sentence(line),
        "points": [{**plain(replace(x, plan=None)), "plan": _brief(x.plan)} for x in line.points],
    }


_BAR: Final = 30
_NOTHING: Final = "-"
#: Least columns of a layout in a table, and the share of the terminal that it gets.
_LAYOUT: Final = 24
_LAYOUT_SHARE: Final = 0.35

#: Columns that are no numbers.
_KINDS: Final[dict[str, ColumnKind]] = dict.fromkeys(
    ("allowed too", "layout", "what it brings and costs", "precision", ""), "text"
)


def guide_blocks(guide: TrainingGuide, terminal: Terminal) -> list[Block]:
    """Return the guide as blocks."""
    best = guide.best
    parts: list[Block] = [
        *heading(job_lines(guide.job, guide.front.facts, terminal)),
        *_answer(guide),
        GAP,
        Heading("memory of one replica"),
        items(memory_sentences(guide), ""),
        GAP,
        *_ladder(guide, terminal),
        *_degrees(guide),
        *_bottlenecks(guide),
        *_scaling(guide, terminal),
        *_batch(guide),
        *_precisions(guide, terminal),
        items([*_notes(guide), *surety_sentences(guide.job, [best.predicted] if best else [])]),
        *_job_file(guide),
    ]
    return parts


def _answer(guide: TrainingGuide) -> Iterator[Block]:
    yield Sentence("\n".join(answer_sentences(guide)), "" if guide.best else "bad")
    if guide.best is not None:
        yield GAP
        yield LayoutLine(guide.best.layout_string)


def _notes(guide: TrainingGuide) -> Iterator[str]:
    if guide.assumed:
        yield f"assumed: {', '.join(guide.assumed)}"


def _job_file(guide: TrainingGuide) -> Iterator[Block]:
    """Yield the job that the guide made, as a file for the other commands."""
    if guide.assumed and guide.job.source is not None:
        yield GAP
        yield Sentence("the job, as a file for autoplan plan, compare and explain", "quiet")
        yield TypedLines(tuple(f"  {line}" for line in guide.job.source.text.splitlines()), "quiet")


def _titled(title: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[Block]:
    """Yield a table below its title; nothing without rows."""
    if rows:
        yield Heading(title)
        yield data_table(columns_of(heads, rows, _KINDS))


def _short(plan: Plan, terminal: Terminal) -> str:
    width = max(_LAYOUT, int(terminal.width * _LAYOUT_SHARE))
    return wrap_parts(layout_parts(plan.layout, terminal), width, terminal)


def _peak(plan: Plan) -> str:
    return f"{plan.predicted.peak_memory_bytes_per_device / GIB:.1f}"


def _ladder(guide: TrainingGuide, terminal: Terminal) -> Iterator[Block]:
    rows = [_rung_row(rung, terminal) for rung in guide.rungs]
    heads = ("allowed too", "layout", "step", "peak\n(GiB)", "what it brings and costs")
    yield from _titled("baselines, each with all above it", heads, rows)
    yield GAP


def _rung_row(rung: LadderRung, terminal: Terminal) -> tuple[str, ...]:
    plan = rung.plan
    if plan is None:
        needed = f"{rung.least_bytes / GIB:,.1f}" if rung.least_bytes else _NOTHING
        least = " (the least possible peak)" if rung.least_bytes else ""
        return rung.name, _NOTHING, _NOTHING, needed, f"{rung.why}{least}"
    step = format_seconds(plan.predicted.step_seconds)
    if plan == rung.below:
        return rung.name, "the same", step, _peak(plan), _unused(rung, plan)
    return rung.name, _short(plan, terminal), step, _peak(plan), _brought(rung, plan)


def _brought(rung: LadderRung, plan: Plan) -> str:
    if rung.below is None:
        return "the first that fits"
    faster = slower_words(plan.predicted.step_seconds, rung.below.predicted.step_seconds)
    return f"{faster}: {change_words(rung.changes)}".rstrip(": ")


def _unused(rung: LadderRung, plan: Plan) -> str:
    if rung.forced is None:
        return "brings nothing"
    slower = slower_words(rung.forced.predicted.step_seconds, plan.predicted.step_seconds)
    return f"brings nothing; with it {slower}: {change_words(rung.forced_changes)}".rstrip(": ")


def _degrees(guide: TrainingGuide) -> Iterator[Block]:
    if not guide.degrees:
        return
    yield Heading("what sets the degrees")
    yield items([degree_sentence(choice) for choice in guide.degrees], "")
    yield GAP


def _bottlenecks(guide: TrainingGuide) -> Iterator[Block]:
    if not guide.bottlenecks:
        return
    yield Heading("what the step is made of")
    bars = (
        ShareBar(x.name, (format_seconds(x.seconds), f"{x.share * 100:.1f} %"), x.share)
        for x in guide.bottlenecks
    )
    yield ShareBars(tuple(bars), _BAR, "time", aligned=False)
    yield GAP


def _scaling(guide: TrainingGuide, terminal: Terminal) -> Iterator[Block]:
    for line in guide.scaling:
        same = "the same batch" if line.kind == "strong" else "a batch in proportion"
        heads = ("devices", "nodes", "batch", "layout", "step", "tokens/s", "speedup", "by the law")
        rows = [_point_row(point, terminal) for point in line.points]
        yield from _titled(f"more devices, {same}", heads, rows)
        yield items([scaling_sentence(line)], "")
        yield GAP


def _point_row(point: ScalingPoint, terminal: Terminal) -> tuple[str, ...]:
    size = (str(point.devices), str(point.nodes), f"{point.global_batch_size:,}")
    if point.plan is None:
        return (*size, point.why, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    predicted = point.plan.predicted
    return (
        *size,
        _short(point.plan, terminal),
        format_seconds(predicted.step_seconds),
        f"{predicted.tokens_per_second:,.0f}",
        _NOTHING if point.speedup is None else f"{point.speedup:.2f}",
        _NOTHING if point.line is None else f"{point.line:.2f}",
    )


def _batch(guide: TrainingGuide) -> Iterator[Block]:
    sentences = list(batch_sentences(guide))
    if sentences:
        yield Heading("batch and data")
        yield items(sentences, "")
        yield GAP


def _precisions(guide: TrainingGuide, terminal: Terminal) -> Iterator[Block]:
    rows = [_precision_row(change, guide.best, terminal) for change in guide.precisions]
    heads = ("precision", "layout", "step", "peak\n(GiB)", "")
    yield from _titled(f"other precisions than {guide.job.precision}", heads, rows)
    yield GAP


def _precision_row(change: PrecisionChange, best: Plan | None, terminal: Terminal) -> tuple[str, ...]:
    if change.plan is None:
        return change.precision, _NOTHING, _NOTHING, _NOTHING, change.why.partition(":")[0]
    step = change.plan.predicted.step_seconds
    than = "" if best is None else slower_words(step, best.predicted.step_seconds)
    return change.precision, _short(change.plan, terminal), format_seconds(step), _peak(change.plan), than
