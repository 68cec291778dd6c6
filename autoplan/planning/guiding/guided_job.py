"""The job that a guide to a model on hardware is about, with what nobody said assumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from autoplan.catalog.entries import model
from autoplan.catalog.job_files import job_of_text
from autoplan.catalog.look_ups import clusters_of
from autoplan.catalog.option_jobs import assumed_batch, assumed_sequence
from autoplan.schema.job import Job

__all__ = ["guided_job"]


def guided_job(
    model_name: str,
    hardware: str,
    *,
    devices: int | None = None,
    sequence_length: int | None = None,
    global_batch_size: int | None = None,
    **keys: str | None,
) -> tuple[Job, tuple[str, ...]]:
    """Return the job of a model on hardware, by names or paths, and what is assumed of it, in words.

    ``keys`` are further keys of a job file: stack, precision, optimizer. Raises SpecError or CatalogError for
    what cannot be read or found.
    """
    spec, base, assumed = model(model_name, Path()), Path(), []
    (cluster,) = clusters_of(hardware, devices, base)
    if sequence_length is None:
        sequence_length = assumed_sequence(spec)
        assumed.append(f"sequences of {sequence_length:,} tokens (--sequence-length)")
    if global_batch_size is None:
        global_batch_size = assumed_batch(sequence_length, cluster.devices)
        assumed.append(f"a batch of {global_batch_size:,} sequences (--global-batch-size)")
    fields: dict[str, str | int | None] = {"model": model_name, "hardware": hardware, "devices": devices}
    text = _job_text({**fields, **keys}, sequence_length, global_batch_size)
    name = f"{spec.name}-on-{cluster.node.name}"
    return job_of_text(text, "the guide's job", name=name, base=base, reference=name), tuple(assumed)


def _job_text(fields: Mapping[str, str | int | None], sequence_length: int, batch: int) -> str:
    """Return the job file with ``fields`` that are given; texts are quoted, so that they stay texts."""
    given = [f"{key}: {json.dumps(value)}" for key, value in fields.items() if value is not None]
    workload = f"workload: {{sequence_length: {sequence_length}, global_batch_size: {batch}}}"
    return "\n".join(["schema: 1", "kind: training", *given, workload, ""])
