"""Memory limit of a device.

Notation (this file only)::

    M  device memory visible to frameworks                                            [byte]
"""

from __future__ import annotations

from autoplan.schema.job import Job

__all__ = ["memory_limit_bytes", "usable_bytes"]


def memory_limit_bytes(job: Job) -> float:
    """Return the memory limit of a device [byte]: M less the headroom, at most the job's own limit.

    Leaves out: memory of a display or of other processes.
    >>> from autoplan.catalog import load_job
    >>> memory_limit_bytes(load_job("llama3-8b-8x-a100")) / 2**30
    79.15
    """
    usable = usable_bytes(job) * (1.0 - job.limits.memory_headroom)
    limit = job.limits.peak_memory
    return usable if limit is None else min(usable, limit)


def usable_bytes(job: Job) -> float:
    """Return M, the device memory visible to frameworks [byte].

    Source: the device's file.
    >>> from autoplan.catalog import load_job; usable_bytes(load_job("llama3-8b-8x-a100")) / 2**30  # GiB
    79.15
    """
    return job.cluster.device.memory.usable.value
