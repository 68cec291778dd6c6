"""Enumeration of the candidates at one pipeline depth, before rules are applied, and of their rank orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product
from math import gcd
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import (
    ANY_RECOMPUTE,
    Candidates,
    ScheduleCode,
    ShardCode,
    data_stride,
    divisors,
    host_choice,
    recompute_code,
)
from autoplan.costs.core.scope import with_modes_of
from autoplan.costs.core.sizes import data_ranks
from autoplan.costs.network.mesh import ranks_per_node
from autoplan.deadline import check_deadline
from autoplan.rules.user_constraints import (
    MOST_VIRTUAL_STAGES,
    OFFLOAD_INTERVALS,
    UserRule,
    embedding_and_loss_counted,
    names_in,
    recompute_menu,
    remainders_of,
    user_rules_of,
)
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, SCHEDULES, Order
from autoplan.schema.recompute import FULL
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


#: Columns of a table of candidates: the fields of ``Candidates`` after ``pp``.
_ZERO, _SHARD = 6, 14
#: Schedules that few stacks have; the others are listed for every stack, and a rule rejects them.
_RARE = {"zero-bubble"}
#: Rows of a table of candidates after which it is a block: 5 MB.
_BLOCK = 50_000

#: Columns of candidates, shape [columns, C].
Table: TypeAlias = NDArray[np.int64]
#: What a list of choices offers for one or several columns.
Choices: TypeAlias = Sequence[int | tuple[int, ...]] | NDArray[np.int64]

_V = TypeVar("_V", int, str)


def with_searched_modes(job: Job) -> Job:
    """Return ``job`` without the recompute modes of its stack that are unusual and not searched."""
    return with_modes_of(job, recompute_menu(job))


def recompute_modes(job: Job) -> frozenset[str]:
    """Return the recompute modes that layers may use."""
    return frozenset(recompute_menu(job))


def candidate_blocks(job: Job, pp: int) -> Iterator[Candidates]:
    """Yield every candidate at depth ``pp``, with ranks in the first order, so many at once.

    Choices without an effect are listed once: sequence parallelism needs tp > 1, a schedule needs a
    pipeline, and only ZeRO shards state. Candidates that differ in their microbatch, ZeRO stage, schedule,
    recompute unit or shard size alone are in one block.
    """
    devices, batch = job.cluster.devices, job.workload.global_batch_size
    combinations = product(_schedules(job, pp), _checkpoints_and_host(job))
    other_choices = np.array(
        [(vpp, schedule, *checkpoint_and_host) for (schedule, vpp), checkpoint_and_host in combinations]
    )
    tables: list[Table] = []
    rows = 0
    for tp, cp in product(divisors(devices // pp), repeat=2):
        dp, remainder = divmod(devices // pp, tp * cp)
        if remainder or (cp > 1 and job.stack.context_parallel is None):
            continue
        check_deadline()
        sizes = divisors(batch // dp) if batch % dp == 0 else [1]
        experts = _expert_degrees(job, tp, tp * dp * cp)
        zero_and_sp = list(product(range(4), (0, 1) if tp > 1 else (0,)))
        shards = _shards(job, tp, pp, dp * cp)
        for some_experts in _parts(experts, len(sizes) * len(zero_and_sp) * len(other_choices) * len(shards)):
            choices = ([(tp, dp, cp)], some_experts, sizes, zero_and_sp, other_choices, shards)
            tables.append(_distinct_shards(_combined(choices), len(shards)))
            rows += tables[-1].shape[1]
            if rows >= _BLOCK:
                yield _candidates(pp, tables)
                tables, rows = [], 0
    if tables:
        yield _candidates(pp, tables)


def usual_candidates(job: Job, pp: int) -> Candidates:
    """Return the usual candidates at depth ``pp``: of every other choice but tp, ep and sp the first.

    That is the first that the job allows: the least context parallelism and microbatch, the stack's ZeRO
    stage, no virtual stages; tensor parallelism stays within a node.
    """
    search, devices, batch = job.search, job.cluster.devices, job.workload.global_batch_size
    degrees = divisors(devices // pp)
    zero = _allowed((job.stack.rules.default_zero, 0, 1, 2, 3), search.zero_stage)[0]
    schedules = [
        (schedule, v)
        for schedule, v in _schedules(job, pp)
        if SCHEDULES[schedule] in _allowed(SCHEDULES, search.schedule)
        and v in _allowed((v,), search.virtual_stages)
    ]
    (schedule, vpp), *_ = schedules or _schedules(job, pp)
    tables = []
    for tp in _allowed([t for t in degrees if t <= job.cluster.node.devices], search.tensor_parallel):
        cp = _allowed(divisors(devices // pp // tp), search.context_parallel)[0]
        dp = devices // (pp * tp * cp)
        sizes = _allowed(divisors(batch // dp) if batch % dp == 0 else [1], search.microbatch_size)[:1]
        experts = [
            pair for pair in _expert_degrees(job, tp, tp * dp * cp) if pair[1] == 1 or job.model.moe is None
        ]
        zero_and_sp = [(zero, sp) for sp in ((0, 1) if tp > 1 else (0,))]
        other = [(vpp, schedule, *_checkpoints_and_host(job)[0])]
        shards = _shards(job, tp, pp, dp * cp)[:1]
        tables.append(_combined([[(tp, dp, cp)], experts, sizes, zero_and_sp, other, shards]))
    return with_rank_orders(job, _candidates(pp, tables))


def _allowed(values: Sequence[_V], wish: object) -> Sequence[_V]:
    """Return the ``values`` that a key of ``search`` allows; all where it allows none of them."""
    if wish == "any":
        return values
    return [x for x in values if x in (wish if isinstance(wish, tuple) else (wish,))] or values


def _parts(experts: list[tuple[int, int]], rows: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the degrees of experts in parts of at most so many that ``rows`` for each fill a block."""
    size = max(1, _BLOCK // rows)
    yield from (experts[i : i + size] for i in range(0, len(experts), size))


def _distinct_shards(table: Table, shards: int) -> Table:
    """Return ``table`` with one row for all shard sizes where no state is sharded: without ZeRO."""
    sharded = table[_ZERO] > 0
    table[_SHARD] *= sharded
    if shards == 1:
        return table
    return table[:, sharded | (np.arange(len(sharded)) % shards == 0)]


def _candidates(pp: int, tables: Sequence[Table]) -> Candidates:
    columns = np.concatenate(tables, axis=1)
    return Candidates(pp, *[*columns, np.zeros_like(columns[0])])


def _combined(choices: Sequence[Choices]) -> Table:
    """Return the Cartesian product of the lists, one row per combination, the last list changing fastest."""
    parts = [np.array(entries, dtype=np.int64).reshape(len(entries), -1).T for entries in choices]
    lengths = [part.shape[1] for part in parts]
    table, column = np.empty((sum(map(len, parts)), *lengths), dtype=np.int64), 0
    for i, part in enumerate(parts):
        shape = [length if i == j else 1 for j, length in enumerate(lengths)]
        table[column : column + len(part)] = part.reshape(-1, *shape)
        column += len(part)
    return table.reshape(len(table), -1)


def _expert_degrees(job: Job, tp: int, ranks: int) -> list[tuple[int, int]]:
    """Return the degrees (ep, etp) of experts on the ``ranks`` of a stage, of which ``tp`` split tensors.

    Experts are unsplit or split as tensors are, unless the job names other degrees.
    """
    moe = job.model.moe
    if moe is None:
        return [(1, tp)]
    wish = job.search.expert_tensor_parallel
    splits = {1, tp} if wish == "any" else set(wish if isinstance(wish, tuple) else (wish,))
    most = gcd(moe.experts, ranks)
    return [(ep, etp) for ep in divisors(most) for etp in sorted(splits) if ranks % (ep * etp) == 0]


def _shards(job: Job, tp: int, pp: int, ranks: int) -> list[int]:
    """Return the candidate data-parallel shard sizes of ``ranks``; 0 stands for all of them.

    Where the job leaves it open, the ranks of a node are one of them.
    """
    wish, hybrid = job.search.dp_shard, job.stack.hybrid_sharding
    if wish == "any":
        if hybrid is None:
            return [0]
        strides = (tp, tp * pp, pp, 1) if len(orders_of(job)) > 1 else (tp,)
        ranks_per_node = {job.cluster.node.devices // stride for stride in strides}
        cuts_groups = any(1 < n < ranks and ranks % n == 0 for n in ranks_per_node)
        return [0, ShardCode.NODE] if cuts_groups else [0]
    wanted = (ranks,) if wish == "all" else wish if isinstance(wish, tuple) else (wish,)
    return sorted({0 if shard == ranks else shard for shard in wanted})


def _checkpoints(job: Job) -> list[int]:
    """Return the candidate numbers of layers per recompute unit; 1 alone without full recompute."""
    wish, rules = job.search.recompute_num_layers, job.stack.rules
    if FULL not in recompute_modes(job):
        return [1]
    if wish == "any":
        # Beyond about sqrt(L), the recomputed activations of a unit outgrow the inputs that it saves.
        layers = job.model.layers
        return [
            k for k in divisors(layers) if k == 1 or (rules.recompute_several_layers and k * k <= 4 * layers)
        ]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _checkpoints_and_host(job: Job) -> list[tuple[int, int, int, int]]:
    """Return layers per recompute unit, and what is offloaded to the host (``host_choice``).

    With offloaded activations all layers use one of the recompute modes that the stack combines with them.
    Only full recompute has units of several layers.
    """
    wish, policy = job.search.offload, job.stack.activation_offload
    modes = policy.recompute if policy is not None else ("none",)
    words = wish if isinstance(wish, tuple) else (wish,)
    hosts = {host_choice(*choice) for choice in product(words, modes, _offload_every(job))}
    ordered = sorted(hosts, key=lambda host: host[::-1])
    choices = [(unit, *host) for unit, host in product(_checkpoints(job), ordered)]
    in_units = {ANY_RECOMPUTE, recompute_code(FULL)}
    return [choice for choice in choices if choice[0] == 1 or choice[2] in in_units] or choices


def _offload_every(job: Job) -> list[int]:
    """Return the candidate n of activation offload: one layer in n is offloaded."""
    wish, policy = job.search.offload_every, job.stack.activation_offload
    if wish == "any":
        return [n for n in OFFLOAD_INTERVALS if n == 1 or (policy is not None and policy.partial)]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _schedules(job: Job, pp: int) -> list[tuple[int, int]]:
    """Return pairs of schedule and virtual stages; zero-bubble where the stack has it or the job names it."""
    if pp == 1:
        return [(ScheduleCode.ONE_F_ONE_B, 1)]
    layers, wish = job.model.layers, job.search.schedule
    wanted = {*job.stack.rules.schedules, *(wish if isinstance(wish, tuple) else (wish,))}
    wanted |= {name for name in _RARE if any(name in rule.rule for rule in job.rules)}
    plain = [(i, 1) for i, name in enumerate(SCHEDULES) if name in {"1f1b", "gpipe"} | (wanted & _RARE)]
    virtual = [
        v
        for v in range(2, MOST_VIRTUAL_STAGES + 1)
        if (layers % v == 0 and pp * v <= layers) or embedding_and_loss_counted(job, pp, v)
    ]
    return plain + [(ScheduleCode.INTERLEAVED, v) for v in virtual]
