"""What an answer says of its job: a summary, and the catalogue entries with the kinds of their numbers.

Documents state it, and ``verify`` derives it again from the resolved job.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from autoplan.costs.core.prediction import JobFacts
from autoplan.results.merged_front import choice_key
from autoplan.schema.base import NumberKind
from autoplan.schema.hardware import DeviceSpec, NodeSpec, sourced_numbers
from autoplan.schema.job import Job
from autoplan.version import __version__

if TYPE_CHECKING:
    from autoplan.schema.serving.serving_spec import ServingJob


def job_document(job: Job, facts: JobFacts) -> dict[str, Any]:
    """Return the summary of a job."""
    cluster = job.cluster
    return {
        "name": job.name,
        "model": job.model.name,
        "parameters": facts.parameters,
        "hardware": {"node": cluster.node.name, "device": cluster.device.name},
        "devices": cluster.devices,
        "nodes": cluster.nodes,
        "stack": job.stack.name,
        "stack_assumed": job.stack_assumed,
        "program": None if job.program is None else job.program.key,
        "kernels": job.kernels.name,
        "workload": job.workload.model_dump(mode="json"),
        "precision": job.precision,
        "optimizer": job.optimizer,
        "adapters": job.adapters.model_dump(mode="json") if job.adapters else None,
        "rl": job.rl.model_dump(mode="json") if job.rl else None,
        "routing": job.routing.model_dump(mode="json") if job.model.moe else None,
        "search": job.search.model_dump(mode="json"),
        "limits": _limits(job, facts),
        "rules": [rule.model_dump(mode="json") for rule in job.rules],
        "objectives": list(job.objectives),
        "price": job.price.model_dump(mode="json") if job.price else None,
        "choices": [
            dict(zip(("devices", "global_batch_size", "program"), choice_key(choice), strict=True))
            for choice in job.choices
        ],
    }


def _limits(job: Job, facts: JobFacts) -> dict[str, Any]:
    limits = job.limits
    return {
        "memory_headroom": limits.memory_headroom,
        "peak_memory_bytes": limits.peak_memory,
        "step_time_seconds": limits.step_time,
        "tokens_per_second": limits.tokens_per_second,
        "devices": limits.devices,
        "cost_per_billion_tokens": limits.cost,
        "energy_joules_per_billion_tokens": limits.energy,
        "memory_confidence": limits.memory_confidence,
        "memory_limit_bytes_per_device": facts.memory_limit_bytes,
    }


def serving_job_document(job: ServingJob) -> dict[str, Any]:
    """Return what a serving job asks for."""
    return {
        "name": job.name,
        "model": job.model.name,
        "hardware": {"node": job.cluster.node.name, "device": job.cluster.device.name},
        "devices": job.cluster.devices,
        "engine": job.engine.name,
        "engine_version": job.engine.version,
        "engine_version_assumed": job.engine.version_assumed,
        "longest_request_tokens": job.longest_request,
        "workload": job.workload.model_dump(mode="json"),
    }


def provenance(job: Job) -> dict[str, Any]:
    """Return the catalogue entries of ``job``, their numbers by kind, and the prediction uncertainty."""
    return {
        "autoplan": __version__,
        "kernels": _kernels(job),
        "stack": {
            "name": job.stack.name,
            "valid_for": job.stack.description,
            "numbers": number_kinds(job.stack),
            "sources": dict(job.stack.sources),
        },
        "hardware": {"device": _hardware(job.cluster.device), "node": _hardware(job.cluster.node)},
        "uncertainty": _uncertainty(job),
    }


def kernels_measured(job: Job) -> bool:
    """Return whether the kernel curves of ``job`` were measured on its device, or on one with its chip."""
    return job.cluster.device.name in job.kernels.devices


def number_kinds(model: BaseModel) -> dict[str, int]:
    """Return the count of sourced numbers of each kind in ``model``, the most reliable kind first."""
    counts = Counter(number.kind for _, number in sourced_numbers(model))
    kinds: tuple[NumberKind, ...] = get_args(NumberKind)
    return {kind: counts[kind] for kind in kinds}


def _kernels(job: Job) -> dict[str, Any]:
    kernels = job.kernels
    tabled = job.cluster.node.name in kernels.collectives.fabrics
    return {
        "name": kernels.name,
        "devices": list(kernels.devices),
        "measured_on_device": kernels_measured(job),
        "taken_from": None if kernels_measured(job) else next(iter(kernels.devices), None),
        "valid_for": kernels.valid_for,
        "numbers": number_kinds(kernels),
        "collective_tables": len(kernels.collectives.tables) if tabled else 0,
        "sources": dict(kernels.sources),
    }


def _hardware(entry: DeviceSpec | NodeSpec) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "numbers": number_kinds(entry),
        "sources": dict(entry.sources),
    }


def _uncertainty(job: Job) -> dict[str, Any]:
    uncertainty = job.stack.uncertainty
    parts = {
        "step_time": uncertainty.time,
        "step_time_modelled": uncertainty.time_modelled,
        "fragmentation": uncertainty.fragmentation,
        "memory_lower": uncertainty.memory_lower,
        "memory_higher": uncertainty.memory_higher,
    }
    return {
        name: {"half_width": x.value, "kind": x.kind, "source": job.stack.sources.get(x.source, x.source)}
        for name, x in parts.items()
    }


def serving_provenance(job: ServingJob) -> dict[str, Any]:
    """Return the engine and the hardware of a serving job, with their numbers by kind."""
    return {
        "autoplan": __version__,
        "engine": {
            "name": job.engine.name,
            "version": job.engine.version,
            "sources": dict(job.engine.sources),
        },
        "hardware": {
            "device": {"name": job.cluster.device.name, "numbers": number_kinds(job.cluster.device)},
            "node": {"name": job.cluster.node.name, "numbers": number_kinds(job.cluster.node)},
        },
    }
