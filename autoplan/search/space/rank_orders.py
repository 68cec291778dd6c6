"""Rank orders of candidates, and which of them are equivalent by symmetry."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, ShardCode
from autoplan.costs.core.rank_strides import data_stride
from autoplan.costs.core.sizes import data_ranks
from autoplan.costs.network.mesh import ranks_per_node
from autoplan.rules.user_constraints import UserRule, names_in, remainders_of, user_rules_of
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Order
from autoplan.schema.user_rules.expression import Node


def orders_of(job: Job) -> tuple[Order, ...]:
    """Return the rank orders of candidates: those of the stack, in the order of its file.

    On one node all are equivalent: one that is allowed is taken, unless a rule of the user names orders.
    """
    orders, wish = job.stack.orders, job.search.order
    if job.cluster.nodes > 1 or _rules_about_orders(job):
        return orders
    wanted = orders if wish == "any" else wish if isinstance(wish, tuple) else (wish,)
    return tuple(order for order in orders if order in wanted)[:1] or orders[:1]


def _rules_about_orders(job: Job) -> list[UserRule]:
    return [rule for rule in user_rules_of(job) if "order" in names_in(rule.relation)]


def with_rank_orders(job: Job, candidates: Candidates) -> Candidates:
    """Return each of ``candidates`` in every rank order, with shard sizes of a node as numbers of ranks.

    Candidates that differ in their order alone are neighbours. One is left out where the shard of a node
    would have one rank, or all ranks of the data axis.
    """
    orders = np.array([ORDERS.index(order) for order in orders_of(job)])
    origin = np.repeat(np.arange(len(candidates)), len(orders))
    repeated = replace(candidates.take(origin), order=np.tile(orders, len(candidates)))
    of_node = repeated.dp_shard == ShardCode.NODE
    if not of_node.any():
        return repeated
    data_ranks_of_node, cuts_groups = _node_shards(job, repeated)
    repeated = replace(repeated, dp_shard=np.where(of_node, data_ranks_of_node, repeated.dp_shard))
    index = np.lexsort((repeated.order, repeated.dp_shard, origin))
    return repeated.take(index[(~of_node | cuts_groups)[index]])


def rank_order_counts(job: Job, candidates: Candidates) -> NDArray[np.int64]:
    """Return how many candidates ``with_rank_orders`` makes of each of ``candidates``, shape [C]."""
    orders = [ORDERS.index(order) for order in orders_of(job)]
    counts = np.full(len(candidates), len(orders))
    of_node = np.flatnonzero(candidates.dp_shard == ShardCode.NODE)
    if len(of_node):
        node_sharded, valid = candidates.take(of_node), np.zeros(len(of_node), dtype=np.int64)
        for order in orders:
            in_order = replace(node_sharded, order=np.full(len(of_node), order))
            valid += _node_shards(job, in_order)[1]
        counts[of_node] = valid
    return counts


def _node_shards(job: Job, candidates: Candidates) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the number of data ranks per node, and whether it divides the data axis into several groups."""
    ranks = data_ranks(candidates)
    of_node = (job.cluster.node.devices // data_stride(candidates)).astype(np.int64)
    return of_node, (of_node > 1) & (of_node < ranks) & (ranks % np.maximum(of_node, 1) == 0)


def order_classes(candidates: Candidates) -> NDArray[np.int64]:
    """Return a group number for each candidate: neighbours that differ in rank order alone share one."""
    differ = np.zeros(len(candidates), dtype=bool)
    for column in (getattr(candidates, f.name) for f in fields(candidates) if f.name not in {"pp", "order"}):
        differ[1:] |= column[1:] != column[:-1]
    return np.cumsum(differ)


def first_of_classes(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first candidate of each of ``order_classes``."""
    return np.flatnonzero(np.diff(classes, prepend=-1))


def distinct_orders(job: Job, candidates: Candidates, remaining: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return one representative of each class of ``remaining`` candidates with equivalent orders, as a mask.

    Two orders are equivalent where every group has the same number of ranks per node: then all prices are
    equal. Orders that the user's rules distinguish are not equivalent.
    """
    orders = len(orders_of(job))
    if orders == 1 or not remaining.any():
        return remaining
    index = np.flatnonzero(remaining)
    selected = candidates.take(index)
    residual_rules = [equality_numbers(job, rule.relation, selected) for rule in _rules_about_orders(job)]
    rows = np.array(
        [order_classes(selected), *ranks_per_node(selected, job.cluster.node.devices), *residual_rules]
    )
    first = np.ones(len(index), dtype=bool)
    for offset in range(1, orders):
        first[offset:] &= (rows[:, offset:] != rows[:, :-offset]).any(axis=0)
    distinct = np.zeros(len(candidates), dtype=bool)
    distinct[index[first]] = True
    return distinct


def equality_numbers(job: Job, relation: Node, candidates: Candidates) -> NDArray[np.int64]:
    """Return a number for each of ``candidates``, the same where equal relations are left of ``relation``."""
    remainders, numbers = remainders_of(job, relation, candidates)
    number_by_node: dict[Node, int] = {}
    equal = [number_by_node.setdefault(node, len(number_by_node)) for node in remainders]
    return np.array(equal, dtype=np.int64)[numbers]
