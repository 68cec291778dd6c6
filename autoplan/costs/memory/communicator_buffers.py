"""Memory that collective libraries keep for each group of ranks that a device is in.

Notation (this file only)::

    n  ranks of a group                                       [1]
    B  buffers of the communicator of one group            [byte]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, column
from autoplan.costs.core.scope import Scope
from autoplan.costs.network.mesh import replica_group, shard_group

__all__ = ["communicator_bytes"]


def communicator_bytes(scope: Scope) -> Array:
    """Return buffers of the communicators of a device [byte], shape [C, 1].

    One B for all devices and one for each axis of n > 1; those of n = 2 have fewer channels and take the low
    end of what was seen. Ranks that share state, and those that hold copies of it, are an axis each; experts
    may have three of their own.

    Leaves out: groups that a framework makes and never uses; communicators that share buffers.
    Source: NVIDIA/nccl issues 864 and 964, as the stack's file says.
    >>> from autoplan.catalog import load_job; from autoplan.schema.layout import parse_layout
    >>> from autoplan.costs.core.candidates import Candidates; from autoplan.costs.core.scope import scope_of
    >>> two = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> communicator_bytes(scope_of(load_job("llama3-8b-8x-a100"), two)).tolist()  # MB: 544 + 688 + 688
    [[1920000000.0]]
    """
    c, each = scope.candidates, scope.job.stack.memory.communicator
    whole, depth = c.tp * c.cp * c.dp * c.pp, np.full(len(c), c.pp)
    shared = (shard_group(c).ranks, replica_group(c).ranks)
    found = [c.tp, c.cp, depth, whole]
    if scope.job.model.moe is not None:
        own = (c.ep > 1) | (c.etp != c.tp)
        found += [np.where(own, axis, 1) for axis in (c.ep, c.etp, c.expert_shard)]
    axes = (*(column(axis) for axis in found), *shared)
    sizes = (np.where(axis > 2, each.value, np.where(axis > 1, each.low, 0.0)) for axis in axes)
    total: Array = sum(sizes, np.zeros((len(c), 1)))
    return total
