"""Products of a layer that alternate recompute does again: every second one, in the order of forward.

Notation (this file only)::

    T, h        tokens of a microbatch on one rank, hidden size                              [1]
    q, k, f     widths of queries and of keys, inner width of the MLP, over t                [1]
    t           tensor-parallel degree                                                       [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.arrays import Array
from autoplan.costs.latent import latent_products
from autoplan.costs.operations import Product
from autoplan.costs.parameters import expert_share
from autoplan.schema.model import ModelSpec

__all__ = ["alternate_bytes", "alternate_products"]


def alternate_products(model: ModelSpec, tokens: Array, tp: Array, whole: Array) -> list[Product]:
    """Return the second, fourth, ... product of a layer's forward on one rank [1].

    In the order queries, keys, values, output, gate, up, down: keys, output and up; without a gate keys,
    output and down. Latent attention has its own four or five. ``whole`` is over how many ranks sequences are
    split between products; ``tokens``, ``tp`` and ``whole`` are of shape [C].

    >>> from autoplan.catalog import load_entry
    >>> one = np.ones(1)
    >>> found = alternate_products(load_entry("model", "llama3-8b"), 8192 * one, 8 * one, one)
    >>> [tuple(int(np.max(x)) for x in product[:3]) for product in found]
    [(8192, 128, 4096), (8192, 4096, 512), (8192, 1792, 4096)]

    Leaves out: products of experts, which run as one kernel and are no plain ones.
    Source: pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py, SelectiveAC: the outputs of
    products are saved but for every second one.
    """
    return _plain_products(model, tokens, tp, whole)[1::2]


def _plain_products(model: ModelSpec, tokens: Array, tp: Array, whole: Array) -> list[Product]:
    h, f = np.asarray(float(model.hidden_size)), model.ffn_size / tp
    q, k = model.heads / tp * model.head_dim, np.maximum(model.kv_heads / tp, 1.0) * model.head_dim
    attention = [Product(tokens, width, h) for width in (q, k, k)] + [Product(tokens, h, q)]
    if model.mla is not None:
        attention = latent_products(model, tokens, tp, whole)
    dense = 1.0 - expert_share(model)
    ups = [Product(tokens, f, h, dense)] * (2 if model.gated else 1)
    return [*attention, *ups, Product(tokens, h, f, dense)]


def alternate_bytes(model: ModelSpec, tp: Array, whole: Array, element: float) -> Array:
    """Return what the outputs of ``alternate_products`` take of a token [byte], shape [C].

    >>> from autoplan.catalog import load_entry
    >>> one = np.ones(1)
    >>> float(alternate_bytes(load_entry("model", "llama3-8b"), one, one, 2.0)[0])  # 2 (k + h + f)
    38912.0

    Leaves out: nothing. Source: as of ``alternate_products``.
    """
    outputs = (x.m * x.n * x.number for x in alternate_products(model, np.ones_like(tp), tp, whole))
    dropped: Array = element * sum(outputs, np.zeros_like(tp))
    return dropped
