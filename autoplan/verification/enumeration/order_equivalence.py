"""Rank orders and their equivalence by symmetry, derived independently of the search."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.rules.user_constraints import own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, Order

__all__ = ["data_stride", "equivalent_orders", "orders_of"]


def orders_of(job: Job) -> list[Order]:
    """Return the rank orders to list: a single allowed one where the job has one node."""
    orders, wish = list(job.stack.orders), job.search.order
    if job.cluster.devices > job.cluster.node.devices or any("order" in rule.rule for rule in job.relations):
        return orders
    asked = wish if isinstance(wish, tuple) else (wish,)
    allowed = [order for order in orders if order in asked or "any" in asked]
    return (allowed or orders)[:1]


def data_stride(order: Order, tp: int, cp: int, pp: int) -> int:
    """Return the stride of the data-parallel group; its innermost axis is cp, where cp > 1."""
    return _stride(order, "cp" if cp > 1 else "dp", {"tp": tp, "cp": cp, "pp": pp})


def _stride(order: Order, axis: str, degrees: Mapping[str, int]) -> int:
    """Return the stride of ``axis``: the product of the degrees of the axes before it."""
    before = order.split("-")
    return prod(degrees.get(other, 1) for other in before[: before.index(axis)])


@cache
def _members_per_node(order: Order, degrees: tuple[int, ...], shard: int, node: int) -> tuple[int, ...]:
    """Return how many ranks of each communication group one node has."""
    tp, cp, dp, pp, ep, etp = degrees
    edp = tp * cp * dp // (ep * etp)
    dense = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    experts = {"tp": etp, "cp": ep, "dp": edp, "pp": pp}
    ranks, stride = cp * dp, data_stride(order, tp, cp, pp)
    shard_size = shard or ranks
    groups = [(dense[axis], _stride(order, axis, dense)) for axis in ("tp", "cp", "pp")]
    groups += [(experts[axis], _stride(order, axis, experts)) for axis in ("tp", "cp", "dp")]
    groups += [(ranks, stride), (shard_size, stride), (ranks // shard_size, stride * shard_size)]
    shard_members, expert_stride = (
        max(tp * shard // (ep * etp), 1) if shard else edp,
        _stride(order, "dp", experts),
    )
    groups += [(shard_members, expert_stride), (edp // shard_members, expert_stride * shard_members)]
    return tuple(min(members, max(1, node // step)) for members, step in groups)


def equivalent_orders(job: Job, c: Candidates, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which valid choices have as many ranks per node in every group as with an earlier order.

    Orders that the user's own rules distinguish are not equivalent.
    """
    equivalent = np.zeros(len(c), dtype=bool)
    node, index = job.cluster.node.devices, sorted(np.flatnonzero(valid), key=lambda i: int(c.order[i]))
    rules = [rule.relation for rule in own_rules(job)]
    residual_rules = [
        what_is_left(job, relation, c.take(np.array(index, dtype=np.int64))) for relation in rules
    ]
    names = (
        "microbatch",
        "zero",
        "sequence_parallel",
        "vpp",
        "schedule",
        "recompute_num_layers",
        "offload",
        "uniform_recompute",
        "offload_every",
        "dp_shard",
    )
    other_columns = list(zip(*(getattr(c, name).tolist() for name in names), strict=True))
    degrees = list(zip(*(x.tolist() for x in (c.tp, c.cp, c.dp, c.ep, c.etp)), strict=True))
    seen = set()
    for k, i in enumerate(index):
        tp, cp, dp, ep, etp = degrees[i]
        members_per_node = _members_per_node(
            ORDERS[c.order[i]], (tp, cp, dp, c.pp, ep, etp), int(c.dp_shard[i]), node
        )
        key = (degrees[i], other_columns[i], members_per_node, *(nodes[k] for nodes in residual_rules))
        equivalent[i] = key in seen
        seen.add(key)
    return equivalent
