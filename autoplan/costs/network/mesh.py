"""Device mesh of a layout: the process group of every axis, as its number of ranks and their stride.

Notation (this file only)::

    t, c, d, p  tensor-, context- and data-parallel degree, stages of a pipeline      [1]
    g           ranks of a shard group (dp_shard)                                     [1]

A layout's order names the axes from the innermost to the outermost. The stride of an axis is the product of
the degrees inside it. Experts have their own axes over the same ranks: ``etp`` replaces ``tp``, ``ep``
replaces ``cp``, and the expert data-parallel axis ``edp`` replaces ``dp``.

Gradients are averaged, and model states sharded, over the c d ranks that have different tokens and the same
parameters. Their stride is even, since ``cp`` is next to ``dp``; where the pipeline axis is between the two,
a rule keeps c or p at 1. Under HSDP, g neighbours are a shard group, and every g-th rank a replicate group.
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Axis, Candidates, Ints, axis_stride, data_stride, expert_stride
from autoplan.costs.core.sizes import data_ranks, shard_ranks
from autoplan.costs.network.collectives import Group


def data_group(candidates: Candidates) -> Group:
    """Return the data-parallel group, with context parallelism: ranks and stride [1], shape [C, 1].

    >>> texts = ("tp=2,cp=2", "tp=2,cp=2,order=cp-dp-tp-pp")
    >>> group = data_group(Candidates.of([parse_layout(text, layers=32, devices=16) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[8.0], [8.0]], [[2.0], [1.0]])

    Leaves out: orders in which the ranks of the context and the data axis are not neighbours.
    """
    return Group(data_ranks(candidates)[:, None], data_stride(candidates)[:, None])


def shard_group(candidates: Candidates) -> Group:
    """Return the shard group (dp_shard): g neighbouring ranks of the data-parallel group [1], shape [C, 1].

    >>> group = shard_group(candidate("tp=2,dp_shard=4", layers=32, devices=16))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[4.0]], [[2.0]])

    Leaves out: shard groups of ranks that are not neighbours.
    """
    return Group(shard_ranks(candidates)[:, None], data_stride(candidates)[:, None])


def replica_group(candidates: Candidates) -> Group:
    """Return the replicate group (dp_replicate): c d / g ranks, g times the stride [1], shape [C, 1].

    >>> group = replica_group(candidate("tp=2,dp_shard=4", layers=32, devices=16))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[2.0]], [[8.0]])
    """
    g = shard_ranks(candidates)
    return Group((data_ranks(candidates) / g)[:, None], (data_stride(candidates) * g)[:, None])


def tensor_group(candidates: Candidates) -> Group:
    """Return the tensor-parallel group: t ranks and their stride [1], shape [C].

    >>> texts = ("tp=4,dp=2", "tp=4,dp=2,order=cp-dp-tp-pp")
    >>> group = tensor_group(Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0, 4.0], [1.0, 2.0])

    Leaves out: tensor parallelism in two dimensions.
    """
    return Group(candidates.tp.astype(np.float64), axis_stride(candidates, "tp"))


def context_group(candidates: Candidates) -> Group:
    """Return the context-parallel group: c ranks and their stride [1], shape [C].

    >>> group = context_group(candidate("tp=2,cp=4"))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0], [2.0])

    Leaves out: context parallelism in two dimensions (hierarchical all-to-all).
    """
    return Group(candidates.cp.astype(np.float64), axis_stride(candidates, "cp"))


def pipeline_group(candidates: Candidates) -> Group:
    """Return the pipeline-parallel group: p ranks and their stride [1], shape [C].

    >>> texts = ("tp=2,pp=4", "tp=2,pp=4,order=tp-pp-cp-dp")
    >>> group = pipeline_group(Candidates.of([parse_layout(text, layers=32, devices=16) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()  # 2 x 2 and 2
    ([4.0, 4.0], [4.0, 2.0])

    Leaves out: the link from the last stage to the first, under the interleaved schedule.
    """
    return Group(np.full(len(candidates), float(candidates.pp)), axis_stride(candidates, "pp"))


def ranks_per_node(candidates: Candidates, devices_per_node: int) -> Ints:
    """Return the ranks per node of every group [1], shape [G, C]: the order affects seconds only through it.

    Groups are tensor, context, pipeline, data, shard and replicate, ep, etp and edp, expert shard and expert
    replicate. Memory does not depend on the order.

    >>> texts = ("tp=8,pp=2", "tp=8,pp=2,order=tp-pp-cp-dp", "tp=2,pp=2", "tp=2,pp=2,order=tp-pp-cp-dp")
    >>> four = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> ranks_per_node(four, 8)[:4].T.tolist()  # the first two are equivalent
    [[8, 1, 1, 1], [8, 1, 1, 1], [2, 1, 1, 4], [2, 1, 2, 2]]
    """
    c = candidates
    axes: tuple[tuple[Ints, Axis], ...] = ((c.ep, "cp"), (c.etp, "tp"), (c.edp, "dp"))
    experts = [Group(degree.astype(np.float64), expert_stride(c, axis)) for degree, axis in axes]
    shard, stride = c.expert_shard.astype(np.float64), expert_stride(c, "dp")
    experts += [Group(shard, stride), Group(c.edp / shard, stride * shard)]
    data = [data_group(c), shard_group(c), replica_group(c)]
    groups = [tensor_group(c), context_group(c), pipeline_group(c), *data, *experts]
    ranks = [group.ranks_among(devices_per_node).reshape(-1) for group in groups]
    return np.array(ranks).astype(np.int64)


def expert_group(candidates: Candidates) -> Group:
    """Return the expert data-parallel group: ranks with the same experts, and stride [1], shape [C, 1].

    >>> group = expert_group(candidate("tp=2,ep=2,etp=1"))
    >>> group.ranks.tolist(), group.stride.tolist()  # 8 / 2
    ([[4.0]], [[2.0]])

    Source: Megatron-LM, megatron/core/parallel_state.py, expert_decoder_rank_generator.
    """
    return Group(candidates.edp.astype(np.float64)[:, None], expert_stride(candidates, "dp")[:, None])


def dispatch_groups(candidates: Candidates) -> tuple[Group, Group]:
    """Return the expert-parallel and the expert-tensor-parallel group, for MoE dispatch [1], shape [C].

    >>> groups = dispatch_groups(candidate("tp=2,ep=4"))
    >>> [(group.ranks.tolist(), group.stride.tolist()) for group in groups]
    [([4.0], [2.0]), ([2.0], [1.0])]
    """
    ep, etp = candidates.ep.astype(np.float64), candidates.etp.astype(np.float64)
    return Group(ep, expert_stride(candidates, "cp")), Group(etp, expert_stride(candidates, "tp"))


def expert_shard_group(candidates: Candidates) -> Group:
    """Return the shard group of experts: ranks and their stride [1], shape [C, 1].

    It is the part of the expert data-parallel group inside t g neighbouring ranks.

    >>> group = expert_shard_group(candidate("ep=2,dp_shard=8", layers=32, devices=32))
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
    """Return the replicate group of experts: ranks and their stride [1], shape [C, 1].

    >>> group = expert_replica_group(candidate("ep=2,dp_shard=8", layers=32, devices=32))
    >>> group.ranks.tolist(), group.stride.tolist()  # 16 / 4 ranks, stride 2 x 4
    ([[4.0]], [[8.0]])
    """
    c = candidates
    stride = expert_stride(c, "dp") * c.expert_shard
    return Group((c.edp // c.expert_shard).astype(np.float64)[:, None], stride[:, None])
