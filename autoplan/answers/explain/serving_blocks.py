"""Explanations of serving answers as tables and documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from autoplan.costs.core.iteration import IterationParts
from autoplan.report.document_fields import SCHEMA, Document, plain
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
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal
from autoplan.report.serving.capacity_report import serving_job_lines
from autoplan.report.serving.serving_words import load_words
from autoplan.results.job_summary import serving_job_document
from autoplan.results.serving.plan_values import serving_plan_values
from autoplan.results.serving.serving_explanation import (
    EngineParts,
    LimitSlack,
    LoadFlip,
    ServingContrast,
    ServingExplanation,
    ServingRefusal,
    ServingStanding,
)
from autoplan.results.serving.serving_front import ServingPlan, objective_value
from autoplan.schema.serving.serving_choices import ServingObjective
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_seconds, format_share

_BOUNDS: Final = {
    "memory bandwidth": "HBM bandwidth",
    "compute": "compute",
    "network": "the network",
    "host": "the host",
    "queue": "the queue",
}
_TIMES: Final = {"time_to_first_token", "time_per_output_token", "request_latency"}


def serving_explanation_blocks(answer: ServingExplanation, terminal: Terminal) -> list[Block]:
    """Return why the best plan is the best as blocks."""
    parts: list[Block] = [
        *heading((*serving_job_lines(answer.job, terminal), load_words(answer.job))),
        Sentence(f"best by {answer.objective}: {_value(answer.best, answer.objective)}"),
        LayoutLine(answer.best.layout_string, indent=2),
        GAP,
        *_engines(answer.engines),
    ]
    if answer.limits:
        parts += [Heading("limits: how near the plan comes, and what it would gain without")]
        parts += [_limits(answer), GAP]
    if answer.contrasts:
        parts += [Heading("why not: one choice forced, each one solved")]
        parts += [_contrasts(answer), GAP]
    parts.append(items([*_flip_lines(answer.flips, answer.job), *_notes(answer)]))
    return parts


def _value(plan: ServingPlan, objective: ServingObjective) -> str:
    value = objective_value(plan, objective)
    if objective in _TIMES:
        return format_seconds(value)
    if objective == "devices":
        return f"{value:.0f} devices"
    return f"{value:,.0f} tokens/s{'' if objective == 'throughput' else ' of each device'}"


def _engines(engines: Sequence[EngineParts]) -> Iterator[Block]:
    for engine in engines:
        yield Sentence(_bound_words(engine))
        yield data_table(
            [
                Column("part of an iteration", tuple(_names(engine)), "text"),
                Column("waits for", tuple(_resources(engine)), "text"),
                Column(_head(engine.decode), tuple(_cells(engine.decode, engine))),
                Column(_head(engine.mixed), tuple(_cells(engine.mixed, engine))),
            ]
        )
        yield GAP


def _bound_words(engine: EngineParts) -> str:
    """Return the sentence on what bounds the engines of a group."""
    resource = engine.decode.bound
    share = engine.decode.by_resource[resource] / engine.decode.seconds
    duration = format_seconds(engine.decode.seconds)
    words = f"a decode is bound by {_BOUNDS[resource]} ({format_share(share)} of {duration})"
    words += f", an iteration with a prompt by {_BOUNDS[engine.mixed.bound]}"
    if engine.waits_for is not None:
        words += f"; requests wait in the queue for {engine.waits_for}"
    elif engine.queue_share is not None:
        words += (
            f"; {format_share(engine.queue_share)} of the first token is waiting for other requests' steps"
        )
    getting = f", for {', '.join(engine.classes)}" if engine.classes else ""
    return f"{engine.layout}{getting}: {words}"


def _names(engine: EngineParts) -> list[str]:
    return list(dict.fromkeys(part.name for part in (*engine.decode.parts, *engine.mixed.parts)))


def _resources(engine: EngineParts) -> list[str]:
    resources = {part.name: part.resource for part in (*engine.decode.parts, *engine.mixed.parts)}
    return [resources[name] for name in _names(engine)]


def _head(step: IterationParts) -> str:
    if not step.prompt_tokens:
        return f"{step.decodes:,} decodes"
    return f"and {step.prompt_tokens:,} tokens" if step.decodes else f"{step.prompt_tokens:,} tokens"


def _cells(step: IterationParts, engine: EngineParts) -> Iterator[str]:
    seconds = {part.name: part.seconds for part in step.parts}
    for name in _names(engine):
        yield format_seconds(seconds[name]) if name in seconds else "-"


def _limits(answer: ServingExplanation) -> Facts:
    rows = []
    for limit in sorted(answer.limits, key=lambda x: (-(x.gain or 0.0), -x.share)):
        tightest = "tightest" if limit is answer.tightest else ""
        texts = (f"{limit.value}, {limit.allowed}", _gain(limit, answer), tightest)
        rows.append(FactRow(limit.limit, texts, name_tone=""))
    return Facts(tuple(rows))


def _gain(limit: LimitSlack, answer: ServingExplanation) -> str:
    if limit.gain is None:
        return "without it: not solved"
    if limit.gain <= answer.front.certificate.thinning:
        return "without it: no gain"
    return f"without it: {format_share(limit.gain)} better in {answer.objective}"


def _contrasts(answer: ServingExplanation) -> DataTable:
    rows = answer.contrasts
    return data_table(
        [
            Column("forced", tuple(f"{row.key.partition('.')[2]}: {row.value}" for row in rows), "text"),
            Column("worse", tuple("-" if row.loss is None else format_share(row.loss) for row in rows)),
            Column(
                "time/token",
                tuple(
                    format_seconds(row.plan.time_per_output_token or 0.0) if row.plan else "-" for row in rows
                ),
            ),
            Column("layout, or why there is none", tuple(_outcome(row) for row in rows), "text"),
        ]
    )


def _outcome(row: ServingContrast) -> str:
    return row.why if row.plan is None else row.plan.layout_string


def _flip_lines(flips: Sequence[LoadFlip], job: ServingJob) -> Iterator[str]:
    for flip in flips:
        holds, fails = _load(flip.holds), _load(flip.fails)
        if flip.fails is None and flip.holds is None:
            yield f"{flip.subject}: not decided before the deadline"
        elif flip.holds is None:
            yield f"{flip.subject}: not at {fails} {flip.unit} ({flip.after}), nor at any smaller load tried"
        elif flip.fails is None:
            yield f"{flip.subject} up to {holds} {flip.unit}, and at any larger load tried"
        else:
            yield f"{flip.subject} up to {holds} {flip.unit}; at {fails}: {flip.after}"
    if not flips and job.workload.concurrency is None and job.workload.request_rate is None:
        yield "the job names no load: what engines answer at most is the answer, and no load flips it"


def _load(load: float | None) -> str:
    if load is None:
        return "-"
    return f"{load:,.0f}" if load >= 1000 else f"{load:.4g}"


def _notes(answer: ServingExplanation) -> Iterator[str]:
    if answer.stopped is not None:
        yield f"{answer.stopped}: not everything was solved"
    elif not answer.limits:
        yield "the job has no limit"


def serving_explanation_document(answer: ServingExplanation) -> Document:
    """Return why the best plan is the best as a document."""
    job = answer.job
    tightest = answer.tightest
    return {
        "schema": SCHEMA,
        "kind": "serving explanation",
        "job": serving_job_document(job),
        "objective": answer.objective,
        "best": serving_plan_values(job, answer.best),
        "engines": [_engine(engine) for engine in answer.engines],
        "limits": [
            {
                "limit": limit.limit,
                "allowed": limit.allowed,
                "value": limit.value,
                "share": limit.share,
                "gain": limit.gain,
                "layout_string": limit.plan.layout_string if limit.plan else None,
            }
            for limit in answer.limits
        ],
        "tightest_limit": tightest.limit if tightest else None,
        "why_not": [
            {
                "key": row.key,
                "value": row.value,
                "loss": row.loss,
                "why": row.why,
                "layout_string": row.plan.layout_string if row.plan else None,
            }
            for row in answer.contrasts
        ],
        "load_flips": plain(answer.flips),
        "stopped": answer.stopped,
    }


def _engine(engine: EngineParts) -> Document:
    return {
        "layout_string": str(engine.layout),
        "bound": engine.bound,
        "decode": _step(engine.decode),
        "mixed": _step(engine.mixed),
        "queue_share_of_first_token": engine.queue_share,
        "waits_for": engine.waits_for,
    }


def _step(step: IterationParts) -> Document:
    return {
        "decodes": step.decodes,
        "prompt_tokens": step.prompt_tokens,
        "seconds": step.seconds,
        "bound": step.bound,
        "parts": plain(step.parts),
    }


def serving_refusal_blocks(answer: ServingRefusal, terminal: Terminal) -> list[Block]:
    """Return the rules that a layout breaks as blocks."""
    return [
        *heading((*serving_job_lines(answer.job, terminal), load_words(answer.job))),
        LayoutLine(answer.layout),
        GAP,
        Sentence("cannot run: it breaks these rules", "bad"),
        items(answer.rules, ""),
    ]


def serving_refusal_document(answer: ServingRefusal) -> Document:
    """Return the rules that a layout breaks as a document."""
    return {
        "schema": SCHEMA,
        "kind": "serving explanation",
        "job": serving_job_document(answer.job),
        "refusal": {"layout_string": answer.layout, "rules": list(answer.rules)},
    }


def serving_standing_blocks(answer: ServingStanding, terminal: Terminal) -> list[Block]:
    """Return where a layout stands against the front as blocks."""
    parts: list[Block] = [
        *heading((*serving_job_lines(answer.job, terminal), load_words(answer.job))),
        LayoutLine(answer.plan.layout_string),
        Sentence(_place(answer), "good" if answer.on_front else "warning"),
        *_against(answer),
        GAP,
        *_engines(answer.engines),
    ]
    if answer.changes:
        parts += [Heading("changes of one setting that help, each one evaluated")]
        parts.append(items([f"{change.sentence}: {change.plan.layout_string}" for change in answer.changes]))
    parts.append(items(_flip_lines(answer.flips, answer.job)))
    return parts


def _place(answer: ServingStanding) -> str:
    plan = answer.plan
    shortage = plan.groups[0].predicted.shortage
    if shortage is not None:
        return f"cannot serve: {shortage}"
    if not plan.fits:
        return "cannot serve: requests come faster than they are answered"
    if plan.broken:
        return "not on the front: " + "; ".join(plan.broken)
    if answer.on_front:
        return "on the front"
    if answer.against is not None:
        return f"not on the front: plan {answer.against} is no worse in any objective"
    thinning = format_share(answer.front.certificate.thinning)
    return f"not on the front: within {thinning} of its plans, or outside of the search space"


def _against(answer: ServingStanding) -> Iterator[Block]:
    if answer.against is None:
        return
    yield LayoutLine(answer.front.plans[answer.against - 1].layout_string, indent=2)
    for name, share in answer.losses:
        yield Sentence(
            f"  {name}: {format_share(share)} worse than it" if share > 0 else f"  {name}: the same"
        )


def serving_standing_document(answer: ServingStanding) -> Document:
    """Return where a layout stands against the front as a document."""
    return {
        "schema": SCHEMA,
        "kind": "serving explanation",
        "job": serving_job_document(answer.job),
        "layout": serving_plan_values(answer.job, answer.plan),
        "standing": {
            "sentence": _place(answer),
            "on_front": answer.on_front,
            "against": answer.against,
            "losses": dict(answer.losses),
        },
        "engines": [_engine(engine) for engine in answer.engines],
        "changes": [
            {"key": change.key, "value": change.value, "layout_string": change.plan.layout_string}
            for change in answer.changes
        ],
        "load_flips": plain(answer.flips),
    }
