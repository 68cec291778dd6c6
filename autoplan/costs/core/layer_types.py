"""The kinds of layers that a model has, in their order, and how many of each a stage holds.

Notation (this file only)::

    l, s, f  layers of a stage; of these, recomputed selectively and whole      [1]
    K        kinds of layers                                                    [1]
    v        virtual stages of a device                                         [1]

A model may mix layers with experts and without, or with a window and without. Layers of a stage are counted
in the order of the model, chunk by chunk where a device has several: the first f are recomputed whole, the s
after them selectively. Source: Megatron-LM, megatron/core/transformer/transformer_block.py, where
--recompute-method block does so with whole recompute.
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
from autoplan.schema.stage_layers import chunks_of

__all__ = [
    "HeldLayers",
    "LayerTypes",
    "Prefixes",
    "layer_types_of",
    "layers_held_by",
    "order_of",
    "orders_of",
]


@dataclass(frozen=True, slots=True)
class LayerTypes:
    """The kind of each layer of a model, as an index into ``models``: one model of each kind alone."""

    sequence: tuple[int, ...]
    models: tuple[ModelSpec, ...]

    @property
    def several(self) -> bool:
        """Whether layers differ [1].

        >>> from autoplan.catalog import load_entry
        >>> layer_types_of(load_entry("model", "llama3-8b"), 8192).several
        False
        """
        return len(self.models) > 1

    def jobs(self, job: Job) -> list[Job]:
        """Return ``job`` for each kind, as if all its layers were of that kind.

        >>> from autoplan.catalog import load_job
        >>> job = load_job("deepseek-v3-256x-h100")
        >>> [kind.model.moe is None for kind in layer_types_of(job.model, 4096).jobs(job)]
        [True, False]
        """
        return [replace(job, model=model) for model in self.models] if self.several else [job]


def layer_types_of(model: ModelSpec, sequence_length: int) -> LayerTypes:
    """Return the kinds of the layers of ``model`` on sequences of so many tokens [1], in order of appearance.

    Layers differ by having experts or a dense MLP, and by a window that is shorter than the sequence.

    >>> from autoplan.catalog import load_entry
    >>> layer_types_of(load_entry("model", "deepseek-v3"), 4096).sequence[:5]  # the first three are dense
    (0, 0, 0, 1, 1)
    >>> layer_types_of(load_entry("model", "gemma2-2b"), 8192).sequence[:4]  # every second has no window
    (0, 1, 0, 1)
    >>> layer_types_of(load_entry("model", "gemma2-2b"), 4096).several  # none is longer than the window
    False

    Leaves out: other differences, which no model of the catalogue has.
    Source: the model's file.
    """
    return _kinds(model, sequence_length)


@lru_cache(maxsize=64)
def _kinds(model: ModelSpec, s: int) -> LayerTypes:
    found: dict[tuple[bool, int | None], int] = {}
    sequence = []
    for layer in range(model.layers):
        window = model.attention_window(layer)
        kind = (model.is_moe_layer(layer), None if window is None or window >= s else window)
        sequence.append(found.setdefault(kind, len(found)))
    if len(found) == 1:
        return LayerTypes(tuple(sequence), (model,))
    return LayerTypes(tuple(sequence), tuple(_alone(model, *kind) for kind in found))


def _alone(model: ModelSpec, experts: bool, window: int | None) -> ModelSpec:  # noqa: FBT001 - a kind
    moe = model.moe.model_copy(update={"first_dense_layers": 0, "every": 1}) if model.moe else None
    local = None if window is None else SlidingWindow(window=window, every=None)
    return model.model_copy(update={"moe": moe if experts else None, "sliding_window": local})


def order_of(sequence: Sequence[int], first: int, layers: int, v: int = 1) -> tuple[int, ...]:
    """Return the kinds of a stage's ``layers``, behind ``first`` layers of stages before it, in order [1].

    A device of v chunks has layers/v in each, behind first/v of the others' in the same chunk.

    >>> order_of((0, 0, 0, 1, 1, 1, 1, 1), 2, 4)
    (0, 1, 1, 1)
    >>> order_of((0, 0, 0, 1, 1, 1, 1, 1), 2, 4, v=2)  # layers 1 and 2, 5 and 6
    (0, 0, 1, 1)

    Leaves out: chunks of unlike numbers of layers.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    chunk, begin, held = len(sequence) // v, first // v, layers // v
    return tuple(kind for c in range(v) for kind in sequence[c * chunk + begin : c * chunk + begin + held])


@dataclass(frozen=True, slots=True)
class HeldLayers:
    """Layers of stages by kind; of any shape, with the kinds before it: [K, ...].

    ``first``, ``next`` and ``last`` are the kinds of a stage's first, next-to-last and last layer.
    """

    layers: Array
    selective: Array
    full: Array
    first: Ints
    next: Ints
    last: Ints

    @property
    def counts(self) -> tuple[Array, Array, Array]:
        """Layers of any kind [1]; of these, recomputed selectively and whole.

        >>> held = Prefixes.of([(0, 1, 1)], 2).held(0, np.array(1.0), np.array(1.0))
        >>> [float(x) for x in held.counts]
        [3.0, 1.0, 1.0]
        """
        return self.layers.sum(axis=0), self.selective.sum(axis=0), self.full.sum(axis=0)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Orders of layers as a table: of the first j layers of order i, how many are of each kind, [K, i, j]."""

    table: Array
    layers: Ints
    first: Ints
    next: Ints
    last: Ints

    @staticmethod
    def of(orders: Sequence[Sequence[int]], kinds: int) -> Prefixes:
        """Return the table of ``orders`` of layers of so many ``kinds`` [1].

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

    def held(self, index: Any, selective: Array, full: Array) -> HeldLayers:  # noqa: ANN401 - a numpy index
        """Return stages whose layers are the orders at ``index``, the first of them recomputed [1].

        >>> held = Prefixes.of([(0, 1, 1)], 2).held(0, np.array(1.0), np.array(1.0))
        >>> held.full.tolist(), held.selective.tolist()  # the dense first one, and one with experts
        ([1.0, 0.0], [0.0, 1.0])
        """
        index, f, again = np.broadcast_arrays(
            index, np.asarray(full, dtype=np.int64), np.asarray(selective + full, dtype=np.int64)
        )
        whole = self.table[:, index, f]
        return HeldLayers(
            layers=self.table[:, index, self.layers[index]],
            selective=self.table[:, index, again] - whole,
            full=whole,
            first=self.first[index],
            next=self.next[index],
            last=self.last[index],
        )


def orders_of(sequence: Sequence[int], stages: Sequence[int], v: int = 1) -> list[tuple[int, ...]]:
    """Return the kinds of the layers of each of the ``stages``, in order, of v chunks each [1].

    >>> orders_of((0, 0, 0, 1, 1, 1, 1), (4, 3), v=2)  # layers 1, 2, 5 and 6; 3, 4 and 7
    [(0, 0, 1, 1), (0, 1, 1)]

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    orders: list[list[int]] = [[] for _ in stages]
    first = 0
    for chunk in zip(*chunks_of(stages, v), strict=True):
        for order, layers in zip(orders, chunk, strict=True):
            order.extend(sequence[first : first + layers])
            first += layers
    return [tuple(order) for order in orders]


def layers_held_by(
    kinds: LayerTypes, layers: Array, selective: Array, full: Array, v: Sequence[int]
) -> HeldLayers:
    """Return the layers of each stage of layouts by kind [1]; counts have shape [C, p], ``v`` one for each.

    >>> from autoplan.catalog import load_entry
    >>> kinds = layer_types_of(load_entry("model", "deepseek-v3"), 4096)
    >>> held = layers_held_by(kinds, np.array([[5, 56]]), np.array([[0, 0]]), np.array([[4, 0]]), [1])
    >>> held.layers[:, 0].tolist(), held.full[:, 0].tolist()  # of the first four, three are dense
    ([[3.0, 0.0], [2.0, 56.0]], [[3.0, 0.0], [1.0, 0.0]])
    """
    orders: dict[tuple[int, ...], int] = {}
    found: dict[tuple[tuple[int, ...], int], list[int]] = {}
    rows = [(tuple(row), each) for row, each in zip(layers.astype(np.int64).tolist(), v, strict=True)]
    for row in rows:
        if row not in found:
            found[row] = [orders.setdefault(x, len(orders)) for x in orders_of(kinds.sequence, *row)]
    index = [found[row] for row in rows]
    return Prefixes.of(list(orders), len(kinds.models)).held(np.array(index), selective, full)
