"""What the devices of a distributed product send: collectives and shifts, their bytes and messages.

Notation (this file only)::

    a, y, z     bytes of an element of A and W, of Y, of a partial sum             [byte]
    M, N, K, G  a device's extents and its products, see ``grids``                 [1]
    q, r, s, c  parts of the grid, see ``grids``                                   [1]
    S           steps: panels that are gathered, or blocks that are shifted        [1]
    V           bytes of the full tensor of one call                               [byte]
    j           rounds: 1 where a batch communicates together, else G              [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Links
from autoplan.costs.matmul.grids import Grids, Terms
from autoplan.costs.matmul.product import Product, element_size
from autoplan.costs.network.collectives import Group, Operation, bus_bandwidth_factor, ring_step_seconds
from autoplan.costs.network.overlap import Traffic, traffic_of

#: ``before`` the steps, in each ``step``, and ``after`` them.
Phase = Literal["before", "step", "after"]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Calls of one kind that each device takes part in; arrays of shape [C].

    A collective on V bytes over ``group``, or a ``shift``: V bytes to a neighbour. ``calls`` are those of a
    round.
    """

    name: str
    phase: Phase
    operation: Operation | Literal["shift"]
    group: Group
    size: Array
    calls: Array


def rounds_of(grids: Grids, product: Product) -> Array:
    """Return j, the rounds in which a device goes through its products [1].

    >>> one = np.ones(2)
    >>> grids = Grids(*[one] * 8, steps=one, shifted=0 * one, together=np.array([0.0, 1.0]), overlapped=one)
    >>> rounds_of(grids, Product(8, 8, 8, batch=6)).tolist()
    [6.0, 1.0]
    """
    rounds: Array = np.where(grids.together == 1, 1.0, np.ceil(product.batch / grids.batch))
    return rounds


def transfers_of(grids: Grids, product: Product, terms: Terms) -> list[Transfer]:
    """Return all transfers of a round.

    Gathered panels: all-gathers of a M K/S over s and of a N K/S over r, S times. Shifted blocks (q x q x c):
    all-gathers of a M k/q and a N k/q over c, one shift of each to align them, and q/c - 1 to go on. Then a
    reduce-scatter of z M N over c, and an all-gather of y G m n over all devices where the result is
    replicated; where only the inner extent is split, an all-reduce instead of both.

    >>> one, two = np.ones(1), np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, steps=two, shifted=0 * one, together=one,
    ...               overlapped=one)
    >>> for x in transfers_of(grids, Product(8, 8, 8), Terms()):
    ...     if x.calls[0]:
    ...         print(x.name, x.operation, x.size.tolist(), x.calls.tolist())  # 2 x 4 x 4 bytes, twice
    A all_gather [32.0] [2.0]
    W all_gather [32.0] [2.0]

    Leaves out: broadcasts instead of all-gathers, which send more: each device holds its share of every panel
    (block-cyclic along the inner extent).
    Source: van de Geijn and Watts 1997, doi:10.1002/(SICI)1096-9128(199704)9:4<255::AID-CPE250>3.0.CO;2-2;
    Cannon 1969; Solomonik and Demmel 2011, doi:10.1007/978-3-642-23397-5_10; Agarwal et al. 1995,
    doi:10.1147/rd.395.0575.
    """
    m, n, k, g = grids.blocks(product)
    each = np.where(grids.together == 1, g, 1.0)
    a, z = float(element_size(product.operands)), float(element_size(product.partial))
    block_a, block_w = a * m * k * each, a * n * k * each
    shifted = grids.shifted
    gathers = (1 - shifted) * grids.steps * (terms.start == "one-copy")
    going = np.maximum(0.0, grids.steps - 1.0)
    along_rows, along_columns = grids.group("columns"), grids.group("rows")
    depth = grids.group("inner")
    return [
        Transfer("copies of A", "before", "all_gather", depth, block_a, shifted),
        Transfer("copies of W", "before", "all_gather", depth, block_w, shifted),
        Transfer("alignment of A", "before", "shift", along_rows, block_a, shifted),
        Transfer("alignment of W", "before", "shift", along_columns, block_w, shifted),
        Transfer("A", "step", "all_gather", along_rows, block_a, gathers),
        Transfer("W", "step", "all_gather", along_columns, block_w, gathers),
        Transfer("shifts of A", "step", "shift", along_rows, block_a, shifted * going),
        Transfer("shifts of W", "step", "shift", along_columns, block_w, shifted * going),
        *_of_result(grids, product, terms, z * m * n * each),
    ]


def _of_result(grids: Grids, product: Product, terms: Terms, partial: Array) -> list[Transfer]:
    """Return the transfers of Y: of partial sums, and of the finished blocks."""
    depth, one = grids.group("inner"), np.ones(len(grids))
    world = Group(grids.devices, one)
    replicated = float(terms.result == "replicated")
    reduced = replicated * (grids.inner == grids.devices)
    y = float(element_size(product.output))
    outputs = y * product.batch * product.m * product.n / rounds_of(grids, product)
    return [
        Transfer("Y", "after", "all_reduce", depth, partial, reduced),
        Transfer("Y", "after", "reduce_scatter", depth, partial, (grids.inner > 1) - reduced),
        Transfer("Y", "after", "all_gather", world, outputs, replicated - reduced),
    ]


def sent_bytes(transfer: Transfer) -> Array:
    """Return what a device sends in all calls of a round [byte]: f(n) V, and V of a shift; 0 of one rank.

    >>> one = np.ones(1)
    >>> shift = Transfer("A", "step", "shift", Group(2 * one, one), 10 * one, 3 * one)
    >>> sent_bytes(shift).tolist()
    [30.0]

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, for the collectives.
    """
    factor = np.ones_like(transfer.size)
    if transfer.operation != "shift":
        factor = bus_bandwidth_factor(transfer.operation, transfer.group.ranks)
    sent: Array = np.where(transfer.group.ranks > 1, factor * transfer.size * transfer.calls, 0.0)
    return sent


def sent_messages(transfer: Transfer) -> Array:
    """Return the messages that a device sends in all calls of a round [1]: n - 1 in a ring, one in a shift.

    >>> one = np.ones(1)
    >>> sent_messages(Transfer("Y", "after", "all_reduce", Group(4 * one, one), one, 2 * one)).tolist()
    [12.0]

    Leaves out: slices in which a library sends a message; trees.
    Source: Chan et al. 2007, doi:10.1002/cpe.1206, section 5, for rings.
    """
    ring = transfer.group.ranks - 1.0
    steps = {"shift": np.minimum(1.0, ring), "all_reduce": 2.0 * ring}.get(transfer.operation, ring)
    messages: Array = steps * transfer.calls
    return messages


def transfer_traffic(transfer: Transfer, links: Links) -> Traffic:
    """Return the traffic of one call [s]; nothing where the group has one rank.

    >>> one = np.ones(1)
    >>> links = Links(8, 1e9, 1e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> shift = Transfer("A", "step", "shift", Group(2 * one, one), 1e9 * one, one)
    >>> transfer_traffic(shift, links).seconds.tolist()
    [1.0]

    Leaves out: A and W that move at the same time, over different links.
    Source: autoplan/costs/network/collectives.py.
    """
    if transfer.operation != "shift":
        return traffic_of(transfer.operation, transfer.size, transfer.group, links)
    moving = transfer.group.ranks > 1
    seconds = np.where(moving, ring_step_seconds(transfer.size, transfer.group, links), 0.0)
    return Traffic(seconds, seconds)
