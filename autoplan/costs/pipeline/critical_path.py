"""Closed forms of a schedule's time: its longest path, as sums and largest values of stage times.

Notation (this file only)::

    p    stages                        m    microbatches of a step                 [1]
    v    virtual stages of a stage     M    chunks that a stage passes, m v        [1]
    F_s  forward of one chunk on stage s, B_s its backward, t_s = F_s + B_s        [s]
    w_s  forwards that stage s does before its first backward, less one            [1]
    f_s  sum of F_l over l < s: when the first microbatch comes; b_s of B_l        [s]
    F^_s the largest F_l of l <= s; B^_s likewise                                  [s]
    S_s  from the first forward of stage s until it has done w_s + 1 chunks        [s]
    E_s  the same from the end backwards                                           [s]
    W_s  weight gradient of one microbatch, where it is done apart from B_s        [s]

A form is written once, for whatever can be added, multiplied by whole numbers and compared by the given
``largest``: arrays of candidates, ticks, paths of the solver's rows. It holds without time on the wire; each
coefficient is a whole number of at least 0, so a step never gets shorter when a stage gets longer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, product
from typing import Any, Protocol, TypeAlias, TypeVar

__all__ = ["Amount", "Largest", "apart", "gpipe_makespan", "one_f_one_b_makespan", "pipeline_time"]


class Amount(Protocol):
    """What a form adds up: an array, a number, a path."""

    def __add__(self, other: Any, /) -> Any:  # noqa: ANN401 - of its own kind
        """Return the sum."""

    def __rmul__(self, times: int, /) -> Any:  # noqa: ANN401 - of its own kind
        """Return this ``times`` over."""


X = TypeVar("X", bound=Amount)
Largest: TypeAlias = Callable[[Sequence[X]], X]


def pipeline_time(
    forward: Sequence[X],
    backward: Sequence[X],
    m: int,
    v: int,
    largest: Largest[X],
    *,
    gpipe: bool,
    weight: Sequence[X] | None = None,
) -> X:
    """Return the time of a step from its first forward to its last backward; times are of one chunk.

    Where ``weight`` gradients are done apart (zero-bubble), ``backward`` is the input gradient alone.

    >>> pipeline_time([1, 2], [2, 4], 8, 1, max, gpipe=False)
    51

    Leaves out: what ``gpipe_makespan``, ``one_f_one_b_makespan`` and ``apart`` do.
    Source: Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473; Qi et al. 2023,
    arXiv:2401.10241.
    """
    if weight is not None:
        return apart(forward, backward, weight, m, largest)
    return (
        gpipe_makespan(forward, backward, m, largest)
        if gpipe
        else one_f_one_b_makespan(forward, backward, m, v, largest)
    )


def gpipe_makespan(forward: Sequence[X], backward: Sequence[X], m: int, largest: Largest[X]) -> X:
    """Return the time under GPipe: sum F + sum B + (m - 1)(max F + max B).

    >>> gpipe_makespan([1, 2], [2, 4], 8, max)
    51

    Source: Huang et al. 2019, arXiv:1811.06965, figure 2c.
    """
    once = _sum([*forward, *backward])
    return once if m == 1 else _sum([once, (m - 1) * largest(forward), (m - 1) * largest(backward)])


def one_f_one_b_makespan(
    forward: Sequence[X], backward: Sequence[X], m: int, v: int, largest: Largest[X]
) -> X:
    """Return the time under 1F1B (v = 1), or interleaved (v > 1, m a multiple of p).

    T = max over s of f_s + S_s + (M - 2 - w_s) t_s + E_s + b_s: the first microbatch comes to stage s, which
    fills, takes forward and backward in turn, and drains. Where M - 2 - w_s < 0, another path counts
    (``_all_forwards_first``), and interleaving adds one (``_round``).

    >>> one_f_one_b_makespan([1, 2], [2, 4], 8, 1, max), one_f_one_b_makespan([2, 1], [4, 2], 8, 1, max)
    (51, 49)

    Leaves out: time on the wire. 1F1B equals a simulation, task by task for all times, interleaved where
    stages differ by less than about half; it is never longer.
    Source: the orders of Narayanan et al. 2021, arXiv:2104.04473, section 2.2; the form is ours.
    """
    p, chunks = len(forward), m * v
    both = [a + b for a, b in zip(forward, backward, strict=True)]
    if p == 1:
        alone: X = chunks * both[0]
        return alone
    waits = [_wait(p, v, s) for s in range(p)]
    before = list(accumulate(both, operator.add))
    starts = _ways(forward, both, chunks, v, largest)
    ends = _ways(backward, both, chunks, v, largest)
    paths = _all_forwards_first(forward, backward, before, chunks, waits, largest)
    for s, wait in enumerate(waits):
        for (start, done), (end, left) in product(starts[s], ends[s]):
            steady = chunks + wait - done - left
            if chunks - 2 >= wait and steady >= 0:
                paths.append(_sum([*before[s - 1 : s], start, steady * both[s], end]))
    return largest(paths)


def _ways(
    times: Sequence[X], both: Sequence[X], chunks: int, v: int, largest: Largest[X]
) -> list[list[tuple[X, int]]]:
    """Return for each stage how it may begin (or, from backwards, end), and how many chunks are done then."""
    p, fills = len(times), _fills(times, both, v, largest)
    around = [(x, (v + 1) * p) for x in _round(times, both, fills, chunks, v, largest)]
    return [[(fill, _wait(p, v, s) + 1), *around] for s, fill in enumerate(fills)]


def _sum(parts: Iterable[X]) -> X:
    return reduce(operator.add, parts)


def _wait(p: int, v: int, s: int) -> int:
    """Return w_s: p-1-s, or 2(p-1-s) + (v-1)p in chunks."""
    return p - 1 - s if v == 1 else 2 * (p - 1 - s) + (v - 1) * p


def _running(times: Sequence[X], largest: Largest[X]) -> list[X]:
    """Return the largest up to each stage."""
    longest = [times[0]]
    for time in times[1:]:
        longest.append(largest([longest[-1], time]))
    return longest


def _fills(times: Sequence[X], both: Sequence[X], v: int, largest: Largest[X]) -> list[X]:
    """Return S_s = t_s + max(w_s F^_s, S_{s+1}, rounds), or E_s from backwards.

    A stage that fills is paced by the slowest stage before it, or follows the next one. Interleaved chunks
    go round z times (z = 1 or v - 1) through all stages, and the slowest of all paces the others.
    """
    p, longest, once = len(times), _running(times, largest), _sum(times)
    fills: list[X] = []
    for s in reversed(range(p)):
        wait = _wait(p, v, s)
        ways = [*fills[-1:], *([wait * longest[s]] if wait else [])]
        alone = max(0, wait + 1 - v * p)
        for rounds in sorted({1, v - 1}) if v > 1 else ():
            others = wait - alone - rounds * p
            if others >= 0:
                ways.append(alone * longest[s] + rounds * once + others * longest[-1])
        fills.append(both[s] + largest(ways) if ways else both[s])
    return fills[::-1]


def _all_forwards_first(
    forward: Sequence[X],
    backward: Sequence[X],
    there: Sequence[X],
    chunks: int,
    waits: Sequence[int],
    largest: Largest[X],
) -> list[X]:
    """Return paths where some stage does all forwards before its first backward (m <= p).

    With L the last such stage: f_j + b_j + t_j + min(w_j, M-1) F^_j + (M-1) B^_min(j,L) for each stage j,
    and with F and B swapped.
    """
    full = [s for s, wait in enumerate(waits) if wait >= chunks - 1]
    if not full:
        return []
    ahead, back = _running(forward, largest), _running(backward, largest)
    paths: list[X] = []
    for j, wait in enumerate(waits):
        k, most = min(j, full[-1]), min(wait, chunks - 1)
        paths.append(_sum([there[j], most * ahead[j], (chunks - 1) * back[k]]))
        paths.append(_sum([there[j], most * back[j], (chunks - 1) * ahead[k]]))
    return paths


def _round(
    times: Sequence[X], both: Sequence[X], fills: Sequence[X], chunks: int, v: int, largest: Largest[X]
) -> list[X]:
    """Return the longest way to a chunk that has gone round once more, of interleaving; none where none is.

    f_l + S_l + (v p - w_l - 1) t_l + sum of F from l on, for the stages l of the later half.
    """
    p, ways = len(times), []
    for s in range(p) if v > 1 else ():
        wait = _wait(p, v, s)
        between = v * p - wait - 1
        if 0 <= between < chunks - 1 - wait:
            ways.append(_sum([*times, fills[s], between * both[s]]))
    return [largest(ways)] if ways else []


def apart(forward: Sequence[X], backward: Sequence[X], weight: Sequence[X], m: int, largest: Largest[X]) -> X:
    """Return the time under zero-bubble (ZB-H1): ``backward`` is the input gradient, ``weight`` the rest.

    Stage s does its n-th weight gradient after its (n+s)-th backward: none after the first s, and s of them
    at the end. In between, m - p times, it does F, B and W in turn, where a longest path stays on one stage:

    T = max over s of D_s + (m - p - 1)(F_s + B_s + W_s) + W_s + H_s, D_s being the end of the stage's s-th
    backward from 0 (``_turned``) and H_s the longest way on from its last but w_s forwards (``_onwards``);
    for m = p, max over s of D_s + G_s (``_drained``).

    >>> apart([1] * 4, [1] * 4, [1] * 4, 8, max)  # 8 x 3 + 3
    27
    >>> one_f_one_b_makespan([1] * 4, [2] * 4, 8, 1, max)  # 8 x 3 + 9
    33

    Leaves out: time on the wire. It equals a simulation, task by task for all times.
    Source: the order of Qi et al. 2023, arXiv:2401.10241, section 2.1; the form is ours.
    """
    p, each = len(forward), list(zip(forward, backward, weight, strict=True))
    if p == 1:
        alone: X = m * _sum(each[0])
        return alone
    turned = _turned(forward, backward, weight, m, largest)
    if m < p:
        return largest([turned[s] + min(m, s + 1) * weight[s] for s in range(p)])
    drained = _drained(backward, weight, largest)
    if m == p:
        return largest([a + b for a, b in zip(turned, drained, strict=True)])
    onwards = _onwards(forward, backward, drained, largest)
    return largest([_sum([turned[s], (m - p - 1) * _sum(each[s]), weight[s], onwards[s]]) for s in range(p)])


def _turned(
    forward: Sequence[X], backward: Sequence[X], weight: Sequence[X], m: int, largest: Largest[X]
) -> list[X]:
    """Return when each stage s ends its s-th backward from 0; where m < p, its last.

    Round k of a stage is its k-th backward and the forward before it, if there are any left. A forward needs
    the one of the round before on the stage before; a backward that of its round on the stage behind.
    """
    p, longest = len(forward), _running(forward, largest)
    there = list(accumulate(forward, operator.add))
    sent = [there[s] + min(p - 1 - s, m - 1) * longest[s] for s in range(p)]
    rounds = [_returned(dict(enumerate(sent)), backward, largest)]
    ready = dict(enumerate(sent))
    for k in range(1, min(m, p)):
        before, sent_before = rounds[-1], ready
        ready = {}
        for s in range(k if m >= p else 0, p):
            done = before[s] + weight[s] if k - 1 >= s else before[s]
            if k <= m - p + s:
                done = forward[s] + (largest([done, sent_before[s - 1]]) if s else done)
            ready[s] = done
        rounds.append(_returned(ready, backward, largest))
    return [rounds[s if m >= p else m - 1][s] for s in range(p)]


def _returned(ready: dict[int, X], backward: Sequence[X], largest: Largest[X]) -> dict[int, X]:
    """Return when the backward of a round ends on each stage that is ``ready`` for it by itself."""
    ends: dict[int, X] = {}
    for s in sorted(ready, reverse=True):
        start = largest([ready[s], ends[s + 1]]) if s + 1 in ends else ready[s]
        ends[s] = start + backward[s]
    return ends


def _drained(backward: Sequence[X], weight: Sequence[X], largest: Largest[X]) -> list[X]:
    """Return G_s, the longest way from the last forward of stage s, and its backward, to the end.

    w_s backwards and weight gradients are left on it, which the slowest stage l <= s paces. The way ends with
    the l + 1 weight gradients of stage l, or one of a stage before it.
    """
    ends = [weight[0]]
    for s in range(1, len(weight)):
        ends.append(largest([(s + 1) * weight[s], backward[s - 1] + ends[-1]]))
    paces = [b + w for b, w in zip(backward, weight, strict=True)]

    def way(s: int, slowest: int) -> X:
        """Return the way from stage ``s`` that spends what it has of rounds on the ``slowest``."""
        left: X = (len(weight) - 1 - s) * paces[slowest]
        return _sum([left, *backward[slowest:s], ends[slowest]])

    return [largest([way(s, slowest) for slowest in range(s + 1)]) for s in range(len(weight))]


def _onwards(
    forward: Sequence[X], backward: Sequence[X], drained: Sequence[X], largest: Largest[X]
) -> list[X]:
    """Return H_s = F_s + max(B_s + G_s, H_{s+1}): what a stage's last forward leads to."""
    onwards: list[X] = []
    for f, b, left in reversed(list(zip(forward, backward, drained, strict=True))):
        onwards.append(f + largest([b + left, *onwards[-1:]]))
    return onwards[::-1]
