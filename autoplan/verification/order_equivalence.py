"""Orders in which ranks are numbered, and which put the same ranks together in nodes: told anew."""

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

__all__ = ["alike_in_order", "data_stride", "orders_of"]


def orders_of(job: Job) -> list[Order]:
    """Return the orders that are listed: one of those allowed where a single node makes them all the same."""
    orders, wish = list(job.stack.orders), job.search.order
    if job.cluster.devices > job.cluster.node.devices or any("order" in rule.rule for rule in job.rules):
        return orders
    asked = wish if isinstance(wish, tuple) else (wish,)
    allowed = [order for order in orders if order in asked or "any" in asked]
    return (allowed or orders)[:1]


def data_stride(order: Order, tp: int, cp: int, pp: int) -> int:
    """Return how far apart ranks with the same parameters are, of which those of a sequence come first."""
    return _inside(order, "cp" if cp > 1 else "dp", {"tp": tp, "cp": cp, "pp": pp})


def _inside(order: Order, axis: str, degrees: Mapping[str, int]) -> int:
    """Return how many ranks lie between neighbours on ``axis``: all that are on the axes before it."""
    before = order.split("-")
    return prod(degrees.get(other, 1) for other in before[: before.index(axis)])


@cache
def _together(order: Order, degrees: tuple[int, ...], shard: int, node: int) -> tuple[int, ...]:
    """Return how many ranks of each group one node has."""
    tp, cp, dp, pp, ep, etp = degrees
    edp = tp * cp * dp // (ep * etp)
    plain = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    experts = {"tp": etp, "cp": ep, "dp": edp, "pp": pp}
    ranks, apart = cp * dp, data_stride(order, tp, cp, pp)
    share = shard or ranks
    groups = [(plain[axis], _inside(order, axis, plain)) for axis in ("tp", "cp", "pp")]
    groups += [(experts[axis], _inside(order, axis, experts)) for axis in ("tp", "cp", "dp")]
    groups += [(ranks, apart), (share, apart), (ranks // share, apart * share)]
    own, between = max(tp * shard // (ep * etp), 1) if shard else edp, _inside(order, "dp", experts)
    groups += [(own, between), (edp // own, between * own)]
    return tuple(min(members, max(1, node // distance)) for members, distance in groups)


def alike_in_order(job: Job, c: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which valid choices put their ranks together as an earlier order of the same choice does.

    What the user's own rules may tell apart is not alike.
    """
    same = np.zeros(len(c), dtype=bool)
    node, index = job.cluster.node.devices, sorted(np.flatnonzero(alive), key=lambda i: int(c.order[i]))
    rules = [rule.relation for rule in own_rules(job)]
    left = [what_is_left(job, relation, c.take(np.array(index, dtype=np.int64))) for relation in rules]
    names = ("microbatch", "zero", "sequence_parallel", "vpp", "schedule", "checkpoint", "offload", "shard")
    rest = list(zip(*(getattr(c, name).tolist() for name in names), strict=True))
    degrees = list(zip(*(x.tolist() for x in (c.tp, c.cp, c.dp, c.ep, c.etp)), strict=True))
    seen = set()
    for k, i in enumerate(index):
        tp, cp, dp, ep, etp = degrees[i]
        cut = _together(ORDERS[c.order[i]], (tp, cp, dp, c.pp, ep, etp), int(c.shard[i]), node)
        key = (degrees[i], rest[i], cut, *(nodes[k] for nodes in left))
        same[i] = key in seen
        seen.add(key)
    return same
