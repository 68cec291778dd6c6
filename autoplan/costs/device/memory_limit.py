"""Memory limit of a device.

Notation (this file only)::

    M  device memory visible to frameworks                                            [byte]
    s  fragmentation: reserved over allocated bytes of what comes and goes             [1]
    u  half-width of the interval of allocated memory                                  [1]
"""

from __future__ import annotations

from typing import NamedTuple

from autoplan.schema.job import Job

__all__ = ["Overheads", "memory_limit_bytes", "overheads_of", "usable_bytes"]


class Overheads(NamedTuple):
    """Fragmentation and CUDA context, central and at the upper end of the interval."""

    fragmentation: float
    context: float
    high_fragmentation: float
    high_context: float


def overheads_of(job: Job) -> Overheads:
    """Return s [1] and the CUDA context [byte], and their upper ends: s (1 + u), at most the stack's own.

    >>> overheads = overheads_of(load_job("llama3-8b-8x-a100"))
    >>> overheads.fragmentation <= overheads.high_fragmentation, overheads.context < overheads.high_context
    (True, True)

    Leaves out: communicators, see costs/memory/footprint.py.
    Source: the stack's file.
    """
    policy, upper = job.stack.memory, 1.0 + job.stack.uncertainty.memory.value
    share, context = policy.allocator_fragmentation, policy.cuda_context
    most = max(share.value, min(share.value * upper, share.high))
    return Overheads(share.value, context.value, most, context.high)


def memory_limit_bytes(job: Job) -> float:
    """Return the memory limit of a device [byte]: M less the headroom, at most the job's own limit.

    Leaves out: memory of a display or of other processes.
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
