"""Size of the key-value cache of inference, and the blocks that it is stored in.

Notation (this file only)::

    L  layers    k  key-value heads    d  head_dim        n  tokens           [1]
    t  tensor-parallel degree          w  keys of a sliding window            [1]
    B  tokens of a block               D  ranks that share a cache's tokens   [1]
    a  layers without a window         l  layers with one                     [1]
    G  layers of a group of blocks                                            [1]
    r  tokens of layers with a window over those of other layers              [1]
    e  bytes of an element                                                 [byte]
    S  bytes of a request's state in a layer with linear attention         [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.schema.model import ModelSpec
from autoplan.schema.serving.engine_layout import KV_BITS

#: Multiple of tokens to which the blocks of a model with states are rounded up.
_STATE_STEP = 16


def kv_cache_bytes(model: ModelSpec, tokens: int, bytes_per_element: float) -> float:
    """Return the size of the key-value cache of one sequence of ``tokens`` tokens [byte].

    2 L k d n e; a layer with a sliding window caches at most its window, one with linear attention no key at
    all (``state_bytes`` has its state). With MLA a token has its compressed
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
    cached_tokens = sum(
        min(tokens, model.attention_window(i) or tokens)
        for i in range(model.layers)
        if not model.is_linear_layer(i)
    )
    return _width(model, 1) * cached_tokens * bytes_per_element


def _width(model: ModelSpec, t: int) -> int:
    """Return the elements of a token and layer on one device; latent attention is not divided."""
    if model.mla is not None:
        return model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    return 2 * max(1, model.kv_heads // t) * model.head_dim


def token_layer_bytes(scope: EngineScope) -> float:
    """Return the bytes of a token in the cache of one layer on one device [byte].

    2 max(1, k/t) d e: with more devices than key-value heads, heads are replicated. Latent attention has one
    head of latent and rotary key, on every device.

    >>> job = load_serving_job("llama3-70b-8x-h100")
    >>> [80 * token_layer_bytes(EngineScope(job, EngineLayout(tp=t))) for t in (1, 4, 8, 16)]
    [327680.0, 81920.0, 40960.0, 40960.0]
    >>> deepseek = load_serving_job("deepseek-v3-8x-h200")
    >>> [61 * token_layer_bytes(EngineScope(deepseek, EngineLayout(tp=t))) for t in (1, 8)]
    [70272.0, 70272.0]

    Leaves out: scales of keys and values in fp8, which are one for a tensor.
    Source: vLLM 0.33.0, v1/kv_cache_interface.py, and config/model.py, get_num_kv_heads.
    """
    layout = scope.layout
    if layout.kv == "fp8_ds_mla":
        return scope.facts.cache.fp8_ds_mla_bytes.value
    return _width(scope.model, layout.tp) * KV_BITS[layout.kv] / 8


def state_bytes(scope: EngineScope) -> float:
    """Return S, the bytes of a request's state in a layer with linear attention on one device [byte].

    The last taps of the convolution less one, over t, in 16 bits, and a state of key_dim x value_dim for each
    value head, over t, in the format of the model. Groups of keys are replicated to at least one a device.
    It does not grow with the request.

    >>> model = load_entry("model", "qwen3-next-80b-a3b")
    >>> job = replace(serving_job, model=model)
    >>> state_bytes(EngineScope(job, EngineLayout())), 2 * 3 * 8192 + 2 * 32 * 128 * 128
    (1097728.0, 1097728)

    Leaves out: states for drafts.
    Source: vLLM 0.33.0, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.
    """
    linear, t = scope.model.linear_attention, scope.layout.tp
    if linear is None:
        return 0.0
    keys = 2 * linear.key_dim * (linear.key_heads / t if linear.key_heads % t == 0 else 1)
    channels = keys + linear.values / t
    element = 4 if linear.state == "fp32" else 2
    state = linear.value_heads / t * linear.key_dim * linear.value_dim
    return 2.0 * (linear.conv_kernel - 1) * channels + element * state


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How the cache of a stage is laid out: what a request of so many tokens takes."""

    #: Bytes of a token and layer.
    layer_bytes: float
    block_tokens: int
    #: Ranks that share the tokens of a request.
    shared: int
    full_layers: int
    window_layers: int
    window: int
    #: Groups of layers with separate blocks, and the layers of each.
    full_groups: int
    window_groups: int
    group_layers: int
    #: Tokens of layers with a window over those of others, where they have a separate pool.
    window_share: float | None
    #: Groups of layers with linear attention; a request has one block in each, whatever its length.
    state_groups: int = 0

    @property
    def block_bytes(self) -> float:
        """Bytes of one block of one group [byte]: B G times those of a token and layer.

        >>> shape = CacheShape(4096.0, 16, 1, 32, 0, 0, 1, 0, 32, None)
        >>> shape.block_bytes  # 16 tokens of 32 layers
        2097152.0
        """
        return self.layer_bytes * self.block_tokens * self.group_layers

    @property
    def token_bytes(self) -> float:
        """Bytes that a token of a long request reserves [byte].

        >>> CacheShape(4096.0, 16, 1, 32, 0, 0, 1, 0, 32, None).token_bytes
        131072.0
        """
        if self.window_share is not None:
            return self.layer_bytes * (self.full_layers + self.window_share * self.window_layers)
        return self.layer_bytes * self.group_layers * (self.full_groups + self.window_groups) / self.shared

    def blocks(self, room: float) -> int:
        """Return the blocks that fit in ``room`` bytes [1].

        >>> CacheShape(4096.0, 16, 1, 32, 0, 0, 1, 0, 32, None).blocks(2**30)
        512

        Leaves out: a block that some versions keep empty.
        Source: vLLM 0.33.0, v1/core/kv_cache_utils.py, get_num_blocks.
        """
        size = self.block_bytes if self.window_share is None else self.token_bytes * self.block_tokens
        return max(0, int(room // size))

    def tokens(self, room: float) -> int:
        """Return the tokens that ``room`` bytes hold, as the engine reports them [1].

        Blocks over the groups that each request has, times B D.

        >>> CacheShape(4096.0, 16, 1, 32, 0, 0, 1, 0, 32, None).tokens(2**30)
        8192
        """
        groups = 1 if self.window_share is not None else self.full_groups + self.window_groups
        groups += self.state_groups
        return self.blocks(room) // groups * self.block_tokens * self.shared

    def request_bytes(self, tokens: int, in_flight: int = 0) -> float:
        """Return what a request of ``tokens`` tokens takes on a device [byte].

        ceil(n / B D) blocks of groups without a window, and of the others the blocks of w - 1 + q tokens, for
        the ``in_flight`` tokens q of a step and one more that the window may begin in. Each group of layers
        with linear attention has one block.

        >>> shape = CacheShape(2048.0, 16, 1, 12, 12, 128, 1, 1, 12, None)  # gpt-oss-20b
        >>> shape.request_bytes(8192) / 2048 / 16 / 12  # 512 blocks, and 8 + 1 of the window
        521.0
        >>> shape.request_bytes(100) / 2048 / 16 / 12
        14.0

        Leaves out: requests that share a prefix.
        Source: vLLM 0.33.0, v1/kv_cache_interface.py, SlidingWindowSpec.max_admission_blocks_per_request;
        SGLang 0.5.8, srt/server_args.py, swa_full_tokens_ratio.
        """
        blocks = ceil(tokens / (self.block_tokens * self.shared))
        if not self.window_layers:
            return self.block_bytes * (blocks * self.full_groups + self.state_groups)
        resident = min(tokens, self.window - 1 + max(1, in_flight))
        if self.window_share is not None:
            rounded = blocks * self.block_tokens
            return self.token_bytes * max(rounded, min(rounded, resident) / self.window_share)
        all_blocks = ceil(tokens / self.block_tokens)
        local = min(all_blocks, ceil(resident / self.block_tokens) + 1)
        return self.block_bytes * (blocks * self.full_groups + local * self.window_groups)


def cache_shape(scope: EngineScope, stage: int) -> CacheShape:
    """Return how the cache of ``stage`` is laid out.

    Layers of a kind are divided into groups of G layers, G being the rarer kind's number, or the commoner's
    where that is at most a ratio of it. An engine with separate windows has one group for each layer. Layers
    with linear attention are a kind, too; blocks have as many tokens, by 16, as hold the state of a request.

    >>> shape = cache_shape(EngineScope(load_serving_job("gpt-oss-120b-1x-h100"), EngineLayout()), 0)
    >>> shape.full_groups, shape.window_groups, shape.group_layers  # 36 layers, every other one local
    (1, 1, 18)

    Leaves out: groups that a pipeline divides unevenly: a stage has its share of each group, rounded up.
    Source: vLLM 0.33.0, v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size.
    """
    model, facts = scope.model, scope.facts.cache
    if model.linear_attention is not None:
        return _shape_with_states(scope, stage)
    windows = [model.attention_window(layer) for layer in range(model.layers)]
    stage_windows = [windows[layer] for layer in scope.stages[stage]]
    full, local = stage_windows.count(None), len(stage_windows) - stage_windows.count(None)
    block = (
        scope.job.search.block_tokens or (facts.mla_block_tokens if model.mla else facts.block_tokens).value
    )
    if facts.hybrid == "groups" or not local:
        ratio = facts.group_ratio.value if facts.group_ratio else 1.0
        full_groups, local_groups, of_group = _groups(
            windows.count(None), len(windows) - windows.count(None), ratio
        )
        of_group = ceil(of_group * len(stage_windows) / model.layers)
    else:
        full_groups, local_groups, of_group = full, local, 1
    return CacheShape(
        layer_bytes=token_layer_bytes(scope),
        block_tokens=block,
        shared=scope.layout.dcp,
        full_layers=full,
        window_layers=local,
        window=max((w for w in windows if w), default=0),
        full_groups=full_groups,
        window_groups=local_groups,
        group_layers=of_group,
        window_share=facts.window_tokens.value
        if facts.hybrid == "ratio" and facts.window_tokens and local
        else None,
    )


def _shape_with_states(scope: EngineScope, stage: int) -> CacheShape:
    """Return the shape where some layers have linear attention and no layer has a window.

    Source: vLLM 0.33.0, model_executor/models/config.py, HybridAttentionMambaModelConfig; a log of 0.19.1
    says 528 tokens of Qwen3.5-4B (vllm-project/vllm#40696): 16 ceil(2,146,304 / (16 x 4,096)). Prefix caching
    is off for such models unless a user asks for it, so that a request has one block of states.
    """
    model, facts, layers = scope.model, scope.facts.cache, scope.stages[stage]
    each = token_layer_bytes(scope)
    full = sum(not model.is_linear_layer(layer) for layer in layers)
    all_full = sum(not model.is_linear_layer(layer) for layer in range(model.layers))
    ratio = facts.group_ratio.value if facts.group_ratio else 1.0
    full_groups, state_groups, of_group = _groups(all_full, model.layers - all_full, ratio)
    least = scope.job.search.block_tokens or facts.block_tokens.value
    return CacheShape(
        layer_bytes=each,
        block_tokens=max(least, _STATE_STEP * ceil(state_bytes(scope) / (_STATE_STEP * each))),
        shared=scope.layout.dcp,
        full_layers=full,
        window_layers=0,
        window=0,
        full_groups=full_groups,
        window_groups=0,
        group_layers=ceil(of_group * len(layers) / model.layers),
        window_share=None,
        state_groups=state_groups,
    )


def _groups(full: int, local: int, ratio: float) -> tuple[int, int, int]:
    """Return the groups of layers without and with a window, and the layers of a group."""
    kinds = [count for count in (full, local) if count]
    least, most = min(kinds), max(kinds)
    size = most if len(kinds) == 1 or most < least * ratio else least
    return ceil(full / size), ceil(local / size), size
