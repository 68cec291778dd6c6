"""Size of the key-value cache of inference.

Notation (this file only)::

    L  layers    k  key-value heads    d  head_dim    n  tokens         [1]
    e  bytes of an element                                           [byte]
"""

from __future__ import annotations

from autoplan.schema.model import ModelSpec

__all__ = ["kv_cache_bytes"]


def kv_cache_bytes(model: ModelSpec, tokens: int, bytes_per_element: float) -> float:
    """Return the size of the key-value cache of one sequence of ``tokens`` tokens [byte].

    2 L k d n e; a layer with a sliding window caches at most its window. With MLA a token has its compressed
    latent and the rotary part of its key, which all heads share.

    >>> llama3_8b = ModelSpec(
    ...     name="x", source="doctest", layers=32, hidden_size=4096, heads=32, kv_heads=8,
    ...     ffn_size=14336, vocabulary=128256)
    >>> kv_cache_bytes(llama3_8b, 8192, 2)  # 2 * 32 * 8 * 128 * 8192 * 2
    1073741824

    Leaves out: pages (blocks) that are partly filled; scales of quantised caches.
    Source: Shazeer 2019, arXiv:1911.02150, for heads that share keys; DeepSeek-AI 2024, arXiv:2405.04434,
    section 2.1, for latent attention.
    """
    width = 2 * model.kv_heads * model.head_dim
    if model.mla is not None:
        width = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    cached_tokens = sum(min(tokens, model.attention_window(i) or tokens) for i in range(model.layers))
    return width * cached_tokens * bytes_per_element
