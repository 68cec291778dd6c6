"""The front of a serving job as blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.report.render.blocks import (
    GAP,
    NOTHING,
    Block,
    Column,
    DataTable,
    Heading,
    LayoutLine,
    Sentence,
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_plan_report import class_blocks, pool_lines, reached
from autoplan.report.serving.serving_words import (
    interval_lines,
    load_words,
    plan_parts,
    served_words,
    settings_lines,
    simulated_lines,
    time_words,
)
from autoplan.report.wording.sentences import number_words
from autoplan.report.wording.suggestion_words import next_change
from autoplan.results.serving.serving_front import ServingChange, ServingFront, ServingPlan
from autoplan.units import format_share

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
