"""Where stages may stand in a model whose layers differ, and what they then hold.

A *place* is the layers of a stage: how many, behind how many of the stages before it. Places of a stage
that hold the same kinds in the same order have one *content*, which is priced once. A split of the layers is
a path from place to place, each beginning where the one before ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.core.layer_types import HeldLayers, Prefixes, order_of
from autoplan.schema.stage_layers import even_stages

__all__ = ["Places", "Row", "places_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """Places of one stage: what each begins behind, how many layers it has, its content (from 0).

    ``orders`` [X] are the stage's contents as numbers of orders in the prefixes of ``Places``, ``start`` is
    the number of the first of them among those of all stages. ``spans`` are the places of as many layers:
    where they begin and end, in units of v layers, and their contents.
    """

    first: Ints
    layers: Ints
    content: Ints
    orders: Ints
    start: int
    spans: tuple[tuple[slice, slice, Ints], ...]

    @property
    def here(self) -> slice:
        """The stage's contents among those of all stages."""
        return slice(self.start, self.start + len(self.orders))


@dataclass(frozen=True, slots=True)
class Places:
    """All places of the stages of one depth and number of chunks, for layers of these kinds."""

    sequence: tuple[int, ...]
    v: int
    prefixes: Prefixes
    rows: tuple[Row, ...]

    @property
    def total(self) -> int:
        """How many layers there are."""
        return len(self.sequence)

    @property
    def contents(self) -> int:
        """How many contents the stages have together."""
        return sum(len(row.orders) for row in self.rows)

    def layers(self, stage: int) -> Ints:
        """Return the layers of each content of a stage, shape [X]."""
        return self.prefixes.layers[self.rows[stage].orders]

    def held(self, stage: int, selective: Array, full: Array) -> HeldLayers:
        """Return what the contents of a stage hold, so many of their layers recomputed, [..., X]."""
        return self.prefixes.held(self.rows[stage].orders, selective, full)

    def order(self, stage: int, first: int, layers: int) -> int:
        """Return the number of the order of a place in the prefixes."""
        row = self.rows[stage]
        at = np.flatnonzero((row.first == first) & (row.layers == layers))[0]
        return int(row.orders[row.content[at]])

    def least_sum(self, values: Array) -> Array:
        """Return the least sum of the values of contents [C, X of all stages] along a path, shape [C]."""
        return self._best(values, np.add, 0.0)[-1][:, -1]

    def least_peak(self, values: Array) -> Array:
        """Return the least largest value of contents [C, X of all stages] along a path, shape [C]."""
        return self._best(values, np.maximum, -np.inf)[-1][:, -1]

    def smallest_peak(self, values: Array) -> list[int]:
        """Return the layers of each stage on a path of the least largest of ``values`` [X of all stages]."""
        best, at, found = self._best(values[None], np.maximum, -np.inf), self.total, []
        for row, before in zip(reversed(self.rows), reversed(best[:-1]), strict=True):
            ends = np.flatnonzero(row.first + row.layers == at)
            peaks = np.maximum(before[0, row.first[ends] // self.v], values[row.here][row.content[ends]])
            found.append(int(row.layers[ends[peaks.argmin()]]))
            at -= found[-1]
        return found[::-1]

    def _best(self, values: Array, join: np.ufunc, empty: float) -> list[Array]:
        """Return the best of all ways to get as far as each layer, before each stage and at the end."""
        size = self.total // self.v + 1
        best = np.full((len(values), size), np.inf)
        best[:, 0] = empty
        found = [best]
        for row in self.rows:
            here, after = values[:, row.here], np.full((len(values), size), np.inf)
            for begin, end, contents in row.spans:
                joined = join(best[:, begin], here[:, contents])
                np.minimum(after[:, end], joined, out=after[:, end])
            best = after
            found.append(best)
        return found

    def usable(self, wanted: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Return which places of each stage are on a path of ``wanted`` contents [X of all stages]."""
        size = self.total // self.v + 1
        reached = np.zeros(size, dtype=bool)
        reached[0] = True
        there = []
        for row in self.rows:
            there.append(wanted[row.here][row.content] & reached[row.first // self.v])
            reached = np.zeros(size, dtype=bool)
            reached[(row.first + row.layers)[there[-1]] // self.v] = True
        leads = np.zeros(size, dtype=bool)
        leads[-1] = True
        for i, row in reversed(list(enumerate(self.rows))):
            there[i] = there[i] & leads[(row.first + row.layers) // self.v]
            leads = np.zeros(size, dtype=bool)
            leads[row.first[there[i]] // self.v] = True
        return there


def _spans(first: Ints, layers: Ints, content: Ints, v: int) -> Iterator[tuple[slice, slice, Ints]]:
    for held in np.unique(layers).tolist():
        here = layers == held
        begin = first[here] // v
        span = slice(int(begin[0]), int(begin[-1]) + 1)
        more = held // v
        yield span, slice(span.start + more, span.stop + more), content[here]


@lru_cache(maxsize=256)
def places_of(sequence: tuple[int, ...], pp: int, v: int, *, even: bool) -> Places:
    """Return the places of ``pp`` stages of ``v`` chunks for layers of these kinds; ``even``: one a stage."""
    total = len(sequence)
    orders: dict[tuple[int, ...], int] = {}
    rows, start = [], 0
    for stage in range(pp):
        places = _places(total, pp, v, stage, even=even)
        numbers = [orders.setdefault(order_of(sequence, a, n, v), len(orders)) for a, n in places]
        contents = list(dict.fromkeys(numbers))
        content = {number: x for x, number in enumerate(contents)}
        first, layers = np.array(places, dtype=np.int64).T
        which = np.array([content[n] for n in numbers])
        spans = tuple(_spans(first, layers, which, v))
        rows.append(Row(first, layers, which, np.array(contents), start, spans))
        start += len(contents)
    return Places(sequence, v, Prefixes.of(list(orders), 1 + max(sequence)), tuple(rows))


def _places(total: int, pp: int, v: int, stage: int, *, even: bool) -> Sequence[tuple[int, int]]:
    """Return the places of a stage, by layers and then by where they begin."""
    if even:
        split = even_stages(total, pp, v)
        return [(sum(split[:stage]), split[stage])]
    before = [0] if stage == 0 else range(stage * v, total - (pp - stage) * v + 1, v)
    after = pp - 1 - stage
    return sorted(
        (
            (first, layers)
            for first in before
            for layers in range(v, total - first - after * v + 1, v)
            if after or first + layers == total
        ),
        key=lambda place: place[::-1],
    )
