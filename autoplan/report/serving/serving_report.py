"""The front of a serving job, and one plan of it, as blocks: what is predicted, simulated and proven.

What serving plans give each class of requests, as a table, and what is said of pools for prefill and decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from autoplan.costs.core.served_prediction import Distribution, DraftGain, ServedPrediction
from autoplan.report.render.blocks import (
    GAP,
    NOTHING,
    Block,
    Column,
    DataTable,
    Heading,
    LayoutLine,
    Sentence,
    columns_of,
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
    plan_parts,
    served_words,
    settings_lines,
    simulated_lines,
    time_words,
)
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import number_words
from autoplan.report.wording.suggestion_words import next_change
from autoplan.results.serving.capacity_answer import shortage_sentence
from autoplan.results.serving.plan_values import ClassOutcome, class_outcomes
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_seconds, format_share

#: Times per token up to this factor apart are alike.
_ALIKE: Final = 1.1
#: Plans that a table shows unless all are asked for.
_MOST_ROWS: Final = 16


def serving_front_blocks(front: ServingFront, terminal: Terminal, *, all_plans: bool = False) -> list[Block]:
    """Return the front as blocks."""
    parts: list[Block] = [*heading((*serving_job_lines(front.job, terminal), load_words(front.job)))]
    parts += scaling_blocks(front)
    if front.plans:
        listed = front.plans if all_plans else front.plans[:_MOST_ROWS]
        numbered = list(enumerate(listed, start=1))
        copied = LayoutLine(front.plans[0].layout_string, "plan 1: ")
        parts += [_plans(numbered), GAP, copied, GAP, *class_blocks(numbered)]
        if len(listed) < len(front.plans):
            parts += [Sentence(f"{len(front.plans) - len(listed)} more plans: --all"), GAP]
        parts.append(items(serving_sentences(front)))
    else:
        none = "no plan was found" if front.certificate.stopped else "nothing is feasible"
        parts.append(Sentence(none, "bad"))
        parts.append(items(front.reasons, ""))
        if front.changes:
            parts += [GAP, Heading("changes that make a plan possible, each one solved"), _changes(front)]
        parts += [GAP, items(serving_sentences(front)), *next_change(front.job, front.changes)]
    return parts


def serving_sentences(front: ServingFront) -> list[str]:
    """Return what is proven of a front, and how sure its figures are."""
    notes = _notes(front) if front.plans else ()
    return [*pool_lines(front), *_mixing_lines(front), *proof_sentences(front), *notes]


def _mixing_lines(front: ServingFront) -> Iterator[str]:
    """Yield how much better engines of unlike formats would be, where a job leaves out that they are."""
    mixing = front.mixing
    if mixing is not None:
        best, value = (reached(plan, mixing.objective) for plan in (front.best, mixing.plan))
        yield (
            f"engines of unlike formats would be better by {mixing.objective.replace('_', ' ')}: {value},"
            f" against {best} ({mixing.gain * 100:+.1f} %); search.mixed_formats: true allows them"
        )


def front_ends(front: ServingFront) -> Iterator[str]:
    """Yield the plan with most tokens a second of each device, and the one whose tokens come fastest."""
    timed = [plan for plan in front.plans if plan.time_per_output_token is not None]
    rates = [plan.output_tokens_per_second_per_device for plan in front.plans]
    ends = {
        "most tokens/s per device": front.plans[rates.index(max(rates))] if rates else None,
        "fastest token": min(timed, key=lambda plan: plan.time_per_output_token or 0.0, default=None),
    }
    for words, plan in ends.items():
        if plan is not None:
            engines, devices = number_words(plan.engines, "engine"), number_words(plan.devices, "device")
            yield (
                f"{words}: plan {front.plans.index(plan) + 1}, {served_words(plan)}, {engines} on {devices}"
            )


def _plans(numbered: Sequence[tuple[int, ServingPlan]]) -> DataTable:
    layouts = Column("layout", tuple(_short(plan) for _, plan in numbered), "text")
    return DataTable((*figure_columns(numbered), layouts), anchors="plan")


def _short(plan: ServingPlan) -> str:
    """Return what of a plan's layout differs from the defaults of engines, a line for each of its engines."""
    return "\n".join(map(" ".join, plan_parts(plan)))


def figure_columns(numbered: Sequence[tuple[int, ServingPlan]]) -> tuple[Column, ...]:
    """Return the columns of numbered plans, but for their layouts; what no plan has is left out."""
    plans = [plan for _, plan in numbered]
    columns = (
        Column("#", tuple(str(number) for number, _ in numbered)),
        Column("time/token", tuple(time_words(plan.time_per_output_token) for plan in plans)),
        Column("first token", tuple(time_words(plan.time_to_first_token) for plan in plans)),
        Column(
            "tokens/s/device", tuple(f"{plan.output_tokens_per_second_per_device:,.0f}" for plan in plans)
        ),
        Column("tokens/s", tuple(f"{plan.output_tokens_per_second:,.0f}" for plan in plans)),
        Column("devices", tuple(str(plan.devices) for plan in plans)),
        Column("waits", tuple(_waits(plan) for plan in plans), "text"),
    )
    return tuple(column for column in columns if any(cell.strip("-") for cell in column.cells))


def scaling_blocks(front: ServingFront) -> Iterator[Block]:
    """Yield the fewest devices for each load, where the job asks for several."""
    if front.scaling:
        yield _scaling(front)
        yield GAP
        yield Heading("plans of the largest load")


def _scaling(front: ServingFront) -> DataTable:
    """Return the fewest devices for each load, with the first plan on them."""
    rows = [(answer.job.workload, answer.plans[0] if answer.plans else None) for answer in front.scaling]
    missing = ["not solved" if answer.certificate.stopped else "none" for answer in front.scaling]
    loads = [
        f"{load.request_rate:g}/s" if load.request_rate is not None else f"{load.concurrency:,} clients"
        for load, _ in rows
    ]
    return data_table(
        [
            Column("load", tuple(loads)),
            Column(
                "devices",
                tuple(
                    str(plan.devices) if plan else why for (_, plan), why in zip(rows, missing, strict=True)
                ),
            ),
            Column(
                "time/token",
                tuple(time_words(plan.time_per_output_token if plan else None) for _, plan in rows),
            ),
            Column(
                "first token",
                tuple(time_words(plan.time_to_first_token if plan else None) for _, plan in rows),
            ),
            Column(
                "tokens/s",
                tuple(f"{plan.output_tokens_per_second:,.0f}" if plan else "-" for _, plan in rows),
            ),
            Column("layout", tuple(_short(plan) if plan else NOTHING for _, plan in rows), "text"),
        ]
    )


def _waits(plan: ServingPlan) -> str:
    if plan.pooled is not None:
        return plan.pooled.limit if plan.saturated and plan.pooled.load.kind != "maximum" else ""
    predicted = plan.groups[0].predicted
    return predicted.point.cause if plan.saturated and predicted.load.kind != "maximum" else ""


def proof_sentences(front: ServingFront) -> Iterator[str]:
    """Yield what is proven, the main sentence first, and what is not."""
    proof = front.certificate
    if proof.stopped and front.plans:
        yield f"the best plans so far, not proven optimal ({proof.stopped})"
    elif front.plans:
        yield (
            f"proven for mean values: no choice among {number_words(proof.units, 'engine layout')},"
            f" {proof.options:,} with sizes and shares, is better by {format_share(proof.thinning)} or more"
            f" ({number_words(proof.solves, 'solve')})"
        )
    elif not proof.stopped:
        yield (
            f"covered: {number_words(proof.units_total, 'engine layout')}, of which {proof.units:,} break no"
            f" rule; {number_words(proof.options, 'choice')} of sizes and shares can start"
        )
    if proof.pairs:
        yield f"among them {proof.pairs:,} pairs of pools for prefill and decode, of {proof.roles} engines"
    if proof.between_sizes is None:
        yield "sizes of max_num_seqs between those that were tried may hold limits that these break"
    elif proof.between_sizes > proof.thinning:
        share = format_share(proof.between_sizes)
        yield f"sizes of max_num_seqs between those that were tried are better by {share} at most"
    if proof.simulated:
        yield f"decided by simulation, not proven: {', '.join(proof.simulated)}"


def _notes(front: ServingFront) -> Iterator[str]:
    yield from interval_lines(front.plans)
    yield from simulated_lines(front.plans)
    runs = [run for plan in front.plans if not plan.is_simulated for run in plan.simulations]
    if runs:
        gap, first = max(run.gap for run in runs), max(run.first_token_gap for run in runs)
        whose = "the other plans" if any(plan.is_simulated for plan in front.plans) else "these plans"
        yield (
            f"simulations of {whose} differ from the closed form by {format_share(gap)} at most in"
            f" throughput and time per token, by {format_share(first)} in the first token"
        )
    yield from _draft_notes(front)
    yield from _waiting_notes(front)
    yield from settings_lines(front.job, front.plans[0])


def _waiting_notes(front: ServingFront) -> Iterator[str]:
    """Yield what it means that requests wait, and the first plan in which none does."""
    waiting = [plan.saturated for plan in front.plans]
    if not any(waiting) or front.plans[0].groups[0].predicted.load.kind == "maximum":
        return
    yield "where requests wait for room, the first token waits for earlier requests to end"
    if not all(waiting):
        number, tied = _quickest(front)
        what = (
            f"the least first token of {tied} plans alike in time per token"
            if tied
            else "the least time per token"
        )
        yield f"plan {number} has {what}, of those in which no request waits for room"


def _quickest(front: ServingFront) -> tuple[int, int]:
    """Return the plan without waiting that is best in time per token, from 1 on, and how many tie with it.

    Times per token less than a tenth apart are alike, within what they are sure to: the first token decides.
    """
    free = [(number, plan) for number, plan in enumerate(front.plans, 1) if not plan.saturated]
    times = {number: plan.time_per_output_token or 0.0 for number, plan in free}
    alike = [(number, plan) for number, plan in free if times[number] <= _ALIKE * min(times.values())]
    best, _ = min(alike, key=lambda pair: pair[1].time_to_first_token or 0.0)
    return best, len(alike) if best != free[0][0] else 0


def _draft_notes(front: ServingFront) -> Iterator[str]:
    """Yield whether drafts are worth it on the front, and the batches above which they lose."""
    if front.job.speculation is None:
        return
    gains = [group.predicted.drafts for plan in front.plans for group in plan.groups]
    measured = [gain for gain in gains if gain is not None]
    if not measured:
        yield "drafts are on no plan: without them engines of the same devices are no worse"
        return
    limits = sorted({gain.gains_up_to for gain in measured if gain.gains_up_to is not None})
    fast = max(gain.speedup for gain in measured)
    if not limits:
        yield f"drafts make tokens up to {fast:.2f} times as fast; no batch of these engines is too large"
        return
    batches = " to ".join(f"{n:,}" for n in dict.fromkeys((limits[0], limits[-1])))
    yield (
        f"drafts make tokens up to {fast:.2f} times as fast, and lose above {batches} requests a step,"
        " by engine"
    )


def _edits(change: ServingChange) -> str:
    return "; ".join(f"{key}: {value}" for key, value in change.edits)


def _changes(front: ServingFront) -> DataTable:
    changes = front.changes
    return data_table(
        [
            Column("#", tuple(str(number) for number, _ in enumerate(changes, start=1))),
            Column("change", tuple(change.sentence for change in changes), "text"),
            Column("key", tuple(_edits(change) for change in changes), "text"),
            Column("time/token", tuple(time_words(change.plan.time_per_output_token) for change in changes)),
            Column("first token", tuple(time_words(change.plan.time_to_first_token) for change in changes)),
            Column("layout", tuple(_short(change.plan) for change in changes), "text"),
        ]
    )


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
            table = columns_of(("simulated", *PERCENTILES), percentile_rows(plan), {"simulated": "text"})
            parts += [data_table(table), GAP, *class_blocks([(1, plan)])]
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
    yield _class_table(rows, numbered=len(plans) > 1)
    yield GAP


def _class_table(rows: Sequence[tuple[int, ClassOutcome]], *, numbered: bool) -> DataTable:
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
        yield from _pool_layouts(pools)
        return
    verdict = "worth it" if compared.worth_it else "not worth it"
    yield (
        f"pools for prefill and decode are {verdict} by {words}: {best} at best, against"
        f" {reached(both, compared.objective)} of engines that do both ({compared.gain * 100:+.1f} %)"
    )
    yield from _pool_layouts(pools)
    yield f"best engines that do both: {both.layout_string}"


def _pool_layouts(plan: ServingPlan) -> Iterator[str]:
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
