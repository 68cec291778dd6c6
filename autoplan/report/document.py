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

from autoplan.costs.parameters import total_parameters
from autoplan.costs.predict import memory_limit_bytes
from autoplan.plans import Front, Plan
from autoplan.report.provenance import provenance
from autoplan.report.words import count_words
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

__all__ = ["SCHEMA", "Document", "front_document", "plain", "plan_document"]

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
        "front": [_plan(plan) for plan in front.plans],
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


def _layout(layout: Layout) -> Document:
    return {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "cp": layout.cp,
        "ep": layout.ep,
        "mbs": layout.microbatch,
        "zero": layout.zero,
        "vpp": layout.vpp,
        "sp": layout.sequence_parallel,
        "schedule": layout.schedule,
        "stages": list(layout.layers),
        "recompute": layout.recompute,
        "selective": list(layout.selective),
        "full": list(layout.full),
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
        "memory_limit_bytes_per_device": memory_limit_bytes(job),
    }
