"""Alternate-GEMM recompute: selective activation checkpointing that recomputes every second GEMM.

Notation (this file only)::

    k, h, f   width of keys, hidden size, inner width of the MLP      [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernels import Gemm
from autoplan.costs.layer.gemm_shapes import attention_gemms, mlp_gemms
from autoplan.costs.layer.linear_attention_time import linear_gemms
from autoplan.costs.layer.mla import mla_gemms
from autoplan.schema.model import ModelSpec


def alternate_gemms(model: ModelSpec, tokens: Array, tp: Array, sp_degree: Array) -> list[Gemm]:
    """Return the recomputed GEMMs: the second, fourth, ... of a layer's forward on one rank [1].

    Of queries, keys, values, output, gate, up and down these are keys, output and up; without a gate keys,
    output and down. MLA has four or five GEMMs in attention. ``sp_degree`` is the sequence-parallel degree;
    ``tokens``, ``tp`` and ``sp_degree`` have shape [C].

    >>> gemms = alternate_gemms(load_entry("model", "llama3-8b"), 8192 * one, 8 * one, one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in gemms]
    [(8192, 128, 4096), (8192, 4096, 512), (8192, 1792, 4096)]

    Leaves out: GEMMs of experts, which run as one grouped kernel.
    Source: pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py, SelectiveAC, which saves the
    outputs of all GEMMs except every second one.
    """
    return [*products_of_attention(model, tokens, tp, sp_degree), *mlp_gemms(model, tokens, tp)][1::2]


def products_of_attention(model: ModelSpec, tokens: Array, tp: Array, sp_degree: Array) -> list[Gemm]:
    """Return the GEMMs of a layer's attention one by one [1], arguments as those of ``alternate_gemms``.

    >>> len(products_of_attention(load_entry("model", "llama3-8b"), one, one, one))
    4

    Source: queries, keys, values and the output, or those of latent or of linear attention.
    """
    if model.mla is not None:
        return mla_gemms(model, tokens, tp, sp_degree)
    if model.linear_attention is not None:
        return linear_gemms(model, tokens, tp)
    return attention_gemms(model, tokens, tp)


def alternate_bytes(model: ModelSpec, tp: Array, sp_degree: Array, element: float) -> Array:
    """Return the size of the outputs of ``alternate_gemms`` per token [byte], shape [C].

    >>> one = np.ones(1)  # k, h, f: 1,024, 4,096, 14,336
    >>> float(alternate_bytes(load_entry("model", "llama3-8b"), one, one, 2.0)[0])  # 2 (k + h + f)
    38912.0
    """
    outputs = (x.m * x.n * x.number for x in alternate_gemms(model, np.ones_like(tp), tp, sp_degree))
    dropped: Array = element * sum(outputs, np.zeros_like(tp))
    return dropped
