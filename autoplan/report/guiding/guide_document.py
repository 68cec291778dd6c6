"""The guide as a document."""

from __future__ import annotations

from autoplan.report.document_fields import SCHEMA, Document, brief, difference_document, job_document, plain
from autoplan.report.guiding.guide_words import (
    answer_sentences,
    batch_sentences,
    degree_sentence,
    memory_sentences,
    scaling_sentence,
)
from autoplan.report.wording.provenance import provenance
from autoplan.results.guiding.scaling_lines import ScalingLine, ScalingPoint
from autoplan.results.guiding.training_guide import DegreeChoice, LadderRung, TrainingGuide
from autoplan.results.plan import Plan

__all__ = ["guide_document"]


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
        "points": [_point(point) for point in line.points],
    }


def _point(point: ScalingPoint) -> Document:
    return {
        "devices": point.devices,
        "nodes": point.nodes,
        "global_batch_size": point.global_batch_size,
        "plan": _brief(point.plan),
        "why": point.why,
        "speedup": point.speedup,
        "line": point.line,
    }
