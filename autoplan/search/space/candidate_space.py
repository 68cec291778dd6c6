"""The space: every candidate of a job, the rules it keeps, and how many layouts stand behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates
from autoplan.costs.core.divisors import divisors
from autoplan.results import Rejection
from autoplan.rules.layout_rules import rules_before_placement, rules_for
from autoplan.rules.rule import Rule
from autoplan.rules.user_constraints import embedding_and_loss_counted, even_only, own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages
from autoplan.search.space.choices import listed, recompute_modes
from autoplan.search.space.rank_orders import numbered, ordered, unlike_orders, ways_to_place

__all__ = [
    "Space",
    "conflicting_rules",
    "counts_of",
    "layouts_of",
    "space_of",
]

_MATCHED = "matched: shorter rings of cp ranks, for fewer sequences each, are no slower and no larger"
_SAME_CUTS = "alike: orders of the axes that put the same ranks of each together in a node"


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


def space_of(job: Job) -> Space:
    """Return the candidates of ``job``; what breaks a rule is counted at the first rule it breaks."""
    groups, rejected, covered, alike, fewer_rings, total = [], Counter[str](), 0, 0, 0, 0
    first_rules, same_ranks_per_node = rules_before_placement(job), 0
    rules = rules_for(job)[len(first_rules) :]
    for pp in divisors(job.cluster.devices):
        candidates = listed(job, pp)
        if not len(candidates):
            continue
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
        same_ranks_per_node += int(counts[alive & ~unlike].sum())
        alive &= unlike
        covered += int(counts[alive].sum())
        if alive.any():
            groups.append(candidates.take(alive))
    reasons = [Rejection(f"rule broken: {sentence}", n) for sentence, n in rejected.most_common() if n]
    if alike:
        reasons.append(Rejection("alike: ZeRO stages do not differ without a data axis", alike, "alike"))
    if fewer_rings:
        reasons.append(Rejection(_MATCHED, fewer_rings, "alike"))
    if same_ranks_per_node:
        reasons.append(Rejection(_SAME_CUTS, same_ranks_per_node, "alike"))
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


def conflicting_rules(job: Job) -> list[str]:
    """Return rules that no candidate keeps together, such that leaving any one out frees some.

    Rules are left out one by one, the user's own last, as long as those that remain still clash.
    """
    depths = (listed(job, pp) for pp in divisors(job.cluster.devices))
    groups = [ordered(job, candidates) for candidates in depths if len(candidates)]
    rules = rules_for(job)
    keeps = [np.concatenate([np.broadcast_to(rule.keeps(g), len(g)) for g in groups]) for rule in rules]
    needed = list(range(len(rules)))
    for i in range(len(rules)):
        others = [keeps[j] for j in needed if j != i]
        if not np.all(others, axis=0).any():
            needed.remove(i)
    located = {own.sentence: own.located for own in own_rules(job)}
    return [located.get(rules[i].sentence, rules[i].sentence) for i in needed]


def _representative(job: Job, candidates: Candidates, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep one of several ZeRO stages where no ranks share state: they are the same."""
    seen: set[tuple[int, ...]] = set()
    keep = np.ones(len(candidates), dtype=bool)
    c = candidates
    others = [getattr(c, f.name) for f in fields(c) if f.name not in {"pp", "zero"}]
    same = np.flatnonzero(alive & c.alone)
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
    longer kernels to hide them (``costs.layer.context_parallel``). They are no slower and no larger with any
    stages.
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
        layouts_of(
            job.model.layers,
            c.pp,
            v,
            1 if alike else modes,
            even=even,
            counted=embedding_and_loss_counted(job, c.pp, v),
            checkpoint=k,
        )
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
def layouts_of(
    layers: int, pp: int, vpp: int, modes: int, *, even: bool, counted: bool = False, checkpoint: int = 1
) -> int:
    """Return how many layouts one candidate stands for: stages times recompute counts of each.

    A stage of l layers has C(l + k - 1, k - 1) ways to spread them over k recompute modes; stages are
    compositions of the layers into pp multiples of vpp, or the even one where embedding and head are
    ``counted``. Where several layers share a ``checkpoint``, those
    recomputed whole are multiples of it, and some stage has them.

    >>> layouts_of(4, 1, 1, 3, even=False), layouts_of(4, 2, 1, 1, even=False)
    (15, 3)
    >>> layouts_of(4, 1, 1, 2, even=False, checkpoint=2)  # two of four, or all
    2
    """
    if not counted and (pp * vpp > layers or layers % vpp):
        return 1
    even = even or counted
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
