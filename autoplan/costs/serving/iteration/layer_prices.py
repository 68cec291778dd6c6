"""Time of the layers of a step: attention by the contexts of requests, all else by the step's tokens alone.

Notation (this file only)::

    B  requests on a device     c  tokens of a context       a, k  heads, key-value heads   [1]
    t  tensor-parallel degree   L  tokens of a prompt so far    p  tokens before a chunk    [1]
    q  new tokens of a request: one, and drafts; attention data-parallel ranks              [1]
    m  tokens of a step         h  hidden size               f  inner width on a device     [1]
    E  experts of a layer       K  experts of a token        r  rows of experts on a device [1]
    e  devices over which experts are divided                                               [1]
    p  rows of an expert that are padding                                                   [1]
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.sizes import attention_widths
from autoplan.costs.device.machine import linear_attention_rate_of
from autoplan.costs.layer.linear_attention_time import accessed_elements, chunked_flops, linear_kernels
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.kernel_prices import (
    KernelPrices,
    Matrix,
    all_reduce_seconds,
    attention_matrices,
    dense_matrices,
    nccl_seconds,
)
from autoplan.costs.serving.iteration.measured_kernels import ExpertLayer
from autoplan.costs.serving.kv_cache import state_bytes
from autoplan.schema.costmodel.engine_kernels import KernelName
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import KV_BITS, EngineLayout, WeightFormat

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


#: Memory-bound kernels of a layer: two norms with their residuals, rotation with the write to the cache, and
#: the activation; a router's top-k.
_KERNELS = 4
_ROUTER_KERNELS = 2
#: Engine whose sweeps hold more than the kernel: those of attention the rotation and the write to the cache,
#: those of experts the router's top-k (ai-dynamo/aiconfigurator collector/trtllm/collect_attn.py, whose
#: ``pos_embd_params`` rotate within the operator, and collect_moe.py, whose ``moe.forward`` takes logits).
_WHOLE_SWEEPS = "tensorrt-llm"
#: Memory-bound kernels of linear attention in a captured step: convolution, gates, recurrence, norm, copy.
_LINEAR_KERNELS = 5
#: Accesses of the output gate of attention: read both, write the product.
_GATE_ACCESSES = 3
#: Kernels that sort tokens by expert, quantize, gather and sum them.
_SORTING_KERNELS = 6
#: Host time of a layer of experts in OpenAI's Triton kernels [s], a guess: routing by bit matrices and two
#: products, each launched from Python with its descriptors and options, by the same code in any engine.
_TRITON_LAUNCHES = 0.88e-3
#: Share of the peak in 8 bits that grouped products of full tiles reach: 1,297 of 1,979 TFLOP/s on H800
#: by DeepGEMM's README, less for tiles of 128 rows.
_GROUPED_SHARE = 0.6
#: Accesses of the hidden state of a norm with its residual: read both, write both.
_NORM_ACCESSES = 4
#: Passes over fp32 logits of greedy or random sampling: softmax, sort-free selection, copy.
_SAMPLER_PASSES = 4
_SAMPLER_KERNELS = 6


def token_seconds(scope: EngineScope, prices: KernelPrices, m: Array, *, graph: bool) -> Array:
    """Return the time of all layers for ``m`` tokens, without softmax attention [s], and of the embedding.

    An attention data-parallel rank has m/q tokens, and the experts see all of them.

    >>> seconds = token_seconds(h100_scope(), h100_prices(), np.array([1.0, 8192.0]), graph=True)
    >>> bool(seconds[0] > 4.1e-3), bool(seconds[1] > 2 * 7e9 * 8192 / 989e12)  # reads, FLOPs
    (True, True)
    """
    model, layout = scope.model, scope.layout
    kinds = Counter(map(model.layer_kind, range(model.layers)))
    example = {model.layer_kind(layer): layer for layer in range(model.layers)}
    rank_tokens = np.maximum(1.0, np.ceil(m / layout.adp))
    total: Array = np.zeros_like(m)
    for (sparse, linear), count in kinds.items():
        index = example[sparse, linear]
        attention = np.asarray(sum(prices.product(rank_tokens, x) for x in attention_matrices(scope, index)))
        dense = np.asarray(sum(prices.product(rank_tokens, x) for x in dense_matrices(scope, index)))
        layer = attention + dense + traffic_seconds(scope, prices, rank_tokens, sparse=sparse, linear=linear)
        if linear:
            layer = layer + linear_attention_seconds(scope, prices, rank_tokens)
        if sparse:
            layer = layer + expert_seconds(scope, prices, m)
        total = total + count * (layer + layer_collectives(scope, prices, m, sparse=sparse, graph=graph))
    # The embedding is divided by words, so its output is reduced; and read once.
    size = 2.0 * rank_tokens * model.hidden_size
    return (
        total
        + all_reduce_seconds(prices, size, layout.tp, graph=graph)
        + size / prices.bandwidth
        + prices.launch
    )


def expert_seconds(scope: EngineScope, prices: KernelPrices, m: Array) -> Array:
    """Return the time of the routed experts of a layer for ``m`` tokens on the fullest device [s].

    >>> job, h200 = load_serving_job("deepseek-v3-8x-h200"), "h200-sxm-141gb"
    >>> measured = MeasuredKernels(*engine_kernels_for(h200), engine="sglang")
    >>> prices = KernelPrices(job.cluster, measured, kernels_for(h200))
    >>> scope = EngineScope(job, EngineLayout(tp=8, ep=8, weights="fp8-block"))
    >>> few, many = expert_seconds(scope, prices, np.array([1.0, 1024.0]))
    >>> bool(few < many)
    True
    """
    moe, layout = scope.model.moe, scope.layout
    assert moe is not None  # noqa: S101 - layers with experts alone
    weight_format = scope.format_of("experts")
    sharding = (layout.expert_tensor, layout.ep)
    h, f = scope.model.hidden_size, moe.expert_ffn_size
    seconds = prices.experts(m, ExpertLayer(weight_format, moe.experts, moe.top_k, h, f, sharding))
    if seconds is not None:
        return np.maximum(seconds, _padded_seconds(scope, prices, m))
    rows = np.maximum(1.0, m * moe.top_k / layout.ep)
    rank_experts = np.asarray(moe.experts / layout.ep)
    weights = np.asarray(float(scope.model.hidden_size) * moe.expert_ffn_size / layout.expert_tensor)
    name: KernelName = "experts" if layout.ep == 1 else "split-experts"
    measured = prices.kernel(name, weight_format, (rows, rank_experts, weights))
    return np.maximum(measured, _padded_seconds(scope, prices, m))


def _padded_seconds(scope: EngineScope, prices: KernelPrices, m: Array) -> Array:
    """Return the time of a layer's experts where each of a device computes rows that no token has [s].

    r = m K / e + E p rows on one of e devices: 6 r h f FLOPs, and (6 h + 10 f) r bytes that are gathered,
    activated, quantized and written.
    """
    moe, layout, step = scope.model.moe, scope.layout, scope.facts.step
    assert moe is not None  # noqa: S101 - layers with experts alone
    peak = scope.device.peak_flops("fp8")
    padded = step.padded_rows if step is not None else None
    if padded is None or peak is None or scope.format_of("experts") != "fp8-block":
        return np.zeros_like(m)
    rows = m * moe.top_k / layout.ep + moe.experts / layout.ep * padded.value
    h, f = scope.model.hidden_size, moe.expert_ffn_size / layout.expert_tensor
    return np.asarray(
        6.0 * rows * h * f / (_GROUPED_SHARE * peak) + (6.0 * h + 10.0 * f) * rows / prices.bandwidth
    )


def linear_attention_seconds(scope: EngineScope, prices: KernelPrices, m: Array) -> Array:
    """Return the time of a layer's linear attention for ``m`` tokens of a device, without products [s].

    FLOPs of chunks at their rate, and their bytes over bandwidth, as in training; the time does not depend on
    the contexts. Decodes update states besides, see ``state_update_seconds``.

    >>> float(linear_attention_seconds(h100_scope(), h100_prices(), np.array(64.0)))  # no such layer
    0.0

    Leaves out: that decodes need no chunks, of which a step of some hundred has few; kernels of makers, which
    are up to three times as fast as Triton's on long prompts (flashinfer-ai/flashinfer#3788).
    Source: ``costs/layer/linear_attention_time``.
    """
    linear, tp = scope.model.linear_attention, scope.layout.tp
    if linear is None:
        return np.zeros_like(m)
    rate = linear_attention_rate_of(prices.cluster)
    flops, elements = chunked_flops(linear)[0], accessed_elements(linear)[0]
    each = flops / tp / rate.peak + 2.0 * elements / tp / prices.bandwidth
    return np.asarray(each * m + _LINEAR_KERNELS * prices.launch)


def traffic_seconds(
    scope: EngineScope, prices: KernelPrices, m: Array, *, sparse: bool, linear: bool = False
) -> Array:
    """Return the time of a layer's memory-bound kernels for ``m`` tokens [s].

    Norms with their residuals, rotation of queries and keys with the write to the cache, the activation.
    ``linear``: a layer with linear attention, which has no rotation; ``linear_attention_seconds`` has more.

    >>> few, many = traffic_seconds(
    ...     h100_scope(), h100_prices(), np.array([1.0, 8192.0]), sparse=False)
    >>> bool(few < many)
    True
    """
    model, layout = scope.model, scope.layout
    queries, keys = (float(np.max(x)) for x in attention_widths(model, np.array(float(layout.tp))))
    norms = (4 if model.post_norms else 2) * _NORM_ACCESSES * model.hidden_size
    gate = _GATE_ACCESSES * queries if model.attention_output_gate else 0.0
    rotation = 0.0 if linear else 2 * (queries + keys) + 2 * keys + gate
    activation = (3 if model.gated else 2) * _activated(scope, sparse=sparse)
    kernels = _small_kernels(scope, prices, sparse=sparse, linear=linear)
    moved = 2.0 * m * (norms + rotation + activation)
    return np.asarray(moved / prices.bandwidth + kernels * prices.launch)


def _activated(scope: EngineScope, *, sparse: bool) -> float:
    """Return the inner width on a device that an activation reads apart from those of routed experts [1]."""
    moe, layout = scope.model.moe, scope.layout
    width = moe.shared_expert_ffn_size if sparse and moe is not None else scope.model.ffn_size
    return width / layout.tp


def _small_kernels(scope: EngineScope, prices: KernelPrices, *, sparse: bool, linear: bool) -> int:
    """Return the memory-bound kernels of a layer in a step [1].

    Norms, which all-reduces of some engines hold; rotation and the router's top-k, which sweeps of some hold;
    an activation, but where routed experts, whose sweep has it, have no others beside them. Norms of latents
    stand in for the rotation.

    Source: NVIDIA/TensorRT-LLM tensorrt_llm/_torch/models: Llama and layers with experts fuse norms, dense
    layers of modeling_qwen3.py and those of modeling_gemma3.py do not.
    """
    model, layout, step = scope.model, scope.layout, scope.facts.step
    whole = prices.measured is not None and prices.measured.engine == _WHOLE_SWEEPS
    reduced = layout.tp > 1 and layout.adp == 1 and (sparse or not (model.qk_norm or model.post_norms))
    norms = 0 if reduced and step is not None and step.fuses_norms else 2
    rotation = not (whole and model.attention == "full" and not linear)
    activation = _activated(scope, sparse=sparse) > 0
    router = 0 if whole or not sparse else _ROUTER_KERNELS
    return norms + rotation + activation + router + (model.qk_norm and not linear)


def layer_collectives(
    scope: EngineScope, prices: KernelPrices, m: Array, *, sparse: bool, graph: bool
) -> Array:
    """Return the time of a layer's collectives for ``m`` tokens [s].

    Two all-reduces of m h elements over tp. With data-parallel attention tokens go to the experts and back:
    each way the cheaper of an all-gather or reduce-scatter of all, and an all-to-all of the rows.

    >>> h100 = "h100-sxm5-80gb"
    >>> measured = MeasuredKernels(*engine_kernels_for(h100), engine="vllm")
    >>> prices = KernelPrices(serving_job.cluster, measured, kernels_for(h100))
    >>> float(layer_collectives(h100_scope(), prices, np.ones(1), sparse=False, graph=True)[0])
    0.0
    """
    h, moe, layout = scope.model.hidden_size, scope.model.moe, scope.layout
    rank_tokens = np.ceil(m / layout.adp)
    reduced = all_reduce_seconds(prices, 2.0 * rank_tokens * h, layout.tp, graph=graph)
    if layout.adp == 1 or not sparse or moe is None:
        return reduced * 2
    devices = layout.tp * layout.adp
    everything = 2.0 * m * h
    gathered = nccl_seconds(prices, "all_gather", everything, devices)
    scattered = nccl_seconds(prices, "reduce_scatter", everything, devices)
    visited = min(moe.top_k, layout.ep)
    rows = nccl_seconds(prices, "all_to_all", 2.0 * rank_tokens * h * visited, devices)
    return np.asarray(reduced + np.minimum(gathered + scattered, 2.0 * rows))


def launched_kernels(scope: EngineScope) -> int:
    """Return the kernels of all layers of a step [1], which the host launches one by one outside of graphs.

    Products with the quantization of their input, attention, memory-bound kernels, all-reduces; experts have
    two products, and kernels that sort tokens by expert and gather them, but in Triton.

    >>> launched_kernels(h100_scope()) / 32
    9.0

    Leaves out: views, copies and reductions that engines add.
    Source: vLLM 0.33.0, model_executor/models/llama.py and layers/fused_moe/fused_moe.py.
    """
    model, layout = scope.model, scope.layout
    total = 0
    for layer in range(model.layers):
        sparse = model.is_moe_layer(layer)
        products = len(attention_matrices(scope, layer)) + len(dense_matrices(scope, layer))
        quantized = 0 if layout.weights in {"bf16", "fp16"} else products
        experts = 0 if _in_triton(scope) else (2 + _SORTING_KERNELS) * sparse
        reduced = 2 * (layout.tp > 1)
        memory = _KERNELS + _ROUTER_KERNELS * sparse + model.qk_norm
        memory += linear_kernels(model) * model.is_linear_layer(layer)
        total += products + quantized + 1 + memory + experts + reduced
    return total


def launch_seconds(scope: EngineScope, eager_kernel: float) -> float:
    """Return the host time to launch all layers of a step outside of graphs [s].

    ``eager_kernel``: of one compiled kernel. Experts in Triton take as long in any engine.

    >>> round(launch_seconds(h100_scope(), 8e-6) * 1e3, 3)  # 288 kernels
    2.304

    Source: openai triton_kernels, matmul_ogs.py and routing.py, which vLLM, SGLang and TensorRT-LLM call.
    """
    sparse = sum(map(scope.model.is_moe_layer, range(scope.model.layers)))
    return eager_kernel * launched_kernels(scope) + _TRITON_LAUNCHES * sparse * _in_triton(scope)


def _in_triton(scope: EngineScope) -> bool:
    """Return whether experts run in OpenAI's Triton kernels."""
    step = scope.facts.step
    on = () if step is None else step.triton_on
    return scope.device.architecture in on and scope.format_of("experts") == "mxfp4"


def head_seconds(scope: EngineScope, prices: KernelPrices, sequences: Array) -> Array:
    """Return the time of the output projection and of sampling for ``sequences`` requests [s].

    Logits of the parts of the vocabulary are gathered, and sampled in fp32 on one device.

    >>> seconds = head_seconds(h100_scope(), h100_prices(), np.array([1.0]))
    >>> bool(seconds[0] * 3.35e12 > 2 * 128_256 * 4096)  # the output projection, bytes
    True
    """
    model, layout = scope.model, scope.layout
    rank_sequences = np.maximum(1.0, np.ceil(sequences / layout.adp))
    words = -(-model.vocabulary // layout.tp)
    seconds = prices.product(rank_sequences, Matrix(words, model.hidden_size, "bf16"))
    logits = rank_sequences * model.vocabulary
    if layout.tp > 1:
        seconds = seconds + nccl_seconds(prices, "all_gather", 2.0 * logits, layout.tp)
    return np.asarray(
        seconds + 4.0 * _SAMPLER_PASSES * logits / prices.bandwidth + _SAMPLER_KERNELS * prices.launch
    )
