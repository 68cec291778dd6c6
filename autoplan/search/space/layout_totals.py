"""How many layouts candidates stand for: splits of the layers into stages, times recompute in each stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Candidates, Ints
from autoplan.rules.user_constraints import embedding_and_loss_counted, even_only
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages
from autoplan.search.space.choices import recompute_modes


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
