"""Answers as plain values: what ``--format json`` and ``--format yaml`` print.

Everything in a document is a dictionary, a list, a text, a number, a boolean or None, in base units
(bytes, seconds, shares of one), and the name of a number says its unit where it is not a count or a
share.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autoplan.costs.core.prediction import StageMemory
from autoplan.report.charts.chart_data import EventBar, event_bars
from autoplan.results.front import Certificate, Front, Suggestion
from autoplan.results.job_summary import job_document, provenance
from autoplan.results.merged_front import at_batch, plan_key, question_fields
from autoplan.results.plan import Plan, layout_fields
from autoplan.schema.job import Job, JobFile
from autoplan.schema.resolved_job import HASH, document_hash, file_facts, resolved

if TYPE_CHECKING:
    from autoplan.results.explanation import Difference, Explanation, Remedy, Standing

Document = dict[str, Any]

# Python writes no integer of more than 4300 digits: such a count of layouts becomes a text.
_WRITABLE_BITS: Final = 14_000

#: Version of the documents; goes up when they change in a way that breaks a reader.
SCHEMA: Final = 1


def front_document(front: Front) -> Document:
    """Return ``front`` as a document; ``reasons`` is empty if it is feasible.

    ``answer_hash`` is the SHA-256 of everything else in it.
    """
    document = {
        "schema": SCHEMA,
        "job": job_document(front.job, front.facts),
        "stacks": plain(front.stacks),
        "front": [_asked(at_batch(front.job, plan), plan, brief(plan)) for plan in front.plans],
        "order_noise": plain(front.order_noise),
        "answers": [_answer(front, answer) for answer in front.answers],
        "certificate": _certificate(front.certificate),
        "rejected": plain(front.rejected),
        "reasons": plain(front.reasons),
        "conflict": plain(front.conflict),
        "further_conflicts": plain(front.further_conflicts),
        "suggestions": [_suggestion(n, change) for n, change in enumerate(front.suggestions, start=1)],
        "suggestions_stopped": front.suggestions_stopped,
        "provenance": plain(provenance(front.job)),
        "job_file": {**file_facts(front.job), **assumptions(front.job.source)},
        "resolved": resolved(front.job),
    }
    return {**document, HASH: document_hash(document)}


def plan_document(job: Job, plan: Plan) -> Document:
    """Return one ``plan`` of ``job`` as a document."""
    return {
        "schema": SCHEMA,
        "job": job_document(job, plan.facts),
        "stacks": plain(plan.stacks),
        **_asked(job, plan, _plan(plan)),
        "provenance": plain(provenance(job)),
    }


def explanation_document(job: Job, explanation: Explanation) -> Document:
    """Return the explanation of a layout as a document: memory timeline, remedies, comparison."""
    plan = explanation.plan
    return {
        "schema": SCHEMA,
        "job": job_document(job, plan.facts),
        "explanation": {
            **_plan(plan),
            "fullest": _fullest(job, plan),
            "stages": [_stage(stage) for stage in plan.predicted.memory.stages],
            "remedies": [_remedy(remedy) for remedy in explanation.remedies],
            "standing": _standing(explanation.standing),
            "bound": explanation.bound,
            "bottlenecks": plain(explanation.bottlenecks),
        },
        "provenance": plain(provenance(job)),
    }


def _fullest(job: Job, plan: Plan) -> Document:
    """Return the stage that decides whether the layout fits, with its excess over the limit."""
    from autoplan.results.explanation import judged_bytes, judged_stage

    stage, limit = judged_stage(job, plan.predicted), plan.predicted.memory_limit_bytes
    return {
        "stage": stage.stage,
        "event": stage.event,
        "total_bytes": stage.total,
        "total_bytes_high": stage.total_high,
        "over_limit_bytes": stage.total - limit,
        "over_limit_bytes_high": stage.total_high - limit,
        "judged_bytes": judged_bytes(job, stage),
        "memory_confidence": job.limits.memory_confidence,
    }


def _stage(stage: StageMemory) -> Document:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "worst": stage.event,
        "total_bytes": stage.total,
        "total_bytes_high": stage.total_high,
        "host_bytes": stage.host,
        "events": [_event(bar) for bar in event_bars(stage)],
    }


def _event(bar: EventBar) -> Document:
    sizes = {f"{name}_bytes": size for name, size in bar.parts}
    return {"event": bar.event, **sizes, "total_bytes": bar.total}


def _remedy(remedy: Remedy) -> Document:
    return {
        "name": remedy.name,
        "change": remedy.change,
        "saved_bytes": remedy.saved_bytes,
        "slowdown": remedy.slowdown,
        "fits": remedy.fits,
        **_plan(remedy.plan),
    }


def _standing(standing: Standing) -> Document:
    """Return the comparison of a layout with the front."""
    from autoplan.report.wording.standing_words import standing_sentence

    return {
        "place": standing.place,
        "sentence": standing_sentence(standing),
        "plans": standing.plans,
        "rank": standing.rank,
        "against": brief(standing.against) if standing.against else None,
        "differences": [difference_document(d) for d in standing.differences],
    }


def difference_document(difference: Difference) -> Document:
    """Return one part of two steps, with the loss of the first."""
    return {**plain(difference), "lost_seconds": difference.lost_seconds}


def _suggestion(number: int, suggestion: Suggestion) -> Document:
    return {
        "number": number,
        "kind": suggestion.kind,
        "edits": plain(suggestion.edits),
        "devices": suggestion.devices,
        **brief(suggestion.plan),
    }


def plain(value: Any) -> Any:  # noqa: ANN401 - any value in, any JSON value out
    """Return ``value`` as a JSON value: dataclasses as dictionaries, tuples as lists.

    >>> plain({"a": (1, 2.0), "b": math.inf})
    {'a': [1, 2.0], 'b': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names_of(type(value))}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, int) and value.bit_length() > _WRITABLE_BITS:
        from autoplan.report.wording.sentences import count_words

        return count_words(value)
    # JSON has no infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _plan(plan: Plan) -> Document:
    return {
        "layout": layout_fields(plan.layout),
        "layout_string": plan.layout_string,
        "predicted": plain(plan.predicted),
    }


def brief(plan: Plan) -> Document:
    """Return a plan without its memory timeline, which `evaluate` and `explain` include."""
    memory = plan.predicted.memory
    stages = tuple(dataclasses.replace(stage, events=()) for stage in memory.stages)
    memory = dataclasses.replace(memory, stages=stages)
    document = _plan(dataclasses.replace(plan, predicted=dataclasses.replace(plan.predicted, memory=memory)))
    for stage in document["predicted"]["memory"]["stages"]:
        del stage["events"]
    return document


def _certificate(certificate: Certificate) -> Document:
    return {**plain(certificate), "solver_parameters": dict(certificate.solver_parameters)}


def _asked(job: Job, plan: Plan, document: Document) -> Document:
    """Return ``document`` of a plan with devices, batch, cost and energy."""
    return {**document, "predicted": {**document["predicted"], **question_fields(job, plan)}}


def _answer(front: Front, answer: Front) -> Document:
    """Return the answer for one number of devices and batch, with plans on the merged front marked."""
    best = {(plan.layout, plan_key(plan)) for plan in front.plans}
    return {
        "devices": answer.job.cluster.devices,
        "global_batch_size": answer.job.workload.global_batch_size,
        "program": None if answer.job.program is None else answer.job.program.key,
        "plans": [
            {
                "layout_string": plan.layout_string,
                "step_seconds": plan.predicted.step_seconds,
                "tokens_per_second": plan.predicted.tokens_per_second,
                "peak_memory_bytes_per_device": plan.predicted.peak_memory_bytes_per_device,
                "on_front": (plan.layout, plan_key(plan)) in best,
            }
            for plan in answer.plans
        ],
        "cut_by_others": answer.cut_by_others,
        "certificate": _certificate(answer.certificate),
        "rejected": plain(answer.rejected),
        "reasons": plain(answer.reasons),
    }


def assumptions(source: JobFile | None) -> Document:
    """Return what a line of options left out, in words; empty for jobs that are files."""
    return {"assumed": list(source.assumed)} if source and source.assumed else {}
