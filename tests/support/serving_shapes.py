"""Plans of engines of different shapes, and the ``config.json`` of the models that they serve."""

from dataclasses import replace
from pathlib import Path

from autoplan.catalog import load_serving_job
from autoplan.catalog.entries import engine, model
from autoplan.launch.engines.served_run import EngineGroupToServe, ServedRun
from autoplan.schema.serving.engine_layout import EngineLayout

__all__ = ["CONFIGS", "ENGINES", "SERVED", "served"]

ENGINES = ("vllm", "sglang", "tensorrt-llm")
_SIZES = {"seqs": 64, "tokens": 2048}
#: Model, checkpoint, and the groups of engines by what their pools do.
SERVED = {
    "serving": ("llama3-70b", None, {None: {"tp": 4, "replicas": 2, **_SIZES}}),
    "pools": ("llama3-70b", None, {"prefill": {"tp": 4, **_SIZES}, "decode": {"tp": 4, **_SIZES}}),
    "stages": ("llama3-70b", None, {None: {"tp": 2, "pp": 2, **_SIZES}}),
    "experts": ("qwen3-30b-a3b", None, {None: {"tp": 4, "ep": 4, **_SIZES}}),
    "latent attention": (
        "deepseek-v3",
        "deepseek-ai/DeepSeek-V3",
        {None: {"tp": 1, "adp": 8, "ep": 8, "weights": "fp8-block", **_SIZES}},
    ),
    "context parallel": (
        "deepseek-v3",
        "deepseek-ai/DeepSeek-V3",
        {None: {"tp": 8, "dcp": 2, "weights": "fp8-block", **_SIZES}},
    ),
    "fp8": ("llama3-70b", None, {None: {"tp": 4, "weights": "fp8", "kv": "fp8", **_SIZES}}),
    "one device": ("qwen3-30b-a3b", None, {None: {"tp": 1, **_SIZES}}),
}
_COMMON = {"dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
#: What the checkpoints of models have in their config.json.
CONFIGS = {
    "llama3-70b": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "qwen3-30b-a3b": {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "deepseek-v3": {
        **_COMMON,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "n_group": 8,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    },
}


def served(name, shape):
    """Return a shape as a run of an engine's newest version, which ``engine_target(name).emit`` takes."""
    of_model, checkpoint, groups = SERVED[shape]
    job = replace(
        load_serving_job("llama3-70b-8x-h100"),
        model=model(of_model, Path()),
        engine=engine(name, Path()),
    )
    made = tuple(EngineGroupToServe(EngineLayout(**fields), role) for role, fields in groups.items())
    return ServedRun(job, made, checkpoint=checkpoint, image="registry/engine:1")
