"""Consecutive layers that a stage may have in a model with several layer types.

A *place* of a stage is a range of layers: the first one and their number. Places with the same sequence of
layer types have one *content*, which is priced once. A split of the layers over stages is a path of places,
one per stage, in which a place begins where the one before ends. Minima over splits are shortest paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Ints, distinct, distinct_rows
from autoplan.costs.core.layer_types import Prefixes
from autoplan.deadline import check_deadline
from autoplan.schema.stage_layers import even_stages, order_of

#: Chunks of a stage up to which ``Places.up_to`` is exact; above, it rounds up to multiples of it.
_EXACT = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Places of one stage: number of layers before it, number of its layers, index of its content.

    ``orders`` [X] maps the stage's contents to sequences of layer types in the prefixes of ``Places``;
    ``start`` is the index of the first content among those of all stages. ``spans`` groups the places by
    number of layers: slices of their begins and ends, in units of v layers, and their contents.
    """

    first: Ints
    layers: Ints
    content: Ints
    orders: Ints
    start: int
    spans: tuple[tuple[slice, slice, Ints], ...]

    @property
    def columns(self) -> slice:
        """Indices of the stage's contents among those of all stages."""
        return slice(self.start, self.start + len(self.orders))


@dataclass(frozen=True, slots=True)
class Places:
    """Places of the stages, for one pipeline depth, ``v`` virtual stages and one sequence of layers.

    ``most`` is the largest number of layers of a place; with ``even``, only those of the even split are
    there. ``stages`` and ``orders`` [X of all stages] are the stage of each content, and its sequence of
    layer types in ``prefixes``.
    """

    sequence: tuple[int, ...]
    v: int
    even: bool
    most: int
    prefixes: Prefixes
    rows: tuple[Row, ...]
    stages: Ints
    orders: Ints

    @property
    def total(self) -> int:
        """Number of layers of the model."""
        return len(self.sequence)

    @property
    def contents(self) -> int:
        """Number of contents of all stages."""
        return len(self.orders)

    @property
    def starts(self) -> list[int]:
        """Index of the first content of each stage."""
        return [row.start for row in self.rows]

    def up_to(self, layers: int) -> Places:
        """Return the places of at most ``layers`` layers, and perhaps of a few more."""
        chunks = -(-layers // self.v)
        rounded = (chunks if chunks <= _EXACT else -(-chunks // _EXACT) * _EXACT) * self.v
        if self.even or rounded >= self.most:
            return self
        return _places_up_to(self.sequence, len(self.rows), self.v, rounded)

    @property
    def layers(self) -> Ints:
        """Number of layers of each content, shape [X of all stages]."""
        return self.prefixes.layers[self.orders]

    def order(self, stage: int, first: int, layers: int) -> int:
        """Return the index of the sequence of layer types of a place in the prefixes."""
        row = self.rows[stage]
        at = np.flatnonzero((row.first == first) & (row.layers == layers))[0]
        return int(row.orders[row.content[at]])

    def least_sum(self, values: Array) -> Array:
        """Return the minimum over paths of the sum of ``values`` [C, X of all stages], shape [C]."""
        least: Array = self._best(values, np.add, 0.0)[-1][-1]
        return least

    def least_peak(self, values: Array) -> Array:
        """Return the minimum over paths of the maximum of ``values`` [C, X of all stages], shape [C]."""
        least: Array = self._best(values, np.maximum, -np.inf)[-1][-1]
        return least

    def smallest_peak(self, values: Array) -> list[int]:
        """Return the layers per stage of a path that minimises the maximum of ``values`` [X of all]."""
        best, end, layers = self._best(values[None], np.maximum, -np.inf), self.total, []
        for row, peaks_before in zip(reversed(self.rows), reversed(best[:-1]), strict=True):
            ends = np.flatnonzero(row.first + row.layers == end)
            peaks = np.maximum(
                peaks_before[row.first[ends] // self.v, 0], values[row.columns][row.content[ends]]
            )
            layers.append(int(row.layers[ends[peaks.argmin()]]))
            end -= layers[-1]
        return layers[::-1]

    def _best(self, values: Array, join: np.ufunc, empty: float) -> list[Array]:
        """Return the values of the shortest-path recursion by layer, before each stage and at the end.

        Each has shape [layers, C]: a range of layers is one piece of memory.
        """
        size, of_contents = self.total // self.v + 1, np.ascontiguousarray(values.T)
        best = np.full((size, len(values)), np.inf)
        best[0] = empty
        bests = [best]
        for row in self.rows:
            of_stage, after = of_contents[row.columns], np.full_like(best, np.inf)
            for begin, end, contents in row.spans:
                joined = join(best[begin], of_stage[contents])
                np.minimum(after[end], joined, out=after[end])
            best = after
            bests.append(best)
        return bests

    def usable(self, wanted: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
        """Return which places of each stage are on a complete path of ``wanted`` contents [X of all]."""
        size = self.total // self.v + 1
        reached = np.zeros(size, dtype=bool)
        reached[0] = True
        usable = []
        for row in self.rows:
            usable.append(wanted[row.columns][row.content] & reached[row.first // self.v])
            reached = np.zeros(size, dtype=bool)
            reached[(row.first + row.layers)[usable[-1]] // self.v] = True
        completable = np.zeros(size, dtype=bool)
        completable[-1] = True
        for i, row in reversed(list(enumerate(self.rows))):
            usable[i] = usable[i] & completable[(row.first + row.layers) // self.v]
            completable = np.zeros(size, dtype=bool)
            completable[row.first[usable[i]] // self.v] = True
        return usable


def _spans(first: Ints, layers: Ints, content: Ints, v: int) -> Iterator[tuple[slice, slice, Ints]]:
    for count in distinct(layers).tolist():
        same_count = layers == count
        begin = first[same_count] // v
        span = slice(int(begin[0]), int(begin[-1]) + 1)
        chunks = count // v
        yield span, slice(span.start + chunks, span.stop + chunks), content[same_count]


@lru_cache(maxsize=256)
def places_of(sequence: tuple[int, ...], pp: int, v: int, *, even: bool) -> Places:
    """Return the places of ``pp`` stages of ``v`` chunks; with ``even``, only those of the even split."""
    total = len(sequence)
    number_of_place: dict[tuple[int, int], int] = {}
    numbers: dict[tuple[int, ...], int] = {}
    rows, start = [], 0
    for stage in range(pp):
        check_deadline()
        places = _places(total, pp, v, stage, even=even)
        for place in places:
            if place not in number_of_place:
                order = order_of(sequence, *place, v)
                number_of_place[place] = numbers.setdefault(order, len(numbers))
        first, layers = np.array(places, dtype=np.int64).T
        rows.append(_row(first, layers, np.array([number_of_place[place] for place in places]), v, start))
        start = rows[-1].columns.stop
    return _joined(sequence, v, Prefixes.of(list(numbers), 1 + max(sequence)), rows, even=even)


@lru_cache(maxsize=256)
def _places_up_to(sequence: tuple[int, ...], pp: int, v: int, most: int) -> Places:
    """Return the places of at most ``most`` layers, of all splits."""
    uneven, rows, start = places_of(sequence, pp, v, even=False), [], 0
    for row in uneven.rows:
        within = row.layers <= most
        orders = row.orders[row.content[within]]
        rows.append(_row(row.first[within], row.layers[within], orders, v, start))
        start = rows[-1].columns.stop
    return _joined(sequence, v, uneven.prefixes, rows, even=False)


def _row(first: Ints, layers: Ints, orders: Ints, v: int, start: int) -> Row:
    """Return the places of a stage that begin at ``first``, of ``orders`` in the prefixes."""
    index, content = distinct_rows([orders])
    return Row(first, layers, content, orders[index], start, tuple(_spans(first, layers, content, v)))


def _joined(
    sequence: tuple[int, ...], v: int, prefixes: Prefixes, rows: Sequence[Row], *, even: bool
) -> Places:
    stages = np.repeat(np.arange(len(rows)), [len(row.orders) for row in rows])
    orders = np.concatenate([row.orders for row in rows])
    most = max(int(row.layers.max()) for row in rows)
    return Places(sequence, v, even, most, prefixes, tuple(rows), stages, orders)


def _places(total: int, pp: int, v: int, stage: int, *, even: bool) -> Sequence[tuple[int, int]]:
    """Return the places (first layer, layers) of a stage, sorted by layers, then by first layer."""
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
