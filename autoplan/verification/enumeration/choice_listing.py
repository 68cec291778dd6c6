"""Independent enumeration of degrees, microbatch, ZeRO stage and schedule, with the number of layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.rules.layout_rules import rules_for
from autoplan.rules.user_constraints import embedding_and_loss_counted, own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, SCHEDULES
from autoplan.schema.stage_layers import even_stages
from autoplan.verification.enumeration.order_equivalence import data_stride, equivalent_orders, orders_of

__all__ = [
    "ChoiceCounts",
    "counted",
    "even_only",
    "layouts_of_choice",
    "modes_of",
    "too_many_devices",
    "valid_choices",
]

#: Largest number of virtual stages that is listed, as in the search.
_MOST_VIRTUAL: Final = 16

_Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """Counts of layouts: all, covered, rejected by each rule, equivalent; and the number of choices left."""

    total: int
    covered: int
    by_rule: dict[str, int]
    equivalent: int
    candidates: int


def modes_of(job: Job) -> tuple[str, ...]:
    """Return the recompute modes that layers may use."""
    wish = job.search.recompute
    if wish == "any":
        return ("none", "selective", "full")
    return wish if isinstance(wish, tuple) else (wish,)


def even_only(job: Job, pp: int, vpp: int) -> bool:
    """Return whether only the even split of layers over stages is allowed."""
    wanted = job.search.stages == "even" or not job.stack.rules.uneven_stages
    return wanted or embedding_and_loss_counted(job, pp, vpp)


def too_many_devices(job: Job) -> bool:
    """Return whether the job has more devices than its limit allows: then its search space is empty."""
    return job.limits.devices is not None and job.cluster.devices > job.limits.devices


def valid_choices(job: Job) -> Iterator[Candidates]:
    """Yield, for each pipeline depth, the choices that satisfy every rule, one of each equivalence class."""
    if too_many_devices(job):
        return
    for candidates in _choices(job):
        broken_rules, _ = _first_broken(job, candidates)
        valid = np.array([broken is None for broken in broken_rules])
        valid &= ~_equivalent(job, candidates, valid)
        if valid.any():
            yield candidates.take(valid)


def counted(job: Job) -> ChoiceCounts:
    """Return the counts of the layouts of ``job``, by independent enumeration."""
    total = covered = equivalent = candidates_left = 0
    by_rule: Counter[str] = Counter()
    for candidates in () if too_many_devices(job) else _choices(job):
        broken_rules, sentences = _first_broken(job, candidates)
        valid = np.array([rule is None for rule in broken_rules])
        is_equivalent = _equivalent(job, candidates, valid)
        for i, rule in enumerate(broken_rules):
            count = layouts_of_choice(
                job,
                candidates.pp,
                int(candidates.vpp[i]),
                int(candidates.recompute_num_layers[i]),
                one_mode=candidates.activation_offload[i],
            )
            total += count
            if rule is not None:
                by_rule[sentences[rule]] += count
            elif is_equivalent[i]:
                equivalent += count
            else:
                covered, candidates_left = covered + count, candidates_left + 1
    return ChoiceCounts(total, covered, dict(by_rule), equivalent, candidates_left)


def _choices(job: Job) -> Iterator[Candidates]:
    n = job.cluster.devices
    for pp in (d for d in range(1, n + 1) if n % d == 0):
        rows = sorted(_rows(job, pp))
        yield Candidates(pp, *np.array(rows, dtype=np.int64).T)


def _rows(job: Job, pp: int) -> Iterator[_Row]:
    """Yield the rows of a table of ``Candidates`` at one depth."""
    stage_ranks, batch = job.cluster.devices // pp, job.workload.global_batch_size
    checkpoints_and_offloads = _checkpoints_and_offloads(job)
    for tp, cp in product((d for d in range(1, stage_ranks + 1) if stage_ranks % d == 0), repeat=2):
        if stage_ranks % (tp * cp) or (cp > 1 and job.stack.context_parallel is None):
            continue
        dp = stage_ranks // (tp * cp)
        replica_batch = batch // dp
        sizes = [b for b in range(1, replica_batch + 1) if replica_batch % b == 0] if batch % dp == 0 else [1]
        orders_and_shards = [
            (order, _shard_sizes(job, data_stride(order, tp, cp, pp), dp * cp)) for order in orders_of(job)
        ]
        for mbs, zero, sp, (schedule, vpp), (k, offload) in product(
            sizes, range(4), (0, 1) if tp > 1 else (0,), _schedules(job, pp), checkpoints_and_offloads
        ):
            for (ep, etp), (order, shards) in product(
                _expert_degrees(job, tp, stage_ranks), orders_and_shards
            ):
                for shard in shards if zero else (0,):
                    row = (tp, dp, cp, ep, etp, mbs, zero, sp, vpp, schedule, k, offload, shard)
                    yield (*row, ORDERS.index(order))


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
    if "full" not in modes_of(job):
        return [1]
    if wish == "any":
        most = 4 * layers if job.stack.rules.recompute_several_layers else 1
        return [k for k in range(1, layers + 1) if layers % k == 0 and k * k <= max(1, most)]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _checkpoints_and_offloads(job: Job) -> list[tuple[int, int]]:
    """Return the pairs of layers per recompute unit and of a code of what is offloaded to the host.

    0 is nothing, 1 the optimizer state; 2, 4, 6 are activations of layers without recompute, with selective
    and with full recompute, as the stack supports it; odd numbers above 1 are both. Where one layer in n is
    offloaded, 8 (n - 1) is added.
    """
    wish, policy = job.search.offload, job.stack.activation_offload
    moves = {"none": 2, "selective": 4, "full": 6}
    every = job.search.offload_every
    if every == "any":
        every = (1, 2, 4, 8) if policy is not None and policy.partial else 1
    of_layers = [
        moves[mode] + 8 * (n - 1)
        for mode in (policy.recompute if policy is not None else ("none",))
        for n in (every if isinstance(every, tuple) else (every,))
    ]
    numbers = {
        "none": [0],
        "optimizer": [1],
        "activations": of_layers,
        "optimizer+activations": [n + 1 for n in of_layers],
    }
    offloads = {n for word in (wish if isinstance(wish, tuple) else (wish,)) for n in numbers[word]}
    pairs = list(product(_checkpoints(job), sorted(offloads)))
    # A recompute unit of several layers needs full recompute.
    return [(k, n) for k, n in pairs if k == 1 or n % 8 not in {2, 3, 4, 5}] or pairs


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
    layers, asked = job.model.layers, job.search.schedule
    has_zero_bubble = "zero-bubble" in (asked if isinstance(asked, tuple) else (asked,))
    has_zero_bubble = has_zero_bubble or any("zero-bubble" in own.rule for own in job.rules)
    names = [x for x in SCHEDULES if has_zero_bubble or x != "zero-bubble" or x in job.stack.rules.schedules]
    virtual_range = range(2, _MOST_VIRTUAL + 1)
    virtual = [
        v
        for v in virtual_range
        if (layers % v == 0 and v * pp <= layers) or embedding_and_loss_counted(job, pp, v)
    ]
    pairs = [(name, v) for name in names for v in (virtual if name == "interleaved" else [1])]
    return [(SCHEDULES.index(name), v) for name, v in pairs]


def _first_broken(job: Job, candidates: Candidates) -> tuple[list[int | None], list[str]]:
    """Return the index of the first rule that each choice breaks (or None), and the rules' sentences."""
    rules = rules_for(job)
    satisfied = np.stack([np.broadcast_to(rule.keeps(candidates), len(candidates)) for rule in rules])
    broken = ~satisfied
    first = broken.argmax(axis=0)
    first_broken = [int(first[i]) if broken[:, i].any() else None for i in range(len(candidates))]
    return first_broken, [rule.sentence for rule in rules]


def _equivalent(job: Job, candidates: Candidates, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which choices are equivalent to an earlier valid choice, or dominated by a valid one.

    They differ from it in the ZeRO stage without a data axis, or in an equivalent rank order, or have longer
    rings with larger microbatches than necessary (``docs/search.md``). Choices that the user's own rules
    distinguish are not equivalent.
    """
    seen: set[tuple[object, ...]] = set()
    equivalent = np.zeros(len(candidates), dtype=bool)
    c = candidates
    columns = (
        c.tp,
        c.cp,
        c.ep,
        c.etp,
        c.microbatch,
        c.sequence_parallel,
        c.vpp,
        c.schedule,
        c.recompute_num_layers,
        c.offload,
        c.dp_shard,
        c.order,
    )
    unsharded = np.flatnonzero(valid & (c.dp * c.cp == 1) & (c.edp == 1))
    residual_rules = [what_is_left(job, rule.relation, c.take(unsharded)) for rule in own_rules(job)]
    for k, i in enumerate(unsharded):
        key = (*(int(column[i]) for column in columns), *(nodes[k] for nodes in residual_rules))
        equivalent[i] = key in seen
        seen.add(key)
    if (
        job.stack.context_parallel is not None
        and job.stack.context_parallel.comm_type == "ring"
        and not job.rules
    ):
        equivalent |= _longer_rings(job, c, valid & ~equivalent)
    return equivalent | equivalent_orders(job, c, valid & ~equivalent)


def _longer_rings(job: Job, c: Candidates, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    names = (
        "tp",
        "ep",
        "zero",
        "sequence_parallel",
        "vpp",
        "schedule",
        "recompute_num_layers",
        "offload",
        "dp_shard",
    )
    other_columns = [tuple(int(getattr(c, name)[i]) for name in (*names, "order")) for i in range(len(c))]
    sizes = list(zip(c.cp.tolist(), c.microbatch.tolist(), strict=True))
    valid_keys = {(*sizes[i], other_columns[i]) for i in np.flatnonzero(valid)}
    factors = range(2, job.cluster.devices + 1)
    return np.array(
        [
            bool(is_valid)
            and any(
                cp % f == mbs % f == 0 and (cp // f, mbs // f, other_columns[i]) in valid_keys
                for f in factors
                if cp > 1 and f <= cp
            )
            for i, ((cp, mbs), is_valid) in enumerate(zip(sizes, valid, strict=True))
        ]
    )


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
