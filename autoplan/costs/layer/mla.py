"""Multi-head latent attention (MLA): GEMMs, memory traffic and saved activations.

Notation (this file only)::

    h     hidden size          a     heads               t   tensor-parallel degree                  [1]
    q, c  widths of the latents (LoRA ranks) of queries, and of keys and values                      [1]
    n, r  widths of a query or key head without and with rotary embedding                            [1]
    v     width of a value head                                                                      [1]
    T     tokens of a microbatch                         e   bytes of an element                     [1]

Down-projections: [T, h] x [h, q] and [T, h] x [h, c + r], replicated on all tensor-parallel ranks; with
sequence parallelism a rank computes its own tokens. Up-projections: [T, q] x [q, a(n+r)/t] and
[T, c] x [c, a(n+v)/t]. Without a latent for queries the input of their projection is h. Sequence parallelism
gathers only the latents.
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.device.kernels import Gemm
from autoplan.schema.model import ModelSpec


def head_widths(model: ModelSpec) -> tuple[int, int]:
    """Return the width of a query or key head, and of a value head [1]: d and d; n + r and v with MLA.

    >>> [head_widths(load_entry("model", name)) for name in ("llama3-8b", "deepseek-v3")]  # 128 + 64
    [(128, 128), (192, 128)]

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
    """
    mla = model.mla
    return (model.head_dim, model.head_dim) if mla is None else (model.head_dim, mla.v_head_dim)


def mla_gemms(model: ModelSpec, tokens: Array, tp: Array, sp_degree: Array) -> list[Gemm]:
    """Return the forward GEMMs of MLA on one rank [1]: down-projections, up-projections and output.

    ``sp_degree`` is the sequence-parallel degree. The module docstring has the shapes.

    >>> tokens = np.full(1, 4096.0)
    >>> shapes = mla_gemms(load_entry("model", "deepseek-v3"), tokens, 8 * one, 8 * one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in shapes]
    [(512, 1536, 7168), (512, 576, 7168), (4096, 3072, 1536), (4096, 4096, 512), (4096, 7168, 2048)]

    Leaves out: absorption of the key up-projection into that of queries, which is used in decoding.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2; Megatron-LM,
    megatron/core/transformer/multi_latent_attention.py, whose down-projections are duplicated over tp.
    """
    mla = model.mla
    if mla is None:
        return []
    h, a = np.asarray(float(model.hidden_size)), model.heads / tp
    q, c = mla.q_lora_rank, np.asarray(float(mla.kv_lora_rank))
    queries = a * model.head_dim
    keys_values = a * (mla.qk_nope_head_dim + mla.v_head_dim)
    local_tokens = tokens / sp_degree
    gemms = [] if q is None else [Gemm(local_tokens, np.asarray(float(q)), h)]
    gemms.append(Gemm(local_tokens, c + mla.qk_rope_head_dim, h))
    gemms.append(Gemm(tokens, queries, h if q is None else np.asarray(float(q))))
    return [*gemms, Gemm(tokens, keys_values, c), Gemm(tokens, h, a * mla.v_head_dim)]


def mla_elements(model: ModelSpec, tp: Array, sp_degree: Array, norm: float) -> Array:
    """Return elements per token that MLA reads and writes between its GEMMs, in forward or backward [1].

    Norms: ``norm`` accesses per element of the latents. Rotary embedding of queries in place: 2 a r / t.
    Assembly of keys and values: a(n + v) read, a(n + r) and a v written, each over t.

    >>> float(mla_elements(load_entry("model", "deepseek-v3"), one, one, 2.0)[0])
    94208.0
    >>> 2 * 2048 + 128 * (128 + 256 + 320)
    94208

    Leaves out: copies of unfused rotary embedding.
    Source: Megatron-LM, megatron/core/fusions/fused_mla_yarn_rope_apply.py.
    """
    mla = model.mla
    if mla is None:
        return np.zeros_like(tp)
    n, r, v = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    elements: Array = norm * latents / sp_degree + model.heads * (2 * r + (n + v) + (n + r + v)) / tp
    return elements


def mla_saved_bytes(model: ModelSpec, candidates: Candidates, e: float, sp_degree: Array) -> Array:
    """Return the saved activations of MLA per token, without softmax statistics [byte], shape [C].

    Latents before and after their norms: e ((q + c + r) + (q + c)) / ``sp_degree``. Queries, keys, values and
    the output: e a (2 (n + r) + 2 v) / t.

    >>> one = candidate("tp=1", layers=61, devices=8)
    >>> float(mla_saved_bytes(load_entry("model", "deepseek-v3"), one, 2.0, np.ones(1))[0])
    172160.0
    >>> 2 * (2112 + 2048 + 128 * 640)
    172160

    Leaves out: outputs of the up-projections, which are freed when keys and values are assembled.
    Source: Megatron-LM, megatron/core/transformer/multi_latent_attention.py, for the tensors that its
    GEMMs, norms and fused attention save.
    """
    mla = model.mla
    t = candidates.tp.astype(np.float64)
    if mla is None:
        return np.zeros_like(t)
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    heads = 2 * model.head_dim + 2 * mla.v_head_dim
    saved: Array = e * ((2 * latents + mla.qk_rope_head_dim) / sp_degree + model.heads * heads / t)
    return saved
