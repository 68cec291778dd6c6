"""Where the axes of a layout lie on the devices: the group of each, its ranks and their distance.

Notation (this file only)::

    t, c, d, p  tensor-, context- and data-parallel degree, stages of a pipeline      [1]
    g           ranks that share state                                                [1]

A layout's order names the axes from the innermost outwards, and ranks are numbered so: neighbours on an axis
are as far apart as there are ranks on the axes inside it. Experts have axes of their own over the same ranks,
``etp`` in the place of ``tp``, ``ep`` of ``cp``, and those that hold the same experts (``edp``) of ``dp``.

Gradients are averaged, and state is shared, by the c d ranks that have different tokens and the same
parameters. They are evenly spaced, since ``cp`` is next to ``dp``: where the pipeline stands between the two,
a rule keeps c or p at 1. Where only g of them share state, neighbours do, and every g-th has a copy of it.
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Candidates, Ints
from autoplan.costs.core.rank_strides import Axis, axis_stride, data_stride, expert_stride
from autoplan.costs.core.sizes import data_ranks, shard_ranks
from autoplan.costs.network.collectives import Group

__all__ = [
    "context_group",
    "data_group",
    "dispatch_groups",
    "expert_group",
    "expert_replica_group",
    "expert_shard_group",
    "pipeline_group",
    "ranks_per_node",
    "replica_group",
    "shard_group",
    "tensor_group",
]


def data_group(candidates: Candidates) -> Group:
    """Return the group over which gradients are reduced: ranks and stride [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=2,cp=2", "tp=2,cp=2,order=cp-dp-tp-pp")
    >>> group = data_group(Candidates.of([parse_layout(text, layers=32, devices=16) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[8.0], [8.0]], [[2.0], [1.0]])

    Leaves out: orders in which the ranks of the context and the data axis are not neighbours.
    """
    return Group(data_ranks(candidates)[:, None], data_stride(candidates)[:, None])


def shard_group(candidates: Candidates) -> Group:
    """Return the group that shares state: g ranks of the data group, neighbours in it [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = shard_group(Candidates.of([parse_layout("tp=2,shard=4", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[4.0]], [[2.0]])

    Leaves out: groups of ranks that are not neighbours.
    """
    return Group(shard_ranks(candidates)[:, None], data_stride(candidates)[:, None])


def replica_group(candidates: Candidates) -> Group:
    """Return the ranks that hold the same share of state: c d / g, g times as far apart [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = replica_group(Candidates.of([parse_layout("tp=2,shard=4", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[2.0]], [[8.0]])
    """
    g = shard_ranks(candidates)
    return Group((data_ranks(candidates) / g)[:, None], (data_stride(candidates) * g)[:, None])


def tensor_group(candidates: Candidates) -> Group:
    """Return the tensor-parallel group: t ranks, and how far apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=4,dp=2", "tp=4,dp=2,order=cp-dp-tp-pp")
    >>> group = tensor_group(Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0, 4.0], [1.0, 2.0])

    Leaves out: tensors that are split in two directions, each on an axis of its own.
    """
    return Group(candidates.tp.astype(np.float64), axis_stride(candidates, "tp"))


def context_group(candidates: Candidates) -> Group:
    """Return the ranks that share a sequence: c of them, and how far apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = context_group(Candidates.of([parse_layout("tp=2,cp=4", layers=32, devices=8)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0], [2.0])

    Leaves out: contexts that are split in two directions, each on an axis of its own.
    """
    return Group(candidates.cp.astype(np.float64), axis_stride(candidates, "cp"))


def pipeline_group(candidates: Candidates) -> Group:
    """Return the ranks of a pipeline: p of them, and how far apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=2,pp=4", "tp=2,pp=4,order=tp-pp-cp-dp")
    >>> group = pipeline_group(Candidates.of([parse_layout(text, layers=32, devices=16) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()  # 2 x 2 and 2
    ([4.0, 4.0], [4.0, 2.0])

    Leaves out: the way from the last stage back to the first, under the interleaved schedule.
    """
    return Group(np.full(len(candidates), float(candidates.pp)), axis_stride(candidates, "pp"))


def ranks_per_node(candidates: Candidates, devices_per_node: int) -> Ints:
    """Return how many ranks of each group a node has [1], shape [G, C]: all that an order changes in prices.

    The groups of tensors, contexts, stages, data, shares of state and its copies, of the three axes of
    experts, and of shares of their state and its copies. Memory does not depend on the order.

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=8,pp=2", "tp=8,pp=2,order=tp-pp-cp-dp", "tp=2,pp=2", "tp=2,pp=2,order=tp-pp-cp-dp")
    >>> some = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> ranks_per_node(some, 8)[:4].T.tolist()  # the first two are alike
    [[8, 1, 1, 1], [8, 1, 1, 1], [2, 1, 1, 4], [2, 1, 2, 2]]
    """
    c = candidates
    axes: tuple[tuple[Ints, Axis], ...] = ((c.ep, "cp"), (c.etp, "tp"), (c.edp, "dp"))
    experts = [Group(degree.astype(np.float64), expert_stride(c, axis)) for degree, axis in axes]
    share, apart = c.expert_shard.astype(np.float64), expert_stride(c, "dp")
    experts += [Group(share, apart), Group(c.edp / share, apart * share)]
    data = [data_group(c), shard_group(c), replica_group(c)]
    groups = [tensor_group(c), context_group(c), pipeline_group(c), *data, *experts]
    inside = [group.ranks_among(devices_per_node).reshape(-1) for group in groups]
    return np.array(inside).astype(np.int64)


def expert_group(candidates: Candidates) -> Group:
    """Return the ranks that hold the same experts: how many, and how far apart [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = expert_group(Candidates.of([parse_layout("tp=2,ep=2,etp=1", layers=32, devices=8)]))
    >>> group.ranks.tolist(), group.stride.tolist()  # 8 / 2
    ([[4.0]], [[2.0]])

    Source: Megatron-LM, megatron/core/parallel_state.py, expert_decoder_rank_generator.
    """
    return Group(candidates.edp.astype(np.float64)[:, None], expert_stride(candidates, "dp")[:, None])


def dispatch_groups(candidates: Candidates) -> tuple[Group, Group]:
    """Return the x ranks that exchange rows and the y that split an expert [1], each of shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> groups = dispatch_groups(Candidates.of([parse_layout("tp=2,ep=4", layers=32, devices=8)]))
    >>> [(group.ranks.tolist(), group.stride.tolist()) for group in groups]
    [([4.0], [2.0]), ([2.0], [1.0])]
    """
    x, y = candidates.ep.astype(np.float64), candidates.etp.astype(np.float64)
    return Group(x, expert_stride(candidates, "cp")), Group(y, expert_stride(candidates, "tp"))


def expert_shard_group(candidates: Candidates) -> Group:
    """Return the ranks that share state of the same experts: how many, and how far apart [1], shape [C, 1].

    Of ranks that hold the same, those that are among the t g neighbours that share other state.

    >>> from autoplan.schema.layout import parse_layout
    >>> group = expert_shard_group(Candidates.of([parse_layout("ep=2,shard=8", layers=32, devices=32)]))
    >>> group.ranks.tolist(), group.stride.tolist()  # 8 / 2
    ([[4.0]], [[2.0]])

    Source: PyTorch's torchtitan, torchtitan/distributed/parallel_dims.py, whose sparse mesh has efsdp =
    dp_shard cp tp / (ep etp) ranks inside of dp_replicate; Megatron-LM, megatron/core/parallel_state.py,
    get_expert_data_parallel_group with partial_expert_data_parallel.
    """
    return Group(
        candidates.expert_shard.astype(np.float64)[:, None], expert_stride(candidates, "dp")[:, None]
    )


def expert_replica_group(candidates: Candidates) -> Group:
    """Return the ranks that hold the same share of experts: how many, and how far apart [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = expert_replica_group(Candidates.of([parse_layout("ep=2,shard=8", layers=32, devices=32)]))
    >>> group.ranks.tolist(), group.stride.tolist()  # 16 / 4 ranks, 2 x 4 apart
    ([[4.0]], [[8.0]])
    """
    c = candidates
    stride = expert_stride(c, "dp") * c.expert_shard
    return Group((c.edp // c.expert_shard).astype(np.float64)[:, None], stride[:, None])
