"""One serving plan as blocks: what is predicted of it, simulated, and its memory.

What serving plans give each class of requests, as a table.

What a report says of pools for prefill and decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from autoplan.costs.core.served_prediction import Distribution, DraftGain, ServedPrediction
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Heading,
    LayoutLine,
    Sentence,
    data_table,
    facts,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_words import (
    interval_lines,
    load_words,
    settings_lines,
    simulated_lines,
    time_words,
)
from autoplan.report.wording.part_names import GIB
from autoplan.results.serving.capacity_answer import shortage_sentence
from autoplan.results.serving.class_outcomes import ClassOutcome, class_outcomes
from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_seconds, format_share

#: Columns of simulated latencies.
PERCENTILES: Final = ("mean", "p50", "p90", "p99")
_BOUNDS: Final = {
    "compute": "matrix products take most of a step",
    "memory bandwidth": "reading weights and cache takes most of a step",
}


def serving_plan_blocks(
    job: ServingJob, plan: ServingPlan, terminal: Terminal, *, memory: bool = True
) -> list[Block]:
    """Return one plan as blocks; its ``memory`` may be drawn instead."""
    parts: list[Block] = [
        *heading((*serving_job_lines(job, terminal), load_words(job))),
        LayoutLine(plan.layout_string),
        GAP,
        _verdict(job, plan),
    ]
    if plan.starts:
        parts += [facts(serving_facts(plan)), GAP]
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


def _verdict(job: ServingJob, plan: ServingPlan) -> Sentence:
    lines = serving_verdict(plan, job.longest_request)
    return Sentence("\n".join(lines), "good" if plan.feasible else "bad")


def serving_verdict(plan: ServingPlan, longest_request: int) -> list[str]:
    """Return whether a plan holds every limit, or what it breaks.

    ``longest_request`` is that of the job [tokens].
    """
    short = [group for group in plan.groups if group.predicted.shortage is not None]
    if short and (plan.pooled is not None or short[0] is plan.groups[0]):
        whose = f" ({short[0].role})" if short[0].role else ""
        predicted = short[0].predicted
        why = shortage_sentence(predicted.capacity, longest_request) or predicted.shortage
        return [f"cannot serve{whose}: {why}"]
    if not plan.fits:
        return ["requests come faster than they are answered: the wait has no end"]
    return [f"breaks a limit: {sentence}" for sentence in plan.broken] or ["holds every limit"]


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


def class_blocks(plans: Sequence[tuple[int, ServingPlan]]) -> Iterator[Block]:
    """Yield a table of the classes under each of the numbered ``plans``; nothing for one class."""
    rows = [(number, outcome) for number, plan in plans for outcome in class_outcomes(plan)]
    if not rows:
        return
    yield Heading("classes of requests: means in closed form, percentiles of a simulation")
    yield _table(rows, numbered=len(plans) > 1)
    yield GAP


def _table(rows: Sequence[tuple[int, ClassOutcome]], *, numbered: bool) -> DataTable:
    outcomes = [outcome for _, outcome in rows]
    columns = [Column("#", tuple(str(number) for number, _ in rows))] if numbered else []
    columns += [
        Column("class", tuple(outcome.name for outcome in outcomes), "text"),
        Column("of all", tuple(format_share(outcome.share) for outcome in outcomes)),
        Column("first token", tuple(time_words(outcome.time_to_first_token) for outcome in outcomes)),
        Column("p99", tuple(_quantile(outcome.simulated_first_token, "p99") for outcome in outcomes)),
        Column("time/token", tuple(time_words(outcome.time_per_output_token) for outcome in outcomes)),
        Column("p99", tuple(_quantile(outcome.simulated_token, "p99") for outcome in outcomes)),
        Column("latency", tuple(time_words(outcome.request_latency) for outcome in outcomes)),
        Column(
            "good",
            tuple("-" if outcome.goodput is None else format_share(outcome.goodput) for outcome in outcomes),
        ),
        Column("engines", tuple(_engines(outcome) for outcome in outcomes), "text"),
    ]
    return data_table(columns)


def _quantile(times: Distribution | None, name: str) -> str:
    return "-" if times is None else format_seconds(getattr(times, name))


def _engines(outcome: ClassOutcome) -> str:
    """Return the engines of a class in short: how many of which degrees, and whether others share them."""
    counts: dict[str, int] = {}
    for group in outcome.groups:
        degrees = f"{group.role} " if group.role else ""
        degrees += f"tp={group.layout.tp}" + (f",pp={group.layout.pp}" if group.layout.pp > 1 else "")
        counts[degrees] = counts.get(degrees, 0) + group.layout.replicas
    engines = " + ".join(f"{count} x {degrees}" for degrees, count in counts.items())
    return f"{engines}, own" if outcome.dedicated else engines


#: Objectives that are times.
_TIMES: Final = frozenset({"time_to_first_token", "time_per_output_token", "request_latency"})


def pool_lines(front: ServingFront) -> Iterator[str]:
    """Yield whether pools are worth it, with the best plan of either kind and its figures."""
    compared = front.comparison
    if compared is None:
        return
    words = compared.objective.replace("_", " ")
    pools, both = compared.pools, compared.both
    if pools is None:
        yield "pools for prefill and decode: no pair of them holds the limits"
        return
    best = reached(pools, compared.objective)
    if both is None or compared.gain is None:
        yield f"pools for prefill and decode are the only way to hold the limits ({words}: {best})"
        yield from _layouts(pools)
        return
    verdict = "worth it" if compared.worth_it else "not worth it"
    yield (
        f"pools for prefill and decode are {verdict} by {words}: {best} at best, against"
        f" {reached(both, compared.objective)} of engines that do both ({compared.gain * 100:+.1f} %)"
    )
    yield from _layouts(pools)
    yield f"best engines that do both: {both.layout_string}"


def _layouts(plan: ServingPlan) -> Iterator[str]:
    """Yield the layout of each pool."""
    if plan.pools is not None:
        yield f"best pools, prefill: {plan.pools.prefill}"
        yield f"best pools, decode: {plan.pools.decode}"


def reached(plan: ServingPlan, objective: ServingObjective) -> str:
    """Return the value of an objective; price and power are those of each device."""
    if objective in _TIMES:
        value = getattr(plan, objective)
        return "-" if value is None else format_seconds(value)
    if objective == "devices":
        return f"{plan.devices} devices"
    if objective == "throughput":
        return f"{plan.output_tokens_per_second:,.0f} tokens/s"
    return f"{plan.output_tokens_per_second_per_device:,.0f} tokens/s of each device"


def pool_rows(plan: ServingPlan) -> list[tuple[str, str]]:
    """Return what goes between pools and which of them decides, as names with texts; none without pools."""
    pooled = plan.pooled
    if pooled is None:
        return []
    transfer, loaded = pooled.transfer, pooled.load.kind != "maximum"
    first, admission = pooled.prefill.time_to_first_token, pooled.decode.time_to_first_token
    sent = (
        f"{format_bytes(transfer.bytes)} a prompt, {format_bytes(transfer.bytes_per_link)} over the busiest"
    )
    took = (
        f"{format_seconds(transfer.seconds)}, {format_seconds(transfer.exposed_seconds)} of it after prefill"
    )
    fronts = f", {pooled.most_fronted:,.3g} front ends" if pooled.limit == "front end" else ""
    most = (
        f"{pooled.most_prefilled:,.3g} requests/s prefill, {pooled.most_decoded:,.3g} decode,"
        f" {pooled.most_transferred:,.3g} transfer{fronts}: {pooled.limit} decides"
    )
    rows = (
        [("prefill", f"{format_seconds(first)} with queue and front end")] if loaded and first < inf else []
    )
    rows.append(("transfer", f"{sent} link: {took}"))
    if loaded:
        rows.append(("admission", f"{format_seconds(admission)} in the decode engine"))
    return [*rows, ("at most", most)]
