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

from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.arrays import Array, Candidates, Ints
from autoplan.costs.collectives import Group
from autoplan.schema.layout import ORDERS

__all__ = [
    "axis_distance",
    "context_group",
    "cuts",
    "data_distance",
    "data_group",
    "data_ranks",
    "expert_distance",
    "pipeline_group",
    "replica_group",
    "shard_group",
    "shard_ranks",
    "tensor_group",
]

Axis: TypeAlias = Literal["tp", "cp", "dp", "pp"]

_AXES: Final[tuple[Axis, ...]] = ("tp", "cp", "dp", "pp")


def _inside(axis: Axis, other: Axis) -> NDArray[np.bool_]:
    """Return in which orders ``other`` is inside ``axis``."""
    places = (order.split("-") for order in ORDERS)
    return np.array([place.index(other) < place.index(axis) for place in places])


_INSIDE: Final = {(axis, other): _inside(axis, other) for axis in _AXES for other in _AXES}


def _distance(candidates: Candidates, axis: Axis, degrees: dict[Axis, Ints | int]) -> Array:
    distance = np.ones(len(candidates))
    for other, degree in degrees.items():
        distance = distance * np.where(_INSIDE[axis, other][candidates.order], degree, 1)
    return distance


def axis_distance(candidates: Candidates, axis: Axis) -> Array:
    """Return how far apart neighbours on ``axis`` are [1], shape [C]: the product of the degrees inside it.

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=2,pp=4,dp=8", "tp=2,pp=4,dp=8,order=tp-pp-cp-dp")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> axis_distance(both, "dp").tolist(), axis_distance(both, "pp").tolist()  # 2, 2 x 4; 2 x 8, 2
    ([2.0, 8.0], [16.0, 2.0])

    Leaves out: schedulers that give a job's nodes other devices than the next ones.
    Source: Megatron-LM, megatron/core/parallel_state.py, RankGenerator, whose order is tp-cp-ep-dp-pp, or
    tp-cp-ep-pp-dp under --use-tp-pp-dp-mapping.
    """
    c = candidates
    return _distance(c, axis, {"tp": c.tp, "cp": c.cp, "dp": c.dp, "pp": c.pp})


def expert_distance(candidates: Candidates, axis: Axis) -> Array:
    """Return how far apart neighbours on an axis of experts are [1], shape [C].

    ``axis`` is the one in whose place it stands: ``tp`` for ``etp``, ``cp`` for ``ep``, ``dp`` for ``edp``.

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=2,pp=4,dp=8,ep=4", "tp=2,pp=4,dp=8,ep=4,order=pp-cp-dp-tp")
    >>> both = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> expert_distance(both, "cp").tolist(), expert_distance(both, "dp").tolist()  # 2, 4; 2 x 4, 4 x 4
    ([2.0, 4.0], [8.0, 16.0])

    Source: Megatron-LM, megatron/core/parallel_state.py, expert_decoder_rank_generator.
    """
    c = candidates
    return _distance(c, axis, {"tp": c.etp, "cp": c.ep, "dp": c.edp, "pp": c.pp})


def data_distance(candidates: Candidates) -> Array:
    """Return how far apart ranks with the same parameters are [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> data_distance(Candidates.of([parse_layout("tp=2,cp=2", layers=32, devices=16)])).tolist()
    [2.0]
    """
    outer = axis_distance(candidates, "dp")
    return np.where(candidates.cp > 1, axis_distance(candidates, "cp"), outer)


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
    >>> texts = ("tp=2,cp=2", "tp=2,cp=2,order=cp-dp-tp-pp")
    >>> group = data_group(Candidates.of([parse_layout(text, layers=32, devices=16) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[8.0], [8.0]], [[2.0], [1.0]])

    Leaves out: orders in which the ranks of the context and the data axis are not neighbours.
    """
    return Group(data_ranks(candidates)[:, None], data_distance(candidates)[:, None])


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
    """Return the group that shares state: g ranks of the data group, neighbours in it [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = shard_group(Candidates.of([parse_layout("tp=2,shard=4", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[4.0]], [[2.0]])

    Leaves out: groups of ranks that are not neighbours.
    """
    return Group(shard_ranks(candidates)[:, None], data_distance(candidates)[:, None])


def replica_group(candidates: Candidates) -> Group:
    """Return the ranks that hold the same share of state: c d / g, g times as far apart [1], shape [C, 1].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = replica_group(Candidates.of([parse_layout("tp=2,shard=4", layers=32, devices=16)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([[2.0]], [[8.0]])
    """
    g = shard_ranks(candidates)
    return Group((data_ranks(candidates) / g)[:, None], (data_distance(candidates) * g)[:, None])


def tensor_group(candidates: Candidates) -> Group:
    """Return the tensor-parallel group: t ranks, and how far apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=4,dp=2", "tp=4,dp=2,order=cp-dp-tp-pp")
    >>> group = tensor_group(Candidates.of([parse_layout(text, layers=32, devices=8) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0, 4.0], [1.0, 2.0])

    Leaves out: tensors that are split in two directions, each on an axis of its own.
    """
    return Group(candidates.tp.astype(np.float64), axis_distance(candidates, "tp"))


def context_group(candidates: Candidates) -> Group:
    """Return the ranks that share a sequence: c of them, and how far apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = context_group(Candidates.of([parse_layout("tp=2,cp=4", layers=32, devices=8)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0], [2.0])

    Leaves out: contexts that are split in two directions, each on an axis of its own.
    """
    return Group(candidates.cp.astype(np.float64), axis_distance(candidates, "cp"))


def pipeline_group(candidates: Candidates) -> Group:
    """Return the ranks of a pipeline: p of them, and how far apart [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=2,pp=4", "tp=2,pp=4,order=tp-pp-cp-dp")
    >>> group = pipeline_group(Candidates.of([parse_layout(text, layers=32, devices=16) for text in texts]))
    >>> group.ranks.tolist(), group.stride.tolist()  # 2 x 2 and 2
    ([4.0, 4.0], [4.0, 2.0])

    Leaves out: the way from the last stage back to the first, under the interleaved schedule.
    """
    return Group(np.full(len(candidates), float(candidates.pp)), axis_distance(candidates, "pp"))


def cuts(candidates: Candidates, devices_per_node: int) -> Ints:
    """Return how many ranks of each group a node has [1], shape [G, C]: all that an order changes in prices.

    The groups of tensors, contexts, stages, data, shares of state and its copies, of the three axes of
    experts, and of shares of their state and its copies. Memory does not depend on the order.

    >>> from autoplan.schema.layout import parse_layout
    >>> texts = ("tp=8,pp=2", "tp=8,pp=2,order=tp-pp-cp-dp", "tp=2,pp=2", "tp=2,pp=2,order=tp-pp-cp-dp")
    >>> some = Candidates.of([parse_layout(text, layers=32, devices=64) for text in texts])
    >>> cuts(some, 8)[:4].T.tolist()  # the first two are alike
    [[8, 1, 1, 1], [8, 1, 1, 1], [2, 1, 1, 4], [2, 1, 2, 2]]
    """
    c = candidates
    axes: tuple[tuple[Ints, Axis], ...] = ((c.ep, "cp"), (c.etp, "tp"), (c.edp, "dp"))
    experts = [Group(degree.astype(np.float64), expert_distance(c, axis)) for degree, axis in axes]
    share, apart = c.expert_shard.astype(np.float64), expert_distance(c, "dp")
    experts += [Group(share, apart), Group(c.edp / share, apart * share)]
    data = [data_group(c), shard_group(c), replica_group(c)]
    groups = [tensor_group(c), context_group(c), pipeline_group(c), *data, *experts]
    inside = [group.ranks_among(devices_per_node).reshape(-1) for group in groups]
    return np.array(inside).astype(np.int64)
