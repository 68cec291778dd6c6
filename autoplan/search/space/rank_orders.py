"""In which orders candidates may number their ranks, and which of these make a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.rank_strides import data_stride
from autoplan.costs.core.sizes import data_ranks
from autoplan.costs.network.mesh import ranks_per_node
from autoplan.rules.user_constraints import OwnRule, names_in, own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Order
from autoplan.schema.user_rules.expression import Node

__all__ = [
    "NODE_SHARD",
    "numbered",
    "ordered",
    "orders_of",
    "regardless_of_order",
    "unlike_orders",
    "ways_to_place",
]

#: Stands for as many ranks that share state as a node has of the data axis, until the order is known.
NODE_SHARD: Final = -1


def orders_of(job: Job) -> tuple[Order, ...]:
    """Return the orders that candidates are made with: those of the stack, in its file's order.

    On one node all are alike: one that is allowed is taken, unless a rule of the user's own names them.
    """
    orders, wish = job.stack.orders, job.search.order
    if job.cluster.nodes > 1 or _rules_about_orders(job):
        return orders
    wanted = orders if wish == "any" else wish if isinstance(wish, tuple) else (wish,)
    return tuple(order for order in orders if order in wanted)[:1] or orders[:1]


def _rules_about_orders(job: Job) -> list[OwnRule]:
    return [rule for rule in own_rules(job) if "order" in names_in(rule.relation)]


def ordered(job: Job, candidates: Candidates) -> Candidates:
    """Return each of ``candidates`` in every order; where a node's ranks share state, with how many they are.

    Those that differ in their order alone follow each other. One whose nodes have none or all of the ranks
    that might share state is left out.
    """
    orders = np.array([ORDERS.index(order) for order in orders_of(job)])
    origin = np.repeat(np.arange(len(candidates)), len(orders))
    each = candidates.take(origin)
    each.order[:] = np.tile(orders, len(candidates))
    of_node = each.shard == NODE_SHARD
    if not of_node.any():
        return each
    here, several = _node_shards(job, each)
    each.shard[of_node] = here[of_node]
    index = np.lexsort((each.order, each.shard, origin))
    return each.take(index[(~of_node | several)[index]])


def ways_to_place(job: Job, candidates: Candidates) -> NDArray[np.int64]:
    """Return how many candidates ``ordered`` makes of each of ``candidates``, shape [C]."""
    orders = [ORDERS.index(order) for order in orders_of(job)]
    ways = np.full(len(candidates), len(orders))
    of_node = np.flatnonzero(candidates.shard == NODE_SHARD)
    if len(of_node):
        some, found = candidates.take(of_node), np.zeros(len(of_node), dtype=np.int64)
        for order in orders:
            some.order[:] = order
            found += _node_shards(job, some)[1]
        ways[of_node] = found
    return ways


def _node_shards(job: Job, candidates: Candidates) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how many ranks of the data axis a node has, and whether these cut it into several groups."""
    ranks = data_ranks(candidates)
    here = (job.cluster.node.devices // data_stride(candidates)).astype(np.int64)
    return here, (here > 1) & (here < ranks) & (ranks % np.maximum(here, 1) == 0)


def regardless_of_order(candidates: Candidates) -> NDArray[np.int64]:
    """Return a number for each candidate, the same for neighbours that differ in their order alone."""
    names = (field.name for field in fields(candidates) if field.name not in {"pp", "order"})
    columns = np.array([getattr(candidates, name) for name in names])
    numbers: NDArray[np.int64] = np.cumsum(np.r_[0, (columns[:, 1:] != columns[:, :-1]).any(axis=0)])
    return numbers


def unlike_orders(job: Job, candidates: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the first of those ``alive`` that differ in their order alone and are alike in it, as a mask.

    Two orders are alike where nodes cut every group in the same way: then all prices are the same numbers.
    The user's own rules may still tell them apart.
    """
    orders = len(orders_of(job))
    if orders == 1 or not alive.any():
        return alive
    index = np.flatnonzero(alive)
    some = candidates.take(index)
    left = [numbered(what_is_left(job, rule.relation, some)) for rule in _rules_about_orders(job)]
    rows = np.array([regardless_of_order(some), *ranks_per_node(some, job.cluster.node.devices), *left])
    first = np.ones(len(index), dtype=bool)
    for back in range(1, orders):
        first[back:] &= (rows[:, back:] != rows[:, :-back]).any(axis=0)
    unlike = np.zeros(len(candidates), dtype=bool)
    unlike[index[first]] = True
    return unlike


def numbered(nodes: Sequence[Node]) -> list[int]:
    """Return a number for each of ``nodes``, the same where they are equal; each object is looked at once."""
    numbers: dict[Node, int] = {}
    known: dict[int, int] = {}
    for node in nodes:
        if id(node) not in known:
            known[id(node)] = numbers.setdefault(node, len(numbers))
    return [known[id(node)] for node in nodes]
