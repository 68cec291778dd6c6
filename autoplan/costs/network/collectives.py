"""Time of collectives and point-to-point transfers, inside a node and across nodes.

Notation (this file only)::

    n   ranks of the group                                [1]
    r   of these, ranks inside one node                   [1]
    V   bytes of the full (gathered or reduced) tensor    [byte]
    B   bandwidth that a ring reaches, one direction      [byte/s]
    a   latency of one hop                                [s]

A group is given by its ranks and its stride (see ``mesh``). One rank sends (n-1)/n V in an all-gather or
reduce-scatter, and twice that in an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Links
from autoplan.schema.costmodel.kernel_spec import CollectiveTable

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
LinkOperation = Operation | Literal["send"]

#: Share of its links' bandwidth that a tree reaches (NCCL, src/graph/tuning.cc).
_TREE_SHARE: Final = 0.92


@dataclass(frozen=True, slots=True)
class Group:
    """Process group of one mesh axis: number of ranks and their stride; arrays of one shape."""

    ranks: Array
    stride: Array

    def ranks_in_node(self, links: Links) -> Array:
        """Return r, the ranks of the group in one node [1]: devices of a node / stride, at most n.

        >>> links = Links(8, 1.0, 1.0, False, 0.0, 1.0, 0.0, 0.0, ())  # 8 devices in a node
        >>> float(Group(np.array(8.0), np.array(2.0)).ranks_in_node(links))  # every other rank
        4.0

        Leaves out: nodes whose number of devices the stride does not divide.
        Source: Megatron-LM, megatron/core/parallel_state.py, for the order of ranks.
        """
        return self.ranks_among(links.devices_per_node)

    def ranks_among(self, devices: int) -> Array:
        """Return the ranks of the group among so many neighbouring devices [1], at least one.

        >>> Group(np.array([8.0, 2.0]), np.array([2.0, 16.0])).ranks_among(8).tolist()
        [4.0, 1.0]
        """
        most = np.maximum(1, devices // np.maximum(1, self.stride))
        ranks: Array = np.minimum(self.ranks, most)
        return ranks


def bus_bandwidth_factor(operation: Operation, ranks: Array) -> Array:
    """Return bytes that one rank sends over bytes of the full tensor [1].

    2(n-1)/n for an all-reduce, (n-1)/n for the others.

    >>> float(bus_bandwidth_factor("all_reduce", np.array(8.0)))
    1.75

    Leaves out: trees, of which two nodes send less (``_tree_seconds``), and in-network reduction (SHARP).
    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, bus bandwidth.
    """
    share = (ranks - 1.0) / ranks
    factor: Array = 2.0 * share if operation == "all_reduce" else share
    return factor


def collective_seconds(operation: Operation, size: Array, group: Group, links: Links) -> Array:
    """Return the time of one collective on a full tensor of ``size`` bytes [s].

    Inside a node, measured tables where the node has them (log-log in bytes), else
    t0 + hops + f(n) V / B, at least the time measured on a faster fabric of this kind. Across nodes the
    slowest link limits the ring: r devices of a node use r network links, so B = min(B_fabric, r B_network).
    In an all-to-all, a rank sends its bytes for other nodes, (n-r)/n V, over its own network link. Of an
    all-reduce between two nodes a tree sends less than a ring, and the faster one counts.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())  # 7 GB/s, no latency
    >>> group = Group(np.array(8.0), np.array(1.0))
    >>> float(collective_seconds("all_gather", np.array(8e9), group, links))  # 7/8 x 8e9 / 7e9
    1.0

    Leaves out: trees between more than two nodes, which send as much as rings; in-network reduction (in the
    tables where measured); network congestion.
    Source: NCCL, src/graph/tuning.cc; measured tables are in costmodels/kernels.
    """
    ranks, local_ranks = group.ranks, group.ranks_in_node(links)
    sent = (ranks > 1) & (np.asarray(size) > 0)
    if not sent.any():
        return np.zeros(np.broadcast_shapes(sent.shape, local_ranks.shape))
    seconds = _ring_seconds(operation, size, group, local_ranks, links)
    inside = np.where(sent & (local_ranks == ranks), ranks, 0.0)
    for at, measured in _measured_seconds(operation, size, inside, links.tables):
        seconds = np.where(at, measured, seconds)
    for at, measured in _measured_seconds(operation, size, inside, links.least):
        seconds = np.where(at, np.maximum(measured, seconds), seconds)
    result: Array = np.where(sent, seconds, 0.0)
    return result


def _measured_seconds(
    operation: Operation, size: Array, ranks: Array, tables: Sequence[CollectiveTable]
) -> Iterator[tuple[NDArray[np.bool_], Array]]:
    """Yield for each table of a collective which groups have its ``ranks``, and its time of ``size`` [s]."""
    for table in tables:
        if table.operation == operation and (at := ranks == table.ranks).any():
            yield at, _interpolate(size, table.bytes, table.microseconds)


def _ring_seconds(operation: Operation, size: Array, group: Group, local_ranks: Array, links: Links) -> Array:
    """Return the time of a collective by the latency-bandwidth model [s]."""
    nodes = np.ceil(group.ranks / local_ranks)
    crossing = nodes > 1
    fabric = _fabric_bandwidth(local_ranks, links)
    ring = np.where(local_ranks > 1, fabric, np.inf)
    bandwidth = np.where(crossing, np.minimum(ring, local_ranks * links.network_bandwidth), fabric)
    hops = _hop_seconds(operation, group.ranks, local_ranks, nodes, links)
    sent_bytes = bus_bandwidth_factor(operation, group.ranks) * size
    if operation == "all_to_all":
        # Bytes go from source to destination directly, so a rank's bytes for other nodes use its own link.
        inside, across = _direct_bytes(size, group.ranks, local_ranks)
        slower = np.maximum(inside / ring, across / links.network_bandwidth)
        return links.launch + hops + np.where(crossing, slower, sent_bytes / fabric)
    seconds: Array = sent_bytes / bandwidth
    if operation == "all_reduce":
        tree = np.minimum(seconds, _tree_seconds(size, local_ranks, links))
        seconds = np.where(links.trees & (nodes == 2), tree, seconds)
    result: Array = links.launch + hops + seconds
    return result


def _tree_seconds(size: Array, local_ranks: Array, links: Links) -> Array:
    """Return the time of the bytes of an all-reduce by a double binary tree between two nodes [s].

    Each of two trees reduces half of the tensor on another node, so that V leaves each node in all, where
    rings send 2(n-1)/n V. Inside the node V goes up a chain and down again. The slower of both counts, since
    chunks follow each other, at 92 % of the bandwidth: max(V / (r B_network), 2 V / B_fabric) / 0.92.

    >>> links = Links(8, 8e9, 8e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> seconds = _tree_seconds(np.array(8e9), np.array([8.0, 2.0]), links)
    >>> (0.92 * seconds).round(9).tolist()  # as a ring inside: 2 x 8e9 / 8e9; two network links: 8e9 / 2e9
    [2.0, 4.0]

    Source: NVIDIA/nccl issue 812 (on two DGX A100 a tree sends S where a ring sends 2 (N-1)/N S),
    NVIDIA/nccl-tests issue 196 (two nodes take the tree, where the bandwidth inside sustains it);
    src/graph/tuning.cc for 92 %.
    """
    inside = np.where(local_ranks > 1, 2.0 * size / _fabric_bandwidth(local_ranks, links), 0.0)
    seconds: Array = np.maximum(size / (local_ranks * links.network_bandwidth), inside) / _TREE_SHARE
    return seconds


def _direct_bytes(size: Array, ranks: Array, local_ranks: Array) -> tuple[Array, Array]:
    """Return what a rank sends in an all-to-all inside its node and to other nodes [byte]."""
    return (local_ranks - 1.0) / ranks * size, (ranks - local_ranks) / ranks * size


def link_bytes(operation: LinkOperation, size: Array, group: Group, links: Links) -> tuple[Array, Array]:
    """Return what the mean rank sends over the fabric of its node, and over the network [byte].

    A ring across nodes leaves a node once; r rings, one for each network link, share its f(n) V, so that a
    rank sends f(n) V / r over its network link; the tree of an all-reduce between two nodes V / r. An
    all-to-all sends (n-r)/n V over it. A send crosses where the node has one rank of the group, half of the
    time where it has several and the group has more.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())  # 8 devices in a node
    >>> group = Group(np.array(16.0), np.array(1.0))
    >>> [float(x) for x in link_bytes("all_gather", np.array(16.0), group, links)]  # 15 x 7/8 and 15 / 8
    [13.125, 1.875]
    >>> [float(x) for x in link_bytes("all_to_all", np.array(16.0), group, links)]
    [7.0, 8.0]

    Leaves out: trees between more nodes, which cross as often; in-network reduction; more or fewer rings than
    network links.
    Source: NCCL, src/graph/tuning.cc, as ``collective_seconds``.
    """
    local_ranks = group.ranks_in_node(links)
    crossing = group.ranks > local_ranks
    if operation == "send":
        share = np.where(crossing, np.where(local_ranks > 1, 0.5, 1.0), 0.0)
        return (1.0 - share) * size, share * size
    if operation == "all_to_all":
        return _direct_bytes(size, group.ranks, local_ranks)
    sent = bus_bandwidth_factor(operation, group.ranks) * size
    if operation == "all_reduce":
        two_nodes = links.trees & (np.ceil(group.ranks / local_ranks) == 2)
        network = np.where(two_nodes, size, sent) / local_ranks
    else:
        network = sent / local_ranks
    network = np.where(crossing, network, 0.0)
    return sent - network, network


def contention_seconds(
    seconds: Array, operation: Operation, size: Array, group: Group, links: Links
) -> Array:
    """Return the seconds of a collective's copies at the rate of a node's fabric, at most ``seconds`` [s].

    Inside a node ``seconds``; across nodes f(n) V / B_fabric, whatever the network's bandwidth.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> group = Group(np.array(8.0), np.array(8.0))  # one device a node: 7/8 x 8e9 / 1e9 = 7 s
    >>> seconds = collective_seconds("all_gather", np.array(8e9), group, links)
    >>> float(seconds), float(contention_seconds(seconds, "all_gather", np.array(8e9), group, links))
    (7.0, 1.0)

    Leaves out: SMs that the kernel occupies during network transfers.
    """
    fabric = _fabric_bandwidth(np.asarray(float(links.devices_per_node)), links)
    fabric_seconds = bus_bandwidth_factor(operation, group.ranks) * size / fabric
    across = group.ranks > group.ranks_in_node(links)
    copied: Array = np.where(across, np.minimum(fabric_seconds, seconds), seconds)
    return copied


def _hop_seconds(operation: Operation, ranks: Array, local_ranks: Array, nodes: Array, links: Links) -> Array:
    """Return the latency of all hops of a ring, or of a tree where that is shorter.

    A ring takes n - 1 steps (twice that for an all-reduce), nodes - 1 of them across nodes; a double tree,
    which only all-reduce has, 2 ((r - 1) a + log2(nodes) a_network) (NCCL src/graph/tuning.cc).
    """
    ring = (ranks - nodes) * links.fabric_latency + (nodes - 1) * links.network_latency
    if operation != "all_reduce":
        return ring
    tree = (local_ranks - 1) * links.fabric_latency + np.log2(nodes) * links.network_latency
    hops: Array = 2.0 * np.minimum(ring, tree)
    return hops


def _fabric_bandwidth(local_ranks: Array, links: Links) -> Array:
    """Return the bandwidth of a ring inside a node: on a mesh, of the links between its members only."""
    if links.mesh:
        bandwidth: Array = np.minimum(
            links.fabric_bandwidth, np.maximum(1, local_ranks - 1) * links.pair_bandwidth
        )
        return bandwidth
    pair = np.asarray(min(links.pair_bandwidth, links.fabric_bandwidth))
    switched: Array = np.where(local_ranks == 2, pair, links.fabric_bandwidth)
    return switched


def _interpolate(size: Array, sizes: tuple[int, ...], microseconds: tuple[float, ...]) -> Array:
    """Return the measured time [s], log-log between sizes, proportional beyond the largest."""
    log_sizes, log_seconds, seconds_per_byte = _curve(sizes, microseconds)
    interpolated = np.exp(np.interp(np.log(np.maximum(size, 1.0)), log_sizes, log_seconds))
    seconds: Array = np.where(size > sizes[-1], size * seconds_per_byte, interpolated)
    return seconds


@lru_cache(maxsize=256)
def _curve(sizes: tuple[int, ...], microseconds: tuple[float, ...]) -> tuple[Array, Array, np.float64]:
    """Return logarithms of a table's sizes and times, and the time of a byte at its largest size [s]."""
    # The running maximum removes noise in measurements of small messages: a larger one is never faster.
    times = np.maximum.accumulate(np.asarray(microseconds)) * 1e-6
    return np.log(np.asarray(sizes, dtype=np.float64)), np.log(times), times[-1] / sizes[-1]


def point_to_point_seconds(size: Array, group: Group, links: Links) -> Array:
    """Return the time of a point-to-point send of ``size`` bytes to a neighbour in ``group`` [s].

    T = t0 + a + V / B, over the fabric where the group is inside one node, over the network where a node has
    one rank of it. Otherwise a rank at the edge of a node has one neighbour inside and one across: the mean.
    The card of a node that has one for all devices is shared by those that send at once, which are the ranks
    at the edge: one of r of the group's in a node, so that each has r shares of the card.

    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> groups = Group(np.array([2.0, 2.0, 4.0]), np.array([4.0, 8.0, 4.0]))
    >>> point_to_point_seconds(np.array(7e9), groups, links).tolist()  # 7e9 / 7e9, 7e9 / 1e9, half of both
    [1.0, 7.0, 4.0]
    >>> links = Links(8, 7e9, 7e9, False, 0.0, 1e9, 0.0, 0.0, (), shared_card=True)
    >>> point_to_point_seconds(np.array(7e9), groups, links).tolist()  # (1 + 7 / 2) / 2 in the last
    [1.0, 7.0, 2.25]

    Leaves out: ranks of such a group with both neighbours inside, which are slowed by those at the edge.
    Source: the latency-bandwidth model of NCCL, src/graph/tuning.cc.
    """
    inside = links.launch + links.fabric_latency + size / links.pair_bandwidth
    ranks = group.ranks_in_node(links)
    shares = ranks if links.shared_card else np.ones_like(ranks)
    bandwidth = links.network_bandwidth * shares
    across = links.launch + links.network_latency + size / bandwidth
    across_nodes = np.where(ranks > 1, (inside + across) / 2.0, across)
    seconds: Array = np.where(ranks == group.ranks, inside, across_nodes)
    return seconds


def ring_step_seconds(size: Array, group: Group, links: Links) -> Array:
    """Return the time of one ring step, in which every rank sends ``size`` bytes to the next one [s].

    T = t0 + a + V / B. All ranks send at once, so the slowest hop counts: B is the network's for a group
    across nodes, else that of a pair of devices, for more than two ranks at most that of a ring.

    >>> links = Links(8, 7e9, 14e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> two, eight = (Group(np.array(n), np.array(1.0)) for n in (2.0, 8.0))
    >>> [float(ring_step_seconds(np.array(14e9), group, links)) for group in (two, eight)]
    [1.0, 2.0]

    Leaves out: hops inside a node, which end before the one across nodes.
    Source: the latency-bandwidth model of NCCL, src/graph/tuning.cc.
    """
    ring = min(links.pair_bandwidth, links.fabric_bandwidth)
    inside = np.where(group.ranks > 2, ring, links.pair_bandwidth)
    across = group.ranks > group.ranks_in_node(links)
    bandwidth = np.where(across, links.network_bandwidth, inside)
    latency = np.where(across, links.network_latency, links.fabric_latency)
    seconds: Array = links.launch + latency + size / bandwidth
    return seconds
