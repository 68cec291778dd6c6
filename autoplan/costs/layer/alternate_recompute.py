"""Products of a layer that alternate recompute does again: every second one, in the order of forward.

Notation (this file only)::

    k, h, f   width of keys, hidden size, inner width of the MLP      [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernels import Gemm
from autoplan.costs.layer.gemm_shapes import attention_gemms, mlp_gemms
from autoplan.costs.layer.mla import latent_gemms
from autoplan.schema.model import ModelSpec

__all__ = ["alternate_bytes", "alternate_gemms"]


def alternate_gemms(model: ModelSpec, tokens: Array, tp: Array, whole: Array) -> list[Gemm]:
    """Return the second, fourth, ... product of a layer's forward on one rank [1].

    In the order queries, keys, values, output, gate, up, down: keys, output and up; without a gate keys,
    output and down. Latent attention has its own four or five. ``whole`` is over how many ranks sequences are
    split between products; ``tokens``, ``tp`` and ``whole`` are of shape [C].

    >>> from autoplan.catalog import load_entry
    >>> one = np.ones(1)
    >>> found = alternate_gemms(load_entry("model", "llama3-8b"), 8192 * one, 8 * one, one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in found]
    [(8192, 128, 4096), (8192, 4096, 512), (8192, 1792, 4096)]

    Leaves out: products of experts, which run as one kernel and are no plain ones.
    Source: pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py, SelectiveAC: the outputs of
    products are saved but for every second one.
    """
    attention = attention_gemms(model, tokens, tp)
    if model.mla is not None:
        attention = latent_gemms(model, tokens, tp, whole)
    return [*attention, *mlp_gemms(model, tokens, tp)][1::2]


def alternate_bytes(model: ModelSpec, tp: Array, whole: Array, element: float) -> Array:
    """Return what the outputs of ``alternate_gemms`` take of a token [byte], shape [C].

    >>> from autoplan.catalog import load_entry
    >>> one = np.ones(1)  # k, h, f: 1,024, 4,096, 14,336
    >>> float(alternate_bytes(load_entry("model", "llama3-8b"), one, one, 2.0)[0])  # 2 (k + h + f)
    38912.0
    """
    outputs = (x.m * x.n * x.number for x in alternate_gemms(model, np.ones_like(tp), tp, whole))
    dropped: Array = element * sum(outputs, np.zeros_like(tp))
    return dropped
