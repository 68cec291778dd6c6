"""Domain reduction: remove the alternatives that no layout as fast as the incumbent uses.

The solver gets the reduced domains, the best layout of the heuristics as a hint, and the least objective that
label setting proves.

Where every stage has one number of layers, as with virtual stages that are equal once embedding and head
count as layers, its alternatives trade a longer backward for a shorter end of step (``reduction_overlap``).
The makespan does not decrease when a backward grows. So for a limit on the longest end of step, the fastest
layout has the shortest backward within it on every stage, and the least step is that of one of these layouts.

The least step and memory of a candidate come from label setting over its stages.

Notation (this file only)::

    t_s, e_s  ticks of stage s for one chunk, and of its end of step     p  stages
    U_s  suffix sum: t from stage s on, so that U_0 is the sum of all
    f_s, b_s  forward and backward of t_s                                m  microbatches
    r_s  chunks of stage s on the path through its steady phase (``layer_splits.steady_rounds``)
    W_s(b)  max over q >= s of the sum over j = s + 1 ... q of (t_j - b)
    M_s  max over j >= s of (U_j + r_j t_j); without virtual stages of
         ((m - p + j) f_j + (m - 1) b_j + W_j(b_j)), which is no less
    E_s  max over j >= s of e_j
    P, N, E of the stages before s: their sum, max over j < s of (t_j + ... + t_(s-1) + r_j t_j), and max e_j

A step takes at least U_0 + M_0 + E_0, and most layouts take no longer. The path of U_j + r_j t_j passes j and
the stages behind it twice (``layer_splits``). Where these are fast, a longer path turns at stage q on its way
back: it leaves out t_(q+1) ... t_(p-1) once, and passes as many more backwards on j.

A label is (U_s, M_s, E_s, W_(s-1)) of the stages from s on, at a number of layers, with W for backwards of
earlier stages. Of labels at one place only those that no other is as small as in all numbers can begin the
least step, and of these only those with which

    P + U_s + max(N + U_s, M_s) + max(E, E_s)  <=  ceiling,    P, N, E each the least of its stages.

Source: label-setting shortest paths with several resources (Irnich and Desaulniers 2005, section 2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from math import inf
from operator import le
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.deadline import check_deadline
from autoplan.search.alternatives.layer_splits import (
    has_sum_and_maximum,
    primal_heuristic,
    steady_rounds,
    sum_and_maximum_heuristic,
    within_makespan,
)
from autoplan.search.alternatives.reduction_overlap import with_more_reduction_overlap
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Incumbent,
    Scale,
    step_ticks,
)
from autoplan.search.bounds.step_bound import longest_stage
from autoplan.search.space.priced_candidates import PricedCandidates

#: Labels of one stage above which the bound is given up: the solver is as fast then.
_MOST_LABELS: Final = 20_000

#: Backwards for which a label has W.
_MOST_TURNS: Final = 8


class _Label(NamedTuple):
    """U_s, M_s, E_s and W of the stages from s on, the alternative of s, and the label of those behind it."""

    total: int
    most: int
    end: int
    turns: tuple[int, ...]
    alternative: Alternative | None
    behind: _Label | None

    @property
    def step(self) -> int:
        """U_s + M_s + E_s: of the first stage, the lower bound on the step [ticks]."""
        return self.total + self.most + self.end

    @property
    def chosen(self) -> tuple[Alternative, ...]:
        """The alternatives of the stages, first to last."""
        return tuple(self._followed())

    def _followed(self) -> Iterator[Alternative]:
        label: _Label | None = self
        while label is not None and label.alternative is not None:
            yield label.alternative
            label = label.behind


@dataclass(frozen=True, slots=True)
class LeastLayout:
    """Lower bounds of a candidate in lexicographic order [ticks], and the layout that attains them.

    Every layout takes longer than ``step_ticks``, or as long with ``memory_ticks`` at least. The layout of
    ``chosen`` needs that memory; its step may be longer than the bound.
    """

    step_ticks: int
    memory_ticks: int
    chosen: tuple[Alternative, ...]


def least_layout(alternatives: Alternatives, layers: int, ceiling: int) -> LeastLayout | float | None:
    """Return the lexicographic lower bounds of a candidate among steps of up to ``ceiling`` ticks.

    Infinite where no layout has such a step; None where the schedule has no such bound, or too many labels.
    """
    if alternatives.fixed:
        return _only_layout(alternatives, layers)
    if not has_sum_and_maximum(alternatives):
        return None
    fastest = _least_label(alternatives, layers, ceiling)
    if not isinstance(fastest, _Label):
        return fastest
    return _least_memory(alternatives, layers, fastest)


def _only_layout(alternatives: Alternatives, layers: int) -> LeastLayout | float:
    """Return the bounds of the only layout, whatever its schedule; infinite with other layers."""
    chosen = tuple(row[0] for row in alternatives.stages)
    firsts = accumulate((o.layers for o in chosen), initial=0)
    in_place = all(o.first == first for o, first in zip(chosen, firsts, strict=False))
    if sum(o.layers for o in chosen) != layers or (alternatives.placed and not in_place):
        return inf
    return LeastLayout(step_ticks(alternatives, chosen), max(o.memory_ticks for o in chosen), chosen)


def _least_memory(alternatives: Alternatives, layers: int, fastest: _Label) -> LeastLayout | None:
    """Return the least memory with which a step of ``fastest`` is possible; None with too many labels."""
    layout, step = fastest.chosen, fastest.step
    used = {o.memory_ticks for row in alternatives.stages for o in row}
    floor = max(min(o.memory_ticks for o in row) for row in alternatives.stages)
    memory = max(o.memory_ticks for o in layout)
    sizes = sorted(size for size in used if floor <= size < memory)
    low, high = 0, len(sizes)
    # The layout is often the smallest already, so the next smaller size is asked for first.
    middle = high - 1
    while low < high:
        label = _least_label(_within_memory(alternatives, sizes[middle]), layers, step)
        if label is None:
            return None
        if isinstance(label, _Label):
            layout = label.chosen
            memory = max(o.memory_ticks for o in layout)
            high = bisect_left(sizes, memory)
        else:
            low = middle + 1
        middle = (low + high) // 2
    return LeastLayout(step, memory, layout)


def _within_memory(alternatives: Alternatives, most: int) -> Alternatives:
    rows = tuple(tuple(o for o in row if o.memory_ticks <= most) for row in alternatives.stages)
    return replace(alternatives, stages=rows)


def _least_label(alternatives: Alternatives, layers: int, ceiling: int) -> _Label | float | None:
    """Return the label of the least step within ``ceiling``, infinite without; None with too many labels."""
    least_before = _least_prefixes(alternatives, layers)
    turning = _turning_backwards(alternatives)
    labels: dict[int, list[_Label]] = {0: [_Label(0, 0, 0, (0,) * len(turning), None, None)]}
    for s in reversed(range(alternatives.schedule.p)):
        check_deadline()
        extended = _extended(alternatives, s, labels, (layers, ceiling), least_before[s], turning)
        labels = {count: _undominated(all_labels) for count, all_labels in extended.items()}
        if sum(map(len, labels.values())) > _MOST_LABELS:
            return None
    return min(labels.get(layers, ()), key=lambda label: label.step, default=inf)


def _extended(
    alternatives: Alternatives,
    s: int,
    labels: dict[int, list[_Label]],
    bounds: tuple[int, int],
    least_before: dict[int, tuple[int, int, int]],
    turning: Sequence[int],
) -> dict[int, list[_Label]]:
    """Return the labels from stage ``s`` on, by their layers; ``bounds`` are all layers and the ceiling."""
    layers, ceiling = bounds
    rounds, m, p = steady_rounds(alternatives.schedule, s), alternatives.schedule.m, alternatives.schedule.p
    extended: dict[int, list[_Label]] = {}
    placed = alternatives.placed
    for o in alternatives.stages[s]:
        ticks, end = o.stage_ticks, o.end_of_step_ticks
        # Of a longer backward W is smaller, so that of the next longer one is a lower bound.
        at = next((i for i, b in enumerate(turning) if b >= o.backward_ticks), None)
        # Where layers differ, an alternative has one place.
        ends = [layers - o.first - o.layers] if placed else labels
        for after in ends:
            before = layers - after - o.layers
            if before not in least_before or after not in labels:
                continue
            behind = labels[after]
            prefix, prefix_most, prefix_end = least_before[before]
            for label in behind:
                total = label.total + ticks
                most, last = max(label.most, total + rounds * ticks), max(label.end, end)
                if at is not None:
                    turn = (m - p + s) * o.forward_ticks + (m - 1) * o.backward_ticks + label.turns[at]
                    most = max(most, turn)
                if prefix + total + max(most, prefix_most + total) + max(last, prefix_end) <= ceiling:
                    turns = tuple([max(0, w + ticks - b) for w, b in zip(label.turns, turning, strict=True)])
                    extended.setdefault(after + o.layers, []).append(
                        _Label(total, most, last, turns, o, label)
                    )
    return extended


def _undominated(labels: list[_Label]) -> list[_Label]:
    """Return the labels that no other is as small as in all three numbers."""
    efficient: list[_Label] = []
    for label in sorted(labels, key=lambda x: x[:4]):
        _, most, end, turns, *_ = label
        if not any(
            other.most <= most and other.end <= end and all(map(le, other.turns, turns))
            for other in efficient
        ):
            efficient.append(label)
    return efficient


def _turning_backwards(alternatives: Alternatives) -> tuple[int, ...]:
    """Return the b for which labels have W, ascending: all that stages have, or some of them."""
    if alternatives.schedule.v > 1:
        return ()
    backwards = sorted({o.backward_ticks for row in alternatives.stages for o in row})
    step = -(-len(backwards) // _MOST_TURNS)
    return tuple(backwards[::-1][::step][::-1])


def _least_prefixes(alternatives: Alternatives, layers: int) -> list[dict[int, tuple[int, int, int]]]:
    """Return the least P, N and E before each stage, by the layers before it."""
    prefixes: list[dict[int, tuple[int, int, int]]] = [{0: (0, 0, 0)}]
    for s in range(len(alternatives.stages) - 1):
        rounds = steady_rounds(alternatives.schedule, s) + 1
        extended: dict[int, tuple[int, int, int]] = {}
        after = alternatives.by_begin(s)
        for before, (total, most, end) in prefixes[-1].items():
            for o in after(before):
                through, ticks = before + o.layers, o.stage_ticks
                if through >= layers:
                    continue
                prefix = total + ticks, max(most + ticks, rounds * ticks), max(end, o.end_of_step_ticks)
                other = extended.get(through, prefix)
                extended[through] = (
                    min(prefix[0], other[0]),
                    min(prefix[1], other[1]),
                    min(prefix[2], other[2]),
                )
        prefixes.append(extended)
    return prefixes


#: Share by which rounding may make the relaxation's end of step too long.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class OpenCandidate:
    """A candidate that may have the fastest layout: its alternatives under the current memory limit.

    ``incumbent_seconds`` is the step of a feasible layout of these alternatives; ``sum_seconds`` and
    ``tail_seconds`` are the least sum of stage times and the least end of step. ``before_cut`` are the
    alternatives before those too slow for a step were left out.
    """

    group: int
    position: int
    bound_seconds: float
    incumbent_seconds: float
    sum_seconds: float
    tail_seconds: float
    alternatives: Alternatives
    before_cut: Alternatives | None = None


@dataclass(frozen=True, slots=True)
class ReducedDomains:
    """Candidates with the alternatives of steps within ``ceiling`` ticks, and an incumbent.

    ``least`` is a lower bound on the step, and among equal steps on the memory [ticks], where the incumbent
    attains it. Others are left out: with a bound that no layout attains the solver takes longer (405B on
    16,384 devices: 5.4 units of its work, and 1.8 without).
    """

    live: tuple[OpenCandidate, ...]
    ceiling: int
    incumbent: Incumbent | None
    least: tuple[float, float] = (0, 0)


def within_step(live: OpenCandidate, layers: int, most: float, scale: Scale) -> OpenCandidate | None:
    """Return ``live`` without alternatives that no step of ``most`` seconds uses; None if none is left."""
    alternatives = live.alternatives
    longest = longest_stage(alternatives.schedule, live.sum_seconds, most - live.tail_seconds)
    ticks = int(longest / scale.tick_seconds / alternatives.schedule.v) + 3
    stages = [[o for o in row if o.stage_ticks <= ticks] for row in alternatives.stages]
    most_layers = [max((o.layers for o in row), default=0) for row in stages]
    fewest_layers = [layers - sum(most_layers) + count for count in most_layers]
    reduced = tuple(
        tuple(o for o in row if o.layers >= least) for row, least in zip(stages, fewest_layers, strict=True)
    )
    cut = replace(alternatives, stages=reduced)
    return None if cut.empty else replace(live, alternatives=cut, before_cut=alternatives)


def reduced_domains(
    live: Sequence[OpenCandidate],
    groups: Sequence[PricedCandidates],
    scale: Scale,
    ceiling: int,
    limit: float,
) -> ReducedDomains:
    """Return the reduced domains of ``live`` within ``limit`` bytes.

    The ceiling is the step of the primal heuristic's best layout. Alternatives that exceed it are removed;
    slower ones with a shorter end of step are added.
    """
    layers = groups[0].layers
    layout: tuple[OpenCandidate, tuple[Alternative, ...]] | None = None
    for c in live:
        chosen, ceiling = sum_and_maximum_heuristic(c.alternatives, layers, ceiling)
        layout = layout if chosen is None else (c, chosen)
    remaining = [
        (c, alternatives)
        for c in live
        if (alternatives := _reduced_domain(c, groups[c.group], scale, ceiling, limit)) is not None
    ]
    incumbent = _as_incumbent([c for c, _ in remaining], layout or _heuristic_layout(live, layers))
    reduced = tuple(replace(c, alternatives=alternatives) for c, alternatives in remaining)
    return _with_least(ReducedDomains(reduced, ceiling, incumbent), layers)


def _with_least(domains: ReducedDomains, layers: int) -> ReducedDomains:
    """Return ``domains`` with their least objective, without candidates that the best layout excludes."""
    leasts = [_least(c.alternatives, layers, domains.ceiling) for c in domains.live]
    layouts = [] if domains.incumbent is None else [domains.incumbent]
    layouts += [
        Incumbent(i, least.chosen)
        for i, (c, least) in enumerate(zip(domains.live, leasts, strict=True))
        if isinstance(least, LeastLayout) and c.alternatives.keeps_rules(least.chosen)
    ]
    best = min(layouts, key=lambda layout: _objective(domains, layout), default=None)
    best_objective = (domains.ceiling, inf) if best is None else _objective(domains, best)
    numbers = [i for i, least in enumerate(leasts) if _least_objective(least) <= best_objective]
    listed = best is not None and best.candidate in numbers
    least = min((_least_objective(leasts[i]) for i in numbers), default=(0, 0))
    reduced = ReducedDomains(
        live=tuple(domains.live[i] for i in numbers),
        ceiling=min(domains.ceiling, int(best_objective[0])),
        incumbent=best._replace(candidate=numbers.index(best.candidate)) if best and listed else None,
        least=least if listed and least == best_objective else (0, 0),
    )
    return _of_least(reduced, layers) if reduced.least != (0, 0) else reduced


def _of_least(domains: ReducedDomains, layers: int) -> ReducedDomains:
    """Return ``domains`` with the alternatives of layouts as fast and as small as the incumbent alone.

    No other layout is better, so the solver has only to confirm the incumbent.
    """
    step, memory = int(domains.least[0]), domains.least[1]
    live: list[OpenCandidate] = []
    incumbent = None
    for number, c in enumerate(domains.live):
        alternatives = within_least(c.alternatives, layers, step, memory)
        if alternatives is None:
            continue
        if domains.incumbent is not None and domains.incumbent.candidate == number:
            incumbent = domains.incumbent._replace(candidate=len(live))
        live.append(replace(c, alternatives=alternatives))
    return domains if incumbent is None else replace(domains, live=tuple(live), incumbent=incumbent)


def within_least(alternatives: Alternatives, layers: int, step: int, memory: float) -> Alternatives | None:
    """Return the alternatives of layouts within a step and a memory [ticks]; None if a stage has none."""
    rows = tuple(tuple(o for o in row if o.memory_ticks <= memory) for row in alternatives.stages)
    if not all(rows):
        return None
    within = replace(alternatives, stages=rows)
    return within_makespan(within, layers, step - within.least_end_of_step(len(rows)))


def _least(alternatives: Alternatives, layers: int, ceiling: int) -> LeastLayout | float | None:
    least = least_of_fixed_layers(alternatives, layers, ceiling)
    return least_layout(alternatives, layers, ceiling) if least is None else least


def _objective(domains: ReducedDomains, layout: Incumbent) -> tuple[float, float]:
    """Return the step and the memory of a layout [ticks]."""
    alternatives = domains.live[layout.candidate].alternatives
    return step_ticks(alternatives, layout.chosen), max(o.memory_ticks for o in layout.chosen)


def _least_objective(least: LeastLayout | float | None) -> tuple[float, float]:
    """Return the least step and memory of a candidate [ticks]: nothing where no bound is known."""
    if isinstance(least, LeastLayout):
        return least.step_ticks, least.memory_ticks
    return (0, 0) if least is None else (least, 0)


def _heuristic_layout(
    live: Sequence[OpenCandidate], layers: int
) -> tuple[OpenCandidate, tuple[Alternative, ...]] | None:
    """Return the candidate with the fastest heuristic layout, and that layout."""
    best = min(live, key=lambda c: c.incumbent_seconds, default=None)
    if best is None:
        return None
    # Without the slow alternatives the heuristic may end at a faster layout, or at none.
    options = [x for x in (best.alternatives, best.before_cut) if x is not None]
    layouts = [chosen for x in options if (chosen := primal_heuristic(x, layers)) is not None]
    chosen = min(layouts, key=lambda x: step_ticks(best.alternatives, x), default=None)
    return None if chosen is None else (best, chosen)


def _as_incumbent(
    remaining: Sequence[OpenCandidate], layout: tuple[OpenCandidate, tuple[Alternative, ...]] | None
) -> Incumbent | None:
    """Return ``layout`` as an incumbent of the candidates that are left; None where its candidate is not."""
    positions = [i for i, c in enumerate(remaining) if layout is not None and c is layout[0]]
    return Incumbent(positions[0], layout[1]) if layout is not None and positions else None


def _reduced_domain(
    live: OpenCandidate, group: PricedCandidates, scale: Scale, ceiling: int, limit: float
) -> Alternatives | None:
    """Return all alternatives that a step within ``ceiling`` may use; None if a stage has none.

    The end of step of the first stage is part of every step, and so is the candidate's least. Once
    alternatives with every end of step are listed, so is the longest of the stages' shortest.
    """
    layers = group.layers
    tail = int(live.tail_seconds / scale.tick_seconds * (1 - _ROUNDING))
    makespan = ceiling - max(live.alternatives.least_end_of_step(1), tail)
    alternatives = within_makespan(live.alternatives, layers, makespan)
    if alternatives is None:
        return None
    alternatives = with_more_reduction_overlap(alternatives, group, live.position, limit, makespan, scale)
    return within_makespan(
        alternatives, layers, ceiling - alternatives.least_end_of_step(len(alternatives.stages))
    )


_Row = Sequence[Alternative]


def least_of_fixed_layers(
    alternatives: Alternatives, layers: int, ceiling: int
) -> LeastLayout | float | None:
    """Return the least step of a candidate, the least memory with it, and a layout that has both [ticks].

    Infinite where no step is within ``ceiling`` ticks; None where stages can choose their number of layers,
    where the layers are not ``layers`` in all, and without a choice.
    """
    rows = alternatives.stages
    if alternatives.placed or alternatives.fixed or not all(map(_differs_in_backward_only, rows)):
        return None
    if sum(row[0].layers for row in rows) != layers:
        return None
    fastest = _fastest(alternatives, ceiling)
    if fastest is None:
        return inf
    step, chosen = fastest
    sizes = sorted({o.memory_ticks for row in rows for o in row})
    low, high = 0, bisect_left(sizes, _memory(chosen))
    # The layout is often the smallest already, so the next smaller size is asked for first.
    middle = high - 1
    while low < high:
        smaller = _fastest(alternatives, step, sizes[middle])
        if smaller is None:
            low = middle + 1
        else:
            chosen = smaller[1]
            high = bisect_left(sizes, _memory(chosen))
        middle = (low + high) // 2
    return LeastLayout(step, _memory(chosen), chosen)


def _differs_in_backward_only(row: _Row) -> bool:
    first = row[0]
    return all(
        o.layers == first.layers
        and o.forward_ticks == first.forward_ticks
        and o.weight_ticks == first.weight_ticks
        for o in row
    )


def _memory(chosen: _Row) -> int:
    return max(o.memory_ticks for o in chosen)


def _fastest(
    alternatives: Alternatives, most: int, most_memory: float = inf
) -> tuple[int, tuple[Alternative, ...]] | None:
    """Return the least step and its layout of at most ``most_memory``; None without one within ``most``."""
    check_deadline()
    rows = [
        sorted((o for o in row if o.memory_ticks <= most_memory), key=lambda o: o.backward_ticks)
        for row in alternatives.stages
    ]
    if not all(rows):
        return None
    shortest = max(min(o.end_of_step_ticks for o in row) for row in rows)
    ends = np.array(
        sorted({o.end_of_step_ticks for row in rows for o in row if o.end_of_step_ticks >= shortest})
    )
    # The first alternative of each stage that ends within each of the limits.
    firsts = [
        np.argmax(np.array([o.end_of_step_ticks for o in row]) <= ends[:, None], axis=1) for row in rows
    ]
    makespans = alternatives.schedule.time(
        [
            [
                np.array([getattr(o, part) for o in row])[first]
                for row, first in zip(rows, firsts, strict=True)
            ]
            for part in alternatives.schedule.parts
        ],
        _elementwise_largest,
    )
    best = int(np.argmin(makespans + ends))
    step = int(makespans[best] + ends[best])
    if step > most:
        return None
    return step, tuple(row[first[best]] for row, first in zip(rows, firsts, strict=True))


def _elementwise_largest(times: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return reduce(np.maximum, times)
