"""Layer ranges that the stages of a pipeline may hold: where they begin, and how many layers they have."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from autoplan.costs.core.candidates import Array, Ints
from autoplan.costs.core.layer_types import Prefixes, layer_types_of
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages, order_of
from autoplan.verification.enumeration.layout_counts import even_only

__all__ = ["LayerRanges", "ranges_of"]


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
