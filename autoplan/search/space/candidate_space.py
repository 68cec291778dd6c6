"""Search space of a job: the feasible candidates, and the number of layouts that each stands for.

A candidate stands for splits of the layers into stages, times recompute in each stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, Ints, distinct, distinct_rows, divisors, joined
from autoplan.deadline import check_deadline
from autoplan.results.front import Rejection
from autoplan.rules.layout_rules import rules_before_placement, rules_for
from autoplan.rules.rule import Rule
from autoplan.rules.user_constraints import embedding_and_loss_counted, even_only, user_rules_of
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages
from autoplan.search.space.choices import (
    candidate_blocks,
    distinct_orders,
    equality_numbers,
    rank_order_counts,
    recompute_modes,
    with_rank_orders,
)


@dataclass(frozen=True, slots=True)
class LayoutCounts:
    """Layouts of C candidates: ``layouts`` of the class of each, as many ``times``; arrays of shape [C].

    Counts of layouts have dozens of digits, so they are Python's integers, one for each class.
    """

    classes: Ints
    layouts: tuple[int, ...]
    times: Ints

    def total(self, chosen: NDArray[np.bool_] | Ints | None = None) -> int:
        """Return the layouts of the candidates at ``chosen``, a mask or indices; of all without.

        >>> counts = LayoutCounts(np.array([0, 1, 1]), (10**30, 3), np.array([1, 1, 2]))
        >>> counts.total(), counts.total(np.array([False, True, True]))
        (1000000000000000000000000000009, 9)
        """
        classes, times = self.classes, self.times
        if chosen is not None:
            classes, times = classes[chosen], times[chosen]
        numbers = np.bincount(classes, weights=times).astype(np.int64).tolist()
        return sum(n * layouts for n, layouts in zip(numbers, self.layouts, strict=False) if n)


def layout_counts(job: Job, candidates: Candidates, times: Ints | None = None) -> LayoutCounts:
    """Return how many layouts each candidate stands for, as many ``times``."""
    c, modes, even = candidates, len(recompute_modes(job)), even_only(job)
    columns = np.array([c.vpp, c.recompute_num_layers, c.activation_offload])
    classes = _column_numbers(columns)
    # Any candidate of a class stands for the others.
    one_of_class = np.zeros(classes.max(initial=0) + 1, dtype=np.int64)
    one_of_class[classes] = np.arange(len(classes))
    layouts = [0] * len(one_of_class)
    for number in np.flatnonzero(np.bincount(classes)).tolist():
        v, k, uniform = columns[:, one_of_class[number]].tolist()
        layouts[number] = layouts_of(
            job.model.layers,
            c.pp,
            v,
            1 if uniform else modes,
            even=even,
            counted=embedding_and_loss_counted(job, c.pp, v),
            unit=k,
        )
    return LayoutCounts(classes, tuple(layouts), np.ones_like(classes) if times is None else times)


def _column_numbers(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each column of the table, equal where all entries are equal."""
    keys = np.zeros(columns.shape[1], dtype=np.int64)
    for row in columns:
        keys = keys * (row.max(initial=0) + 1) + row
    return keys


@cache
def layouts_of(
    layers: int, pp: int, vpp: int, modes: int, *, even: bool, counted: bool = False, unit: int = 1
) -> int:
    """Return how many layouts one candidate stands for: splits of the layers, and recompute in each stage.

    A stage of l layers has C(l + k - 1, k - 1) ways to spread them over k recompute modes; stages are
    compositions of the layers into pp multiples of vpp, or the even one where embedding and head are
    ``counted``. Where a recompute unit has ``unit`` layers, layers in full recompute are multiples of it,
    and at least one stage has some.

    >>> layouts_of(4, 1, 1, 3, even=False), layouts_of(4, 2, 1, 1, even=False)
    (15, 3)
    >>> layouts_of(4, 1, 1, 2, even=False, unit=2)  # two of four, or all
    2
    """
    if not counted and (pp * vpp > layers or layers % vpp):
        return 1
    even = even or counted
    ways = [comb(n + modes - 1, modes - 1) for n in range(layers + 1)]
    if unit == 1:
        return _splits_of(layers, pp, vpp, ways, even=even)
    without_full = [comb(n + modes - 2, modes - 2) if modes > 1 else int(n == 0) for n in range(layers + 1)]
    with_full = [sum(without_full[n - f] for f in range(0, n + 1, unit)) for n in range(layers + 1)]
    none_full = _splits_of(layers, pp, vpp, without_full, even=even)
    return _splits_of(layers, pp, vpp, with_full, even=even) - none_full


def _splits_of(layers: int, pp: int, vpp: int, ways: list[int], *, even: bool) -> int:
    """Return the sum, over all splits of the layers, of the product of the stages' ``ways``."""
    if even:
        total = 1
        for n in even_stages(layers, pp, vpp):
            total *= ways[n]
        return total
    return _power_coefficient([0, *(ways[c * vpp] for c in range(1, layers // vpp + 1))], pp)


def _power_coefficient(series: list[int], power: int) -> int:
    """Return the last coefficient of ``series`` (as a polynomial, truncated) to ``power``.

    Euler's recurrence (Knuth, The Art of Computer Programming 2, 4.7): of A = a0 + a1 x + ... to the power n,
    k a0 b_k = sum over i from 1 to k of (i (n + 1) - k) a_i b_(k - i).

    >>> _power_coefficient([0, 1, 1, 1], 2), _power_coefficient([2, 1], 3), _power_coefficient([0, 0, 5], 2)
    (2, 12, 0)
    """
    first = next((i for i, x in enumerate(series) if x), len(series))
    most, a = len(series) - 1 - power * first, series[first:]
    if most < 0:
        return 0
    b: list[int] = [a[0] ** power]
    for k in range(1, most + 1):
        total = sum((i * (power + 1) - k) * a[i] * b[k - i] for i in range(1, k + 1))
        b.append(total // (k * a[0]))
    return b[-1]


_DOMINATED_RINGS = (
    "dominated: shorter rings of cp ranks, for fewer sequences each, are no slower and no larger"
)
_EQUIVALENT_ZERO = "equivalent: ZeRO stages do not differ without a data axis"
_EQUIVALENT_ORDERS = "equivalent: orders of the axes that put the same ranks of each together in a node"


@dataclass(frozen=True, slots=True)
class Space:
    """Candidates that satisfy every rule, grouped by pipeline depth, and the counts of rejected layouts.

    ``total`` counts all layouts, ``covered`` those of ``groups``. A candidate with more virtual stages than
    layers, or with layers that they do not divide, counts as one layout.
    """

    groups: tuple[Candidates, ...]
    total: int
    covered: int
    rejected: tuple[Rejection, ...]

    @property
    def size(self) -> int:
        """Number of candidates."""
        return sum(len(group) for group in self.groups)


#: The space of a job whose layouts were not counted.
NO_SPACE = Space((), 0, 0, ())


def space_of(job: Job) -> Space:
    """Return the search space of ``job``.

    A layout that breaks several rules is counted at the first of them. Candidates that are equivalent by
    symmetry to another, or dominated by it, are counted and left out.
    """
    counts, rules = _Counts(), _PlacedRules.of(job)
    groups = [
        group
        for pp in divisors(job.cluster.devices)
        if (group := _remaining_at_depth(job, pp, rules, counts)) is not None
    ]
    return Space(tuple(groups), counts.total, counts.covered, counts.reasons())


@dataclass(frozen=True, slots=True)
class _PlacedRules:
    """The rules of a job: ``before`` ranks have an order and shards a size, and ``behind`` that."""

    before: Sequence[Rule]
    behind: Sequence[Rule]

    @staticmethod
    def of(job: Job) -> _PlacedRules:
        before = rules_before_placement(job)
        return _PlacedRules(before, rules_for(job)[len(before) :])


@dataclass(slots=True)
class _Counts:
    """Layouts counted so far: all, covered by the remaining candidates, and those left out."""

    total: int = 0
    covered: int = 0
    by_rule: Counter[str] = field(default_factory=Counter)
    equivalent_zero: int = 0
    dominated_rings: int = 0
    equivalent_orders: int = 0

    def reasons(self) -> tuple[Rejection, ...]:
        """Return the rejections, the rules that exclude most layouts first."""
        of_rules = [Rejection(f"rule broken: {sentence}", n) for sentence, n in self.by_rule.most_common()]
        equivalent = (
            Rejection(reason, n, "equivalent")
            for reason, n in (
                (_EQUIVALENT_ZERO, self.equivalent_zero),
                (_DOMINATED_RINGS, self.dominated_rings),
                (_EQUIVALENT_ORDERS, self.equivalent_orders),
            )
        )
        return tuple(rejection for rejection in (*of_rules, *equivalent) if rejection.layouts)


def _remaining_at_depth(job: Job, pp: int, rules: _PlacedRules, counts: _Counts) -> Candidates | None:
    """Return the candidates at depth ``pp`` that satisfy every rule, one of those that are equivalent."""
    blocks = [_remaining_of_block(job, block, rules, counts) for block in candidate_blocks(job, pp)]
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        return None
    candidates = joined(blocks)
    layouts, dominated = layout_counts(job, candidates), _dominated_rings(job, candidates)
    counts.dominated_rings += layouts.total(dominated)
    different = distinct_orders(job, candidates, ~dominated)
    counts.equivalent_orders += layouts.total(~dominated & ~different)
    counts.covered += layouts.total(different)
    return candidates.take(different) if different.any() else None


def _remaining_of_block(job: Job, block: Candidates, rules: _PlacedRules, counts: _Counts) -> Candidates:
    """Return the candidates of a block in every rank order that satisfy every rule."""
    layouts = layout_counts(job, block, rank_order_counts(job, block))
    counts.total += layouts.total()
    remaining = _satisfying(block, layouts, rules.before, counts.by_rule)
    candidates = with_rank_orders(job, block.take(remaining))
    layouts = layout_counts(job, candidates)
    check_deadline()
    remaining = _satisfying(candidates, layouts, rules.behind, counts.by_rule)
    representative = _representative(job, candidates, remaining)
    counts.equivalent_zero += layouts.total(remaining & ~representative)
    return candidates.take(remaining & representative)


def _satisfying(
    candidates: Candidates, layouts: LayoutCounts, rules: Sequence[Rule], rejected: Counter[str]
) -> NDArray[np.bool_]:
    """Return which candidates satisfy all ``rules``; count the others at the first rule that they break."""
    index, subset = np.arange(len(candidates)), candidates
    remaining = np.ones(len(index), dtype=bool)
    for rule in rules:
        if 4 * np.count_nonzero(remaining) < len(index):
            # Copies cost more than rules: most subsets are not worth one.
            index, subset = index[remaining], subset.take(remaining)
            remaining = np.ones(len(index), dtype=bool)
        if not len(index):
            break
        broken = remaining & ~np.broadcast_to(rule.keeps(subset), index.shape)
        if broken.any():
            rejected[rule.sentence] += layouts.total(index[broken])
            remaining &= ~broken
    satisfying = np.zeros(len(candidates), dtype=bool)
    satisfying[index[remaining]] = True
    return satisfying


def valid_choices(job: Job) -> Iterator[Candidates]:
    """Yield, for each pipeline depth, the candidates of the space in ascending order of their columns.

    A job on more devices than its limit allows has none.
    """
    if job.limits.devices is not None and job.cluster.devices > job.limits.devices:
        return
    for group in space_of(job).groups:
        # The last key of lexsort is the primary one.
        yield group.take(np.lexsort(_columns(group)[::-1]))


def conflicting_rules(job: Job) -> list[str]:
    """Return an irreducible set of conflicting rules: no candidate satisfies all, some satisfy all but one.

    Deletion filter: rules are removed one by one, the user's last, while the remaining ones conflict.
    """
    blocks = (block for pp in divisors(job.cluster.devices) for block in candidate_blocks(job, pp))
    groups = [with_rank_orders(job, block) for block in blocks]
    rules = rules_for(job)
    broken = [~np.concatenate([np.broadcast_to(rule.keeps(g), len(g)) for g in groups]) for rule in rules]
    conflict, breaches = [], np.sum(broken, axis=0)
    for i, of_rule in enumerate(broken):
        if (breaches == of_rule).any():
            conflict.append(i)
        else:
            breaches -= of_rule
    located = {user_rule.sentence: user_rule.located for user_rule in user_rules_of(job)}
    return [located.get(rules[i].sentence, rules[i].sentence) for i in conflict]


def _representative(job: Job, candidates: Candidates, remaining: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return one representative of the ZeRO stages where no ranks share state: they are equivalent."""
    representative = np.ones(len(candidates), dtype=bool)
    unsharded = np.flatnonzero(remaining & candidates.single_data_rank)
    if not len(unsharded):
        return representative
    c = candidates.take(unsharded)
    others = [getattr(c, f.name) for f in fields(c) if f.name not in {"pp", "zero"}]
    # Their prices are equal; the user's rules may still distinguish the ZeRO stages.
    rules = [equality_numbers(job, rule.relation, c) for rule in user_rules_of(job)]
    first, _ = distinct_rows([*others, *rules])
    representative[unsharded] = False
    representative[unsharded[first]] = True
    return representative


def _dominated_rings(job: Job, candidates: Candidates) -> NDArray[np.bool_]:
    """Return which of all ``candidates`` of a depth are dominated by shorter rings with smaller microbatches.

    For a factor f of cp and of the microbatch, f times the data ranks with rings of cp / f and microbatches
    of mbs / f have the same tokens, weights, state and groups, transfers of the same size but fewer, and
    longer kernels to hide them (``costs.layer.context_parallel``). For any stages they are no slower and need
    no more memory.
    """
    dominated = np.zeros(len(candidates), dtype=bool)
    if job.stack.context_parallel is None or job.stack.context_parallel.comm_type != "ring" or job.relations:
        # The user's rules may distinguish the two.
        return dominated
    c = candidates
    # Only a common factor of cp and microbatch gives a dominating candidate.
    divisible = np.gcd(c.cp, c.microbatch) > 1
    if not divisible.any():
        return dominated
    values = [distinct(column) for column in _columns(c)]
    keys = distinct(_keys(c, values))
    primes = (f for f in divisors(job.cluster.devices) if len(divisors(f)) == 2)
    for f in primes:
        index = np.flatnonzero(divisible & (c.cp % f == 0) & (c.microbatch % f == 0))
        longer = c.take(index)
        shorter = replace(longer, dp=longer.dp * f, cp=longer.cp // f, microbatch=longer.microbatch // f)
        wanted = _keys(shorter, values)
        dominated[index] |= keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted
    return dominated


def _keys(candidates: Candidates, values: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each candidate, equal where all columns are; -1 where a column lacks the value.

    ``values`` has the sorted distinct values of each column.
    """
    keys, keyed = np.zeros(len(candidates), dtype=np.int64), np.ones(len(candidates), dtype=bool)
    for column, ordered in zip(_columns(candidates), values, strict=True):
        index = np.minimum(np.searchsorted(ordered, column), len(ordered) - 1)
        keyed &= ordered[index] == column
        keys = keys * len(ordered) + index
    return np.where(keyed, keys, -1)


def _columns(candidates: Candidates) -> list[NDArray[np.int64]]:
    return [getattr(candidates, f.name) for f in fields(candidates) if f.name != "pp"]
