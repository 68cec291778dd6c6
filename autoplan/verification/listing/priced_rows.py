"""Rows of a listing: every number of layers of a stage with every recompute mix, and their costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.layer_types import Prefixes, StageLayers, layer_types_of
from autoplan.costs.device.memory_limit import memory_limit_bytes
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.mixed_stages import mixed_stages_of
from autoplan.costs.stage.stage_times import Stages, end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.rules.user_constraints import embedding_and_loss_counted
from autoplan.schema.job import Job
from autoplan.schema.recompute import FULL, listed_modes
from autoplan.schema.stage_layers import even_stages, order_of
from autoplan.verification.enumeration.choice_listing import modes_of

__all__ = ["Rows", "row_prices", "rows_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Layers before a stage (-1 with one layer type), layers of the stage, and their recompute counts, [X].

    ``starts`` are the rows at which the layer range changes. ``representatives`` has one of the rows with the
    same sequence of layer types and the same recompute, ``layers_by_type`` their layers; ``inverse`` [X] is
    the index of the representative of each row.
    """

    before: Ints
    layers: Ints
    recomputed: Mapping[str, Ints]
    starts: Ints
    representatives: Ints
    layers_by_type: StageLayers | None
    inverse: Ints


def rows_of(
    job: Job,
    pp: int,
    v: int,
    unit: int,
    only: str | None = None,
    *,
    most: int | None = None,
    among: Collection[int] | None = None,
) -> Rows | None:
    """Return all rows of ``pp`` stages of ``v`` chunks, with ``unit`` layers per recompute unit.

    With ``only``, all layers have that recompute mode; with ``most``, no stage has more layers; with
    ``among``, each has one of these numbers of layers. None where no row is left.
    """
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    modes = tuple(modes_of(job)) if only is None else (only,)
    total = job.model.layers
    counts = tuple(range(v, total - (pp - 1) * v + 1, v))
    if embedding_and_loss_counted(job, pp, v):
        counts = tuple(sorted(set(even_stages(total, pp, v))))
    if most is not None:
        counts = tuple(count for count in counts if count <= most)
    if among is not None:
        counts = tuple(count for count in counts if count in among)
    return None if not counts else _rows(kinds.sequence, len(kinds.models), modes, counts, v, unit)


@lru_cache(maxsize=64)
def _rows(
    sequence: tuple[int, ...],
    kinds: int,
    modes: tuple[str, ...],
    counts: tuple[int, ...],
    v: int,
    unit: int,
) -> Rows:
    total = len(sequence)
    listed = listed_modes(modes)
    table = [
        (before, count, *mix)
        for before, count in product(range(0, total - v + 1, v) if kinds > 1 else [-1], counts)
        if max(before, 0) + count <= total
        for mix in _mixes_of(count, listed, modes, unit)
        if "none" in modes or sum(mix) == count
    ]
    before, layers, *columns = np.array(table, dtype=np.int64).T
    recomputed = dict(zip(listed, columns, strict=True))
    range_key = before * (total + 1) + layers
    starts = np.flatnonzero(np.diff(range_key, prepend=range_key[0] - 1))
    if kinds == 1:
        every = np.arange(len(layers))
        return Rows(before, layers, recomputed, starts, every, None, every)
    numbers: dict[tuple[int, ...], int] = {}
    orders = [
        numbers.setdefault(order_of(sequence, a, n, v), len(numbers))
        for a, n in zip(before[starts].tolist(), layers[starts].tolist(), strict=True)
    ]
    order = np.repeat(orders, np.diff(starts, append=len(layers)))
    keys = np.stack([order, *columns])
    _, representatives, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    layers_by_type = Prefixes.of(list(numbers), kinds).layer_counts(
        order[representatives], {mode: column[representatives] for mode, column in recomputed.items()}
    )
    return Rows(before, layers, recomputed, starts, representatives, layers_by_type, inverse.ravel())


def _mixes_of(
    layers: int, listed: Sequence[str], modes: Collection[str], unit: int
) -> Iterator[tuple[int, ...]]:
    """Yield the counts of the ``listed`` modes in a stage of at most ``layers`` layers, one by one."""
    if not listed:
        yield ()
        return
    mode, *others = listed
    for count in range(0, layers + 1 if mode in modes else 1, unit if mode == FULL else 1):
        yield from ((count, *mix) for mix in _mixes_of(layers - count, others, modes, unit))


def row_prices(job: Job, kinds: Sequence[Stages], rows: Rows) -> tuple[Array, ...]:
    """Return forward, backward, split weight gradient and end of step [s], memory [byte], whether it fits.

    All of shape [p, X]; ``kinds`` are the coefficients of the choice's stages by layer type.
    """
    stages = [kind.take((0, slice(None), None)) for kind in kinds]
    if rows.layers_by_type is None:
        return _prices(job, stages[0], rows)
    return tuple(x[:, rows.inverse] for x in _prices(job, mixed_stages_of(stages, rows.layers_by_type), rows))


def _prices(job: Job, stages: Stages, rows: Rows) -> tuple[Array, ...]:
    n = rows.layers[rows.representatives].astype(float)
    mix = {mode: column[rows.representatives].astype(float) for mode, column in rows.recomputed.items()}
    prices = (
        stage_forward(stages, n),
        stage_backward(stages, n, mix),
        stage_weight(stages, n),
        end_of_step(stages, n, mix).total,
        *stage_fits(stages.memory, n, mix, memory_limit_bytes(job)),
    )
    shape = np.broadcast_shapes(*(x.shape for x in prices))
    return tuple(np.broadcast_to(x, shape) for x in prices)
