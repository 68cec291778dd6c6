"""Shapes of the forward GEMMs of attention and MLP on one rank.

Notation (this file only)::

    T, h   tokens of a microbatch on one rank, hidden size                       [1]
    q, k   widths of queries and of keys; f  inner width of the MLP              [1]
    t      tensor-parallel degree                                                [1]
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.sizes import attention_widths
from autoplan.costs.device.kernels import Gemm
from autoplan.schema.model import ModelSpec


def attention_gemms(model: ModelSpec, tokens: Array, tp: Array) -> list[Gemm]:
    """Return the forward GEMMs of attention on one rank [1]: queries, keys, values and output.

    [T, h] x [h, q/t], twice [T, h] x [h, k/t], and [T, q/t] x [q/t, h]; a rank has at least one key head.
    With an output gate the first has 2q/t columns.

    >>> gemms = attention_gemms(load_entry("model", "llama3-8b"), 8192 * one, 8 * one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in gemms]
    [(8192, 512, 4096), (8192, 128, 4096), (8192, 128, 4096), (8192, 4096, 512)]

    Leaves out: a packed QKV GEMM; MLA, see ``mla_gemms``.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.3.
    """
    h, (q, k) = np.asarray(float(model.hidden_size)), attention_widths(model, tp)
    queries = 2 * q if model.attention_output_gate else q
    return [*(Gemm(tokens, width, h) for width in (queries, k, k)), Gemm(tokens, h, q)]


def mlp_gemms(model: ModelSpec, tokens: Array, tp: Array) -> list[Gemm]:
    """Return the forward GEMMs of the dense MLP on one rank [1]: gate (if gated), up and down.

    [T, h] x [h, f/t] once, or twice where gated, and [T, f/t] x [f/t, h]; their number is the share of dense
    layers.

    >>> gemms = mlp_gemms(load_entry("model", "llama3-8b"), 8192 * one, 8 * one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in gemms]
    [(8192, 1792, 4096), (8192, 1792, 4096), (8192, 4096, 1792)]

    Leaves out: experts, see ``expert_gemms``.
    """
    h, f = np.asarray(float(model.hidden_size)), model.ffn_size / tp
    dense = 1.0 - moe_layer_share(model)
    ups = [Gemm(tokens, f, h, dense)] * (2 if model.gated else 1)
    return [*ups, Gemm(tokens, h, f, dense)]


def packed_gemms(model: ModelSpec, tokens: Array, tp: Array) -> list[Gemm]:
    """Return the packed QKV GEMM and the GEMM of the attention output [1].

    >>> gemms = packed_gemms(load_entry("model", "llama3-8b"), 8192 * one, 8 * one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in gemms]
    [(8192, 768, 4096), (8192, 4096, 512)]
    """
    queries, keys, values, output = attention_gemms(model, tokens, tp)
    return [queries._replace(n=queries.n + keys.n + values.n), output]


def dense_gemms(model: ModelSpec, tokens: Array, tp: Array) -> list[Gemm]:
    """Return the forward GEMMs of the dense MLP, up (with gate) and down, by its share of layers [1].

    >>> gemms = dense_gemms(load_entry("model", "llama3-8b"), 8192 * one, 8 * one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in gemms]
    [(8192, 3584, 4096), (8192, 4096, 1792)]
    """
    *ups, down = mlp_gemms(model, tokens, tp)
    gate_up = ups[0]._replace(n=len(ups) * ups[0].n)
    return [gate_up, down] if moe_layer_share(model) < 1 else []


def input_gradient_gemms(gemms: list[Gemm]) -> list[Gemm]:
    """Return the GEMMs of the input gradients of forward ``gemms`` [1]: (m, k, n).

    >>> one, two, three = (np.array(x) for x in (1.0, 2.0, 3.0))
    >>> [float(x) for x in input_gradient_gemms([Gemm(one, two, three)])[0][:3]]
    [1.0, 3.0, 2.0]
    """
    return [Gemm(m, k, n, x, g) for m, n, k, x, g in gemms]


def weight_gradient_gemms(gemms: list[Gemm]) -> list[Gemm]:
    """Return the GEMMs of the weight gradients of forward ``gemms`` [1]: (k, n, m).

    >>> one, two, three = (np.array(x) for x in (1.0, 2.0, 3.0))
    >>> [float(x) for x in weight_gradient_gemms([Gemm(one, two, three)])[0][:3]]
    [3.0, 2.0, 1.0]
    """
    return [Gemm(k, n, m, x, g) for m, n, k, x, g in gemms]
