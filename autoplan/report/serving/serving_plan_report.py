"""One serving plan as blocks: what is predicted of it, simulated, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.costs.core.serving.latencies import Distribution
from autoplan.costs.core.serving.served_prediction import DraftGain, ServedPrediction
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Facts,
    LayoutLine,
    Sentence,
    data_table,
    facts,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal, render
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.class_report import class_blocks
from autoplan.report.serving.pool_report import pool_rows
from autoplan.report.serving.serving_words import (
    interval_lines,
    load_words,
    settings_lines,
    simulated_lines,
    time_words,
)
from autoplan.report.wording.part_names import GIB
from autoplan.results.serving.serving_front import ServingPlan
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_seconds

__all__ = [
    "PERCENTILES",
    "percentile_rows",
    "serving_facts",
    "serving_plan_blocks",
    "serving_plan_table",
    "serving_verdict",
]

#: Columns of simulated latencies.
PERCENTILES: Final = ("mean", "p50", "p90", "p99")
_BOUNDS: Final = {
    "compute": "matrix products take most of a step",
    "memory bandwidth": "reading weights and cache takes most of a step",
}


def serving_plan_table(job: ServingJob, plan: ServingPlan, terminal: Terminal) -> str:
    """Return the prediction of one plan as text."""
    return render(serving_plan_blocks(job, plan, terminal), terminal)


def serving_plan_blocks(
    job: ServingJob, plan: ServingPlan, terminal: Terminal, *, memory: bool = True
) -> list[Block]:
    """Return one plan as blocks; its ``memory`` may be drawn instead."""
    parts: list[Block] = [
        *heading((*serving_job_lines(job, terminal), load_words(job))),
        LayoutLine(plan.layout_string),
        GAP,
        _verdict(plan),
    ]
    if plan.starts:
        parts += [_facts(plan), GAP]
        if plan.simulation is not None:
            parts += [_percentiles(plan), GAP, *class_blocks([(1, plan)])]
    parts += _memories(plan) if memory else []
    notes = [*(interval_lines([plan]) if plan.intervals else ()), *simulated_lines([plan])]
    parts += [GAP, items([*notes, *settings_lines(job, plan)])]
    return parts


def _memories(plan: ServingPlan) -> Iterator[Block]:
    """Yield the memory of a device by stage: of each pool, or of the first engines."""
    for group in plan.groups if plan.pooled else plan.groups[:1]:
        head = f"GiB of a device, {group.role}" if group.role else "GiB of a device"
        yield _memory(group.predicted, head)


def _verdict(plan: ServingPlan) -> Sentence:
    lines = serving_verdict(plan)
    return Sentence("\n".join(lines), "good" if plan.feasible else "bad")


def serving_verdict(plan: ServingPlan) -> list[str]:
    """Return whether a plan holds every limit, or what it breaks."""
    short = [group for group in plan.groups if group.predicted.shortage is not None]
    if short and (plan.pooled is not None or short[0] is plan.groups[0]):
        whose = f" ({short[0].role})" if short[0].role else ""
        return [f"cannot serve{whose}: {short[0].predicted.shortage}"]
    if not plan.fits:
        return ["requests come faster than they are answered: the wait has no end"]
    return [f"breaks a limit: {sentence}" for sentence in plan.broken] or ["holds every limit"]


def _facts(plan: ServingPlan) -> Facts:
    return facts(serving_facts(plan))


def serving_facts(plan: ServingPlan) -> list[tuple[str, str]]:
    """Return what is predicted of a plan whose engines start: names and values with their units."""
    predicted = plan.groups[0].predicted
    point = predicted.point
    each = f"{plan.output_tokens_per_second_per_device:,.0f} of each device"
    rows = [
        ("first token", _timed(plan, "time_to_first_token")),
        ("time/token", _timed(plan, "time_per_output_token")),
        ("latency", _timed(plan, "request_latency")),
        ("tokens/s", f"{plan.output_tokens_per_second:,.0f}{_rates(plan)}, {each}"),
        ("requests/s", f"{plan.requests_per_second:,.3g}"),
        (
            "at once",
            f"{plan.max_concurrency:,} requests of mean length fit, {point.decodes:,.1f} decode a step",
        ),
        (
            "a step",
            f"{time_words(point.step_seconds)}, of decodes alone {time_words(point.decode_step_seconds)}",
        ),
        ("", _BOUNDS[predicted.bound]),
        ("first limit", f"{point.cause}{', reached' if plan.saturated else ''}"),
    ]
    if point.recomputed > 1.001:
        rows.append(("preemption", f"prompts are computed {point.recomputed:.2f} times on average"))
    if predicted.drafts is not None:
        rows.append(("drafts", _drafts(predicted.drafts)))
    rows += pool_rows(plan)
    return rows


def _timed(plan: ServingPlan, name: str) -> str:
    """Return a mean time with its 90 % interval."""
    value, interval = getattr(plan, name), getattr(plan.intervals, name, None)
    if value is None or interval is None:
        return time_words(value)
    return f"{time_words(value)} ({time_words(interval.low)} to {time_words(interval.high)})"


def _rates(plan: ServingPlan) -> str:
    interval = plan.intervals.output_tokens_per_second if plan.intervals else None
    return f" ({interval.low:,.0f} to {interval.high:,.0f})" if interval is not None else ""


def _drafts(gain: DraftGain) -> str:
    """Return what drafts give, and the batch above which they lose."""
    parts = f"{time_words(gain.step_seconds)}, {time_words(gain.draft_seconds)} of it to draft"
    text = f"{gain.tokens_per_step:.2f} tokens a step of {parts}: {gain.speedup:.2f} times as fast as without"
    if gain.gains_up_to is None:
        return f"{text}; no batch is too large for them"
    return f"{text}; they lose above {gain.gains_up_to:,} requests a step"


def _percentiles(plan: ServingPlan) -> DataTable:
    rows = percentile_rows(plan)
    names = ("simulated", *PERCENTILES)
    columns = [
        Column(name, tuple(row[index] for row in rows), "number" if index else "text")
        for index, name in enumerate(names)
    ]
    return data_table(columns)


def percentile_rows(plan: ServingPlan) -> list[tuple[str, ...]]:
    """Return the simulated latencies of a plan: a name and ``PERCENTILES``; none without a run."""
    run = plan.statistics
    if run is None:
        return []
    names: list[tuple[str, Distribution | None]] = [
        ("first token", run.time_to_first_token),
        ("time/token", run.time_per_output_token),
        ("between tokens", run.inter_token),
        ("latency", run.request_latency),
    ]
    return [
        (name, *(format_seconds(getattr(times, key)) for key in PERCENTILES))
        for name, times in names
        if times is not None
    ]


def _memory(predicted: ServedPrediction, head: str) -> DataTable:
    names = ("weights", "cache", "activation", "graphs", "overhead", "reserve", "free")
    columns = [Column(head, names, "text")]
    for stage in predicted.capacity.stages[:8]:
        values = [stage.weights.total, *(getattr(stage, name) for name in names[1:])]
        number = f"stage {stage.stage}" if len(predicted.capacity.stages) > 1 else ""
        columns.append(Column(number, tuple(f"{value / GIB:,.2f}" for value in values)))
    return data_table(columns)
