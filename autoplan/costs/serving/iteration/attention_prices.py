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
from autoplan.costs.serving.kv_cache import state_bytes
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.weight_formats import KV_BITS, WeightFormat

_BEFORE_HOPPER: Final = frozenset({"volta", "turing", "ampere", "ada"})


def _kv(layout: EngineLayout) -> WeightFormat:
    return "fp8" if KV_BITS[layout.kv] == 8 else "bf16"


def has_flash2(device: DeviceSpec) -> bool:
    """Whether a device has FlashAttention 2, which takes no sinks and gives each query head its own tile.

    Blackwell for workstations and games, which has GDDR, is of compute capability 12.

    >>> has_flash2(h100_scope().device)
    False

    Source: vLLM 0.20.0, v1/attention/backends/fa_utils.py, get_flash_attn_version: 3 for capability 9, 4 for
    10, else 2; Dao-AILab/flash-attention issue 2529 for the RTX PRO 6000.
    """
    later = device.architecture == "blackwell" and device.memory.technology.startswith("GDDR")
    return later or device.architecture in _BEFORE_HOPPER


def _sinks_share(scope: EngineScope) -> float:
    """Return the rate of attention of prompts over that of the measured kernels [1]."""
    step = scope.facts.step
    share = step.sinks_share if step is not None else None
    slower = scope.model.attention_sinks and has_flash2(scope.device)
    return share.value if slower and share is not None else 1.0


def tiled_queries(scope: EngineScope) -> int:
    """Return the queries of a tile that a decode has to itself in steps with prompts [1]; 0: none.

    FlashAttention 2 packs the query heads of a group into one tile where all requests have one query, in
    steps of decodes alone. Beside a prompt a decode takes a tile for each of its heads. Attention with sinks
    runs in Triton there, which packs them.

    >>> tiled_queries(h100_scope())
    0

    Source: vllm-project/flash-attention, csrc/flash_attn/flash_api.cpp, mha_varlen_fwd:
    seqlenq_ngroups_swapped; src/flash_fwd_launch_template.h, run_mha_fwd_splitkv_dispatch: kBlockM.
    """
    step, model = scope.facts.step, scope.model
    tile = step.query_tile if step is not None else None
    if tile is None or not has_flash2(scope.device):
        return 0
    return 0 if model.mla is not None or model.attention_sinks else tile.value


def _windows(model: ModelSpec) -> dict[int, int]:
    """Return the number of layers with softmax attention by their window; 0: without."""
    layers = (layer for layer in range(model.layers) if not model.is_linear_layer(layer))
    return dict(Counter(model.attention_window(layer) or 0 for layer in layers))


def decode_attention_seconds(
    scope: EngineScope,
    prices: KernelPrices,
    requests: Array,
    context: Array,
    queries: int = 1,
) -> Array:
    """Return the time of all layers' attention of q new tokens for B requests with c tokens each [s].

    B k/t key-value heads are read, at least one on a device, or B a/t by kernels that read the keys for each
    query head; decode context parallelism divides tokens. Layers with linear attention update their states,
    see ``state_update_seconds``. Several new tokens of a request are more
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
    return total + state_update_seconds(scope, prices, rank_requests)


def state_update_seconds(scope: EngineScope, prices: KernelPrices, rank_requests: Array) -> Array:
    """Return the time in which all layers with linear attention update the states of B requests [s].

    Two kernels a layer, convolution and recurrence, read and write 2 B S bytes, whatever the contexts.

    >>> float(state_update_seconds(h100_scope(), h100_prices(), np.array(64.0)))  # no such layer
    0.0

    Leaves out: FLOPs, four for each element of a state.
    Source: fla-org/flash-linear-attention, fla/ops/gated_delta_rule/fused_recurrent.py; state-spaces/mamba,
    mamba_ssm/ops/triton/selective_state_update.py.
    """
    model = scope.model
    layers = sum(map(model.is_linear_layer, range(model.layers)))
    if not layers:
        return np.zeros(np.shape(rank_requests))
    moved = 2.0 * state_bytes(scope) * rank_requests
    return np.asarray(layers * (moved / prices.bandwidth + 2 * prices.launch))


def prefill_attention_seconds(
    scope: EngineScope, prices: KernelPrices, prompts: Array, tokens: Array
) -> Array:
    """Return the time of all layers' softmax attention of ``prompts`` complete prompts of L tokens each [s].

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
