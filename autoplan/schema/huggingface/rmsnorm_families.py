"""Families of models: what each means by its config.json, a function a family.

Defaults are those of transformers 5: what its config class fills in may be missing here as well,
but the sizes that decide a model (layers, widths, heads, vocabulary) must be there. The first have RMSNorm
and a gated MLP, the others LayerNorm and an MLP without a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autoplan.schema.huggingface.config_fields import ABSENT, MOST_LAYERS, Family, Fields, Spec, decoder

_MOST_EXPERTS: Final = 100_000


def _gated(
    fields: Fields, *, kv_heads: int = ABSENT, head_dim: int | None = None, attention: bool = False
) -> Spec:
    """Read a decoder with RMSNorm, a gated MLP and rotary positions.

    The arguments are the family's defaults, ``attention`` of biases in all of its attention.
    """
    biased = fields.flag("attention_bias", default=attention)
    return {
        **decoder(fields, kv_heads=kv_heads, head_dim=head_dim),
        "ffn_size": fields.integer("intermediate_size"),
        "activation": fields.activation("hidden_act", gated=True, default="silu"),
        "bias": {"qkv": biased, "attention_output": biased},
        "tied_embeddings": fields.flag("tie_word_embeddings", default=False),
    }


def _llama(fields: Fields) -> Spec:
    spec = _gated(fields)
    return {**spec, "bias": {**_biases(spec), "mlp": fields.flag("mlp_bias", default=False)}}


def _biases(spec: Spec) -> Mapping[str, object]:
    bias = spec["bias"]
    return bias if isinstance(bias, Mapping) else {}


def _mistral(fields: Fields) -> Spec:
    return {
        **_gated(fields, kv_heads=8),
        "sliding_window": fields.window("sliding_window", default=4096),
    }


def _mixtral(fields: Fields) -> Spec:
    spec = _gated(fields, kv_heads=8)
    return {
        **spec,
        "sliding_window": fields.window("sliding_window"),
        "moe": {
            "experts": fields.integer("num_local_experts", "num_experts", default=8, most=_MOST_EXPERTS),
            "top_k": fields.integer("num_experts_per_tok", default=2, most=_MOST_EXPERTS),
            "expert_ffn_size": spec["ffn_size"],
        },
    }


def _qwen2(fields: Fields) -> Spec:
    bias = {"qkv": fields.flag("qkv_bias", default=True)}
    return {**_gated(fields), "bias": bias, "sliding_window": _qwen_window(fields)}


def _qwen3(fields: Fields) -> Spec:
    return {
        **_gated(fields, head_dim=128),
        "qk_norm": True,
        "sliding_window": _qwen_window(fields),
    }


def _qwen_window(fields: Fields) -> object:
    """Read Qwen's window: off unless asked for, and then only above ``max_window_layers``."""
    if not fields.flag("use_sliding_window", default=False):
        return None
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    first = fields.integer("max_window_layers", default=28, least=0)
    if not fields.mentions("layer_types") and first >= layers:
        return None
    if not fields.mentions("layer_types") and first > 0:
        fields.reject("max_window_layers", "max_window_layers must be 0 or at least all layers")
    return fields.window("sliding_window", default=4096)


def _qwen_experts(fields: Fields, *, expert: int, experts: int, top_k: int) -> Spec:
    dense = fields.given("mlp_only_layers") or []
    if dense != list(range(len(dense) if isinstance(dense, list) else 0)):
        fields.reject("mlp_only_layers", "mlp_only_layers must be the first layers: [0, 1, ...]")
        dense = []
    return {
        "experts": fields.integer("num_experts", "num_local_experts", default=experts, most=_MOST_EXPERTS),
        "top_k": fields.integer("num_experts_per_tok", default=top_k, most=_MOST_EXPERTS),
        "expert_ffn_size": fields.integer("moe_intermediate_size", default=expert),
        "first_dense_layers": len(dense) if isinstance(dense, list) else 0,
        "every": fields.integer("decoder_sparse_step", default=1, most=MOST_LAYERS),
    }


def _qwen2_moe(fields: Fields) -> Spec:
    shared = fields.integer("shared_expert_intermediate_size", default=5632)
    experts = _qwen_experts(fields, expert=1408, experts=60, top_k=4)
    return {
        **_qwen2(fields),
        "moe": {**experts, "shared_expert_ffn_size": shared, "shared_expert_gate": True},
    }


def _qwen3_moe(fields: Fields) -> Spec:
    return {
        **_gated(fields, kv_heads=4),
        "qk_norm": True,
        "sliding_window": _qwen_window(fields),
        "moe": _qwen_experts(fields, expert=768, experts=128, top_k=8),
    }


def _first_dense(fields: Fields, default: int) -> int:
    return fields.integer("first_k_dense_replace", default=default, least=0, most=MOST_LAYERS)


def _deepseek(fields: Fields, *, dense: int, shared: int, router_bias: bool) -> Spec:
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    dense = _first_dense(fields, dense)
    spec = {
        **_gated(fields),
        "kv_heads": fields.integer("num_attention_heads"),
        "attention": "mla",
        "mla": _latent(fields),
        "moe": _deepseek_experts(fields, dense, shared, router_bias=router_bias),
    }
    # The `head_dim` of these configs is the rotary part only; the model file derives its own.
    spec.pop("head_dim", None)
    return spec if dense < layers else {**spec, "moe": None}


def _latent(fields: Fields) -> Spec:
    silent = not fields.mentions("q_lora_rank")
    return {
        "q_lora_rank": 1536 if silent else fields.optional_integer("q_lora_rank") or None,
        "kv_lora_rank": fields.integer("kv_lora_rank", default=512),
        "qk_nope_head_dim": fields.integer("qk_nope_head_dim", default=128),
        "qk_rope_head_dim": fields.integer("qk_rope_head_dim", default=64),
        "v_head_dim": fields.integer("v_head_dim", default=128),
    }


def _deepseek_experts(fields: Fields, dense: int, shared: int, *, router_bias: bool) -> Spec:
    if fields.integer("moe_layer_freq", default=1) != 1:
        fields.reject("moe_layer_freq", "moe_layer_freq must be 1")
    width = fields.integer("moe_intermediate_size")
    count = fields.optional_integer("n_shared_experts", most=1000)
    silent = not fields.mentions("n_shared_experts")
    return {
        "experts": fields.integer("n_routed_experts", "num_local_experts", most=_MOST_EXPERTS),
        "top_k": fields.integer("num_experts_per_tok", most=_MOST_EXPERTS),
        "expert_ffn_size": width,
        "shared_expert_ffn_size": width * (shared if silent else count or 0),
        "first_dense_layers": dense,
        "router_bias": router_bias,
    }


def _deepseek_v2(fields: Fields) -> Spec:
    return _deepseek(fields, dense=0, shared=2, router_bias=False)


def _deepseek_v3(fields: Fields) -> Spec:
    return _deepseek(fields, dense=3, shared=1, router_bias=True)


def _gemma(fields: Fields) -> Spec:
    keys = ("hidden_activation", "hidden_act")
    return {
        **_gated(fields, head_dim=256),
        "activation": fields.activation(*keys, gated=True, default="gelu"),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=True),
    }


def _gemma2(fields: Fields) -> Spec:
    fields = fields.with_defaults(num_key_value_heads=4)
    return {
        **_gemma(fields),
        "post_norms": True,
        "sliding_window": fields.window("sliding_window", default=4096, every=2),
    }


def _gemma3(fields: Fields) -> Spec:
    keys = ("sliding_window_pattern", "_sliding_window_pattern")
    every = fields.integer(*keys, default=6, most=MOST_LAYERS)
    # Released multimodal configs leave out heads and vocabulary where they are the class defaults.
    fields = fields.with_defaults(num_attention_heads=8, num_key_value_heads=4, vocab_size=262_208)
    return {
        **_gemma(fields),
        "post_norms": True,
        "qk_norm": True,
        "sliding_window": fields.window("sliding_window", default=4096, every=every),
    }


def _phi3(fields: Fields) -> Spec:
    return {**_gated(fields), "sliding_window": fields.window("sliding_window")}


def _gpt_oss(fields: Fields) -> Spec:
    spec = _gated(fields, kv_heads=8, head_dim=64, attention=True)
    return {
        **spec,
        "bias": {**_biases(spec), "mlp": True},
        "activation_clamp": True,
        "attention_sinks": True,
        "sliding_window": fields.window("sliding_window", default=128, every=2),
        "moe": {
            "experts": fields.integer("num_local_experts", "num_experts", default=128, most=_MOST_EXPERTS),
            "top_k": fields.integer("num_experts_per_tok", default=4, most=_MOST_EXPERTS),
            "expert_ffn_size": spec["ffn_size"],
            "router_bias": True,
        },
    }


def _llama4(fields: Fields) -> Spec:
    spec = _gated(fields, kv_heads=8, head_dim=128)
    every = fields.integer("no_rope_layer_interval", default=4, most=MOST_LAYERS)
    step = fields.integer("interleave_moe_layer_step", default=1, most=MOST_LAYERS)
    return {
        **spec,
        "ffn_size": fields.integer("intermediate_size_mlp", default=16384),
        "sliding_window": fields.window("attention_chunk_size", default=8192, every=every),
        "moe": {
            "experts": fields.integer("num_local_experts", default=16, most=_MOST_EXPERTS),
            "top_k": fields.integer("num_experts_per_tok", default=1, most=_MOST_EXPERTS),
            "expert_ffn_size": spec["ffn_size"],
            "shared_expert_ffn_size": spec["ffn_size"],
            "every": step,
        },
    }


def _glm(fields: Fields, *, post_norms: bool = False) -> Spec:
    spec = _gated(fields, kv_heads=2, head_dim=128, attention=True)
    return {**spec, "bias": {**_biases(spec), "attention_output": False}, "post_norms": post_norms}


def _glm4(fields: Fields) -> Spec:
    return _glm(fields, post_norms=True)


def _glm4_moe(fields: Fields) -> Spec:
    spec = _gated(fields, kv_heads=8)
    return {
        **spec,
        "bias": {**_biases(spec), "attention_output": False},
        "qk_norm": fields.flag("use_qk_norm", default=False),
        "moe": _deepseek_experts(fields, _first_dense(fields, 1), 1, router_bias=True),
    }


def _glm4_moe_lite(fields: Fields) -> Spec:
    return _deepseek(fields, dense=1, shared=1, router_bias=True)


def _dots1(fields: Fields) -> Spec:
    experts = _deepseek_experts(fields, _first_dense(fields, 0), 0, router_bias=True)
    return {**_gated(fields), "qk_norm": True, "moe": experts}


def _minimax_m2(fields: Fields) -> Spec:
    spec = _mixtral(fields.with_defaults(num_local_experts=256, num_experts_per_tok=8, head_dim=128))
    moe = spec["moe"] if isinstance(spec["moe"], Mapping) else {}
    norms = {"qk_norm": True, "qk_norm_across_heads": True}
    return {**spec, **norms, "sliding_window": None, "moe": {**moe, "router_bias": True}}


def _olmo2(fields: Fields) -> Spec:
    # Its two norms of a layer follow attention and MLP instead of preceding them: as many bytes and reads.
    return {**_gated(fields), "qk_norm": True, "qk_norm_across_heads": True}


def _olmo3(fields: Fields) -> Spec:
    return {**_olmo2(fields), "sliding_window": fields.window("sliding_window", default=4096, every=4)}


def _olmoe(fields: Fields) -> Spec:
    spec = _olmo2(fields)
    experts = _qwen_experts(fields, expert=0, experts=64, top_k=8)
    return {**spec, "moe": {**experts, "expert_ffn_size": spec["ffn_size"]}}


def _exaone4(fields: Fields) -> Spec:
    every = fields.integer("sliding_window_pattern", default=4, most=MOST_LAYERS)
    window = fields.window("sliding_window", default=4096, every=every)
    return {**_gated(fields), "qk_norm": True, "sliding_window": window}


def _seed_oss(fields: Fields) -> Spec:
    spec = _gated(fields, kv_heads=8, head_dim=128, attention=True)
    biases = {
        "attention_output": fields.flag("attention_out_bias", default=False),
        "mlp": fields.flag("mlp_bias", default=False),
    }
    return {**spec, "bias": {**_biases(spec), **biases}}


def _smollm3(fields: Fields) -> Spec:
    layers = _llama(fields.with_defaults(num_key_value_heads=4))
    return {**layers, "tied_embeddings": fields.flag("tie_word_embeddings", default=True)}


def _ernie(fields: Fields, *, kv_heads: int = 2, head_dim: int | None = 128) -> Spec:
    biased = fields.flag("use_bias", default=False)
    return {
        **_gated(fields, kv_heads=kv_heads, head_dim=head_dim),
        "bias": dict.fromkeys(("qkv", "attention_output", "mlp"), biased),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=True),
    }


def _ernie_moe(fields: Fields) -> Spec:
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    if fields.given("moe_layer_end_index") not in (None, -1, layers - 1):
        fields.reject("moe_layer_end_index", "moe_layer_end_index must be -1 or the last layer")
    width = fields.integer("moe_intermediate_size", default=1536)
    shared = fields.integer("moe_num_shared_experts", default=2, least=0, most=1000)
    return {
        **_ernie(fields, kv_heads=4, head_dim=None),
        "moe": {
            "experts": fields.integer("moe_num_experts", "num_experts", default=64, most=_MOST_EXPERTS),
            "top_k": fields.integer("moe_k", "num_experts_per_tok", default=6, most=_MOST_EXPERTS),
            "expert_ffn_size": width,
            "shared_expert_ffn_size": width * shared,
            "first_dense_layers": fields.integer("moe_layer_start_index", default=1, least=0),
            "every": fields.integer("moe_layer_interval", default=1, most=MOST_LAYERS),
            "router_bias": True,
        },
    }


def _hunyuan(fields: Fields) -> Spec:
    return {**_gated(fields), "qk_norm": True}


def _ministral3(fields: Fields) -> Spec:
    spec = _gated(fields.with_defaults(head_dim=128), kv_heads=8)
    return {**spec, "sliding_window": fields.window("sliding_window")}


def _granite_moe(fields: Fields) -> Spec:
    return {**_mixtral(fields), **_gated(fields), "sliding_window": None}


def _cohere(fields: Fields) -> Spec:
    # Its LayerNorm has no bias; one feeds attention and MLP, which are added together.
    spec = _gated(fields)
    return {
        **spec,
        "norm": "layernorm",
        "bias": {**_biases(spec), "mlp": False, "norm": False},
        "parallel_block": True,
        "shared_block_norm": True,
        "qk_norm": fields.flag("use_qk_norm", default=False),
        "qk_norm_across_heads": fields.flag("use_qk_norm", default=False),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=True),
    }


def _cohere2(fields: Fields) -> Spec:
    every = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=4, most=MOST_LAYERS)
    return {**_cohere(fields), "sliding_window": fields.window("sliding_window", default=4096, every=every)}


def _stablelm(fields: Fields) -> Spec:
    if fields.flag("qk_layernorm", default=False):
        fields.reject("qk_layernorm", "qk_layernorm must be false: a model file has no norm for each head")
    parallel = fields.flag("use_parallel_residual", default=False)
    bias = {"qkv": fields.flag("use_qkv_bias", default=False), "attention_output": False, "mlp": False}
    blocks = {"parallel_block": parallel, "shared_block_norm": parallel}
    return {**_gated(fields), "norm": "layernorm", "bias": bias, **blocks}


GATED_FAMILIES: Final[Mapping[str, Family]] = {
    "cohere": _cohere,
    "cohere2": _cohere2,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "dots1": _dots1,
    "ernie4_5": _ernie,
    "ernie4_5_moe": _ernie_moe,
    "exaone4": _exaone4,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": _glm4_moe_lite,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    "granitemoe": _granite_moe,
    "hunyuan_v1_dense": _hunyuan,
    "kimi_k2": _deepseek_v3,
    "llama": _llama,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "ministral3": _ministral3,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "qwen3_vl_text": _qwen3,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
}


def _classic(fields: Fields, *, ffn_size: int, activation: str, tied: bool) -> Spec:
    """Read a decoder with LayerNorm and an MLP without a gate."""
    keys = ("hidden_act", "activation_function", "activation")
    return {
        **decoder(fields),
        "ffn_size": ffn_size,
        "norm": "layernorm",
        "activation": fields.activation(*keys, gated=False, default=activation),
        "tied_embeddings": fields.flag("tie_word_embeddings", default=tied),
    }


def _four_times(fields: Fields, *keys: str) -> int:
    """Return the inner width of the MLP, by default four times the hidden size."""
    hidden = fields.integer("hidden_size", "n_embd", "n_embed", "d_model")
    return fields.integer(*keys, default=4 * hidden)


def _gpt2(fields: Fields) -> Spec:
    ffn = _four_times(fields, "n_inner", "intermediate_size")
    spec = _classic(fields, ffn_size=ffn, activation="gelu", tied=True)
    positions = fields.integer("n_positions", "max_position_embeddings", default=1024)
    return {**spec, "positions": "learned", "max_positions": positions}


def _gpt_neox(fields: Fields) -> Spec:
    ffn = fields.integer("intermediate_size")
    attention = fields.flag("attention_bias", default=True)
    return {
        **_classic(fields, ffn_size=ffn, activation="gelu", tied=False),
        "parallel_block": fields.flag("use_parallel_residual", default=True),
        "bias": {"qkv": attention, "attention_output": attention},
    }


def _phi(fields: Fields) -> Spec:
    return {
        **_classic(fields, ffn_size=fields.integer("intermediate_size"), activation="gelu", tied=False),
        "parallel_block": True,
        "shared_block_norm": True,
        "qk_norm": fields.flag("qk_layernorm", default=False),
        "bias": {"head": True},
    }


def _falcon(fields: Fields) -> Spec:
    biased = fields.flag("bias", default=False)
    parallel = fields.flag("parallel_attn", default=True)
    new = fields.flag("new_decoder_architecture", default=False)
    norms = fields.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    alibi = fields.flag("alibi", default=False)
    ffn = _four_times(fields, "ffn_hidden_size")
    return {
        **_classic(fields, ffn_size=ffn, activation="gelu", tied=True),
        "kv_heads": _falcon_kv_heads(fields, new=new),
        "positions": "alibi" if alibi else "rope",
        "parallel_block": parallel or new,
        "shared_block_norm": (parallel or new) and not (new and norms == 2),
        "bias": dict.fromkeys(("qkv", "attention_output", "mlp"), biased),
    }


def _falcon_kv_heads(fields: Fields, *, new: bool) -> int:
    """Return one head for the first Falcons' multi-query attention, else the groups."""
    if fields.flag("multi_query", default=True) and not new:
        return 1
    heads = fields.integer("num_attention_heads", "n_head")
    return fields.integer("num_kv_heads", "n_head_kv", default=heads)


def _opt(fields: Fields) -> Spec:
    spec = _classic(fields, ffn_size=fields.integer("ffn_dim"), activation="relu", tied=True)
    if fields.integer("word_embed_proj_dim", default=fields.integer("hidden_size")) != (
        fields.integer("hidden_size")
    ):
        fields.reject("word_embed_proj_dim", "word_embed_proj_dim must equal hidden_size")
    linear = fields.flag("enable_bias", default=True)
    return {
        **spec,
        "positions": "learned",
        # The first two rows of OPT's table are never used by a token.
        "max_positions": fields.integer("max_position_embeddings", default=2048) + 2,
        "final_norm": fields.flag("do_layer_norm_before", default=True)
        and not fields.flag("_remove_final_layer_norm", default=False),
        "bias": dict.fromkeys(("qkv", "attention_output", "mlp"), linear),
    }


def _bloom(fields: Fields) -> Spec:
    return {
        **_classic(fields, ffn_size=_four_times(fields), activation="gelu", tied=True),
        "positions": "alibi",
        "embedding_norm": True,
    }


def _mpt(fields: Fields) -> Spec:
    ratio = fields.integer("expansion_ratio", default=4, most=100)
    ffn = ratio * fields.integer("d_model", "hidden_size")
    return {
        **_classic(fields, ffn_size=ffn, activation="gelu", tied=True),
        "positions": "alibi",
        "bias": dict.fromkeys(("qkv", "attention_output", "mlp", "norm"), False),
    }


def _nemotron(fields: Fields) -> Spec:
    ffn = fields.integer("intermediate_size")
    attention = fields.flag("attention_bias", default=False)
    mlp = fields.flag("mlp_bias", default=False)
    return {
        **_classic(fields, ffn_size=ffn, activation="relu2", tied=False),
        "bias": {"qkv": attention, "attention_output": attention, "mlp": mlp},
    }


def _starcoder2(fields: Fields) -> Spec:
    ffn = fields.integer("intermediate_size")
    linear = fields.flag("use_bias", default=True)
    return {
        **_classic(fields, ffn_size=ffn, activation="gelu", tied=True),
        **decoder(fields, kv_heads=2),
        "bias": dict.fromkeys(("qkv", "attention_output", "mlp"), linear),
        "sliding_window": fields.window("sliding_window"),
    }


CLASSIC_FAMILIES: Final[Mapping[str, Family]] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "opt": _opt,
    "phi": _phi,
    "starcoder2": _starcoder2,
}
