"""Least sum and least maximum of stage times over all splits of the layers, for many choices at once.

Layer ranges that the stages of a pipeline may hold: where they begin, and how many layers they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.core.layer_types import Prefixes, layer_types_of
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages, order_of
from autoplan.verification.enumeration import even_only


def least_sum(seconds: Array, ranges: LayerRanges) -> Array:
    """Return a lower bound on the sum over stages, [C] [s]; ``seconds`` by choice, stage and content.

    With one layer type and any multiplier x, a split of all layers L has a sum of at least sum over stages of
    min over n of (t(n) - x n), plus x L. The multiplier is the largest increment among the L - p smallest, at
    which this is exact for convex times.
    """
    if ranges.even:
        total: Array = seconds[..., 0].sum(axis=1)
        return total
    if ranges.prefixes is not None:
        return _over_paths(seconds, ranges, np.add)
    multiplier = _increment(seconds, ranges.units - ranges.pp)[:, None, None]
    reduced = (seconds - multiplier * (ranges.layers / ranges.v)).min(axis=2).sum(axis=1)
    least: Array = reduced + multiplier[:, 0, 0] * ranges.units
    return least


def _increment(seconds: Array, count: int) -> Array:
    """Return the ``count``-th smallest finite increment of the times with one more unit of layers, [C]."""
    if count < 1 or seconds.shape[2] < 2:
        return np.zeros(len(seconds))
    with np.errstate(invalid="ignore"):
        increments = np.diff(seconds, axis=2).reshape(len(seconds), -1)
    increments = np.where(np.isfinite(increments), increments, np.inf)
    at = min(count, increments.shape[1]) - 1
    increment = np.partition(increments, at, axis=1)[:, at]
    return np.where(np.isfinite(increment), increment, 0.0)


def least_maximum(seconds: Array, ranges: LayerRanges) -> Array:
    """Return a lower bound on the largest stage time, [C] [s]; infinite where no split is possible.

    With one layer type, times that grow with layers have as many entries up to x as the stages can hold units
    of layers within x: the L-th smallest entry is needed. Times that do not grow are lowered until they do.
    """
    if ranges.even:
        largest: Array = seconds[..., 0].max(axis=1)
        return largest
    if ranges.prefixes is not None:
        return _over_paths(seconds, ranges, np.maximum)
    growing = np.minimum.accumulate(seconds[..., ::-1], axis=2)[..., ::-1]
    flat, at = growing.reshape(len(seconds), -1), ranges.units - 1
    entry = np.partition(flat, at, axis=1)[:, at] if at < flat.shape[1] else np.full(len(flat), np.inf)
    least: Array = np.maximum(entry, growing[..., 0].max(axis=1))
    return least


def _over_paths(seconds: Array, ranges: LayerRanges, combined: Callable[[Array, Array], Array]) -> Array:
    """Return the least sum or maximum over all sequences of ranges that follow one another, [C]."""
    units, most = ranges.place.shape
    behind = np.full((units + 1, len(seconds)), np.inf)
    behind[units] = 0.0
    for s in reversed(range(ranges.pp)):
        own = np.full_like(behind, np.inf)
        by_content = np.ascontiguousarray(seconds[:, s].T)
        first, last = (0, 0) if s == 0 else (s, units - 1)
        for n in range(1, most + 1):
            end = min(last, units - n - (ranges.pp - 1 - s)) + 1
            if end > first:
                here = by_content[ranges.place[first:end, n - 1]]
                np.minimum(own[first:end], combined(here, behind[first + n : end + n]), out=own[first:end])
        behind = own
    least: Array = behind[0]
    return least


@dataclass(frozen=True, slots=True)
class LayerRanges:
    """The P contents of stages: numbers of layers or, with several layer types, sequences of types.

    ``layers`` has shape [1, P], or [p, 1] with ``even``: each stage may hold one content only. With several
    layer types, ``prefixes`` has the sequences, and ``place`` [U, N] the index of the content that begins
    after a v layers and has (n + 1) v of them, for a < U and n < N. ``units`` is U: all layers over v.
    """

    pp: int
    v: int
    units: int
    even: bool
    layers: Array
    prefixes: Prefixes | None
    place: Ints

    @property
    def index(self) -> Ints:
        """Indices of the contents, in the shape of ``layers``."""
        return np.arange(self.layers.size).reshape(self.layers.shape)


def ranges_of(job: Job, pp: int, v: int) -> LayerRanges | None:
    """Return the contents of ``pp`` stages of ``v`` virtual stages.

    None where chunks of layers of several types differ in length: these are not modelled here.
    """
    kinds, total = layer_types_of(job.model, job.workload.sequence_length), job.model.layers
    if pp == 1 or even_only(job, pp, v):
        return _even(job, pp, v)
    most = total // v - pp + 1
    if kinds.several:
        return _several_types(kinds.sequence, len(kinds.models), pp, v)
    layers = v * np.arange(1.0, most + 1)[None]
    return LayerRanges(
        pp, v, total // v, even=False, layers=layers, prefixes=None, place=np.zeros((1, 1), int)
    )


def _even(job: Job, pp: int, v: int) -> LayerRanges | None:
    kinds, total = layer_types_of(job.model, job.workload.sequence_length), job.model.layers
    layers, prefixes = even_stages(total, pp, v), None
    if kinds.several:
        if any(n % v for n in layers):
            return None
        starts = [0, *accumulate(layers)][:-1]
        orders = [order_of(kinds.sequence, a, n, v) for a, n in zip(starts, layers, strict=True)]
        prefixes = Prefixes.of(orders, len(kinds.models))
    column = np.array(layers, dtype=float)[:, None]
    return LayerRanges(
        pp, v, total // v, even=True, layers=column, prefixes=prefixes, place=np.zeros((1, 1), int)
    )


def _several_types(sequence: tuple[int, ...], kinds: int, pp: int, v: int) -> LayerRanges:
    """Return the contents of a model with several layer types; ranges of the same sequence are one."""
    units = len(sequence) // v
    numbers: dict[tuple[int, ...], int] = {}
    place = np.zeros((units, units - pp + 1), dtype=np.int64)
    for a in range(units):
        for n in range(1, min(units - pp + 1, units - a) + 1):
            order = order_of(sequence, a * v, n * v, v)
            place[a, n - 1] = numbers.setdefault(order, len(numbers))
    layers = np.array([[float(len(order)) for order in numbers]])
    prefixes = Prefixes.of(list(numbers), kinds)
    return LayerRanges(pp, v, units, even=False, layers=layers, prefixes=prefixes, place=place)
