"""Answers as plain values: what ``--format json`` and ``--format yaml`` print.

Everything in a document is a dictionary, a list, a text, a number, a boolean or None, in base units
(bytes, seconds, shares of one), and the name of a number says its unit where it is not a count or a
share.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import numpy as np

from autoplan.costs.footprint import memory_limit_bytes
from autoplan.costs.parameters import total_parameters
from autoplan.costs.predict import StageMemory
from autoplan.plans import Explanation, Front, Plan, Remedy
from autoplan.plans.explanation import judged_bytes, judged_stage
from autoplan.report.memory_bars import MomentBar, moment_bars
from autoplan.report.provenance import provenance
from autoplan.report.words import count_words
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["SCHEMA", "Document", "explanation_document", "front_document", "plain", "plan_document"]

Document = dict[str, Any]

# Python writes no integer of more than 4300 digits: such a count of layouts becomes a text.
_WRITABLE_BITS: Final = 14_000

#: Version of the documents; goes up when they change in a way that breaks a reader.
SCHEMA: Final = 1


def front_document(front: Front) -> Document:
    """Return everything that is known about ``front``; ``reasons`` is empty when it is feasible."""
    return {
        "schema": SCHEMA,
        "job": _job(front.job),
        "front": [_brief(plan) for plan in front.plans],
        "certificate": plain(front.certificate),
        "rejected": plain(front.rejected),
        "reasons": plain(front.reasons),
        "provenance": plain(provenance(front.job)),
    }


def plan_document(job: Job, plan: Plan) -> Document:
    """Return everything that is known about one ``plan`` of ``job``."""
    return {
        "schema": SCHEMA,
        "job": _job(job),
        **_plan(plan),
        "provenance": plain(provenance(job)),
    }


def explanation_document(job: Job, explanation: Explanation) -> Document:
    """Return everything that is known about why a layout does or does not fit, and what would help."""
    plan = explanation.plan
    return {
        "schema": SCHEMA,
        "job": _job(job),
        "explanation": {
            **_plan(plan),
            "fullest": _fullest(job, plan),
            "stages": [_stage(stage) for stage in plan.predicted.memory.stages],
            "remedies": [_remedy(remedy) for remedy in explanation.remedies],
        },
        "provenance": plain(provenance(job)),
    }


def _fullest(job: Job, plan: Plan) -> Document:
    """Return the stage that decides whether the layout fits, and by how much it is over the limit."""
    stage, limit = judged_stage(job, plan.predicted), plan.predicted.memory_limit_bytes
    return {
        "stage": stage.stage,
        "moment": stage.moment,
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
        "worst": stage.moment,
        "total_bytes": stage.total,
        "total_bytes_high": stage.total_high,
        "host_bytes": stage.host,
        "moments": [_moment(bar) for bar in moment_bars(stage)],
    }


def _moment(bar: MomentBar) -> Document:
    sizes = {f"{name}_bytes": size for name, size in bar.parts}
    return {"moment": bar.moment, **sizes, "total_bytes": bar.total}


def _remedy(remedy: Remedy) -> Document:
    return {
        "name": remedy.name,
        "change": remedy.change,
        "saved_bytes": remedy.saved_bytes,
        "slowdown": remedy.slowdown,
        "fits": remedy.fits,
        **_plan(remedy.plan),
    }


def plain(value: Any) -> Any:  # noqa: ANN401 - any value in, any JSON value out
    """Return ``value`` as a JSON value: dataclasses as dictionaries, tuples as lists.

    >>> plain({"a": (1, 2.0), "b": math.inf})
    {'a': [1, 2.0], 'b': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, int) and value.bit_length() > _WRITABLE_BITS:
        return count_words(value)
    # JSON has no word for infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plan(plan: Plan) -> Document:
    return {
        "layout": _layout(plan.layout),
        "layout_string": plan.layout_string,
        "predicted": plain(plan.predicted),
    }


def _brief(plan: Plan) -> Document:
    """Return a plan without what every moment of every stage holds, which `evaluate` and `explain` tell."""
    document = _plan(plan)
    for stage in document["predicted"]["memory"]["stages"]:
        del stage["moments"]
    return document


def _layout(layout: Layout) -> Document:
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "cp": layout.cp,
        "ep": layout.ep,
        "etp": layout.etp,
        "mbs": layout.microbatch,
        "zero": layout.zero,
        "vpp": layout.vpp,
        "sp": layout.sequence_parallel,
        "schedule": layout.schedule,
        "stages": list(layout.layers),
        "recompute": layout.recompute,
        "selective": list(layout.selective),
        "full": list(layout.full),
        "checkpoint": layout.checkpoint,
        "offload": "optimizer" if layout.optimizer_offload else "none",
    }


def _job(job: Job) -> Document:
    cluster = job.cluster
    return {
        "name": job.name,
        "model": job.model.name,
        "parameters": total_parameters(job.model),
        "hardware": {"node": cluster.node.name, "device": cluster.device.name},
        "devices": cluster.devices,
        "nodes": cluster.nodes,
        "stack": job.stack.name,
        "kernels": job.kernels.name,
        "workload": job.workload.model_dump(mode="json"),
        "precision": job.precision,
        "optimizer": job.optimizer,
        "adapters": job.adapters.model_dump(mode="json") if job.adapters else None,
        "routing": job.routing.model_dump(mode="json") if job.model.moe else None,
        "search": job.search.model_dump(mode="json"),
        "limits": _limits(job),
        "objectives": list(job.objectives),
    }


def _limits(job: Job) -> Document:
    limits = job.limits
    return {
        "memory_headroom": limits.memory_headroom,
        "peak_memory_bytes": limits.peak_memory,
        "step_time_seconds": limits.step_time,
        "memory_confidence": limits.memory_confidence,
        "memory_limit_bytes_per_device": memory_limit_bytes(job),
    }
