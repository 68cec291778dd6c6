"""The space: every candidate of a job, the rules it keeps, and how many layouts stand behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain, product
from math import comb, gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.arrays import Candidates, host_code, only_mode
from autoplan.plans import Rejection
from autoplan.plans.own_rules import even_only, own_rules, what_is_left
from autoplan.plans.rule import Rule
from autoplan.plans.rules import rules_before_placement, rules_for
from autoplan.schema.job import Job
from autoplan.schema.layout import SCHEDULES
from autoplan.search.orders import NODE_SHARD, numbered, ordered, orders_of, unlike_orders, ways_to_place

__all__ = [
    "Space",
    "clashing_rules",
    "counts_of",
    "divisors",
    "layouts_of",
    "recompute_modes",
    "space_of",
]

_INTERLEAVED = SCHEDULES.index("interleaved")
#: Schedules that few stacks have; the others are listed for every stack, and fall to a rule.
_RARE = {"zero-bubble"}
_MOST_VIRTUAL_STAGES = 16
_MATCHED = "matched: shorter rings of cp ranks, for fewer sequences each, are no slower and no larger"
_SAME_CUTS = "alike: orders of the axes that put the same ranks of each together in a node"


class _Choice(NamedTuple):
    """One candidate of a pipeline depth, its columns in the order of ``Candidates``."""

    tp: int
    dp: int
    cp: int
    ep: int
    etp: int
    microbatch: int
    zero: int
    sequence_parallel: int
    vpp: int
    schedule: int
    checkpoint: int
    offload: int
    shard: int
    order: int = 0


@dataclass(frozen=True, slots=True)
class Space:
    """Candidates that keep every rule, one group for each pipeline depth, and what fell to the rules.

    ``total`` counts all layouts, of which ``covered`` are left; a candidate with more virtual stages than
    layers, or layers that they do not divide, counts as one.
    """

    groups: tuple[Candidates, ...]
    total: int
    covered: int
    rejected: tuple[Rejection, ...]

    @property
    def size(self) -> int:
        """Number of candidates."""
        return sum(len(group) for group in self.groups)


def divisors(n: int) -> list[int]:
    """Return the divisors of ``n``, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def recompute_modes(job: Job) -> frozenset[str]:
    """Return the recompute modes that layers may use."""
    wish = job.search.recompute
    if wish == "any":
        return frozenset({"none", "selective", "full"})
    return frozenset(wish if isinstance(wish, tuple) else (wish,))


def space_of(job: Job) -> Space:
    """Return the candidates of ``job``; what breaks a rule is counted at the first rule it breaks."""
    groups, rejected, covered, alike, fewer_rings, total = [], Counter[str](), 0, 0, 0, 0
    first_rules, same_cuts = rules_before_placement(job), 0
    rules = rules_for(job)[len(first_rules) :]
    for pp in divisors(job.cluster.devices):
        choices = _choices(job, pp)
        if not choices:
            continue
        candidates = _candidates(pp, choices)
        counts = counts_of(job, candidates) * ways_to_place(job, candidates)
        total += sum(counts.tolist())
        alive = _kept(candidates, counts, first_rules, rejected)
        candidates = ordered(job, candidates.take(alive))
        counts = counts_of(job, candidates)
        alive = _kept(candidates, counts, rules, rejected)
        first = _representative(job, candidates, alive)
        alike += int(counts[alive & ~first].sum())
        alive &= first
        matched = _matched(job, candidates, alive)
        fewer_rings += int(counts[matched].sum())
        alive &= ~matched
        unlike = unlike_orders(job, candidates, alive)
        same_cuts += int(counts[alive & ~unlike].sum())
        alive &= unlike
        covered += int(counts[alive].sum())
        if alive.any():
            groups.append(candidates.take(alive))
    reasons = [Rejection(f"rule broken: {sentence}", n) for sentence, n in rejected.most_common() if n]
    if alike:
        reasons.append(Rejection("alike: ZeRO stages do not differ without a data axis", alike, "alike"))
    if fewer_rings:
        reasons.append(Rejection(_MATCHED, fewer_rings, "alike"))
    if same_cuts:
        reasons.append(Rejection(_SAME_CUTS, same_cuts, "alike"))
    return Space(tuple(groups), total, covered, tuple(reasons))


def _kept(
    candidates: Candidates, counts: NDArray[np.object_], rules: Sequence[Rule], rejected: Counter[str]
) -> NDArray[np.bool_]:
    """Return which candidates keep all ``rules``, the others counted under the first one that they break."""
    alive = np.ones(len(candidates), dtype=bool)
    for rule in rules:
        keeps = np.broadcast_to(rule.keeps(candidates), alive.shape)
        lost = alive & ~keeps
        if lost.any():
            rejected[rule.sentence] += int(counts[lost].sum())
        alive &= keeps
    return alive


def clashing_rules(job: Job) -> list[str]:
    """Return rules that no candidate keeps together, such that leaving any one out frees some.

    Rules are left out one by one, the user's own last, as long as those that remain still clash.
    """
    depths = [(pp, choices) for pp in divisors(job.cluster.devices) if (choices := _choices(job, pp))]
    groups = [ordered(job, _candidates(pp, choices)) for pp, choices in depths]
    rules = rules_for(job)
    keeps = [np.concatenate([np.broadcast_to(rule.keeps(g), len(g)) for g in groups]) for rule in rules]
    needed = list(range(len(rules)))
    for i in range(len(rules)):
        others = [keeps[j] for j in needed if j != i]
        if not np.all(others, axis=0).any():
            needed.remove(i)
    located = {own.sentence: own.located for own in own_rules(job)}
    return [located.get(rules[i].sentence, rules[i].sentence) for i in needed]


def _choices(job: Job, pp: int) -> list[_Choice]:
    """Return every candidate at depth ``pp``.

    Choices without a difference are made once: sequence parallelism needs tp > 1, a schedule needs a
    pipeline.
    """
    devices, batch = job.cluster.devices, job.workload.global_batch_size
    rest = [(*order, *kept) for order, kept in product(_schedules(job, pp), _checkpoints_and_host(job))]
    found: list[_Choice] = []
    for tp, cp in product(divisors(devices // pp), repeat=2):
        dp, left = divmod(devices // pp, tp * cp)
        if left or (cp > 1 and job.stack.context is None):
            continue
        shards = _shards(job, tp, pp, dp * cp)
        sizes = divisors(batch // dp) if batch % dp == 0 else [1]
        experts = _expert_degrees(job, tp, tp * dp * cp)
        spread = product(experts, sizes, range(4), (0, 1) if tp > 1 else (0,))
        for (ep, etp), mbs, zero, sp in spread:
            found.extend(
                _Choice(tp, dp, cp, ep, etp, mbs, zero, sp, vpp, schedule, checkpoint, offload, shard)
                for schedule, vpp, checkpoint, offload in rest
                for shard in (shards if zero else (0,))
            )
    return found


def _expert_degrees(job: Job, tp: int, ranks: int) -> list[tuple[int, int]]:
    """Return the degrees (ep, etp) of experts on the ``ranks`` of a stage, of which ``tp`` split tensors.

    Experts are whole or split as tensors are, unless the job names other degrees.
    """
    moe = job.model.moe
    if moe is None:
        return [(1, tp)]
    wish = job.search.expert_tensor_parallel
    splits = {1, tp} if wish == "any" else set(wish if isinstance(wish, tuple) else (wish,))
    most = gcd(moe.experts, ranks)
    return [(ep, etp) for ep in divisors(most) for etp in sorted(splits) if ranks % (ep * etp) == 0]


def _shards(job: Job, tp: int, pp: int, ranks: int) -> list[int]:
    """Return how many of ``ranks`` may share state, 0 for all; where nothing is said, those of a node too."""
    wish, hybrid = job.search.shard, job.stack.hybrid
    if wish == "any":
        distances = (tp, tp * pp, pp, 1) if len(orders_of(job)) > 1 else (tp,)
        here = {job.cluster.node.devices // distance for distance in distances}
        several = any(1 < n < ranks and ranks % n == 0 for n in here)
        return [0, NODE_SHARD] if several and hybrid is not None else [0]
    wanted = (ranks,) if wish == "all" else wish if isinstance(wish, tuple) else (wish,)
    return sorted({0 if shard == ranks else shard for shard in wanted})


def _checkpoints(job: Job) -> list[int]:
    """Return how many layers may share a kept input; all the same where none are recomputed whole."""
    wish, rules = job.search.checkpoint, job.stack.rules
    if "full" not in recompute_modes(job):
        return [1]
    if wish == "any":
        # Beyond sqrt(L) what a checkpoint brings back outgrows the inputs that it saves.
        layers = job.model.layers
        return [k for k in divisors(layers) if k == 1 or (rules.checkpoint_blocks and k * k <= 4 * layers)]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _checkpoints_and_host(job: Job) -> list[tuple[int, int]]:
    """Return how many layers may share a kept input, beside what may be in host memory (``host_code``).

    Where activations are there, all layers are recomputed in one of the ways with which the stack has that;
    only recompute of whole layers has inputs to share.
    """
    wish, policy = job.search.offload, job.stack.activation_offload
    modes = policy.recompute if policy is not None else ("none",)
    words = wish if isinstance(wish, tuple) else (wish,)
    codes = sorted({host_code(*choice) for choice in product(words, modes, _offload_every(job))})
    pairs = list(product(_checkpoints(job), codes))
    some = [(shared, code) for shared, code in pairs if shared == 1 or only_mode(code) in {None, "full"}]
    return some or pairs


def _offload_every(job: Job) -> list[int]:
    """Return of how many layers one may have its activations in host memory."""
    wish, policy = job.search.offload_every, job.stack.activation_offload
    if wish == "any":
        return [n for n in (1, 2, 4, 8) if n == 1 or (policy is not None and policy.partial)]
    return sorted(set(wish if isinstance(wish, tuple) else (wish,)))


def _schedules(job: Job, pp: int) -> list[tuple[int, int]]:
    """Return schedules and virtual stages; zero-bubble where the stack has it, or the job asks for it."""
    if pp == 1:
        return [(SCHEDULES.index("1f1b"), 1)]
    layers, wish = job.model.layers, job.search.schedule
    asked = {*job.stack.rules.schedules, *(wish if isinstance(wish, tuple) else (wish,))}
    plain = [(i, 1) for i, name in enumerate(SCHEDULES) if name in {"1f1b", "gpipe"} | (asked & _RARE)]
    virtual = [v for v in divisors(layers) if 1 < v <= _MOST_VIRTUAL_STAGES and pp * v <= layers]
    return plain + [(_INTERLEAVED, v) for v in virtual]


def _candidates(pp: int, choices: list[_Choice]) -> Candidates:
    numbers = np.fromiter(chain.from_iterable(choices), dtype=np.int64)
    return Candidates(pp, *numbers.reshape(len(choices), -1).T)


def _representative(job: Job, candidates: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep one of several ZeRO stages where no ranks share state: they are the same."""
    seen: set[tuple[int, ...]] = set()
    keep = np.ones(len(candidates), dtype=bool)
    c = candidates
    others = [getattr(c, f.name) for f in fields(c) if f.name not in {"pp", "zero"}]
    same = np.flatnonzero(alive & (c.dp * c.cp == 1) & (c.edp == 1))
    # Alike in price; the user's own rules may still tell a ZeRO stage from another.
    left = [numbered(what_is_left(job, rule.relation, c.take(same))) for rule in own_rules(job)]
    for k, i in enumerate(same):
        key = (*(int(x[i]) for x in others), *(numbers[k] for numbers in left))
        keep[i] = key not in seen
        seen.add(key)
    return keep


def _matched(job: Job, candidates: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return candidates whose ring does what fewer ranks do on fewer sequences, with less waiting.

    For a factor f of cp and of the microbatch, f times the data ranks with rings of cp / f and microbatches
    of mbs / f have the same tokens, weights, state and groups, transfers of the same size but fewer, and
    longer kernels to hide them (``costs.context``). They are no slower and no larger with any stages.
    """
    lost = np.zeros(len(candidates), dtype=bool)
    if job.stack.context is None or job.stack.context.exchange != "ring" or job.rules:
        # The user's own rules may tell the two apart.
        return lost
    c = candidates
    # Degrees and microbatches that share no factor have no other place to be.
    shared = alive & (np.gcd(c.cp, c.microbatch) > 1)
    if not shared.any():
        return lost
    values = [np.unique(column) for column in _columns(c)]
    known = _keys(c, values)[alive]
    primes = (f for f in divisors(job.cluster.devices) if len(divisors(f)) == 2)
    for f in primes:
        index = np.flatnonzero(shared & (c.cp % f == 0) & (c.microbatch % f == 0))
        some = c.take(index)
        fewer = replace(some, dp=some.dp * f, cp=some.cp // f, microbatch=some.microbatch // f)
        lost[index] |= np.isin(_keys(fewer, values), known)
    return lost


def _keys(candidates: Candidates, values: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each candidate, equal where all columns are; ``values`` are those of a column."""
    keys = np.zeros(len(candidates), dtype=np.int64)
    for column, known in zip(_columns(candidates), values, strict=True):
        keys = keys * len(known) + np.searchsorted(known, column)
    return keys


def _columns(candidates: Candidates) -> list[NDArray[np.int64]]:
    return [getattr(candidates, f.name) for f in fields(candidates) if f.name != "pp"]


def counts_of(job: Job, candidates: Candidates) -> NDArray[np.object_]:
    """Return how many layouts each candidate stands for, as whole numbers of any size."""
    c, modes, even = candidates, len(recompute_modes(job)), even_only(job)
    columns = np.array([c.vpp, c.checkpoint, c.moved > 0])
    _, first, back = np.unique(_numbered(columns), return_index=True, return_inverse=True)
    each = np.empty(len(first), dtype=object)
    each[:] = [
        layouts_of(job.model.layers, c.pp, v, 1 if alike else modes, even=even, checkpoint=k)
        for v, k, alike in columns[:, first].T.tolist()
    ]
    counts: NDArray[np.object_] = each[back]
    return counts


def _numbered(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each column of the table, equal where all of its entries are."""
    keys = np.zeros(columns.shape[1], dtype=np.int64)
    for row in columns:
        keys = keys * (row.max(initial=0) + 1) + row
    return keys


@cache
def layouts_of(layers: int, pp: int, vpp: int, modes: int, *, even: bool, checkpoint: int = 1) -> int:
    """Return how many layouts one candidate stands for: stages times recompute counts of each.

    A stage of l layers has C(l + k - 1, k - 1) ways to spread them over k recompute modes; stages are
    compositions of the layers into pp multiples of vpp. Where several layers share a ``checkpoint``, those
    recomputed whole are multiples of it, and some stage has them.

    >>> layouts_of(4, 1, 1, 3, even=False), layouts_of(4, 2, 1, 1, even=False)
    (15, 3)
    >>> layouts_of(4, 1, 1, 2, even=False, checkpoint=2)  # two of four, or all
    2
    """
    if pp * vpp > layers or layers % vpp:
        return 1
    spread = [comb(n + modes - 1, modes - 1) for n in range(layers + 1)]
    if checkpoint == 1:
        return _splits_of(layers, pp, vpp, spread, even=even)
    without = [comb(n + modes - 2, modes - 2) if modes > 1 else int(n == 0) for n in range(layers + 1)]
    shared = [sum(without[n - f] for f in range(0, n + 1, checkpoint)) for n in range(layers + 1)]
    with_none = _splits_of(layers, pp, vpp, without, even=even)
    return _splits_of(layers, pp, vpp, shared, even=even) - with_none


def _splits_of(layers: int, pp: int, vpp: int, ways: list[int], *, even: bool) -> int:
    """Return the sum over all stages of the product of their ``ways`` by layers."""
    if even:
        from autoplan.schema.layout import even_stages

        total = 1
        for n in even_stages(layers, pp, vpp):
            total *= ways[n]
        return total
    return _power_coefficient([0, *(ways[c * vpp] for c in range(1, layers // vpp + 1))], pp)


def _power_coefficient(series: list[int], power: int) -> int:
    """Return the last coefficient of ``series`` (as a polynomial, truncated) to ``power``."""
    size = len(series)
    result: list[int] | None = None
    base = series
    while power:
        if power & 1:
            result = base if result is None else _product(result, base, size)
        base = _product(base, base, size) if power > 1 else base
        power >>= 1
    return result[-1] if result else 0


def _product(a: list[int], b: list[int], size: int) -> list[int]:
    out = [0] * size
    for i, x in enumerate(a):
        if x:
            for j in range(size - i):
                out[i + j] += x * b[j]
    return out
