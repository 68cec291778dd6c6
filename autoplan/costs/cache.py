"""Key-value caches of inference.

Notation (this file only)::

    L  layers    k  key-value heads    d  head_dim    n  tokens    e  bytes of an element
"""

from __future__ import annotations

from autoplan.schema.model import ModelSpec

__all__ = ["kv_cache_bytes"]


def kv_cache_bytes(model: ModelSpec, tokens: int, bytes_per_element: float) -> float:
    """Return the bytes that keys and values of one sequence of ``tokens`` tokens take.

    2 L k d n e; a layer with a sliding window keeps no more than its window. With latent attention a
    token keeps its compressed latent and the rotated part of its key, which all heads share.

    >>> llama3_8b = ModelSpec(
    ...     name="x", source="doctest", layers=32, hidden_size=4096, heads=32, kv_heads=8,
    ...     ffn_size=14336, vocabulary=128256)
    >>> kv_cache_bytes(llama3_8b, 8192, 2)  # 2 * 32 * 8 * 128 * 8192 * 2
    1073741824

    Leaves out: pages that are only partly filled; scales of quantised caches.
    """
    width = 2 * model.kv_heads * model.head_dim
    if model.mla is not None:
        width = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    kept = sum(min(tokens, model.attention_window(i) or tokens) for i in range(model.layers))
    return width * kept * bytes_per_element
