"""Reading a Hugging Face config.json as a model, without transformers.

>>> config = {
...     "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
...     "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
... }
>>> model = model_from_huggingface(config, name="llama2-7b")
>>> model.kv_heads, model.head_dim, model.activation
(32, 128, 'swiglu')

Defaults are those of transformers 5, as in ``rmsnorm_families``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from autoplan.errors import Problem, SpecError, UnsupportedError
from autoplan.schema.huggingface.config_fields import ABSENT, MOST_LAYERS, Family, Fields, Spec, decoder
from autoplan.schema.huggingface.rmsnorm_families import CLASSIC_FAMILIES, GATED_FAMILIES
from autoplan.schema.model import ModelSpec

_MOST_EXPERTS: Final = 100_000
_LINEAR: Final = ("linear_attention", "mamba")
_SOFTMAX: Final = ("full_attention", "attention")

#: Families that are not read, and why, in words that follow the name.
REFUSED_FAMILIES: Final[Mapping[str, str]] = {
    "nemotron_h": "has layers that are a mixer or an MLP alone, which a model file cannot say",
    "falcon_h1": "has attention and Mamba-2 side by side in a layer, which a model file cannot say",
    "jamba": "has Mamba-1 layers, which are not priced",
    "kimi_linear": "has Kimi delta attention, which is not priced",
    "deepseek_v32": "has sparse attention, whose indexer chooses the keys of a query, which is not priced",
    "glm_moe_dsa": "has sparse attention, whose indexer chooses the keys of a query, which is not priced",
    "gemma3n": "has layers with embeddings of their inputs that share caches, which a model file cannot say",
    "gemma4": "has layers with heads of two widths that share caches, which a model file cannot say",
    "minimax": "has lightning attention, which is not priced",
}


def _pattern(fields: Fields, *, interval: int | None) -> Spec:
    """Return which layers have softmax attention, of ``layer_types`` or of one in every ``interval``."""
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.given("layer_types", "layers_block_type")
    if kinds is None:
        if interval is None:
            return {}
        return {"every": fields.integer("full_attention_interval", default=interval, most=MOST_LAYERS)}
    names = (*_LINEAR, *_SOFTMAX)
    if not isinstance(kinds, list | tuple) or any(kind not in names for kind in kinds):
        fields.reject("layer_types", f"layer_types must be a list of {', '.join(names)}")
        return {}
    if len(kinds) != layers:
        fields.reject(
            "layer_types", f"layer_types has {len(kinds)} layers and num_hidden_layers says {layers}"
        )
    softmax = tuple(index for index, kind in enumerate(kinds) if kind in _SOFTMAX)
    period = softmax[0] + 1 if softmax else 0
    if period and softmax == tuple(range(period - 1, layers, period)):
        return {"every": period}
    return {"attention_layers": softmax}


def _hybrid(fields: Fields, *, kv_heads: int = ABSENT, head_dim: int | None = None) -> Spec:
    """Read a decoder with RMSNorm and a gated MLP, without its linear attention."""
    biased = fields.flag("attention_bias", default=False)
    spec = decoder(fields, kv_heads=kv_heads, head_dim=head_dim)
    return {
        **spec,
        "activation": fields.activation("hidden_act", gated=True, default="silu"),
        "bias": {"qkv": biased, "attention_output": biased},
        "tied_embeddings": fields.flag("tie_word_embeddings", default=False),
    }


def _gated_delta_net(fields: Fields) -> Spec:
    dtype = fields.given("mamba_ssm_dtype")
    return {
        "kind": "gated-delta-net",
        **_pattern(fields, interval=4),
        "key_heads": fields.integer("linear_num_key_heads", default=16),
        "value_heads": fields.integer("linear_num_value_heads", default=32),
        "key_dim": fields.integer("linear_key_head_dim", default=128),
        "value_dim": fields.integer("linear_value_head_dim", default=128),
        "conv_kernel": fields.integer("linear_conv_kernel_dim", default=4),
        "state": "fp32" if dtype == "float32" else "bf16",
    }


def _qwen_experts(fields: Fields, *, experts: int, top_k: int) -> Spec:
    return {
        "experts": fields.integer("num_experts", default=experts, most=_MOST_EXPERTS),
        "top_k": fields.integer("num_experts_per_tok", default=top_k, most=_MOST_EXPERTS),
        "expert_ffn_size": fields.integer("moe_intermediate_size", default=512),
        "shared_expert_ffn_size": fields.integer("shared_expert_intermediate_size", default=512),
        "shared_expert_gate": True,
        "every": fields.integer("decoder_sparse_step", default=1, most=MOST_LAYERS),
    }


def _qwen(fields: Fields, *, kv_heads: int) -> Spec:
    if fields.given("mlp_only_layers"):
        fields.reject("mlp_only_layers", "mlp_only_layers must be empty")
    return {
        **_hybrid(fields, kv_heads=kv_heads, head_dim=256),
        "qk_norm": True,
        "attention_output_gate": True,
        "linear_attention": _gated_delta_net(fields),
    }


def _qwen3_next(fields: Fields) -> Spec:
    spec = _qwen(fields, kv_heads=2)
    ffn = fields.integer("intermediate_size", default=5632)
    return {**spec, "ffn_size": ffn, "moe": _qwen_experts(fields, experts=512, top_k=10)}


def _qwen3_5(fields: Fields) -> Spec:
    return {**_qwen(fields, kv_heads=4), "ffn_size": fields.integer("intermediate_size", default=12288)}


def _qwen3_5_moe(fields: Fields) -> Spec:
    experts = _qwen_experts(fields, experts=256, top_k=8)
    # Every layer has experts, so that no parameter depends on the width of a dense one.
    return {**_qwen(fields, kv_heads=2), "ffn_size": experts["expert_ffn_size"], "moe": experts}


def _mamba2(fields: Fields, pattern: Spec) -> Spec:
    hidden = fields.integer("hidden_size")
    heads = fields.integer("mamba_n_heads", default=128)
    inner = fields.integer("mamba_expand", default=2) * hidden
    value = fields.given("mamba_d_head")
    width = inner // heads if value in (None, "auto") else fields.integer("mamba_d_head")
    if width * heads != inner:
        fields.reject(
            "mamba_d_head", f"mamba_n_heads x mamba_d_head must be mamba_expand x hidden_size {inner}"
        )
    return {
        "kind": "mamba2",
        **pattern,
        "key_heads": fields.integer("mamba_n_groups", default=1),
        "value_heads": heads,
        "key_dim": fields.integer("mamba_d_state", default=256),
        "value_dim": max(1, width),
        "conv_kernel": fields.integer("mamba_d_conv", default=4),
        "conv_bias": fields.flag("mamba_conv_bias", default=True),
        "bias": fields.flag("mamba_proj_bias", default=False),
        "chunk": fields.integer("mamba_chunk_size", default=256),
    }


def _granite(fields: Fields) -> Spec:
    rotary = fields.given("position_embedding_type") == "rope"
    spec = _hybrid(fields)
    shared = fields.integer("shared_intermediate_size", default=1024)
    experts = fields.integer("num_local_experts", default=8, least=0, most=_MOST_EXPERTS)
    spec |= {
        "positions": "rope" if rotary else "none",
        "linear_attention": _mamba2(fields, _pattern(fields, interval=None)),
        "ffn_size": shared,
    }
    if not experts:
        return spec
    moe = {
        "experts": experts,
        "top_k": fields.integer("num_experts_per_tok", default=2, most=_MOST_EXPERTS),
        "expert_ffn_size": fields.integer("intermediate_size", default=11008),
        "shared_expert_ffn_size": shared,
    }
    return {**spec, "moe": moe}


def _bamba(fields: Fields) -> Spec:
    value = fields.given("attn_layer_indices") or []
    if not isinstance(value, list | tuple) or any(type(layer) is not int for layer in value):
        fields.reject("attn_layer_indices", "attn_layer_indices must be a list of whole numbers")
        value = []
    spec = _hybrid(fields, kv_heads=8)
    bias = spec["bias"]
    biases = {**(bias if isinstance(bias, Mapping) else {}), "mlp": fields.flag("mlp_bias", default=False)}
    return {
        **spec,
        "bias": biases,
        "ffn_size": fields.integer("intermediate_size", default=14336),
        "linear_attention": _mamba2(fields, {"attention_layers": tuple(sorted(value))}),
    }


HYBRID_FAMILIES: Final[Mapping[str, Family]] = {
    "bamba": _bamba,
    "granitemoehybrid": _granite,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "qwen3_5_text": _qwen3_5,
    "qwen3_next": _qwen3_next,
}

_FAMILIES: Final[Mapping[str, Family]] = {**GATED_FAMILIES, **CLASSIC_FAMILIES, **HYBRID_FAMILIES}

#: Models with more than text, whose language model sits in `text_config`.
_NESTED: Final = {
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}

#: Models with more than text that take one of several language models, which `text_config` names.
_NESTED_BY_NAME: Final = ("llava", "mistral3")

#: Every `model_type` that can be read.
KNOWN_MODEL_TYPES: Final = tuple(sorted({*_FAMILIES, *_NESTED, *_NESTED_BY_NAME}))


def detect_huggingface(mapping: Mapping[str, object]) -> bool:
    """Return whether a mapping is a Hugging Face config rather than a file of ours."""
    return "model_type" in mapping or "architectures" in mapping


def model_from_huggingface(config: Mapping[str, object], *, name: str) -> ModelSpec:
    """Read the content of a config.json as a model.

    Args:
        config: The parsed file. What decides no size (dropout, token ids, dtype) is ignored.
        name: The name that the model gets.

    Raises:
        UnsupportedError: No reader for its ``model_type``; lists those that there are, or says what a model
            file cannot say of it.
        SpecError: Fields are missing or wrong; names all of them.
    """
    model_type, text, path = _language_model(config)
    family = _FAMILIES.get(model_type)
    if model_type in REFUSED_FAMILIES:
        raise UnsupportedError(f"model_type {model_type} {REFUSED_FAMILIES[model_type]}")
    if family is None:
        model_types = ", ".join(KNOWN_MODEL_TYPES)
        raise UnsupportedError(f"model_type {model_type[:80]!r} is not known; known: {model_types}")
    fields = Fields(text, path)
    spec = family(fields)
    if fields.problems:
        raise SpecError(fields.problems)
    return _checked({**spec, "name": name, "source": f"Hugging Face config.json ({model_type})"})


def _language_model(config: Mapping[str, object]) -> tuple[str, Mapping[str, object], str]:
    """Return the family, the fields of the language model and the path where they stand."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        message = "model_type is missing" if model_type is None else "model_type must be a text"
        raise SpecError([Problem(message, path="$.model_type")])
    if model_type not in _NESTED and model_type not in _NESTED_BY_NAME:
        return model_type, config, "$"
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        message = f"text_config is needed for model_type {model_type}, as a mapping"
        raise SpecError([Problem(message, path="$.text_config")])
    outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    language = _NESTED.get(model_type, text.get("model_type"))
    if not isinstance(language, str):
        message = f"model_type is needed, a text: which language model {model_type} has"
        raise SpecError([Problem(message, path="$.text_config.model_type")])
    return language, {**outer, **text}, "$.text_config"


def _checked(spec: Mapping[str, object]) -> ModelSpec:
    try:
        return ModelSpec.model_validate(spec)
    except ValidationError as error:
        raise SpecError([_problem(dict(item)) for item in error.errors()]) from error


def _problem(item: Mapping[str, object]) -> Problem:
    """Return what pydantic says as a problem of ours."""
    place = item["loc"] if isinstance(item["loc"], tuple) else ()
    message = str(item["msg"]).removeprefix("Value error, ")
    return Problem(message, path=".".join(["$", *map(str, place)]))
