"""Whatever JSON a config.json holds, the answer is a model or an error of ours."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.costs.core.parameters import total_parameters
from autoplan.errors import AutoplanError
from autoplan.schema.huggingface.model_config import KNOWN_MODEL_TYPES, model_from_huggingface

KEYS = [
    *("num_hidden_layers", "n_layer", "hidden_size", "n_embd", "num_attention_heads", "n_head"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "ffn_dim", "bias"),
    *("max_position_embeddings", "hidden_act", "sliding_window", "layer_types", "text_config"),
    *("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "mlp_bias"),
    *("moe_intermediate_size", "mlp_only_layers", "first_k_dense_replace", "decoder_sparse_step"),
    *("q_lora_rank", "kv_lora_rank", "use_sliding_window", "max_window_layers", "alibi"),
    *("tie_word_embeddings", "attention_bias", "interleave_moe_layer_step", "n_shared_experts"),
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(0, 64)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["silu", "gelu_new", "full_attention"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
PLAUSIBLE = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 64) | JSON, max_size=30)


@settings(max_examples=300, deadline=None)
@given(model_type=st.sampled_from(KNOWN_MODEL_TYPES) | JSON, content=PLAUSIBLE | JSON)
def test_any_json_is_a_model_or_an_error_of_ours(model_type, content):
    """No content makes the reader fail in any other way, and what it accepts can be counted."""
    fields = content if isinstance(content, dict) else {"text_config": content}

    try:
        spec = model_from_huggingface({**fields, "model_type": model_type}, name="x")
    except AutoplanError:
        return
    assert total_parameters(spec) > 0


@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from(KNOWN_MODEL_TYPES),
    heads=st.sampled_from([1, 2, 8]),
    broken=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2),
)
def test_a_good_config_with_broken_fields_is_a_model_or_an_error_of_ours(model_type, heads, broken):
    """A config that is nearly right, as JSON on disk, is read or refused, never a traceback."""
    good = dict.fromkeys(KEYS[:6], 8) | {"vocab_size": 100, "intermediate_size": 32}
    content = {**good, "num_attention_heads": heads, "n_head": heads, **broken}
    nested = json.loads(json.dumps({**content, "text_config": content}))

    try:
        spec = model_from_huggingface({**nested, "model_type": model_type}, name="x")
    except AutoplanError:
        return
    assert total_parameters(spec) > 0
