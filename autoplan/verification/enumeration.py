"""Independent enumeration of choices of degrees, and their numbers of layouts.

Rank orders and their equivalence by symmetry are derived independently of the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, Ints
from autoplan.rules.layout_rules import rules_for
from autoplan.rules.user_constraints import embedding_and_loss_counted, user_rules_of, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, SCHEDULES, Order
from autoplan.schema.recompute import FULL, RECOMPUTE, USUAL_MODES
from autoplan.schema.stage_layers import even_stages

#: Largest number of virtual stages that is listed, as in the search.
_MOST_VIRTUAL: Final = 16

#: Why a choice is left out: its ZeRO stage, its longer rings, its rank order.
EQUIVALENT_ZERO: Final = 1
DOMINATED_RING: Final = 2
EQUIVALENT_ORDER: Final = 3


def _columns_but(*names: str) -> tuple[str, ...]:
    """Return the columns of choices without these."""
    return tuple(field.name for field in fields(Candidates) if field.name not in {"pp", *names})


#: Columns in which equivalent choices agree: those without a data axis, rings of two lengths, rank orders.
_UNSHARDED: Final = _columns_but("dp", "zero")
_RING: Final = _columns_but("dp", "cp", "etp", "microbatch")
_ORDERED: Final = _columns_but("order")


@dataclass(frozen=True, slots=True)
class JudgedChoices:
    """Choices of one pipeline depth, with what becomes of each, [C].

    ``first_broken`` is the index of the first rule of ``sentences`` that a choice breaks, -1 for none;
    ``equivalent`` says why a choice is equivalent to an earlier valid one or dominated; 0 for neither.
    """

    candidates: Candidates
    sentences: tuple[str, ...]
    first_broken: Ints
    equivalent: Ints

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Which choices satisfy every rule, one of each equivalence class."""
        covered: NDArray[np.bool_] = (self.first_broken < 0) & (self.equivalent == 0)
        return covered


def judged_choices(job: Job) -> Iterator[JudgedChoices]:
    """Yield all choices of ``job`` with what becomes of them, for each pipeline depth.

    There are none on more devices than the job's limit.
    """
    if job.limits.devices is not None and job.cluster.devices > job.limits.devices:
        return
    rules, n = rules_for(job), job.cluster.devices
    for pp in (d for d in range(1, n + 1) if n % d == 0):
        candidates = _choices(job, pp)
        broken = np.stack([~np.broadcast_to(rule.keeps(candidates), len(candidates)) for rule in rules])
        first = np.where(broken.any(axis=0), broken.argmax(axis=0), -1)
        valid = np.flatnonzero(first < 0)
        equivalent = np.zeros(len(candidates), dtype=np.int64)
        equivalent[valid] = _equivalent(job, candidates.take(valid))
        yield JudgedChoices(candidates, tuple(rule.sentence for rule in rules), first, equivalent)


def valid_choices(job: Job) -> Iterator[Candidates]:
    """Yield, for each pipeline depth, the choices that satisfy every rule, one of each equivalence class."""
    for judged in judged_choices(job):
        if judged.covered.any():
            yield judged.candidates.take(judged.covered)


def _choices(job: Job, pp: int) -> Candidates:
    """Return all choices of one depth, in lexicographic order of their columns."""
    stage_ranks = job.cluster.devices // pp
    degrees = [d for d in range(1, stage_ranks + 1) if stage_ranks % d == 0]
    tables = [
        _table(job, pp, tp, cp)
        for tp, cp in product(degrees, repeat=2)
        if stage_ranks % (tp * cp) == 0 and (cp == 1 or job.stack.context_parallel is not None)
    ]
    columns = np.concatenate(tables, axis=1)
    return Candidates(pp, *columns[:, np.lexsort(columns[::-1])])


def _table(job: Job, pp: int, tp: int, cp: int) -> Ints:
    """Return the choices with ``tp`` and ``cp``: the columns of ``Candidates``, [14, C]."""
    stage_ranks, batch = job.cluster.devices // pp, job.workload.global_batch_size
    dp = stage_ranks // (tp * cp)
    replica_batch = batch // dp
    sizes = [b for b in range(1, replica_batch + 1) if replica_batch % b == 0] if batch % dp == 0 else [1]
    # The last column says whether a shard size is the first one of its order: all that ZeRO-0 has.
    placements = [
        (ORDERS.index(order), shard, i == 0)
        for order in orders_of(job)
        for i, shard in enumerate(_shard_sizes(job, data_stride(order, tp, cp, pp), dp * cp))
    ]
    options: list[Sequence[tuple[int, ...]]] = [
        [(b,) for b in sizes],
        [(zero,) for zero in range(4)],
        [(0,), (1,)] if tp > 1 else [(0,)],
        _schedules(job, pp),
        _checkpoints_and_offloads(job),
        _expert_degrees(job, tp, stage_ranks),
        [(int(order), shard, int(first)) for order, shard, first in placements],
    ]
    at = np.indices([len(option) for option in options]).reshape(len(options), -1)
    rows = [np.array(option, dtype=np.int64).T[:, i] for option, i in zip(options, at, strict=True)]
    (mbs,), (zero,), (sp,), (schedule, vpp), (k, *host), (ep, etp), (order, shard, first) = rows
    one = np.ones_like(mbs)
    shard = np.where(zero > 0, shard, 0)
    columns = (tp * one, dp * one, cp * one, ep, etp, mbs, zero, sp, vpp, schedule, k, *host, shard, order)
    table: Ints = np.stack(columns)[:, (zero > 0) | (first > 0)]
    return table


def _expert_degrees(job: Job, tp: int, ranks: int) -> list[tuple[int, int]]:
    """Return the pairs of expert-parallel and expert-tensor-parallel degree on the ranks of a stage."""
    moe, wish = job.model.moe, job.search.expert_tensor_parallel
    if moe is None:
        return [(1, tp)]
    splits = {1, tp} if wish == "any" else set(wish if isinstance(wish, tuple) else (wish,))
    return [
        (ep, etp)
        for etp in splits
        for ep in range(1, ranks + 1)
        if moe.experts % ep == 0 and ranks % ep == 0 and ranks % (ep * etp) == 0
    ]


def _checkpoints(job: Job) -> list[int]:
    """Return the numbers of layers per recompute unit."""
    wish, layers = job.search.recompute_num_layers, job.model.layers
    if FULL not in modes_of(job):
        return [1]
    if wish == "any":
        most = 4 * layers if job.stack.rules.recompute_several_layers else 1
        return [k for k in range(1, layers + 1) if layers % k == 0 and k * k <= max(1, most)]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _checkpoints_and_offloads(job: Job) -> list[tuple[int, int, int, int]]:
    """Return layers per recompute unit, what is offloaded to the host, recompute of all layers, and n.

    Of the states 1 is the optimizer's, 2 are activations, 3 both. Recompute of all layers counts from 1, as
    the stack supports it with activations of one layer in n offloaded; it is 0 without.
    """
    wish, policy = job.search.offload, job.stack.activation_offload
    every = job.search.offload_every
    if every == "any":
        every = (1, 2, 4, 8) if policy is not None and policy.partial else 1
    of_layers = [
        (RECOMPUTE.index(mode) + 1, n)
        for mode in (policy.recompute if policy is not None else ("none",))
        for n in (every if isinstance(every, tuple) else (every,))
    ]
    offloads = {
        (states, *layers)
        for word in (wish if isinstance(wish, tuple) else (wish,))
        for states in [("optimizer" in word) + 2 * ("activations" in word)]
        for layers in (of_layers if states > 1 else [(0, 1)])
    }
    by_interval = sorted(offloads, key=lambda x: (x[2], x[1], x[0]))
    choices = [(k, *offload) for k, offload in product(_checkpoints(job), by_interval)]
    # A recompute unit of several layers needs full recompute.
    in_units = {0, RECOMPUTE.index(FULL) + 1}
    return [choice for choice in choices if choice[0] == 1 or choice[2] in in_units] or choices


def _shard_sizes(job: Job, stride: int, ranks: int) -> list[int]:
    """Return the data-parallel shard sizes of ``ranks`` at this ``stride``, 0 for all of them."""
    wish, node = job.search.dp_shard, job.cluster.node.devices // stride
    if wish == "any":
        cuts_groups = job.stack.hybrid_sharding is not None and node in range(2, ranks) and ranks % node == 0
        return [0, node] if cuts_groups else [0]
    named = wish if isinstance(wish, tuple) else (ranks if wish == "all" else wish,)
    return sorted({n if n != ranks else 0 for n in named})


def _schedules(job: Job, pp: int) -> list[tuple[int, int]]:
    """Return pairs of schedule and virtual stages; zero-bubble where the stack has it or the job asks."""
    if pp == 1:
        return [(SCHEDULES.index("1f1b"), 1)]
    layers, chosen = job.model.layers, job.search.schedule
    has_zero_bubble = "zero-bubble" in (chosen if isinstance(chosen, tuple) else (chosen,))
    has_zero_bubble = has_zero_bubble or any("zero-bubble" in rule.rule for rule in job.rules)
    names = [x for x in SCHEDULES if has_zero_bubble or x != "zero-bubble" or x in job.stack.rules.schedules]
    virtual_range = range(2, _MOST_VIRTUAL + 1)
    virtual = [
        v
        for v in virtual_range
        if (layers % v == 0 and v * pp <= layers) or embedding_and_loss_counted(job, pp, v)
    ]
    pairs = [(name, v) for name in names for v in (virtual if name == "interleaved" else [1])]
    return [(SCHEDULES.index(name), v) for name, v in pairs]


def _equivalent(job: Job, valid: Candidates) -> Ints:
    """Return why a valid choice is equivalent to an earlier one, or dominated by one; 0 where it is not.

    They differ from it in the ZeRO stage without a data axis, or in an equivalent rank order, or have longer
    rings with larger microbatches than necessary (``docs/search.md``). Choices that the user's rules
    distinguish are not equivalent.
    """
    seen: set[tuple[object, ...]] = set()
    reason = np.zeros(len(valid), dtype=np.int64)
    unsharded = np.flatnonzero((valid.dp * valid.cp == 1) & (valid.edp == 1))
    c = valid.take(unsharded)
    columns = [getattr(c, name).tolist() for name in _UNSHARDED]
    residual_rules = [what_is_left(job, rule.relation, c) for rule in user_rules_of(job)]
    for i, key in zip(unsharded, zip(*columns, *residual_rules, strict=True), strict=True):
        reason[i] = EQUIVALENT_ZERO if key in seen else 0
        seen.add(key)
    if (
        job.stack.context_parallel is not None
        and job.stack.context_parallel.comm_type == "ring"
        and not job.relations
    ):
        reason[_longer_rings(job, valid, reason == 0)] = DOMINATED_RING
    reason[equivalent_orders(job, valid, reason == 0)] = EQUIVALENT_ORDER
    return reason


def _longer_rings(job: Job, c: Candidates, left: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which choices of ``left`` have longer rings and larger microbatches than another of them."""
    other_columns = list(zip(*(getattr(c, name).tolist() for name in _RING), strict=True))
    sizes = list(zip(c.cp.tolist(), c.microbatch.tolist(), strict=True))
    keys = {(*sizes[i], other_columns[i]) for i in np.flatnonzero(left)}
    longer = np.zeros(len(c), dtype=bool)
    factors = [f for f in range(2, job.cluster.devices + 1) if job.cluster.devices % f == 0]
    for i in np.flatnonzero(left & (c.cp > 1)):
        cp, mbs = sizes[i]
        longer[i] = any(
            cp % f == mbs % f == 0 and (cp // f, mbs // f, other_columns[i]) in keys for f in factors
        )
    return longer


def modes_of(job: Job) -> tuple[str, ...]:
    """Return the recompute modes that layers may use."""
    wish, has = job.search.recompute, job.stack.rules.recompute
    named = (wish,) if isinstance(wish, str) else wish
    wished = USUAL_MODES if wish == "any" else named
    modes = tuple(mode for mode in wished if mode in has and _of_model(job, mode))
    return modes or ("none",)


def _of_model(job: Job, mode: str) -> bool:
    """Return whether the model has the experts, or the latents, that a recompute mode is of."""
    return ("moe" not in mode or job.model.moe is not None) and (
        "mla" not in mode or job.model.mla is not None
    )


def orders_of(job: Job) -> list[Order]:
    """Return the rank orders to list: a single allowed one where the job has one node."""
    orders, wish = list(job.stack.orders), job.search.order
    if job.cluster.devices > job.cluster.node.devices or any("order" in rule.rule for rule in job.relations):
        return orders
    wished = wish if isinstance(wish, tuple) else (wish,)
    allowed = [order for order in orders if order in wished or "any" in wished]
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
    shard_members = max(tp * shard // (ep * etp), 1) if shard else edp
    expert_stride = _stride(order, "dp", experts)
    groups += [(shard_members, expert_stride), (edp // shard_members, expert_stride * shard_members)]
    return tuple(min(members, max(1, node // step)) for members, step in groups)


def equivalent_orders(job: Job, c: Candidates, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which valid choices have as many ranks per node in every group as with an earlier order.

    Orders that the user's rules distinguish are not equivalent.
    """
    equivalent = np.zeros(len(c), dtype=bool)
    node, index = job.cluster.node.devices, sorted(np.flatnonzero(valid), key=lambda i: int(c.order[i]))
    rules = [rule.relation for rule in user_rules_of(job)]
    residual_rules = [
        what_is_left(job, relation, c.take(np.array(index, dtype=np.int64))) for relation in rules
    ]
    columns = list(zip(*(getattr(c, name).tolist() for name in _ORDERED), strict=True))
    degrees = list(zip(*(x.tolist() for x in (c.tp, c.cp, c.dp, c.ep, c.etp)), strict=True))
    seen = set()
    for k, i in enumerate(index):
        tp, cp, dp, ep, etp = degrees[i]
        members_per_node = _members_per_node(
            ORDERS[c.order[i]], (tp, cp, dp, c.pp, ep, etp), int(c.dp_shard[i]), node
        )
        key = (columns[i], members_per_node, *(nodes[k] for nodes in residual_rules))
        equivalent[i] = key in seen
        seen.add(key)
    return equivalent


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """Counts of layouts: all, covered, by broken rule, by kind of equivalence; and of choices left."""

    total: int
    covered: int
    by_rule: dict[str, int]
    by_equivalence: dict[int, int]
    candidates: int

    @property
    def equivalent(self) -> int:
        """Layouts that are equivalent to a considered one, or dominated by one."""
        return sum(self.by_equivalence.values())


def counted(job: Job, judged: Iterable[JudgedChoices] | None = None) -> ChoiceCounts:
    """Return the counts of the layouts of ``job``, whose ``judged`` choices are enumerated unless given."""
    total = covered = choices = 0
    by_rule: Counter[str] = Counter()
    by_equivalence: Counter[int] = Counter()
    for group in judged_choices(job) if judged is None else judged:
        total += layouts_of(job, group.candidates, np.ones(len(group.candidates), dtype=bool))
        for rule in np.unique(group.first_broken[group.first_broken >= 0]).tolist():
            by_rule[group.sentences[rule]] += layouts_of(job, group.candidates, group.first_broken == rule)
        for reason in np.unique(group.equivalent[group.equivalent > 0]).tolist():
            by_equivalence[reason] += layouts_of(job, group.candidates, group.equivalent == reason)
        covered += layouts_of(job, group.candidates, group.covered)
        choices += int(group.covered.sum())
    return ChoiceCounts(total, covered, dict(by_rule), dict(by_equivalence), choices)


def layouts_of(job: Job, candidates: Candidates, which: NDArray[np.bool_]) -> int:
    """Return how many layouts the choices ``which`` of ``candidates`` stand for."""
    columns = np.stack(
        [candidates.vpp, candidates.recompute_num_layers, candidates.activation_offload.astype(np.int64)]
    )
    kinds, counts = np.unique(columns[:, which], axis=1, return_counts=True)
    return sum(
        count * layouts_of_choice(job, candidates.pp, vpp, unit, one_mode=bool(one_mode))
        for (vpp, unit, one_mode), count in zip(kinds.T.tolist(), counts.tolist(), strict=True)
    )


def even_only(job: Job, pp: int, vpp: int) -> bool:
    """Return whether only the even split of layers over stages is allowed."""
    wanted = job.search.stages == "even" or not job.stack.rules.uneven_stages
    return wanted or embedding_and_loss_counted(job, pp, vpp)


def layouts_of_choice(job: Job, pp: int, vpp: int, unit: int = 1, *, one_mode: bool = False) -> int:
    """Return how many layouts a choice stands for: splits of the layers times recompute mixes.

    Layers in full recompute come in multiples of ``unit``; where that is above 1, at least one
    unit exists. With ``one_mode``, all layers have the same mode: one mix.
    """
    layers, modes = job.model.layers, 1 if one_mode else len(modes_of(job))
    if not embedding_and_loss_counted(job, pp, vpp) and (pp * vpp > layers or layers % vpp):
        return 1
    if unit == 1:
        return _splits_and_mixes(job, pp, vpp, modes, 1)
    return _splits_and_mixes(job, pp, vpp, modes, unit) - _splits_and_mixes(job, pp, vpp, modes - 1, 1)


def _splits_and_mixes(job: Job, pp: int, vpp: int, modes: int, unit: int) -> int:
    layers = job.model.layers
    if even_only(job, pp, vpp):
        count = 1
        for stage_layers in even_stages(layers, pp, vpp):
            count *= _mixes(stage_layers, modes, unit)
        return count
    return _splits(pp, layers, vpp, modes, unit)


@cache
def _mixes(layers: int, modes: int, unit: int) -> int:
    """Return the number of mixes of ``modes`` over ``layers``, one mode in multiples of ``unit``."""
    if modes == 0:
        return int(layers == 0)
    return sum(_mixes(layers - n, modes - 1, 1) for n in range(0, layers + 1, unit))


@cache
def _splits(stages: int, layers: int, multiple: int, modes: int, unit: int) -> int:
    """Return the number of splits into ``stages`` multiples of ``multiple`` layers, times their mixes."""
    if stages == 1:
        return _mixes(layers, modes, unit) if layers >= multiple else 0
    most = layers - (stages - 1) * multiple
    return sum(
        _mixes(stage_layers, modes, unit) * _splits(stages - 1, layers - stage_layers, multiple, modes, unit)
        for stage_layers in range(multiple, most + 1, multiple)
    )
