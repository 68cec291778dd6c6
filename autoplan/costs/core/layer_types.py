"""Layer types of a model, and the number of layers of every type on a stage.

Notation (this file only)::

    l, s, f  layers of a stage; of these, with selective and full recompute     [1]
    K        layer types                                                        [1]
    v        virtual stages of a device                                         [1]

A model may have dense and MoE layers, layers with and without sliding window, or with linear attention.
Layers of a stage are in the order of the model, chunk by chunk under the interleaved schedule: the first f
have full recompute, the next s selective recompute. Source: Megatron-LM,
megatron/core/transformer/transformer_block.py, --recompute-method block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from autoplan.costs.core.candidates import Array, Ints
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec, SlidingWindow
from autoplan.schema.stage_layers import orders_of

__all__ = [
    "LayerTypes",
    "Prefixes",
    "StageLayers",
    "layer_types_of",
    "stage_layers_of",
]


@dataclass(frozen=True, slots=True)
class LayerTypes:
    """The type of every layer of a model, as an index into ``models``, which have one layer type each."""

    sequence: tuple[int, ...]
    models: tuple[ModelSpec, ...]

    @property
    def several(self) -> bool:
        """Whether the model has several layer types [1].

        >>> from autoplan.catalog import load_entry
        >>> layer_types_of(load_entry("model", "llama3-8b"), 8192).several
        False
        """
        return len(self.models) > 1

    def jobs(self, job: Job) -> list[Job]:
        """Return one job for every layer type, with all layers of that type.

        >>> from autoplan.catalog import load_job
        >>> job = load_job("deepseek-v3-256x-h100")
        >>> [one.model.moe is None for one in layer_types_of(job.model, 4096).jobs(job)]
        [True, False]
        """
        return [replace(job, model=model) for model in self.models] if self.several else [job]


def layer_types_of(model: ModelSpec, sequence_length: int) -> LayerTypes:
    """Return the layer types of ``model`` for a sequence length [1], in order of appearance.

    Layers differ in being dense or MoE, in softmax or linear attention, and in a sliding window that is
    shorter than the sequence.

    >>> from autoplan.catalog import load_entry
    >>> layer_types_of(load_entry("model", "deepseek-v3"), 4096).sequence[:5]  # the first three are dense
    (0, 0, 0, 1, 1)
    >>> layer_types_of(load_entry("model", "gemma2-2b"), 8192).sequence[:4]  # every second without window
    (0, 1, 0, 1)
    >>> layer_types_of(load_entry("model", "gemma2-2b"), 4096).several  # sequence = window
    False

    Leaves out: other differences between layers, which no model of the catalogue has.
    Source: the model's file.
    """
    return _layer_types(model, sequence_length)


@lru_cache(maxsize=64)
def _layer_types(model: ModelSpec, s: int) -> LayerTypes:
    indices: dict[tuple[bool, int | None, bool], int] = {}
    sequence = []
    for layer in range(model.layers):
        linear = model.is_linear_layer(layer)
        window = None if linear else model.attention_window(layer)
        window = None if window is None or window >= s else window
        layer_type = (model.is_moe_layer(layer), window, linear)
        sequence.append(indices.setdefault(layer_type, len(indices)))
    if len(indices) == 1:
        return LayerTypes(tuple(sequence), (model,))
    return LayerTypes(tuple(sequence), tuple(_of_one_type(model, *layer_type) for layer_type in indices))


def _of_one_type(model: ModelSpec, experts: bool, window: int | None, linear: bool) -> ModelSpec:  # noqa: FBT001 - a type
    """Return ``model`` with all layers of one type."""
    moe = model.moe.model_copy(update={"first_dense_layers": 0, "every": 1}) if model.moe else None
    local = None if window is None else SlidingWindow(window=window, every=None)
    recurrent = model.linear_attention.in_all_layers() if model.linear_attention and linear else None
    parts = {"moe": moe if experts else None, "sliding_window": local, "linear_attention": recurrent}
    return model.model_copy(update=parts)


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Numbers of layers of stages by layer type, shape [K, ...]: all, with selective, with full recompute.

    Shapes broadcast. ``first``, ``next`` and ``last`` are the types of a stage's first, next-to-last and last
    layer.
    """

    layers: Array
    selective: Array
    full: Array
    first: Ints
    next: Ints
    last: Ints

    @property
    def counts(self) -> tuple[Array, Array, Array]:
        """Layers of all types [1]; of these, with selective and with full recompute.

        >>> layers = Prefixes.of([(0, 1, 1)], 2).layer_counts(0, np.array(1.0), np.array(1.0))
        >>> [float(x) for x in layers.counts]
        [3.0, 1.0, 1.0]
        """
        return self.layers.sum(axis=0), self.selective.sum(axis=0), self.full.sum(axis=0)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Cumulative counts of layer types [K, i, j]: those of every type in the first j layers of sequence i."""

    table: Array
    layers: Ints
    first: Ints
    next: Ints
    last: Ints

    @staticmethod
    def of(orders: Sequence[Sequence[int]], kinds: int) -> Prefixes:
        """Return the cumulative counts of ``orders``, which are sequences of K = ``kinds`` layer types [1].

        >>> Prefixes.of([(0, 1, 1)], 2).table[:, 0].tolist()
        [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 2.0]]
        """
        longest = max(map(len, orders))
        is_kind = np.zeros((kinds, len(orders), longest))
        for i, order in enumerate(orders):
            is_kind[list(order), i, range(len(order))] = 1.0
        table = np.concatenate([np.zeros((kinds, len(orders), 1)), is_kind.cumsum(axis=2)], axis=2)
        ends = [(order[0], order[-2] if len(order) > 1 else order[-1], order[-1]) for order in orders]
        first, following, last = np.array(ends, dtype=np.int64).T
        return Prefixes(table, np.array([len(order) for order in orders]), first, following, last)

    def layer_counts(self, index: Any, selective: Array, full: Array) -> StageLayers:  # noqa: ANN401 - a numpy index
        """Return the layers of the stages at ``index`` by type, the first of them recomputed [1].

        >>> layers = Prefixes.of([(0, 1, 1)], 2).layer_counts(0, np.array(1.0), np.array(1.0))
        >>> layers.full.tolist(), layers.selective.tolist()  # the first, dense layer, and one MoE layer
        ([1.0, 0.0], [0.0, 1.0])
        """
        # Numbers of layers have the shape of the index alone, so that all that follows from them stays small.
        index = np.asarray(index)
        f, recomputed = np.asarray(full, dtype=np.int64), np.asarray(selective + full, dtype=np.int64)
        full_by_type = self.table[:, index, f]
        return StageLayers(
            layers=self.table[:, index, self.layers[index]],
            selective=self.table[:, index, recomputed] - full_by_type,
            full=full_by_type,
            first=self.first[index],
            next=self.next[index],
            last=self.last[index],
        )


def stage_layers_of(
    kinds: LayerTypes, layers: Array, selective: Array, full: Array, v: Sequence[int]
) -> StageLayers:
    """Return the layers of the stages of layouts by layer type [1]; counts have shape [C, p], ``v`` [C].

    >>> from autoplan.catalog import load_entry
    >>> kinds = layer_types_of(load_entry("model", "deepseek-v3"), 4096)
    >>> stages = stage_layers_of(kinds, np.array([[5, 56]]), np.array([[0, 0]]), np.array([[4, 0]]), [1])
    >>> stages.layers[:, 0].tolist(), stages.full[:, 0].tolist()  # of the first four, three are dense
    ([[3.0, 0.0], [2.0, 56.0]], [[3.0, 0.0], [1.0, 0.0]])
    """
    orders: dict[tuple[int, ...], int] = {}
    indices: dict[tuple[tuple[int, ...], int], list[int]] = {}
    rows = [(tuple(row), chunks) for row, chunks in zip(layers.astype(np.int64).tolist(), v, strict=True)]
    for row in rows:
        if row not in indices:
            indices[row] = [orders.setdefault(x, len(orders)) for x in orders_of(kinds.sequence, *row)]
    index = [indices[row] for row in rows]
    return Prefixes.of(list(orders), len(kinds.models)).layer_counts(np.array(index), selective, full)
