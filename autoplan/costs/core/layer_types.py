"""Layer types of a model, and the number of layers of every type on a stage.

Notation (this file only)::

    l, n_r  layers of a stage; of these, with recompute mode r                  [1]
    K       layer types                                                         [1]
    v       virtual stages of a device                                          [1]

A model may have dense and MoE layers, layers with and without sliding window, or with linear attention.
Layers of a stage are in the order of the model, chunk by chunk under the interleaved schedule: the first have
full recompute, the next the modes before it in ``autoplan.schema.recompute.MODES``. Source: Megatron-LM,
megatron/core/transformer/transformer_block.py, --recompute-method block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from autoplan.costs.core.candidates import Array, ByMode, Ints
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec, SlidingWindow
from autoplan.schema.recompute import in_order
from autoplan.schema.stage_layers import orders_of


@dataclass(frozen=True, slots=True)
class LayerTypes:
    """The type of every layer of a model, as an index into ``models``, which have one layer type each."""

    sequence: tuple[int, ...]
    models: tuple[ModelSpec, ...]

    @property
    def several(self) -> bool:
        """Whether the model has several layer types [1].

        >>> layer_types_of(load_entry("model", "llama3-8b"), 8192).several
        False
        """
        return len(self.models) > 1

    def jobs(self, job: Job) -> list[Job]:
        """Return one job for every layer type, with all layers of that type.

        >>> job = load_job("deepseek-v3-256x-h100")
        >>> [one.model.moe is None for one in layer_types_of(job.model, 4096).jobs(job)]
        [True, False]
        """
        return [replace(job, model=model) for model in self.models] if self.several else [job]


def layer_types_of(model: ModelSpec, sequence_length: int) -> LayerTypes:
    """Return the layer types of ``model`` for a sequence length [1], in order of appearance.

    Layers differ in being dense or MoE, in softmax or linear attention, and in a sliding window that is
    shorter than the sequence.

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
    """Numbers of layers of stages by layer type, shape [K, ...]: all, and those with each recompute mode.

    Shapes broadcast. ``first``, ``next`` and ``last`` are the types of a stage's first, next-to-last and last
    layer.
    """

    layers: Array
    recomputed: ByMode
    first: Ints
    next: Ints
    last: Ints

    @property
    def counts(self) -> tuple[Array, ByMode]:
        """Layers of all types [1]; of these, with each recompute mode.

        >>> one = np.array(1.0)
        >>> layers = Prefixes.of([(0, 1, 1)], 2).layer_counts(0, {"selective": one, "full": one})
        >>> [float(layers.counts[0]), *(float(n) for n in layers.counts[1].values())]
        [3.0, 1.0, 1.0]
        """
        return self.layers.sum(axis=0), {mode: n.sum(axis=0) for mode, n in self.recomputed.items()}


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

    def layer_counts(self, index: Any, recomputed: ByMode) -> StageLayers:  # noqa: ANN401 - a numpy index
        """Return the layers of the stages at ``index`` by type, the first of them recomputed [1].

        >>> one = np.array(1.0)
        >>> layers = Prefixes.of([(0, 1, 1)], 2).layer_counts(0, {"selective": one, "full": one})
        >>> {mode: n.tolist() for mode, n in layers.recomputed.items()}  # first the dense layer, in full
        {'selective': [0.0, 1.0], 'full': [1.0, 0.0]}
        """
        # Numbers of layers have the shape of the index alone, so that all that follows from them stays small.
        index = np.asarray(index)
        up_to: Array | float = 0.0
        before: Array | float = 0.0
        by_mode: dict[str, Array] = {}
        for mode, count in reversed(in_order(recomputed)):
            up_to = up_to + count
            of_types = self.table[:, index, np.asarray(up_to, dtype=np.int64)]
            by_mode[mode], before = of_types - before, of_types
        return StageLayers(
            layers=self.table[:, index, self.layers[index]],
            recomputed=dict(in_order(by_mode)),
            first=self.first[index],
            next=self.next[index],
            last=self.last[index],
        )


def stage_layers_of(kinds: LayerTypes, layers: Array, recomputed: ByMode, v: Sequence[int]) -> StageLayers:
    """Return the layers of the stages of layouts by layer type [1]; counts have shape [C, p], ``v`` [C].

    >>> kinds = layer_types_of(load_entry("model", "deepseek-v3"), 4096)
    >>> stages = stage_layers_of(kinds, np.array([[5, 56]]), {"full": np.array([[4, 0]])}, [1])
    >>> stages.layers[:, 0].tolist(), stages.recomputed["full"][:, 0].tolist()  # of the four, three are dense
    ([[3.0, 0.0], [2.0, 56.0]], [[3.0, 0.0], [1.0, 0.0]])
    """
    orders: dict[tuple[int, ...], int] = {}
    indices: dict[tuple[tuple[int, ...], int], list[int]] = {}
    rows = [(tuple(row), chunks) for row, chunks in zip(layers.astype(np.int64).tolist(), v, strict=True)]
    for row in rows:
        if row not in indices:
            indices[row] = [orders.setdefault(x, len(orders)) for x in orders_of(kinds.sequence, *row)]
    index = [indices[row] for row in rows]
    return Prefixes.of(list(orders), len(kinds.models)).layer_counts(np.array(index), recomputed)
