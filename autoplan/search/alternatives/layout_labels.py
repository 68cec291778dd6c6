"""Least step and least memory of a candidate, by label setting over its stages.

Notation (this file only)::

    t_s, e_s  ticks of stage s for one chunk, and of its end of step     p  stages
    U_s  suffix sum: t from stage s on, so that U_0 is the sum of all
    f_s, b_s  forward and backward of t_s                                m  microbatches
    r_s  chunks of stage s on the path through its steady phase (``path_counts.steady_rounds``)
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
from itertools import accumulate
from math import inf
from operator import le
from typing import Final, NamedTuple

from autoplan.deadline import check_deadline
from autoplan.search.alternatives.layer_splits import has_sum_and_maximum
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, step_ticks
from autoplan.search.bounds.path_counts import steady_rounds

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
