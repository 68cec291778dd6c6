"""Every choice of degrees, microbatch, ZeRO stage and schedule, made anew, and how many layouts each has."""

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
from autoplan.verification.order_equivalence import alike_in_order, data_stride, orders_of

__all__ = [
    "ChoiceCounts",
    "counted",
    "even_only",
    "layouts_behind",
    "modes_of",
    "too_many_devices",
    "valid_choices",
]

#: Virtual stages of a device that are listed at most: more are in no use, and the search has the same limit.
_MOST_VIRTUAL: Final = 16

_Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChoiceCounts:
    """How many layouts there are, how many are covered, how many fell to each rule, and choices left."""

    total: int
    covered: int
    by_rule: dict[str, int]
    alike: int
    candidates: int


def modes_of(job: Job) -> tuple[str, ...]:
    """Return the recompute modes that layers may use."""
    wish = job.search.recompute
    if wish == "any":
        return ("none", "selective", "full")
    return wish if isinstance(wish, tuple) else (wish,)


def even_only(job: Job, pp: int, vpp: int) -> bool:
    """Return whether stages hold what an even split gives."""
    wanted = job.search.stages == "even" or not job.stack.rules.uneven_stages
    return wanted or embedding_and_loss_counted(job, pp, vpp)


def too_many_devices(job: Job) -> bool:
    """Return whether the job asks for more devices than its limit allows, which leaves no space at all."""
    return job.limits.devices is not None and job.cluster.devices > job.limits.devices


def valid_choices(job: Job) -> Iterator[Candidates]:
    """Yield, for each pipeline depth, the choices that keep every rule, one of those that are alike."""
    if too_many_devices(job):
        return
    for candidates in _choices(job):
        kept, _ = _first_broken(job, candidates)
        alive = np.array([fallen is None for fallen in kept])
        alive &= ~_alike(job, candidates, alive)
        if alive.any():
            yield candidates.take(alive)


def counted(job: Job) -> ChoiceCounts:
    """Return how many layouts ``job`` has and what becomes of them, counted anew."""
    total = covered = alike = size = 0
    by_rule: Counter[str] = Counter()
    for candidates in () if too_many_devices(job) else _choices(job):
        fallen, sentences = _first_broken(job, candidates)
        alive = np.array([rule is None for rule in fallen])
        same = _alike(job, candidates, alive)
        for i, rule in enumerate(fallen):
            count = layouts_behind(
                job,
                candidates.pp,
                int(candidates.vpp[i]),
                int(candidates.checkpoint[i]),
                alike=candidates.moved[i] > 0,
            )
            total += count
            if rule is not None:
                by_rule[sentences[rule]] += count
            elif same[i]:
                alike += count
            else:
                covered, size = covered + count, size + 1
    return ChoiceCounts(total, covered, dict(by_rule), alike, size)


def _choices(job: Job) -> Iterator[Candidates]:
    n = job.cluster.devices
    for pp in (d for d in range(1, n + 1) if n % d == 0):
        rows = sorted(_rows(job, pp))
        yield Candidates(pp, *np.array(rows, dtype=np.int64).T)


def _rows(job: Job, pp: int) -> Iterator[_Row]:
    """Yield the columns of ``Candidates`` at one depth."""
    here, batch = job.cluster.devices // pp, job.workload.global_batch_size
    kept = _shared_and_moved(job)
    for tp, cp in product((d for d in range(1, here + 1) if here % d == 0), repeat=2):
        if here % (tp * cp) or (cp > 1 and job.stack.context is None):
            continue
        dp = here // (tp * cp)
        share = batch // dp
        sizes = [b for b in range(1, share + 1) if share % b == 0] if batch % dp == 0 else [1]
        places = [(order, _sharing(job, data_stride(order, tp, cp, pp), dp * cp)) for order in orders_of(job)]
        for mbs, zero, sp, (schedule, vpp), (k, offload) in product(
            sizes, range(4), (0, 1) if tp > 1 else (0,), _orders(job, pp), kept
        ):
            for (ep, etp), (order, shards) in product(_spreads(job, tp, here), places):
                for shard in shards if zero else (0,):
                    row = (tp, dp, cp, ep, etp, mbs, zero, sp, vpp, schedule, k, offload, shard)
                    yield (*row, ORDERS.index(order))


def _spreads(job: Job, tp: int, ranks: int) -> list[tuple[int, int]]:
    """Return over how many of a stage's ranks experts may be spread, and how many split each of them."""
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


def _shared(job: Job) -> list[int]:
    """Return how many layers may share a checkpoint."""
    wish, layers = job.search.checkpoint, job.model.layers
    if "full" not in modes_of(job):
        return [1]
    if wish == "any":
        most = 4 * layers if job.stack.rules.checkpoint_blocks else 1
        return [k for k in range(1, layers + 1) if layers % k == 0 and k * k <= max(1, most)]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _shared_and_moved(job: Job) -> list[tuple[int, int]]:
    """Return how many layers may share a checkpoint, with what may be in host memory.

    0 is nothing, 1 the optimizer's state; 2, 4, 6 are activations of layers without recompute, with selective
    and with whole recompute, as the stack has it; odd numbers above are both. Where only some layers' are,
    one of n, 8 (n - 1) is added.
    """
    wish, policy = job.search.offload, job.stack.activation_offload
    moves = {"none": 2, "selective": 4, "full": 6}
    some = job.search.offload_every
    if some == "any":
        some = (1, 2, 4, 8) if policy is not None and policy.partial else 1
    of_layers = [
        moves[mode] + 8 * (n - 1)
        for mode in (policy.recompute if policy is not None else ("none",))
        for n in (some if isinstance(some, tuple) else (some,))
    ]
    numbers = {
        "none": [0],
        "optimizer": [1],
        "activations": of_layers,
        "optimizer+activations": [n + 1 for n in of_layers],
    }
    offloads = {n for word in (wish if isinstance(wish, tuple) else (wish,)) for n in numbers[word]}
    found = list(product(_shared(job), sorted(offloads)))
    # A checkpoint of several layers is one of layers recomputed whole.
    return [(k, n) for k, n in found if k == 1 or n % 8 not in {2, 3, 4, 5}] or found


def _sharing(job: Job, distance: int, ranks: int) -> list[int]:
    """Return how many of ``ranks``, a ``distance`` apart, may share state, 0 for all of them."""
    wish, node = job.search.shard, job.cluster.node.devices // distance
    if wish == "any":
        cut = job.stack.hybrid is not None and node in range(2, ranks) and ranks % node == 0
        return [0, node] if cut else [0]
    named = wish if isinstance(wish, tuple) else (ranks if wish == "all" else wish,)
    return sorted({n if n != ranks else 0 for n in named})


def _orders(job: Job, pp: int) -> list[tuple[int, int]]:
    """Return schedules with their virtual stages; zero-bubble where the stack has it or the job asks."""
    if pp == 1:
        return [(SCHEDULES.index("1f1b"), 1)]
    layers, asked = job.model.layers, job.search.schedule
    named = "zero-bubble" in (asked if isinstance(asked, tuple) else (asked,))
    named = named or any("zero-bubble" in own.rule for own in job.rules)
    names = [x for x in SCHEDULES if named or x != "zero-bubble" or x in job.stack.rules.schedules]
    several = range(2, _MOST_VIRTUAL + 1)
    virtual = [
        v for v in several if (layers % v == 0 and v * pp <= layers) or embedding_and_loss_counted(job, pp, v)
    ]
    pairs = [(name, v) for name in names for v in (virtual if name == "interleaved" else [1])]
    return [(SCHEDULES.index(name), v) for name, v in pairs]


def _first_broken(job: Job, candidates: Candidates) -> tuple[list[int | None], list[str]]:
    """Return the number of the first rule that each choice breaks, and the rules' sentences."""
    rules = rules_for(job)
    keeps = np.stack([np.broadcast_to(rule.keeps(candidates), len(candidates)) for rule in rules])
    broken = ~keeps
    first = broken.argmax(axis=0)
    fallen = [int(first[i]) if broken[:, i].any() else None for i in range(len(candidates))]
    return fallen, [rule.sentence for rule in rules]


def _alike(job: Job, candidates: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which choices are matched by another valid one.

    They differ from an earlier one in a ZeRO stage that shards over nothing or in an order of ranks that
    nodes do not tell from its own, or have rings of several sequences where shorter rings of fewer do the
    same (``docs/search.md``). What the user's own rules may tell apart is not alike.
    """
    seen: set[tuple[object, ...]] = set()
    same = np.zeros(len(candidates), dtype=bool)
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
        c.checkpoint,
        c.offload,
        c.shard,
        c.order,
    )
    unshared = np.flatnonzero(alive & (c.dp * c.cp == 1) & (c.edp == 1))
    left = [what_is_left(job, rule.relation, c.take(unshared)) for rule in own_rules(job)]
    for k, i in enumerate(unshared):
        key = (*(int(column[i]) for column in columns), *(nodes[k] for nodes in left))
        same[i] = key in seen
        seen.add(key)
    if job.stack.context is not None and job.stack.context.exchange == "ring" and not job.rules:
        same |= _longer_rings(job, c, alive & ~same)
    return same | alike_in_order(job, c, alive & ~same)


def _longer_rings(job: Job, c: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    names = ("tp", "ep", "zero", "sequence_parallel", "vpp", "schedule", "checkpoint", "offload", "shard")
    rest = [tuple(int(getattr(c, name)[i]) for name in (*names, "order")) for i in range(len(c))]
    sizes = list(zip(c.cp.tolist(), c.microbatch.tolist(), strict=True))
    there = {(*sizes[i], rest[i]) for i in np.flatnonzero(alive)}
    factors = range(2, job.cluster.devices + 1)
    return np.array(
        [
            bool(valid)
            and any(
                cp % f == mbs % f == 0 and (cp // f, mbs // f, rest[i]) in there
                for f in factors
                if cp > 1 and f <= cp
            )
            for i, ((cp, mbs), valid) in enumerate(zip(sizes, alive, strict=True))
        ]
    )


def layouts_behind(job: Job, pp: int, vpp: int, checkpoint: int = 1, *, alike: bool = False) -> int:
    """Return how many layouts a choice stands for: ways to split the layers, and to recompute them.

    Those recomputed whole come in multiples of ``checkpoint``; where that is above 1, there are some. Where
    all layers are ``alike``, there is one way to recompute them.
    """
    layers, modes = job.model.layers, 1 if alike else len(modes_of(job))
    if not embedding_and_loss_counted(job, pp, vpp) and (pp * vpp > layers or layers % vpp):
        return 1
    if checkpoint == 1:
        return _filled(job, pp, vpp, modes, 1)
    return _filled(job, pp, vpp, modes, checkpoint) - _filled(job, pp, vpp, modes - 1, 1)


def _filled(job: Job, pp: int, vpp: int, modes: int, checkpoint: int) -> int:
    layers = job.model.layers
    if even_only(job, pp, vpp):
        count = 1
        for held in even_stages(layers, pp, vpp):
            count *= _mixes(held, modes, checkpoint)
        return count
    return _fillings(pp, layers, vpp, modes, checkpoint)


@cache
def _mixes(layers: int, modes: int, checkpoint: int) -> int:
    """Return the ways to give each of ``layers`` alike layers one of ``modes``, one in whole checkpoints."""
    if modes == 0:
        return int(layers == 0)
    return sum(_mixes(layers - n, modes - 1, 1) for n in range(0, layers + 1, checkpoint))


@cache
def _fillings(stages: int, layers: int, each: int, modes: int, checkpoint: int) -> int:
    """Return the ways to fill ``stages`` with multiples of ``each`` layers, and to choose their modes."""
    if stages == 1:
        return _mixes(layers, modes, checkpoint) if layers >= each else 0
    most = layers - (stages - 1) * each
    return sum(
        _mixes(held, modes, checkpoint) * _fillings(stages - 1, layers - held, each, modes, checkpoint)
        for held in range(each, most + 1, each)
    )
