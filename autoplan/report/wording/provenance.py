"""Provenance of a prediction: the catalogue entries that it uses, with the kinds of their numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

from pydantic import BaseModel

from autoplan.schema.base import NumberKind
from autoplan.schema.hardware import DeviceSpec, NodeSpec, sourced_numbers
from autoplan.schema.job import Job
from autoplan.version import __version__


def provenance(job: Job) -> dict[str, Any]:
    """Return the catalogue entries of ``job``, their numbers by kind, and the prediction uncertainty."""
    return {
        "autoplan": __version__,
        "kernels": _kernels(job),
        "stack": _stack(job),
        "hardware": {
            "device": _hardware(job.cluster.device),
            "node": _hardware(job.cluster.node),
        },
        "uncertainty": _uncertainty(job),
    }


def kernels_measured(job: Job) -> bool:
    """Return whether the kernel curves of ``job`` were measured on its device, or on one with its chip."""
    return job.cluster.device.name in job.kernels.devices


def kernels_origin(job: Job) -> str:
    """Return in words where the kernel curves of ``job`` were measured."""
    kernels, device_name = job.kernels, job.cluster.device.name
    if device_name in kernels.devices[:1]:
        return "measured on this device"
    if device_name in kernels.devices:
        return f"measured on {kernels.devices[0]}, whose chip is that of this device"
    if kernels.devices:
        return f"not measured on this device: those of {kernels.devices[0]}, its nearest measured relative"
    return f"not measured on this device: {kernels.valid_for}"


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


def _stack(job: Job) -> dict[str, Any]:
    stack = job.stack
    return {
        "name": stack.name,
        "valid_for": stack.description,
        "numbers": number_kinds(stack),
        "sources": dict(stack.sources),
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
        "peak_memory": uncertainty.memory,
    }
    return {
        name: {"half_width": x.value, "kind": x.kind, "source": job.stack.sources.get(x.source, x.source)}
        for name, x in parts.items()
    }
