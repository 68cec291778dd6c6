"""The memory that a job may use of a device.

Notation (this file only)::

    M  bytes of a device as frameworks see them                                       [byte]
"""

from __future__ import annotations

from autoplan.schema.job import Job

__all__ = ["memory_limit_bytes", "usable_bytes"]


def memory_limit_bytes(job: Job) -> float:
    """Return what a device may use [byte]: what frameworks see, less the headroom, or the job's own limit.

    Leaves out: what a display or another process holds.
    >>> from autoplan.catalog import load_job
    >>> memory_limit_bytes(load_job("llama3-8b-8x-a100")) / 2**30
    79.15
    """
    usable = usable_bytes(job) * (1.0 - job.limits.memory_headroom)
    own = job.limits.peak_memory
    return usable if own is None else min(usable, own)


def usable_bytes(job: Job) -> float:
    """Return a device's memory as frameworks see it [byte].

    Source: the device's file.
    >>> from autoplan.catalog import load_job; usable_bytes(load_job("llama3-8b-8x-a100")) / 2**30  # GiB
    79.15
    """
    return job.cluster.device.memory.usable.value
