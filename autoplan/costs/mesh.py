"""Where the axes of a layout lie on the devices: the group of each, its ranks and their distance.

Notation (this file only)::

    t, c, d  tensor-, context- and data-parallel degree      [1]
    g        ranks that share state                          [1]

Ranks are numbered tensor first, then context, then data, then pipeline: neighbours on the context axis are
t apart. Gradients are averaged, and state is shared, by the c d ranks that have different tokens and the
same parameters; they are t apart, too. Where only g of them share state, neighbours do, and every g-th
has a copy of it.
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.arrays import Array, Candidates
from autoplan.costs.collectives import Group

__all__ = [
    "context_group",
    "data_group",
    "data_ranks",
    "replica_group",
    "shard_group",
    "shard_ranks",
    "stage_distance",
]


def data_ranks(candidates: Candidates) -> Array:
    """Return the ranks that hold the same parameters and see different tokens [1], shape [C]: c d.

    >>> from autoplan.schema.layout import parse_layout
    >>> data_ranks(Candidates.of([parse_layout("tp=2,cp=2", layers=32, devices=16)])).tolist()  # 2 x 4
    [8.0]

    Leaves out: expert parallelism.
    Source: Megatron-LM, megatron/core/parallel_state.py, get_data_parallel_group with context parallelism;
    PyTorch's torchtitan, torchtitan/distributed/parallel_dims.py, whose sharding mesh is dp_shard x cp.
    """
    ranks: Array = (candidates.dp * candidates.cp).astype(np.float64)
    return ranks


def data_group(candidates: Candidates) -> Group:
    """Return the group over which gradients are reduced: ranks and stride [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = data_group(Candidates.of([parse_layout("tp=2,cp=2", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[8.0]], [[2.0]])

    Leaves out: other orders of the axes.
    Source: Megatron-LM, megatron/core/parallel_state.py, whose order is tp-cp-ep-dp-pp.
    """
    return Group(data_ranks(candidates)[:, None], candidates.tp.astype(np.float64)[:, None])


def shard_ranks(candidates: Candidates) -> Array:
    """Return g, the ranks that share state [1], shape [C]: c d, or fewer where a layout says so.

    >>> from autoplan.schema.layout import parse_layout
    >>> both = [parse_layout(text, layers=32, devices=16) for text in ("tp=2", "tp=2,shard=4")]
    >>> shard_ranks(Candidates.of(both)).tolist()
    [8.0, 4.0]

    Leaves out: stacks that share parameters and optimizer state among different ranks (DeepSpeed's hpZ).
    Source: Zhang et al. 2022 (MiCS), arXiv:2205.00119, section 3.2; PyTorch FSDP, HYBRID_SHARD.
    """
    ranks: Array = np.where(candidates.shard > 0, candidates.shard, data_ranks(candidates))
    return ranks


def shard_group(candidates: Candidates) -> Group:
    """Return the group that shares state: g ranks, t apart [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = shard_group(Candidates.of([parse_layout("tp=2,shard=4", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[4.0]], [[2.0]])

    Leaves out: groups of ranks that are not neighbours.
    Source: as of ``shard_ranks``.
    """
    return Group(shard_ranks(candidates)[:, None], candidates.tp.astype(np.float64)[:, None])


def replica_group(candidates: Candidates) -> Group:
    """Return the ranks that hold the same share of state: c d / g of them, t g apart [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = replica_group(Candidates.of([parse_layout("tp=2,shard=4", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[2.0]], [[8.0]])

    Leaves out: what ``shard_group`` does.
    Source: as of ``shard_ranks``.
    """
    g = shard_ranks(candidates)
    return Group((data_ranks(candidates) / g)[:, None], (candidates.tp * g)[:, None])


def context_group(candidates: Candidates) -> Group:
    """Return the ranks that share a sequence: c of them, t apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = context_group(Candidates.of([parse_layout("tp=2,cp=4", layers=32, devices=8)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0], [2.0])

    Leaves out: other orders of the axes.
    Source: Megatron-LM, megatron/core/parallel_state.py, whose order is tp-cp-ep-dp-pp.
    """
    return Group(candidates.cp.astype(np.float64), candidates.tp.astype(np.float64))


def stage_distance(candidates: Candidates) -> Array:
    """Return how far the next pipeline stage's rank is [1], shape [C]: t c d.

    >>> from autoplan.schema.layout import parse_layout
    >>> stage_distance(Candidates.of([parse_layout("tp=2,pp=4", layers=32, devices=16)])).tolist()
    [4.0]

    Leaves out: other orders of the axes.
    Source: Megatron-LM, megatron/core/parallel_state.py, whose order is tp-cp-ep-dp-pp.
    """
    distance: Array = (candidates.tp * candidates.cp * candidates.dp).astype(np.float64)
    return distance
