"""The capacity of a serving job as a document and as blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.costs.core.served_prediction import CapacityPrediction, DeviceMemoryUse
from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    DataTable,
    Facts,
    Heading,
    LayoutLine,
    Sentence,
    data_table,
    facts,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal, bar
from autoplan.report.wording.part_names import GIB
from autoplan.report.wording.sentences import job_assumptions
from autoplan.results.job_summary import serving_job_document
from autoplan.results.serving.capacity_answer import CapacityAnswer, CapacityKnob
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.units import format_bytes, format_share

#: Stages and layouts that a table shows.
_MOST_ROWS: Final = 8
_BAR: Final = 20


def capacity_document(answer: CapacityAnswer) -> Document:
    """Return the capacity as a document."""
    return {
        "schema": SCHEMA,
        "kind": "capacity",
        "job": serving_job_document(answer.job),
        "layout": str(answer.layout),
        "layout_chosen": answer.chosen,
        **_predicted(answer.layout, answer.predicted),
        "reasons": list(answer.reasons),
        "knobs": [_knob(knob, answer.predicted) for knob in answer.knobs],
        "other_layouts": [{"layout": str(x.layout), **_brief(x.predicted)} for x in answer.others],
        "most_tokens": {"layout": str(answer.most.layout), **_brief(answer.most.predicted)},
        "sources": dict(answer.job.engine.sources),
    }


def _predicted(layout: EngineLayout, predicted: CapacityPrediction) -> Document:
    pool = predicted.pool
    return {
        **_brief(predicted),
        "engines": layout.replicas,
        "devices_per_engine": layout.devices_per_engine,
        "max_num_seqs": predicted.max_num_seqs,
        "max_num_batched_tokens": predicted.max_num_batched_tokens,
        "gpu_memory_utilization": predicted.utilization,
        "pool": {
            "bytes_per_device": pool.bytes_per_device,
            "blocks": pool.blocks,
            "block_tokens": pool.block_tokens,
            "tokens_per_cache": pool.tokens,
            "caches": predicted.caches,
            "bytes_per_token_and_device": pool.bytes_per_token,
        },
        "memory": [_stage(stage) for stage in predicted.stages],
    }


def _brief(predicted: CapacityPrediction) -> Document:
    return {
        "fits": predicted.fits,
        "shortage": predicted.shortage,
        "tokens": predicted.total_tokens,
        "requests": [{"tokens": tokens, "requests": count} for tokens, count in predicted.requests],
        "largest_batch": largest_batch(predicted),
        "largest_context": predicted.pool.largest_context,
    }


def largest_batch(predicted: CapacityPrediction) -> int:
    """Return the most requests of the longest length that run at once: what caches hold and steps take."""
    return min(predicted.longest_requests, predicted.max_num_seqs * predicted.caches)


def _stage(stage: DeviceMemoryUse) -> Document:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "device_bytes": stage.device,
        "weights_bytes": stage.weights.total,
        "weights_by_part_bytes": plain(stage.weights),
        "activation_bytes": stage.activation,
        "overhead_bytes": stage.overhead,
        "graphs_bytes": stage.graphs,
        "reserve_bytes": stage.reserve,
        "cache_bytes": stage.cache,
        "free_bytes": stage.free,
        "room_bytes": stage.room,
    }


def _knob(knob: CapacityKnob, now: CapacityPrediction) -> Document:
    return {
        "key": knob.key,
        "value": knob.value,
        "beside": dict(knob.beside),
        "sentence": knob.sentence,
        "same_answers": knob.lossless,
        "more_tokens": knob.predicted.total_tokens - now.total_tokens,
        **_brief(knob.predicted),
    }


def capacity_blocks(answer: CapacityAnswer, terminal: Terminal) -> list[Block]:
    """Return the capacity as blocks."""
    parts: list[Block] = [
        *heading(serving_job_lines(answer.job, terminal)),
        LayoutLine(str(answer.layout)),
        GAP,
        _verdict(answer),
        _facts(answer),
        GAP,
        _memory(answer.predicted, terminal),
        GAP,
        _requests(answer),
    ]
    for title, table in (("knobs", _knobs(answer)), ("other layouts", _others(answer))):
        if table is not None:
            parts += [GAP, Heading(_title(answer, title)), table]
    parts += [GAP, items(_notes(answer))]
    return parts


def serving_job_lines(job: ServingJob, terminal: Terminal) -> tuple[str, str]:
    """Return the title lines of a serving job."""
    cluster = job.cluster
    model = job.model.title or job.model.name
    newest = ", the newest known version" if job.engine.version_assumed else ""
    longest = f"longest request {job.longest_request:,} tokens"
    return (
        f"{model} on {cluster.devices} {terminal.times} {cluster.device.title}",
        f" {terminal.dot} ".join(
            (f"{job.engine.title} {job.engine.version}{newest}", longest, *job_assumptions(job.source))
        ),
    )


def _verdict(answer: CapacityAnswer) -> Sentence:
    if not answer.fits:
        return Sentence("\n".join(f"does not start: {reason}" for reason in answer.reasons), "bad")
    several = answer.layout.replicas > 1
    what = f"{answer.layout.replicas} engines start" if several else "the engine starts"
    return Sentence(f"{what} and admit{'' if several else 's'} the longest request", "good")


def _facts(answer: CapacityAnswer) -> Facts:
    predicted, pool = answer.predicted, answer.predicted.pool
    each = f" in each of {predicted.caches} caches" if predicted.caches > 1 else ""
    batch = f"batch of longest requests {largest_batch(predicted):,}"
    seqs, tokens = predicted.max_num_seqs, predicted.max_num_batched_tokens
    rule = answer.job.engine.facts.budget.rule
    rows = (
        ("cache", f"{pool.tokens:,} tokens{each}: {pool.blocks:,} blocks of {pool.block_tokens}"),
        ("a token", f"{pool.bytes_per_token:,.0f} B on each device"),
        ("a step", f"at most {seqs:,} requests, {tokens:,} tokens"),
        ("share", f"{format_share(predicted.utilization)} of memory ({rule})"),
        ("largest", f"context {pool.largest_context:,} tokens, {batch}"),
        *_most_row(answer),
    )
    return facts(rows)


def _most_row(answer: CapacityAnswer) -> Iterator[tuple[str, str]]:
    """Yield the layout that holds most on the same devices, where it is another one."""
    most, now = answer.most, answer.predicted.total_tokens
    if most.predicted.total_tokens > now:
        more = most.predicted.total_tokens / max(1, now) - 1
        words = (
            f"{most.predicted.total_tokens:,} tokens (+{more * 100:.0f} %)"
            if now
            else (f"{most.predicted.total_tokens:,} tokens")
        )
        yield "most", f"{words} with {most.layout}"


def _memory(predicted: CapacityPrediction, terminal: Terminal) -> DataTable:
    stages = predicted.stages[:_MOST_ROWS]
    names = ["weights", "activation", "overhead", "graphs", "reserve", "cache", "free"]
    columns = [Column("GiB of a device", (*names, "device"), "text")]
    for stage in stages:
        values = [stage.weights.total, *(getattr(stage, name) for name in names[1:]), stage.device]
        head = f"stage {stage.stage}" if len(predicted.stages) > 1 else ""
        columns.append(Column(head, tuple(f"{value / GIB:,.2f}" for value in values)))
        if len(predicted.stages) == 1:
            shares = [bar(value / stage.device, _BAR, unicode=terminal.unicode) for value in values]
            columns.append(Column("", tuple(shares), "bar"))
    return data_table(columns)


def _requests(answer: CapacityAnswer) -> DataTable:
    counts = answer.predicted.requests
    return data_table(
        [
            Column("tokens of a request", tuple(f"{tokens:,}" for tokens, _ in counts)),
            Column("at once, all engines", tuple(f"{count:,}" for _, count in counts)),
        ]
    )


def _title(answer: CapacityAnswer, title: str) -> str:
    if title != "knobs":
        return "other layouts on the same devices"
    return "what buys most" if answer.fits else "changes, those that let engines start first"


def _knobs(answer: CapacityAnswer) -> DataTable | None:
    knobs = answer.knobs[:_MOST_ROWS]
    if not knobs:
        return None
    now = answer.predicted.total_tokens
    return data_table(
        [
            Column("change", tuple(knob.sentence for knob in knobs), "text"),
            Column("key", tuple(knob.edits for knob in knobs), "text"),
            Column("tokens", tuple(f"{knob.predicted.total_tokens:,}" for knob in knobs)),
            Column("more", tuple(f"+{knob.predicted.total_tokens - now:,}" for knob in knobs)),
            Column("longest", tuple(f"{knob.predicted.longest_requests:,}" for knob in knobs)),
            Column("starts", tuple("yes" if knob.fits else "no" for knob in knobs), "verdict"),
        ]
    )


def _others(answer: CapacityAnswer) -> DataTable | None:
    others = answer.others[:_MOST_ROWS]
    if not others:
        return None
    return data_table(
        [
            Column("layout", tuple(str(x.layout) for x in others), "layout"),
            Column("tokens", tuple(f"{x.predicted.total_tokens:,}" for x in others)),
            Column("longest", tuple(f"{x.predicted.longest_requests:,}" for x in others)),
            Column(
                "starts",
                tuple("yes" if x.predicted.fits else f"no: {x.predicted.shortage}" for x in others),
                "verdict",
            ),
        ]
    )


def _notes(answer: CapacityAnswer) -> Iterator[str]:
    graphs = answer.job.engine.facts.graphs
    if graphs is not None and not graphs.counted:
        outside = format_bytes(answer.predicted.fullest.graphs)
        yield f"CUDA graphs ({outside}) lie outside of the engine's share in this version."
    if any(not knob.lossless for knob in answer.knobs):
        yield "Narrower formats change answers: measure the model's quality with them."
    if answer.job.speculation is not None:
        yield "Weights and caches of drafts are not counted."
