"""The matrices that a token passes in one layer on a device of an engine, packed as engines pack them.

Notation (this file only)::

    h        hidden size                     q, k     widths of queries and of keys       [1]
    t        tensor-parallel degree          f        inner width of an MLP               [1]
    r, l     query and key-value latents     n, p, v  widths of a latent head's parts     [1]
    a        heads                                                                        [1]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoplan.costs.core.sizes import attention_widths
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.weight_formats import WeightFormat


class Matrix(NamedTuple):
    """A weight matrix on one device: ``outputs`` times ``inner`` weights."""

    outputs: int
    inner: int
    weights: WeightFormat


def attention_matrices(scope: EngineScope, layer: int = 0) -> list[Matrix]:
    """Return the matrices of a layer's attention: queries, keys and values in one, and the output.

    [h, (q + 2k)/t] and [q/t, h]; a device has at least one key head, and an output gate is as wide as the
    queries. Linear attention: all projections in one, with at least one group of keys, and the output.
    Latent: [h, r + l + p], [r, a (n + p)/t], [l, a (n + v)/t], [a v/t, h].

    >>> scope = EngineScope(load_serving_job("llama3.1-8b-1x-h100"), EngineLayout(tp=4))
    >>> [matrix[:2] for matrix in attention_matrices(scope)]
    [(1536, 4096), (4096, 1024)]

    Leaves out: that decodes multiply by the latent up-projections head by head, after and before attention.
    Source: vLLM 0.33.0, model_executor/layers/linear.py, QKVParallelLinear; attention/mla_attention.py.
    """
    model, t = scope.model, scope.layout.tp
    weight_format, h = scope.format_of("attention"), model.hidden_size
    if model.is_linear_layer(layer):
        return _linear_matrices(model, t, weight_format)
    if model.mla is None:
        queries, keys = (float(np.max(x)) for x in attention_widths(model, np.array(float(t))))
        packed = queries * (2 if model.attention_output_gate else 1) + 2 * keys
        return [Matrix(round(packed), h, weight_format), Matrix(h, round(queries), weight_format)]
    return _latent_matrices(model, t, weight_format)


def _linear_matrices(model: ModelSpec, t: int, weight_format: WeightFormat) -> list[Matrix]:
    linear, h = model.linear_attention, model.hidden_size
    assert linear is not None  # noqa: S101 - the caller asks
    keys = 2 * linear.keys / min(t, linear.key_heads)
    wide = keys + (2 * linear.values + linear.gates) / t
    return [Matrix(round(wide), h, weight_format), Matrix(h, round(linear.values / t), weight_format)]


def _latent_matrices(model: ModelSpec, t: int, weight_format: WeightFormat) -> list[Matrix]:
    mla = model.mla
    assert mla is not None  # noqa: S101 - the caller asks
    h, a = model.hidden_size, model.heads / t
    latent = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
    up = Matrix(round(a * (mla.qk_nope_head_dim + mla.v_head_dim)), mla.kv_lora_rank, weight_format)
    queries = Matrix(round(a * model.head_dim), mla.q_lora_rank or h, weight_format)
    return [
        Matrix(latent, h, weight_format),
        queries,
        up,
        Matrix(h, round(a * mla.v_head_dim), weight_format),
    ]


def dense_matrices(scope: EngineScope, layer: int) -> list[Matrix]:
    """Return the matrices of the dense MLP of a layer, or of its shared experts and its router.

    [h, 2f/t] with a gate, and [f/t, h]. Data-parallel attention replicates shared experts on every device.

    >>> scope = EngineScope(load_serving_job("llama3.1-8b-1x-h100"), EngineLayout(tp=4))
    >>> [matrix[:2] for matrix in dense_matrices(scope, 0)]
    [(7168, 4096), (4096, 3584)]

    Leaves out: routed experts.
    Source: vLLM 0.33.0, model_executor/layers/linear.py, MergedColumnParallelLinear.
    """
    model, layout, h = scope.model, scope.layout, scope.model.hidden_size
    gate = 2 if model.gated else 1
    moe = model.moe if model.is_moe_layer(layer) else None
    if moe is None:
        weight_format = scope.format_of("dense_mlp")
        return [
            Matrix(gate * model.ffn_size // layout.tp, h, weight_format),
            Matrix(h, model.ffn_size // layout.tp, weight_format),
        ]
    matrices = [Matrix(moe.experts, h, "bf16")]
    if moe.shared_expert_ffn_size:
        weight_format, f = scope.format_of("shared_experts"), moe.shared_expert_ffn_size // layout.tp
        matrices += [Matrix(gate * f, h, weight_format), Matrix(h, f, weight_format)]
    return matrices
