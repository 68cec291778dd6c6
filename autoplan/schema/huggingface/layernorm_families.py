"""Families with LayerNorm and an MLP without a gate: what each means by its config.json.

Defaults are those of transformers 5: what its config class fills in may be missing here as well,
but the sizes that decide a model (layers, widths, heads, vocabulary) must be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from autoplan.schema.huggingface.config_fields import Family, Fields, Spec, decoder

__all__ = ["CLASSIC_FAMILIES"]


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
