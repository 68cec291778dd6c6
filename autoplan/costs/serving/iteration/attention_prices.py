"""Time of attention in a step: of decodes and of chunks of prompts, by the contexts of requests.

Notation (this file only)::

    B  requests on a device     c  tokens of a context       a, k  heads, key-value heads  [1]
    t  tensor-parallel degree   L  tokens of a prompt so far p     tokens before a chunk   [1]
    q  new tokens of a request: one, and drafts                                            [1]
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.kernel_prices import KernelPrices
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.weight_formats import KV_BITS, WeightFormat

__all__ = ["decode_attention_seconds", "prefill_attention_seconds"]

#: Generations whose FlashAttention takes no sinks.
_BEFORE_HOPPER: Final = frozenset({"volta", "turing", "ampere", "ada"})


def _kv(layout: EngineLayout) -> WeightFormat:
    return "fp8" if KV_BITS[layout.kv] == 8 else "bf16"


def _sinks_share(scope: EngineScope) -> float:
    """Return the rate of attention of prompts over that of the measured kernels [1]."""
    step = scope.facts.step
    share = step.sinks_share if step is not None else None
    slower = scope.model.attention_sinks and scope.device.architecture in _BEFORE_HOPPER
    return share.value if slower and share is not None else 1.0


def _windows(model: ModelSpec) -> dict[int, int]:
    """Return the number of layers by their window; 0: without."""
    return dict(Counter(model.attention_window(layer) or 0 for layer in range(model.layers)))


def decode_attention_seconds(
    scope: EngineScope,
    prices: KernelPrices,
    requests: Array,
    context: Array,
    queries: int = 1,
) -> Array:
    """Return the time of all layers' attention of q new tokens for B requests with c tokens each [s].

    B k/t key-value heads are read, at least one on a device, or B a/t by kernels that read the keys for each
    query head; decode context parallelism divides tokens. Several new tokens of a request are more
    queries of the same keys, as more heads of a group are.

    >>> seconds = decode_attention_seconds(h100_scope(), h100_prices(), np.array(64.0), np.array(1024.0))
    >>> float(seconds) * 3.35e12 > 64 * 1024 * 131_072  # bytes of the cache
    True
    """
    model, layout = scope.model, scope.layout
    rank_requests = np.maximum(1.0, np.ceil(requests / layout.adp))
    length = np.maximum(1.0, context / layout.dcp)
    rank_requests, length = np.broadcast_arrays(rank_requests, length)
    if model.mla is not None:
        heads = np.asarray(queries * max(1.0, model.heads / layout.tp))
        return model.layers * prices.kernel("latent-decode", _kv(layout), (heads, rank_requests, length))
    query_heads, kv_heads = max(1.0, model.heads / layout.tp), max(1.0, model.kv_heads / layout.tp)
    step = scope.facts.step
    if step is not None and step.decode_attention == "by head":
        kv_heads = query_heads
    group = np.asarray(queries * max(1.0, query_heads / kv_heads))
    total: Array = np.zeros(rank_requests.shape)
    for window, layers in _windows(model).items():
        at = (rank_requests * kv_heads, length, group)
        kernel = prices.kernel("decode-attention", _kv(layout), at, head_dim=model.head_dim, window=window)
        total = total + layers * kernel
    return total


def prefill_attention_seconds(
    scope: EngineScope, prices: KernelPrices, prompts: Array, tokens: Array
) -> Array:
    """Return the time of all layers' attention of ``prompts`` complete prompts of L tokens each [s].

    A chunk after p tokens takes (L^2 - p^2) / L^2 of it.

    >>> lengths = np.array([2048.0, 4096.0])
    >>> one, two = prefill_attention_seconds(h100_scope(), h100_prices(), np.array(1.0), lengths)
    >>> 2 < float(two / one) < 4
    True
    """
    model, layout = scope.model, scope.layout
    prompts, tokens = np.broadcast_arrays(prompts, tokens)
    heads = max(1.0, model.heads / layout.tp)
    if model.mla is not None:
        at = (np.asarray(heads), prompts, tokens)
        return model.layers * prices.kernel("latent-prefill", _kv(layout), at)
    group = np.asarray(max(1.0, heads / max(1.0, model.kv_heads / layout.tp)))
    total: Array = np.zeros(prompts.shape)
    for window, layers in _windows(model).items():
        at = (prompts * heads, tokens, group)
        kernel = prices.kernel("prefill-attention", _kv(layout), at, head_dim=model.head_dim, window=window)
        total = total + layers * kernel
    return total / _sinks_share(scope)
