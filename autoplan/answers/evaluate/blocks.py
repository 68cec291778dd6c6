"""The prediction of one layout as blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.costs.core.prediction import Prediction, StageMemory
from autoplan.report.charts.chart_data import breakdown, fullest_stage
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    FactRow,
    Facts,
    Heading,
    LayoutLine,
    Sentence,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal, render, spread
from autoplan.report.wording.part_names import GIB, MEMORY_PARTS
from autoplan.report.wording.sentences import (
    fits_sentence,
    job_lines,
    number_words,
    peaks_sentence,
    stage_layer_types,
    surety_sentences,
    uneven_chunks,
)
from autoplan.results.plan import Plan
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_count, format_seconds

#: Stages of a pipeline that a table shows.
MOST_STAGES: Final = 16

#: Columns below which the categories of a stage are left out.
_ROOMY: Final = 100


def plan_table(job: Job, plan: Plan, terminal: Terminal) -> str:
    """Return the prediction of ``plan`` as text."""
    predicted = plan.predicted
    parts: list[Block] = [
        *heading(job_lines(job, plan.facts, terminal)),
        LayoutLine(plan.layout_string),
        GAP,
        _summary(predicted),
        breakdown(predicted, terminal),
        GAP,
    ]
    if len(predicted.memory.stages) > 1:
        parts += [*_stages(predicted, stage_layer_types(plan.facts.layers, plan.layout), terminal), GAP]
    surety = surety_sentences(job, [predicted], plan.stacks)
    parts.append(items([*uneven_chunks(plan.layout), *surety]))
    return render(parts, terminal)


def _summary(predicted: Prediction) -> Facts:
    rows = [FactRow(name, (text,)) for name, text in _facts(predicted)]
    fits = FactRow("memory", (fits_sentence(predicted),), "good" if predicted.fits else "bad")
    return Facts((*rows, fits))


def _facts(predicted: Prediction) -> Iterator[tuple[str, str]]:
    low, high = predicted.step_seconds_low, predicted.step_seconds_high
    step = format_seconds(predicted.step_seconds)
    yield "step", f"{step}, 90 % interval {format_seconds(low)} to {format_seconds(high)}"
    least = format_seconds(predicted.step_seconds_lower_bound)
    most = format_seconds(predicted.step_seconds_upper_bound)
    yield "bounds", f"{least} at the speed of light, {most} without any overlap"
    per_device = f"{predicted.tokens_per_second_per_device:,.0f} tokens/s per device"
    total = f"{format_count(predicted.tokens_per_second)} tokens/s in total"
    yield "speed", f"{per_device}, {total}, MFU {predicted.model_flops_utilization * 100:.1f} %"
    yield "peak", peaks_sentence(predicted)
    if host := max(stage.host for stage in predicted.memory.stages):
        yield "host", f"{format_bytes(host)} of host memory per device"
    bubble = f"{predicted.bubble_share * 100:.1f} %"
    yield (
        "pipeline",
        f"{number_words(predicted.microbatches, 'microbatch')} per step, bubble {bubble}",
    )


def _stages(predicted: Prediction, layer_types: Sequence[str], terminal: Terminal) -> Iterator[Block]:
    stages = predicted.memory.stages
    fullest = fullest_stage(predicted)
    picked = sorted({*spread(len(stages), MOST_STAGES), stages.index(fullest)})
    limit = predicted.memory_limit_bytes
    yield Heading("peak memory of a device by stage (GiB)")
    roomy = _ROOMY + max((len(words) + 2 for words in layer_types), default=0)
    categories = MEMORY_PARTS if terminal.width >= roomy else {}
    heads = ("\nstage", "\nlayers", *(part.head for part in categories.values()), "\npeak", "of limit\n(%)")
    cells = zip(*(_stage_cells(stages[index], list(categories), limit) for index in picked), strict=True)
    columns = [Column(head, texts) for head, texts in zip(heads, cells, strict=True)]
    columns.append(Column("\npeak event", tuple(stages[index].event for index in picked), "text"))
    if layer_types:
        columns.append(Column("\nlayer types", tuple(layer_types[index] for index in picked), "text"))
    yield DataTable(tuple(columns), strong=picked.index(stages.index(fullest)))
    if len(picked) < len(stages):
        yield Sentence(f"({len(stages) - len(picked)} more stages: --format json)", "quiet")


def _stage_cells(stage: StageMemory, fields: Sequence[str], limit: float) -> list[str]:
    return [
        str(stage.stage),
        str(stage.layers),
        *(f"{getattr(stage, field) / GIB:.1f}" for field in fields),
        f"{stage.total / GIB:.1f}",
        f"{stage.total / limit * 100:.0f}",
    ]
