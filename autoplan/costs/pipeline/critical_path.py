"""Makespan of a pipeline schedule in closed form: the critical path, as sums and maxima of stage times.

Notation (this file only)::

    p    stages                        m    microbatches of a step                 [1]
    v    virtual stages of a stage     M    chunks that a stage passes, m v        [1]
    F_s  forward of one chunk on stage s, B_s its backward, t_s = F_s + B_s        [s]
    w_s  warm-up forwards of stage s: those before its first backward, less one    [1]
    f_s  start of the first forward of stage s: sum of F_l over l < s; b_s of B_l  [s]
    F^_s maximum of F_l over l <= s; B^_s likewise                                 [s]
    S_s  warm-up of stage s: from its first forward to the end of chunk w_s + 1    [s]
    E_s  cool-down of stage s: the same with time reversed                         [s]
    W_s  weight gradient of one microbatch, where it is split from B_s             [s]

The same code serves every type that can be added, multiplied by integers and compared by the given
``largest``: arrays of candidates, integers, paths in the solver's constraints. Point-to-point transfers take
no time here. Every coefficient is a non-negative integer, so the makespan is non-decreasing in every
stage time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, product
from typing import Any, Protocol, TypeAlias, TypeVar


class Amount(Protocol):
    """A stage time that a closed form adds up: an array, a number, or a path."""

    def __add__(self, other: Any, /) -> Any:  # noqa: ANN401 - of its own kind
        """Return the sum."""

    def __rmul__(self, times: int, /) -> Any:  # noqa: ANN401 - of its own kind
        """Return the product with an integer."""


X = TypeVar("X", bound=Amount)
Largest: TypeAlias = Callable[[Sequence[X]], X]


def makespan(
    forward: Sequence[X],
    backward: Sequence[X],
    m: int,
    v: int,
    largest: Largest[X],
    *,
    gpipe: bool,
    weight: Sequence[X] | None = None,
) -> X:
    """Return the makespan of a pipeline schedule, first forward to last backward; times are of one chunk.

    With ``weight`` (zero-bubble, which splits weight gradients off), ``backward`` is the input gradient only.

    >>> makespan([1, 2], [2, 4], 8, 1, max, gpipe=False)
    51

    Leaves out: point-to-point transfers between stages.
    Source: Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473; Qi et al. 2023,
    arXiv:2401.10241.
    """
    if weight is not None:
        return zero_bubble_makespan(forward, backward, weight, m, largest)
    return (
        gpipe_makespan(forward, backward, m, largest)
        if gpipe
        else one_f_one_b_makespan(forward, backward, m, v, largest)
    )


def gpipe_makespan(forward: Sequence[X], backward: Sequence[X], m: int, largest: Largest[X]) -> X:
    """Return the makespan of GPipe: sum F + sum B + (m - 1)(max F + max B).

    >>> gpipe_makespan([1, 2], [2, 4], 8, max)
    51

    Source: Huang et al. 2019, arXiv:1811.06965, figure 2c.
    """
    first = _sum([*forward, *backward])
    return first if m == 1 else _sum([first, (m - 1) * largest(forward), (m - 1) * largest(backward)])


def one_f_one_b_makespan(
    forward: Sequence[X], backward: Sequence[X], m: int, v: int, largest: Largest[X]
) -> X:
    """Return the makespan of 1F1B (v = 1), or of interleaved 1F1B (v > 1, m a multiple of p).

    T = max over s of f_s + S_s + (M - 2 - w_s) t_s + E_s + b_s: the first microbatch reaches stage s, which
    warms up, alternates forward and backward, and cools down. Where M - 2 - w_s < 0 the critical path is one
    of ``_all_forwards_first``; interleaving adds the path of ``_second_round``.

    >>> one_f_one_b_makespan([1, 2], [2, 4], 8, 1, max), one_f_one_b_makespan([2, 1], [4, 2], 8, 1, max)
    (51, 49)

    Leaves out: point-to-point transfers between stages. The form equals an event-driven simulation for 1F1B;
    for the interleaved schedule it does so where stage times differ by less than about half, and it is never
    longer.
    Source: the schedules of Narayanan et al. 2021, arXiv:2104.04473, section 2.2; the form is ours.
    """
    p, chunks = len(forward), m * v
    both = [a + b for a, b in zip(forward, backward, strict=True)]
    if p == 1:
        single_stage: X = chunks * both[0]
        return single_stage
    warmups = [_warmup_forwards(p, v, s) for s in range(p)]
    cumulative = list(accumulate(both, operator.add))
    starts = _warmup_paths(forward, both, chunks, v, largest)
    ends = _warmup_paths(backward, both, chunks, v, largest)
    paths = _all_forwards_first(forward, backward, cumulative, chunks, warmups, largest)
    for s, warmup in enumerate(warmups):
        if chunks - 2 < warmup:
            continue
        for (start, started), (end, ended) in product(starts[s], ends[s]):
            steady = chunks + warmup - started - ended
            if steady >= 0:
                paths.append(_sum([*cumulative[s - 1 : s], start, steady * both[s], end]))
    return largest(paths)


def _warmup_paths(
    times: Sequence[X], both: Sequence[X], chunks: int, v: int, largest: Largest[X]
) -> list[list[tuple[X, int]]]:
    """Return for every stage the paths of its warm-up, each with the chunks that it completes.

    With backward times these are the paths of the cool-down.
    """
    p, warmups = len(times), _warmup_times(times, both, v, largest)
    second_round = [(x, (v + 1) * p) for x in _second_round(times, both, warmups, chunks, v, largest)]
    return [[(time, _warmup_forwards(p, v, s) + 1), *second_round] for s, time in enumerate(warmups)]


def _sum(parts: Iterable[X]) -> X:
    return reduce(operator.add, parts)


def _warmup_forwards(p: int, v: int, s: int) -> int:
    """Return w_s: p-1-s, or 2(p-1-s) + (v-1)p in chunks."""
    return p - 1 - s if v == 1 else 2 * (p - 1 - s) + (v - 1) * p


def _running_maximum(times: Sequence[X], largest: Largest[X]) -> list[X]:
    """Return the maximum over the stages up to each one."""
    maxima = [times[0]]
    for time in times[1:]:
        maxima.append(largest([maxima[-1], time]))
    return maxima


def _warmup_times(times: Sequence[X], both: Sequence[X], v: int, largest: Largest[X]) -> list[X]:
    """Return S_s = t_s + max(w_s F^_s, S_{s+1}, rounds), or E_s for backward times.

    The slowest stage before a stage paces its warm-up, or the next stage does. Interleaved chunks pass all
    stages z times (z = 1 or v - 1), and the slowest of all stages paces the others.
    """
    p, maxima, round_time = len(times), _running_maximum(times, largest), _sum(times)
    all_rounds = sorted({1, v - 1}) if v > 1 else ()
    warmups: list[X] = []
    for s in reversed(range(p)):
        warmup = _warmup_forwards(p, v, s)
        paths = [*warmups[-1:], *([warmup * maxima[s]] if warmup else [])]
        for rounds in all_rounds:
            first_chunks = max(0, warmup + 1 - v * p)
            others = warmup - first_chunks - rounds * p
            if others >= 0:
                paths.append(first_chunks * maxima[s] + rounds * round_time + others * maxima[-1])
        warmups.append(both[s] + largest(paths) if paths else both[s])
    return warmups[::-1]


def _all_forwards_first(
    forward: Sequence[X],
    backward: Sequence[X],
    cumulative: Sequence[X],
    chunks: int,
    warmups: Sequence[int],
    largest: Largest[X],
) -> list[X]:
    """Return paths where some stage runs all forwards before its first backward (m <= p).

    With L the last such stage: f_j + b_j + t_j + min(w_j, M-1) F^_j + (M-1) B^_min(j,L) for each stage j,
    and with F and B swapped.
    """
    all_first = [s for s, warmup in enumerate(warmups) if warmup >= chunks - 1]
    if not all_first:
        return []
    longest_forward = _running_maximum(forward, largest)
    longest_backward = _running_maximum(backward, largest)
    paths: list[X] = []
    for j, warmup in enumerate(warmups):
        k, most = min(j, all_first[-1]), min(warmup, chunks - 1)
        paths.append(_sum([cumulative[j], most * longest_forward[j], (chunks - 1) * longest_backward[k]]))
        paths.append(_sum([cumulative[j], most * longest_backward[j], (chunks - 1) * longest_forward[k]]))
    return paths


def _second_round(
    times: Sequence[X], both: Sequence[X], warmups: Sequence[X], chunks: int, v: int, largest: Largest[X]
) -> list[X]:
    """Return the longest path to the end of a chunk's next round of all stages; none without interleaving.

    f_l + S_l + (v p - w_l - 1) t_l + sum of F from l on, for the stages l of the later half.
    """
    if v == 1:
        return []
    p, paths, round_time = len(times), [], _sum(times)
    for s in range(p):
        warmup = _warmup_forwards(p, v, s)
        between = v * p - warmup - 1
        if 0 <= between < chunks - 1 - warmup:
            paths.append(round_time + warmups[s] + between * both[s])
    return [largest(paths)] if paths else []


def zero_bubble_makespan(
    forward: Sequence[X], backward: Sequence[X], weight: Sequence[X], m: int, largest: Largest[X]
) -> X:
    """Return the makespan of zero-bubble (ZB-H1): ``backward`` is the input gradient, ``weight`` the rest.

    Stage s runs its n-th weight gradient after its (n+s)-th backward: none after the first s, and s of them
    at the end. In between it repeats F, B and W, m - p times, and the critical path stays on one stage:

    T = max over s of D_s + (m - p - 1)(F_s + B_s + W_s) + W_s + H_s, with D_s the end of the stage's s-th
    backward from 0 (``_warmup_ends``) and H_s the longest path from its last but w_s forwards to the end
    (``_remaining_times``); for m = p, max over s of D_s + G_s (``_cooldown_times``).

    >>> zero_bubble_makespan([1] * 4, [1] * 4, [1] * 4, 8, max)  # 8 x 3 + 3
    27
    >>> one_f_one_b_makespan([1] * 4, [2] * 4, 8, 1, max)  # 8 x 3 + 9
    33

    Leaves out: point-to-point transfers between stages. The form equals an event-driven simulation.
    Source: the schedule of Qi et al. 2023, arXiv:2401.10241, section 2.1; the form is ours.
    """
    p, stages = len(forward), list(zip(forward, backward, weight, strict=True))
    if p == 1:
        single_stage: X = m * _sum(stages[0])
        return single_stage
    warmups = _warmup_ends(forward, backward, weight, m, largest)
    if m < p:
        return largest([warmups[s] + min(m, s + 1) * weight[s] for s in range(p)])
    cooldowns = _cooldown_times(backward, weight, largest)
    if m == p:
        return largest([a + b for a, b in zip(warmups, cooldowns, strict=True)])
    remaining = _remaining_times(forward, backward, cooldowns, largest)
    return largest(
        [_sum([warmups[s], (m - p - 1) * _sum(stages[s]), weight[s], remaining[s]]) for s in range(p)]
    )


def _warmup_ends(
    forward: Sequence[X], backward: Sequence[X], weight: Sequence[X], m: int, largest: Largest[X]
) -> list[X]:
    """Return the end of the s-th backward from 0 of each stage s; where m < p, of its last backward.

    Round k of a stage is its k-th backward and the forward before it, if forwards remain. A forward depends
    on the previous round's on the previous stage; a backward on the same round's on the next stage.
    """
    p, longest = len(forward), _running_maximum(forward, largest)
    cumulative = list(accumulate(forward, operator.add))
    ready = {s: cumulative[s] + min(p - 1 - s, m - 1) * longest[s] for s in range(p)}
    rounds = [_backward_ends(ready, backward, largest)]
    for k in range(1, min(m, p)):
        previous, previous_ready = rounds[-1], ready
        ready = {}
        for s in range(k if m >= p else 0, p):
            end = previous[s] + weight[s] if k - 1 >= s else previous[s]
            if k <= m - p + s:
                end = forward[s] + (largest([end, previous_ready[s - 1]]) if s else end)
            ready[s] = end
        rounds.append(_backward_ends(ready, backward, largest))
    return [rounds[s if m >= p else m - 1][s] for s in range(p)]


def _backward_ends(ready: dict[int, X], backward: Sequence[X], largest: Largest[X]) -> dict[int, X]:
    """Return the end of a round's backward on every stage, given when the stage itself is ``ready``."""
    ends: dict[int, X] = {}
    for s in sorted(ready, reverse=True):
        start = largest([ready[s], ends[s + 1]]) if s + 1 in ends else ready[s]
        ends[s] = start + backward[s]
    return ends


def _cooldown_times(backward: Sequence[X], weight: Sequence[X], largest: Largest[X]) -> list[X]:
    """Return G_s, the longest path from the last forward of stage s, and its backward, to the end.

    It has w_s more backwards and weight gradients, paced by the slowest stage l <= s. The path ends with the
    l + 1 weight gradients of stage l, or with those of a stage before it.
    """
    ends = [weight[0]]
    for s in range(1, len(weight)):
        ends.append(largest([(s + 1) * weight[s], backward[s - 1] + ends[-1]]))
    paces = [b + w for b, w in zip(backward, weight, strict=True)]

    def path(s: int, slowest: int) -> X:
        """Return the path from stage ``s`` whose remaining rounds run on stage ``slowest``."""
        steady: X = (len(weight) - 1 - s) * paces[slowest]
        return _sum([steady, *backward[slowest:s], ends[slowest]])

    return [largest([path(s, slowest) for slowest in range(s + 1)]) for s in range(len(weight))]


def _remaining_times(
    forward: Sequence[X], backward: Sequence[X], cooldowns: Sequence[X], largest: Largest[X]
) -> list[X]:
    """Return H_s = F_s + max(B_s + G_s, H_{s+1}): from the start of a stage's last forward to the end."""
    remaining: list[X] = []
    for f, b, cooldown in reversed(list(zip(forward, backward, cooldowns, strict=True))):
        remaining.append(f + largest([b + cooldown, *remaining[-1:]]))
    return remaining[::-1]
