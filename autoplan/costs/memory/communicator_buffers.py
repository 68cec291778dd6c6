"""Communicator buffers of NCCL (RCCL), one set per process group of a device.

Notation (this file only)::

    n  ranks of a group                                       [1]
    B  buffers of the communicator of one group            [byte]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, column
from autoplan.costs.core.scope import Scope
from autoplan.costs.network.mesh import replica_group, shard_group
from autoplan.schema.job import Job

__all__ = ["buffer_bytes", "communicator_bytes"]


def buffer_bytes(ranks: Array, job: Job) -> Array:
    """Return B of groups of n ``ranks`` [byte]: none of one rank, the low end of the interval of two.

    >>> from autoplan.catalog import load_job
    >>> buffer_bytes(np.array([1, 2, 8]), load_job("llama3-8b-8x-a100")).tolist()
    [0.0, 544000000.0, 688000000.0]

    Source: NVIDIA/nccl issues 864 and 964, as the stack's file says.
    """
    buffers = job.stack.memory.communicator
    size: Array = np.where(ranks > 2, buffers.value, np.where(ranks > 1, buffers.low, 0.0))
    return size


def communicator_bytes(scope: Scope) -> Array:
    """Return communicator buffers of one device [byte], shape [C, 1].

    One B for the world group and one for each process group with n > 1. Groups of n = 2 have fewer channels
    and take the low end of the interval. The shard group and the replicate group count separately; experts
    may add three groups of their own.

    Leaves out: groups that a framework creates and never uses; communicators that share buffers.
    Source: NVIDIA/nccl issues 864 and 964, as the stack's file says.
    >>> from autoplan.catalog import load_job; from autoplan.schema.layout import parse_layout
    >>> from autoplan.costs.core.candidates import Candidates; from autoplan.costs.core.scope import scope_of
    >>> two = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> communicator_bytes(scope_of(load_job("llama3-8b-8x-a100"), two)).tolist()  # MB: 544 + 688 + 688
    [[1920000000.0]]
    """
    c = scope.candidates
    world, depth = c.tp * c.cp * c.dp * c.pp, np.full(len(c), c.pp)
    data_axes = (shard_group(c).ranks, replica_group(c).ranks)
    groups = [c.tp, c.cp, depth, world]
    if scope.job.model.moe is not None:
        expert_mesh = (c.ep > 1) | (c.etp != c.tp)
        groups += [np.where(expert_mesh, axis, 1) for axis in (c.ep, c.etp, c.expert_shard)]
    axes = (*(column(axis) for axis in groups), *data_axes)
    sizes = (buffer_bytes(axis, scope.job) for axis in axes)
    total: Array = sum(sizes, np.zeros((len(c), 1)))
    return total
