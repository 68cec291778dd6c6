"""Time of collectives, inside a node and across nodes.

Notation (this file only)::

    n   ranks of the group                                [1]
    r   of these, ranks inside one node                   [1]
    V   bytes of the full (gathered or reduced) tensor    [byte]
    B   bandwidth that a ring reaches, one direction      [byte/s]
    a   latency of one hop                                [s]

A group is given by its ranks and its stride (``mesh`` has those of each axis).
Bytes on the wire of one rank: all-gather and reduce-scatter (n-1)/n V, all-reduce twice that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Links

__all__ = [
    "Group",
    "Operation",
    "collective_seconds",
    "copy_seconds",
    "point_to_point_seconds",
    "ring_step_seconds",
    "wire_factor",
]

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one mesh axis: how many, and how far apart; arrays of one shape."""

    ranks: Array
    stride: Array

    def ranks_in_node(self, links: Links) -> Array:
        """Return r, how many ranks of the group share a node [1]: devices of a node / stride, at most n.

        >>> links = Links(8, 1.0, 1.0, False, 0.0, 1.0, 0.0, 0.0, ())  # 8 devices a node
        >>> float(Group(np.array(8.0), np.array(2.0)).ranks_in_node(links))  # every other rank
        4.0

        Leaves out: nodes whose number of devices the stride does not divide.
        Source: Megatron-LM, megatron/core/parallel_state.py, for the order of ranks.
        """
        return self.ranks_among(links.devices_per_node)

    def ranks_among(self, devices: int) -> Array:
        """Return how many ranks of the group are among so many neighbouring devices [1], at least one.

        >>> Group(np.array([8.0, 2.0]), np.array([2.0, 16.0])).ranks_among(8).tolist()
        [4.0, 1.0]
        """
        room = np.maximum(1, devices // np.maximum(1, self.stride))
        within: Array = np.minimum(self.ranks, room)
        return within


def wire_factor(operation: Operation, ranks: Array) -> Array:
    """Return bytes that one rank sends over bytes of the full tensor [1].

    2(n-1)/n for an all-reduce, (n-1)/n for the others.

    >>> float(wire_factor("all_reduce", np.array(8.0)))
    1.75

    Leaves out: trees, and switches that reduce.
    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, bus bandwidth.
    """
    share = (ranks - 1.0) / ranks
    factor: Array = 2.0 * share if operation == "all_reduce" else share
    return factor


def collective_seconds(operation: Operation, size: Array, group: Group, links: Links) -> Array:
    """Return the time of one collective on a full tensor of ``size`` bytes [s].

    Inside a node, measured tables where the node has them (log-log in bytes), else
    t0 + hops + f(n) V / B. Across nodes the ring is as fast as its slowest link: r devices of a node
    bring r shares of the network, so B = min(B_fabric, r B_network); of an all-to-all, each rank's bytes
    for other nodes, (n-r)/n V, take its own share.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())  # 7 GB/s, nothing has a latency
    >>> group = Group(np.array(8.0), np.array(1.0))
    >>> float(collective_seconds("all_gather", np.array(8e9), group, links))  # 7/8 x 8e9 / 7e9
    1.0

    Leaves out: what trees change at middle sizes; switch reduction (in the tables where measured);
    congestion of the network.
    Source: NCCL, src/graph/tuning.cc; measured tables are in costmodels/kernels.
    """
    ranks, stride, size = np.broadcast_arrays(group.ranks, group.stride, size)
    group = Group(ranks, stride)
    within = group.ranks_in_node(links)
    seconds = _ring_seconds(operation, size, group, within, links)
    for table in links.tables:
        if table.operation == operation:
            here = (ranks == table.ranks) & (within == ranks)
            if here.any():
                known = _interpolate(size, table.bytes, table.microseconds)
                seconds = np.where(here, known, seconds)
    result: Array = np.where((ranks > 1) & (size > 0), seconds, 0.0)
    return result


def _ring_seconds(operation: Operation, size: Array, group: Group, within: Array, links: Links) -> Array:
    nodes = np.ceil(group.ranks / within)
    crossing = nodes > 1
    fabric = _fabric_bandwidth(within, links)
    ring = np.where(within > 1, fabric, np.inf)
    bandwidth = np.where(crossing, np.minimum(ring, within * links.network_bandwidth), fabric)
    hops = _hop_seconds(operation, group.ranks, within, nodes, links)
    wire = wire_factor(operation, group.ranks) * size
    if operation == "all_to_all":
        # Nothing passes on what others sent: each rank's bytes for other nodes take its own network link.
        inside = (within - 1.0) / group.ranks * size / ring
        away = (group.ranks - within) / group.ranks * size / links.network_bandwidth
        return links.launch + hops + np.where(crossing, np.maximum(inside, away), wire / fabric)
    seconds: Array = links.launch + hops + wire / bandwidth
    return seconds


def copy_seconds(seconds: Array, operation: Operation, size: Array, group: Group, links: Links) -> Array:
    """Return how long a collective of ``seconds`` copies at the rate of a node's fabric [s].

    Inside a node its own time; across nodes f(n) V / B_fabric, whatever the network makes of it.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> group = Group(np.array(8.0), np.array(8.0))  # one device of each node: 7/8 x 8e9 / 1e9 takes 7 s
    >>> seconds = collective_seconds("all_gather", np.array(8e9), group, links)
    >>> float(seconds), float(copy_seconds(seconds, "all_gather", np.array(8e9), group, links))
    (7.0, 1.0)

    Leaves out: what the kernel does while it waits for the network.
    """
    fabric = _fabric_bandwidth(np.asarray(float(links.devices_per_node)), links)
    passed = wire_factor(operation, group.ranks) * size / fabric
    across = group.ranks > group.ranks_in_node(links)
    copied: Array = np.where(across, np.minimum(passed, seconds), seconds)
    return copied


def _hop_seconds(operation: Operation, ranks: Array, within: Array, nodes: Array, links: Links) -> Array:
    """Return the latency of all hops: of a ring, or of a tree where that is shorter.

    A ring takes n - 1 steps (twice that for an all-reduce), nodes - 1 of them across nodes; a double tree,
    which only all-reduce has, 2 ((r - 1) a + log2(nodes) a_network) (NCCL src/graph/tuning.cc).
    """
    ring = (ranks - nodes) * links.fabric_latency + (nodes - 1) * links.network_latency
    if operation != "all_reduce":
        return ring
    tree = (within - 1) * links.fabric_latency + np.log2(nodes) * links.network_latency
    hops: Array = 2.0 * np.minimum(ring, tree)
    return hops


def _fabric_bandwidth(within: Array, links: Links) -> Array:
    """Return what a ring inside a node reaches: on a mesh, only the links between its members."""
    if links.mesh:
        bandwidth: Array = np.minimum(
            links.fabric_bandwidth, np.maximum(1, within - 1) * links.pair_bandwidth
        )
        return bandwidth
    two = np.asarray(min(links.pair_bandwidth, links.fabric_bandwidth))
    alone: Array = np.where(within == 2, two, links.fabric_bandwidth)
    return alone


def _interpolate(size: Array, sizes: tuple[int, ...], microseconds: tuple[float, ...]) -> Array:
    """Return the measured time [s], log-log between sizes, proportional beyond the largest."""
    # A larger message is never faster; repeated measurements of small ones are, by noise.
    times = np.maximum.accumulate(np.asarray(microseconds)) * 1e-6
    logs = np.log(np.asarray(sizes, dtype=np.float64))
    within = np.exp(np.interp(np.log(np.maximum(size, 1.0)), logs, np.log(times)))
    beyond = size * (times[-1] / sizes[-1])
    seconds: Array = np.where(size > sizes[-1], beyond, within)
    return seconds


def point_to_point_seconds(size: Array, group: Group, links: Links) -> Array:
    """Return the time to send ``size`` bytes to the next rank of ``group``, or to the one before it [s].

    T = t0 + a + V / B, over the fabric where one node has the whole group, over the network where it has one
    rank of it. Where it has several, those at its edge have one neighbour inside and one across: the mean.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> groups = Group(np.array([2.0, 2.0, 4.0]), np.array([4.0, 8.0, 4.0]))
    >>> point_to_point_seconds(np.array(7e9), groups, links).tolist()  # 7e9 / 7e9, 7e9 / 1e9, half of both
    [1.0, 7.0, 4.0]

    Leaves out: ranks of such a group with both neighbours inside, which wait for those at the edge.
    Source: the latency-bandwidth model of NCCL, src/graph/tuning.cc.
    """
    inside = links.launch + links.fabric_latency + size / links.pair_bandwidth
    across = links.launch + links.network_latency + size / links.network_bandwidth
    here = group.ranks_in_node(links)
    cut = np.where(here > 1, (inside + across) / 2.0, across)
    seconds: Array = np.where(here == group.ranks, inside, cut)
    return seconds


def ring_step_seconds(size: Array, group: Group, links: Links) -> Array:
    """Return the time in which each rank sends ``size`` bytes to the next one of its group [s].

    T = t0 + a + V / B. All send at once, so the slowest hop counts: B is the network's for a group that
    leaves its node, else what a pair gets, in groups of more than two at most what a ring gets.

    >>> links = Links(8, 7e9, 14e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> two, eight = (Group(np.array(n), np.array(1.0)) for n in (2.0, 8.0))
    >>> [float(ring_step_seconds(np.array(14e9), group, links)) for group in (two, eight)]
    [1.0, 2.0]

    Leaves out: hops inside a node that are done before the one that leaves it.
    Source: the latency-bandwidth model of NCCL, src/graph/tuning.cc.
    """
    ring = min(links.pair_bandwidth, links.fabric_bandwidth)
    inside = np.where(group.ranks > 2, ring, links.pair_bandwidth)
    across = group.ranks > group.ranks_in_node(links)
    bandwidth = np.where(across, links.network_bandwidth, inside)
    latency = np.where(across, links.network_latency, links.fabric_latency)
    seconds: Array = links.launch + latency + size / bandwidth
    return seconds
