"""Reading config.json files: the shapes in which the families publish them."""

import pytest

from autoplan.costs.core.parameters import total_parameters
from autoplan.errors import SpecError, UnsupportedError
from autoplan.schema.huggingface.model_config import (
    KNOWN_MODEL_TYPES,
    REFUSED_FAMILIES,
    detect_huggingface,
    model_from_huggingface,
)


def config(model_type, layers, hidden, heads, ffn, vocabulary, **more):
    """Return a config in the usual words, with fields that decide no size among them."""
    return {
        "architectures": ["SomethingForCausalLM"],
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "rope_theta": 500000.0,
        **more,
    }


GEMMA3_TEXT = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
LLAMA4_TEXT = config(
    "llama4_text",
    *(48, 5120, 40, 8192, 202048),
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size_mlp=16384,
    num_local_experts=16,
    num_experts_per_tok=1,
    interleave_moe_layer_step=1,
    attention_chunk_size=8192,
)
DEEPSEEK_LITE = config(
    "deepseek_v2",
    *(27, 2048, 16, 10944, 102400),
    num_key_value_heads=16,
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
    moe_layer_freq=1,
)
DEEPSEEK = config(
    "deepseek_v3",
    *(61, 7168, 128, 18432, 129280),
    num_key_value_heads=128,
    head_dim=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
)
QWEN_EXPERTS = {"num_experts_per_tok": 8, "num_experts": 128, "moe_intermediate_size": 768}
QWEN_NEXT = config(
    "qwen3_next",
    *(48, 2048, 16, 5120, 151936),
    num_key_value_heads=2,
    head_dim=256,
    full_attention_interval=4,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_value_head_dim=128,
    moe_intermediate_size=512,
    num_experts=512,
    num_experts_per_tok=10,
    shared_expert_intermediate_size=512,
)
QWEN_3_5 = config("qwen3_5_text", 32, 4096, 16, 12288, 248320, num_key_value_heads=4)
QWEN_3_5_EXPERTS = config(
    "qwen3_5_moe_text", 40, 2048, 16, None, 248320, num_key_value_heads=2, mamba_ssm_dtype="float32"
)
#: Granite 4.0 H-Tiny, as released.
GRANITE_HYBRID = config(
    "granitemoehybrid",
    *(40, 1536, 12, 512, 100352),
    num_key_value_heads=4,
    layer_types=["attention" if i in {5, 15, 25, 35} else "mamba" for i in range(40)],
    mamba_d_state=128,
    mamba_n_heads=48,
    mamba_d_head=64,
    num_local_experts=64,
    num_experts_per_tok=6,
    shared_intermediate_size=1024,
    position_embedding_type="nope",
    tie_word_embeddings=True,
)
BAMBA = config("bamba", 32, 4096, 32, 14336, 128000, attn_layer_indices=[9, 18, 27])

KIMI = config(
    "kimi_k2",
    61,
    7168,
    64,
    18432,
    163840,
    num_key_value_heads=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    v_head_dim=128,
    qk_nope_head_dim=128,
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    first_k_dense_replace=1,
)
QWEN_VL = config("qwen3_vl_text", 36, 4096, 32, 12288, 151936, num_key_value_heads=8, head_dim=128)
QWEN_VL_EXPERTS = config(
    "qwen3_vl_moe_text",
    48,
    2048,
    32,
    6144,
    151936,
    num_key_value_heads=4,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)
MINISTRAL = config("ministral3", 34, 4096, 32, 14336, 131072, num_key_value_heads=8, head_dim=128)

#: Each config with the count of transformers 5.23, router biases that are buffers included.
CONFIGS = {
    "llama": (config("llama", 32, 4096, 32, 14336, 128256, num_key_value_heads=8), 8030261248),
    "llama without optional fields": (config("llama", 32, 4096, 32, 11008, 32000), 6738415616),
    "granite": (config("granite", 32, 4096, 32, 11008, 32000), 6738415616),
    "mistral": (config("mistral", 32, 4096, 32, 14336, 32000), 7241732096),
    "mixtral": (
        config("mixtral", 32, 4096, 32, 14336, 32000, num_local_experts=8, sliding_window=None),
        46702792704,
    ),
    "qwen2": (config("qwen2", 28, 3584, 28, 18944, 152064, num_key_value_heads=4), 7615616512),
    "qwen3": (
        config("qwen3", 36, 4096, 32, 12288, 151936, num_key_value_heads=8, head_dim=128),
        8190735360,
    ),
    "qwen2_moe": (config("qwen2_moe", 24, 2048, 16, 5632, 151936), 14315784192),
    "qwen3_moe": (
        config("qwen3_moe", 48, 2048, 32, 6144, 151936, head_dim=128, **QWEN_EXPERTS),
        30532122624,
    ),
    "deepseek_v2": (DEEPSEEK_LITE, 15706484224),
    "deepseek_v3": (DEEPSEEK, 671026419200),
    "gemma": (config("gemma", 28, 3072, 16, 24576, 256000, head_dim=256), 8537680896),
    "gemma2": (config("gemma2", 26, 2304, 8, 9216, 256000), 2614341888),
    "gemma3 with its language model inside": (
        {"model_type": "gemma3", "text_config": GEMMA3_TEXT, "vision_config": {}},
        3880263168,
    ),
    "phi3": (config("phi3", 32, 3072, 32, 8192, 32064, sliding_window=2047), 3821079552),
    "phi": (config("phi", 32, 2560, 32, 10240, 51200, hidden_act="gelu_new"), 2779683840),
    "gpt_oss": (config("gpt_oss", 24, 2880, 64, 2880, 201088, num_local_experts=32), 20914757184),
    "llama4_text": (LLAMA4_TEXT, 107769861120),
    "llama4": ({"model_type": "llama4", "text_config": LLAMA4_TEXT}, 107769861120),
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
        124439808,
    ),
    "gpt_neox": (config("gpt_neox", 44, 6144, 64, 24576, 50432, hidden_act="gelu"), 20554567680),
    "falcon": (config("falcon", 32, 4544, 71, None, 65024, multi_query=True), 6921720704),
    "falcon with groups": (
        config(*("falcon", 60, 8192, 128, None, 65024), new_decoder_architecture=True, num_kv_heads=8),
        41303293952,
    ),
    "bloom": (
        {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112} | {"vocab_size": 250880},
        176247271424,
    ),
    "mpt": (
        {"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432},
        6649286656,
    ),
    "opt": (
        config("opt", 32, 4096, 32, None, 50272, ffn_dim=16384, max_position_embeddings=2048),
        6658473984,
    ),
    "nemotron": (
        config("nemotron", 32, 6144, 48, 24576, 256000, num_key_value_heads=8),
        15628775424,
    ),
    "qwen3_next": (QWEN_NEXT, 79674391296),
    "qwen3_5_text": (QWEN_3_5, 8953803264),
    "qwen3_5": ({"model_type": "qwen3_5", "text_config": QWEN_3_5}, 8953803264),
    "qwen3_5_moe_text": (QWEN_3_5_EXPERTS, 34660610688),
    "qwen3_5_moe": ({"model_type": "qwen3_5_moe", "text_config": QWEN_3_5_EXPERTS}, 34660610688),
    "granitemoehybrid": (GRANITE_HYBRID, 6939037248),
    "granitemoehybrid without experts": (
        {**GRANITE_HYBRID, "num_local_experts": 0, "shared_intermediate_size": 4096},
        1461538368,
    ),
    "bamba": (BAMBA, 9808584064),
    "starcoder2": (config("starcoder2", 30, 3072, 24, 12288, 49152), 3030371328),
    "glm": (config("glm", 40, 4096, 32, 13696, 151552, num_key_value_heads=2, head_dim=128), 9399951360),
    "glm4": (config("glm4", 40, 4096, 32, 13696, 151552, num_key_value_heads=2, head_dim=128), 9400279040),
    "glm4_moe": (
        config(
            "glm4_moe",
            46,
            4096,
            96,
            10944,
            151552,
            num_key_value_heads=8,
            head_dim=128,
            attention_bias=True,
            moe_intermediate_size=1408,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=8,
            first_k_dense_replace=1,
            use_qk_norm=False,
        ),
        106852251264,
    ),
    "glm4_moe_lite": (
        config(
            "glm4_moe_lite",
            47,
            2048,
            20,
            10240,
            154880,
            num_key_value_heads=20,
            q_lora_rank=768,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            v_head_dim=256,
            qk_nope_head_dim=192,
            n_routed_experts=64,
            n_shared_experts=1,
            num_experts_per_tok=4,
            moe_intermediate_size=1536,
            first_k_dense_replace=1,
        ),
        29943393920,
    ),
    "dots1": (
        config(
            "dots1",
            62,
            4096,
            32,
            10944,
            152064,
            num_key_value_heads=32,
            moe_intermediate_size=1408,
            n_routed_experts=128,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        142774381696,
    ),
    "minimax_m2": (
        config(
            "minimax_m2",
            62,
            3072,
            48,
            1536,
            200064,
            num_key_value_heads=8,
            head_dim=128,
            num_local_experts=256,
            num_experts_per_tok=8,
        ),
        228689764864,
    ),
    "olmo2": (config("olmo2", 32, 4096, 32, 11008, 100352), 7298617344),
    "olmo3": (config("olmo3", 64, 5120, 40, 27648, 100278, num_key_value_heads=8), 32233522176),
    "olmoe": (config("olmoe", 16, 2048, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8), 6919161856),
    "exaone4": (config("exaone4", 64, 5120, 40, 27392, 102400, num_key_value_heads=8), 32003216384),
    "seed_oss": (
        config("seed_oss", 64, 5120, 80, 27648, 155136, num_key_value_heads=8, head_dim=128),
        36151104512,
    ),
    "smollm3": (config("smollm3", 36, 2048, 16, 11008, 128256, num_key_value_heads=4), 3075098624),
    "ernie4_5": (
        config("ernie4_5", 18, 1024, 16, 3072, 103424, num_key_value_heads=2, head_dim=128),
        360748032,
    ),
    "ernie4_5_moe": (
        config(
            "ernie4_5_moe",
            28,
            2560,
            20,
            12288,
            103424,
            num_key_value_heads=4,
            moe_num_experts=64,
            moe_k=6,
            moe_intermediate_size=1536,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
        ),
        21825437888,
    ),
    "hunyuan_v1_dense": (
        config("hunyuan_v1_dense", 32, 4096, 32, 14336, 128167, num_key_value_heads=8, head_dim=128),
        8029540352,
    ),
    "granitemoe": (
        config(
            "granitemoe",
            32,
            1536,
            24,
            512,
            49155,
            num_key_value_heads=8,
            num_local_experts=40,
            num_experts_per_tok=8,
            tie_word_embeddings=True,
        ),
        3298793472,
    ),
    "cohere": (config("cohere", 40, 8192, 64, 22528, 256000), 34980831232),
    "cohere2": (config("cohere2", 32, 4096, 32, 14336, 256000, num_key_value_heads=8), 8028033024),
    "stablelm": (config("stablelm", 32, 2560, 32, 6912, 50304, num_key_value_heads=32), 2795443200),
    "kimi_k2": (KIMI, 1026408232448),
    "kimi_k25": ({"model_type": "kimi_k25", "text_config": KIMI}, 1026408232448),
    "qwen3_vl_text": (QWEN_VL, 8190735360),
    "qwen3_vl": ({"model_type": "qwen3_vl", "text_config": QWEN_VL}, 8190735360),
    "qwen3_vl_moe_text": (QWEN_VL_EXPERTS, 30532122624),
    "qwen3_vl_moe": ({"model_type": "qwen3_vl_moe", "text_config": QWEN_VL_EXPERTS}, 30532122624),
    "ministral3": (MINISTRAL, 8489553920),
    "mistral3": ({"model_type": "mistral3", "text_config": MINISTRAL}, 8489553920),
    "llava": (
        {"model_type": "llava", "text_config": config("llama", 32, 4096, 32, 11008, 32000)},
        6738415616,
    ),
}


@pytest.mark.parametrize(("content", "parameters"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_counts_what_transformers_counts(content, parameters):
    """A realistic config of each family makes a model with exactly its parameters."""
    assert total_parameters(model_from_huggingface(content, name="x")) == parameters


def test_every_known_family_is_tried():
    """The table above has a config for every model_type that is announced."""
    tried = {content["model_type"] for content, _ in CONFIGS.values()} | {"gemma3_text"}

    assert tried == set(KNOWN_MODEL_TYPES)


def test_layers_with_softmax_attention_are_read_as_a_period_or_one_by_one():
    """Every fourth of Qwen3-Next's, and four of Granite's that are no period."""
    next_model, granite = (model_from_huggingface(x, name="x") for x in (QWEN_NEXT, GRANITE_HYBRID))

    assert [i for i in range(48) if not next_model.is_linear_layer(i)] == list(range(3, 48, 4))
    assert [i for i in range(40) if not granite.is_linear_layer(i)] == [5, 15, 25, 35]
    assert granite.positions == "none"
    assert (next_model.linear_attention.state, next_model.attention_output_gate) == ("bf16", True)
    assert model_from_huggingface(QWEN_3_5_EXPERTS, name="x").linear_attention.state == "fp32"


@pytest.mark.parametrize(("family", "reason"), REFUSED_FAMILIES.items())
def test_a_family_that_a_model_file_cannot_say_is_refused_with_the_reason(family, reason):
    """A hybrid of another kind is never read as if its layers were of one that is known."""
    with pytest.raises(UnsupportedError, match=f"{family} {reason}"):
        model_from_huggingface({"model_type": family}, name="x")


def test_an_unknown_family_is_refused_with_the_known_ones():
    """A model_type without a reader raises an error that lists those that there are."""
    with pytest.raises(UnsupportedError) as caught:
        model_from_huggingface({"model_type": "mamba"}, name="x")

    assert "'mamba'" in str(caught.value)
    assert all(known in str(caught.value) for known in KNOWN_MODEL_TYPES)


def test_all_missing_and_wrong_fields_are_named_at_once():
    """One error holds every field that is missing, of a wrong type or out of range."""
    content = config("llama", None, "wide", 32, 10**9, True, mlp_bias="no", hidden_act="tanh")

    with pytest.raises(SpecError) as caught:
        model_from_huggingface(content, name="x")

    assert {problem.path for problem in caught.value.problems} == {
        f"$.{key}"
        for key in (
            *("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"),
            *("mlp_bias", "hidden_act"),
        )
    }


def test_a_problem_of_a_nested_config_says_where_it_stands():
    """Paths of fields inside text_config start there."""
    broken = {"model_type": "gemma3", "text_config": {**GEMMA3_TEXT, "hidden_size": None}}

    with pytest.raises(SpecError, match=r"\$\.text_config\.hidden_size: hidden_size .*missing"):
        model_from_huggingface(broken, name="x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "model_type is missing"),
        ({"model_type": 3}, "model_type must be a text"),
        ({"model_type": "llama4"}, "text_config is needed"),
        ({"model_type": "mistral3", "text_config": {}}, "which language model mistral3 has"),
        (config("ernie4_5_moe", 4, 64, 8, 64, 100, moe_layer_end_index=1), "or the last layer"),
        (config("stablelm", 2, 64, 8, 64, 100, qk_layernorm=True), "qk_layernorm must be false"),
        (config("llama", 2, 64, 8, 64, 100, num_key_value_heads=3), "multiple of kv_heads 3"),
        (config("qwen3_moe", 2, 64, 8, 64, 100, mlp_only_layers=[1]), "must be the first layers"),
        (config("qwen3_moe", 2, 64, 8, 64, 100, mlp_only_layers="all"), "must be the first layers"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "moe_layer_freq must be 1"),
        (config("gpt_oss", 2, 64, 8, 64, 100, layer_types=["linear"]), "must be a list of"),
        (
            config("gemma2", 3, 64, 8, 64, 100, layer_types=["full_attention", "sliding_attention"]),
            "last of each N layers",
        ),
        (
            config("qwen2", 4, 64, 8, 64, 100, use_sliding_window=True, max_window_layers=2),
            "max_window_layers must be",
        ),
        ({**QWEN_NEXT, "mlp_only_layers": [0]}, "mlp_only_layers must be empty"),
        ({**QWEN_NEXT, "linear_num_key_heads": 5}, "value_heads 32 must be a multiple of key_heads 5"),
        ({**GRANITE_HYBRID, "layer_types": ["mamba"]}, "layer_types has 1 layers"),
        ({**GRANITE_HYBRID, "layer_types": ["mlp"] * 40}, "layer_types must be a list of"),
        ({**GRANITE_HYBRID, "layer_types": ["attention"] * 40}, "no layer has linear attention"),
        ({**GRANITE_HYBRID, "mamba_d_head": 32}, "mamba_expand x hidden_size 3072"),
        ({**BAMBA, "attn_layer_indices": "all"}, "attn_layer_indices must be a list"),
        ({**BAMBA, "attn_layer_indices": [99]}, "names layer 99"),
        (
            config("opt", 2, 64, 8, None, 100, ffn_dim=64, word_embed_proj_dim=32),
            "word_embed_proj_dim must equal",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused(content, message):
    """A config that a model file cannot express raises a sentence rather than a wrong count."""
    with pytest.raises(SpecError, match=message):
        model_from_huggingface(content, name="x")


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral"}, (4096, None)),
        ({"model_type": "gemma2"}, (4096, 2)),
        ({"model_type": "gemma3_text", "sliding_window": 512}, (512, 6)),
        ({"model_type": "gpt_oss"}, (128, 2)),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"] * 2}, None),
        ({"model_type": "gpt_oss", "layer_types": ["sliding_attention"] * 2}, (128, None)),
        (
            {
                "model_type": "gpt_oss",
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            },
            (128, 3),
        ),
        ({"model_type": "qwen2", "sliding_window": 99}, None),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}, None),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "max_window_layers": 0,
                "sliding_window": 99,
            },
            (99, None),
        ),
    ],
)
def test_windows_follow_the_family_and_the_layer_types(more, window):
    """The window and its period are the family's unless the config says otherwise."""
    local = model_from_huggingface(config("", 4, 64, 8, 64, 100) | more, name="x").sliding_window

    assert (local and (local.window, local.every)) == window


def test_a_truncated_sparse_model_becomes_dense():
    """When all layers that are left are dense ones, the model has no experts."""
    spec = model_from_huggingface({**DEEPSEEK, "num_hidden_layers": 3}, name="x")

    assert spec.moe is None


def test_configs_are_told_from_model_files():
    """A config has a model_type or architectures; a file of ours has neither."""
    assert detect_huggingface({"model_type": "llama"})
    assert detect_huggingface({"architectures": ["LlamaForCausalLM"]})
    assert not detect_huggingface({"schema": 1, "kind": "model", "name": "x"})
