"""Attention whose keys and values come out of narrow latents (MLA): products, memory, what is kept.

Notation (this file only)::

    h     hidden size          a     heads               t   tensor-parallel degree                  [1]
    q, c  widths of the latents of queries, and of keys and values                                   [1]
    n, r  parts of a query's or key's head: without rotation, rotated    v  width of a value's head  [1]
    T     tokens of a microbatch                         e   bytes of an element                     [1]

Down: [T, h] x [h, q] and [T, h] x [h, c + r], whole on every rank, on the tokens that sequence parallelism
leaves it. Up: [T, q] x [q, a(n+r)/t] and [T, c] x [c, a(n+v)/t]. Without a latent of queries these come
straight from h. Only the latents are gathered where sequences are split.
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.device.kernels import Gemm
from autoplan.schema.model import ModelSpec

__all__ = ["head_widths", "latent_elements", "latent_gemms", "latent_saved"]


def head_widths(model: ModelSpec) -> tuple[int, int]:
    """Return the width of a query's and key's head, and of a value's [1]: d and d, with latents n + r and v.

    >>> from autoplan.catalog import load_entry
    >>> [head_widths(load_entry("model", name)) for name in ("llama3-8b", "deepseek-v3")]  # 128 + 64
    [(128, 128), (192, 128)]

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
    """
    mla = model.mla
    return (model.head_dim, model.head_dim) if mla is None else (model.head_dim, mla.v_head_dim)


def latent_gemms(model: ModelSpec, tokens: Array, tp: Array, whole: Array) -> list[Gemm]:
    """Return the products of a layer's attention on one rank [1]: down, up, and the output's.

    ``whole`` is over how many ranks sequences are split between products. Shapes are in this file's head.

    >>> from autoplan.catalog import load_entry
    >>> one, tokens = np.ones(1), np.full(1, 4096.0)
    >>> shapes = latent_gemms(load_entry("model", "deepseek-v3"), tokens, 8 * one, 8 * one)
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in shapes]
    [(512, 1536, 7168), (512, 576, 7168), (4096, 3072, 1536), (4096, 4096, 512), (4096, 7168, 2048)]

    Leaves out: keys' up-projection absorbed into queries', which serves decoding.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2; Megatron-LM,
    megatron/core/transformer/multi_latent_attention.py, whose down-projections are duplicated over tp.
    """
    mla = model.mla
    if mla is None:
        return []
    h, a = np.asarray(float(model.hidden_size)), model.heads / tp
    q, c = mla.q_lora_rank, np.asarray(float(mla.kv_lora_rank))
    queries = a * model.head_dim
    up = a * (mla.qk_nope_head_dim + mla.v_head_dim)
    own = tokens / whole
    found = [] if q is None else [Gemm(own, np.asarray(float(q)), h)]
    found.append(Gemm(own, c + mla.qk_rope_head_dim, h))
    found.append(Gemm(tokens, queries, h if q is None else np.asarray(float(q))))
    return [*found, Gemm(tokens, up, c), Gemm(tokens, h, a * mla.v_head_dim)]


def latent_elements(model: ModelSpec, tp: Array, whole: Array, norm: float) -> Array:
    """Return elements moved for a token between the products of attention, in one direction [1].

    ``norm`` trips of the latents, then queries rotated in place (2 a r / t), keys put together and values
    taken out: a(n + v) read, a(n + r) and a v written, each over t.

    >>> from autoplan.catalog import load_entry
    >>> one = np.ones(1)
    >>> float(latent_elements(load_entry("model", "deepseek-v3"), one, one, 2.0)[0])
    94208.0
    >>> 2 * 2048 + 128 * (128 + 256 + 320)
    94208

    Leaves out: copies that unfused rotations make.
    Source: Megatron-LM, megatron/core/fusions/fused_mla_yarn_rope_apply.py.
    """
    mla = model.mla
    if mla is None:
        return np.zeros_like(tp)
    n, r, v = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    moved: Array = norm * latents / whole + model.heads * (2 * r + (n + v) + (n + r + v)) / tp
    return moved


def latent_saved(model: ModelSpec, candidates: Candidates, e: float, whole: Array) -> Array:
    """Return what attention keeps of a token, its core's numbers apart [byte], shape [C].

    e ((q + c + r) + (q + c)) / whole of the latents before and after their norms, and e a (2 (n + r) + 2 v)
    / t of queries, keys, values and the output.

    >>> from autoplan.catalog import load_entry
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=1", layers=61, devices=8)])
    >>> float(latent_saved(load_entry("model", "deepseek-v3"), one, 2.0, np.ones(1))[0])
    172160.0
    >>> 2 * (2112 + 2048 + 128 * 640)
    172160

    Leaves out: what up-projections give before keys are put together, which is free again by then.
    Source: Megatron-LM, megatron/core/transformer/multi_latent_attention.py: the tensors that its products,
    norms and fused attention save.
    """
    mla = model.mla
    t = candidates.tp.astype(np.float64)
    if mla is None:
        return np.zeros_like(t)
    latents = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    heads = 2 * model.head_dim + 2 * mla.v_head_dim
    kept: Array = e * ((2 * latents + mla.qk_rope_head_dim) / whole + model.heads * heads / t)
    return kept
