"""The model catalogue and the parameter counts behind it."""

from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autoplan.costs.core import parameters as count
from autoplan.schema.model import ModelSpec
from autoplan.schema.yaml.loader import json_schema, load_model

MODELS = Path(__file__).resolve().parents[4] / "specs" / "models"
FILES = sorted(MODELS.glob("*.yaml"))

DENSE = {
    "name": "dense",
    "source": "made up",
    "layers": 4,
    "hidden_size": 64,
    "heads": 8,
    "ffn_size": 256,
    "vocabulary": 1000,
}
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn_size": 128}
LATENT = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}


def model(**fields):
    """Return a small model with some fields changed."""
    return ModelSpec.model_validate({**DENSE, **fields})


def entry(name):
    """Return a model of the catalogue."""
    return load_model((MODELS / f"{name}.yaml").read_text("utf-8"), ModelSpec, name=name)


def within_rounding(published, *counts):
    """Return whether one of ``counts`` is the published one, as exactly as it was published."""
    return any(2 * abs(value - published.value) <= published.rounding - 1 for value in counts)


def test_the_catalogue_has_the_models_that_people_plan():
    """At least forty entries are there, among them those that the documentation names."""
    names = {file.stem for file in FILES}

    assert len(names) >= 40
    assert {"llama3-8b", "llama3-405b", "gpt3-175b", "megatron-1t", "deepseek-v3"} <= names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_entry_counts_what_was_published(file):
    """An entry loads, is named as its file, and counts its published parameters."""
    spec = entry(file.stem)
    published, active = spec.published_parameters, spec.published_active_parameters
    used = count.active_parameters(spec)

    assert spec.name == file.stem
    assert published is not None
    assert within_rounding(published, count.total_parameters(spec))
    # Some publishers leave the embedding table out of what a token uses.
    assert active is None or within_rounding(active, used, used - count.embedding_parameters(spec))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_entry_meets_the_json_schema(file):
    """The JSON Schema that editors use accepts every shipped entry."""
    validator = jsonschema.Draft202012Validator(json_schema(ModelSpec))

    assert list(validator.iter_errors(yaml.safe_load(file.read_text("utf-8")))) == []


@pytest.mark.parametrize(
    "name", [f"megatron-{size}b" for size in ("1.7", "7.5", "39", "145", "530")] + ["megatron-1t"]
)
def test_megatron_models_count_as_their_paper_does(name):
    """The paper's closed form counts what we count, but for the final norm that it leaves out."""
    spec = entry(name)
    h, layers = spec.hidden_size, spec.layers
    paper = layers * (12 * h * h + 13 * h) + (spec.vocabulary + 2048) * h

    assert count.total_parameters(spec) - paper == 2 * h


def test_a_dense_layer_splits_by_tensor_parallelism():
    """Column biases are divided with their matrices; row biases and norms are whole."""
    layer = count.layer_parameters(model(norm="layernorm", activation="gelu"), 0)

    assert layer.query == 64 * 64 + 64
    assert layer.key_value == 2 * (64 * 64 + 64)
    assert layer.attention_output == 64 * 64
    assert layer.mlp_divided == 2 * 64 * 256 + 256
    assert (layer.attention_replicated, layer.mlp_replicated, layer.norms) == (64, 64, 256)
    assert layer.total == 12 * 64**2 + 13 * 64


def test_grouped_queries_and_a_gate_change_their_own_parts_only():
    """Key-value heads scale the key-value part, and a gate makes three matrices of two."""
    layer = count.layer_parameters(model(kv_heads=2), 0)

    assert layer.query == 4 * layer.key_value // 2 == 64 * 64
    assert layer.mlp_divided == 3 * 64 * 256
    assert layer.replicated == layer.norms == 2 * 64


def test_experts_replace_the_mlp_where_the_pattern_says():
    """Layers before the first, and all but one in `every`, keep the dense MLP."""
    moe = {**EXPERTS, "first_dense_layers": 1, "every": 2, "shared_expert_ffn_size": 32}
    spec = model(moe=moe)
    dense, sparse = (count.layer_parameters(spec, index) for index in (0, 1))

    assert [spec.is_moe_layer(index) for index in range(4)] == [False, True, False, True]
    assert (dense.experts, dense.router, dense.mlp_divided) == (0, 0, 3 * 64 * 256)
    assert (sparse.experts, sparse.router) == (8 * 3 * 64 * 128, 8 * 64)
    assert sparse.mlp_divided == 3 * 64 * 32
    assert sparse.mlp == sparse.mlp_divided + sparse.experts


def test_expert_biases_are_split_as_well():
    """Each expert has column biases that tp divides and a row bias that it does not."""
    layer = count.layer_parameters(model(moe=EXPERTS, bias={"mlp": True}), 0)

    assert layer.experts == 8 * (3 * 64 * 128 + 2 * 128)
    assert layer.experts_replicated == 8 * 64


def test_latent_attention_keeps_its_down_projections_whole():
    """In MLA projections into latents are replicated, those out of them divided by heads."""
    direct = count.layer_parameters(model(attention="mla", mla=LATENT), 0)
    through = count.layer_parameters(model(attention="mla", mla={**LATENT, "q_lora_rank": 24}), 0)

    assert direct.query == 64 * 8 * 12
    assert direct.key_value == 16 * 8 * (8 + 6)
    assert direct.attention_output == 8 * 6 * 64
    assert direct.attention_replicated == 64 * (16 + 4) + 16
    assert through.query == 24 * 8 * 12
    assert through.attention_replicated - direct.attention_replicated == 64 * 24 + 24


def test_active_parameters_leave_out_the_experts_not_visited():
    """A token skips all but top_k experts of each layer."""
    spec = model(moe=EXPERTS)

    skipped = count.total_parameters(spec) - count.active_parameters(spec)

    assert skipped == 4 * (8 - 2) * 3 * 64 * 128


def test_defaults_follow_the_heads_and_the_norm():
    """Key-value heads, head width and biases fill themselves in; what is given stays."""
    plain = model()
    biased = model(norm="layernorm", bias={"qkv": False})

    assert (plain.kv_heads, plain.head_dim, plain.gated) == (8, 8, True)
    assert not any(plain.bias.model_dump().values())
    assert biased.bias.model_dump() == {
        "qkv": False,
        "attention_output": True,
        "mlp": True,
        "norm": True,
        "head": False,
    }
    assert model(attention="mla", mla=LATENT).head_dim == 12


def test_a_sliding_window_spares_the_last_of_each_period():
    """With `every: 2` odd layers see everything; without it none does; without a window all do."""
    windows = [
        [spec.attention_window(index) for index in range(4)]
        for spec in (
            model(sliding_window={"window": 16, "every": 2}),
            model(sliding_window={"window": 16}),
            model(),
        )
    ]

    assert windows == [[16, None, 16, None], [16] * 4, [None] * 4]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kv_heads": 3}, "heads 8 must be a multiple of kv_heads 3"),
        ({"heads": 7}, "hidden_size 64 is no multiple of heads 7"),
        ({"positions": "learned"}, "learned positions need max_positions"),
        ({"attention": "mla"}, "give both or neither"),
        ({"mla": LATENT}, "give both or neither"),
        ({"attention": "mla", "mla": LATENT, "head_dim": 8}, "= 12; leave it out"),
        ({"shared_block_norm": True}, "needs parallel_block"),
        ({"moe": {**EXPERTS, "top_k": 9}}, "moe.top_k 9 is more than moe.experts 8"),
        ({"moe": {**EXPERTS, "first_dense_layers": 4}}, "no layer has experts"),
        ({"moe": {**EXPERTS, "shared_expert_gate": True}}, "needs moe.shared_expert_ffn_size"),
        ({"name": "Not A Name"}, "name"),
        ({"hidden_size": 10**12}, "less than or equal to 10000000"),
        ({"hidden": 64}, "hidden"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields, sentence):
    """A model whose parts disagree is refused with a sentence that says which and why."""
    with pytest.raises(ValidationError, match=sentence.replace(".", r"\.")):
        model(**fields)


@pytest.mark.parametrize(
    "content",
    [
        [],
        None,
        {"bias": 3},
        {"heads": "8"},
        {**DENSE, "mla": 3},
        {**DENSE, "mla": {"v_head_dim": 1}},
    ],
)
def test_anything_else_is_refused_without_a_traceback(content):
    """Content of a wrong shape is a validation error, never another exception."""
    with pytest.raises(ValidationError):
        ModelSpec.model_validate(content)


@given(
    layers=st.integers(1, 20),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    norm=st.sampled_from(["rmsnorm", "layernorm"]),
    tied=st.booleans(),
    moe=st.sampled_from([None, EXPERTS]),
)
def test_the_parts_make_the_whole(layers, kv_heads, norm, tied, moe):
    """The layers and what surrounds them add up to the total, and no more is active than exists."""
    spec = model(layers=layers, kv_heads=kv_heads, norm=norm, tied_embeddings=tied, moe=moe)
    inside = sum(count.layer_parameters(spec, index).total for index in range(layers))
    outside = (
        count.embedding_parameters(spec)
        + count.position_parameters(spec)
        + count.embedding_norm_parameters(spec)
        + count.final_norm_parameters(spec)
        + count.head_parameters(spec)
    )

    assert inside + outside == count.total_parameters(spec)
    assert count.active_parameters(spec) <= count.total_parameters(spec)
