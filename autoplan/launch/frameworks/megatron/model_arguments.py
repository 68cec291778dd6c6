"""Arguments of the architecture of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoplan.costs.core.sizes import dropout_masks
from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

__all__ = [
    "ACTIVATION_FLAGS",
    "POSITIONS",
    "arguments_left_out",
    "dropout_arguments",
    "dropout_rate",
    "model_arguments",
]

#: Dropout of plans that are priced with its masks: that of GPT-2 and GPT-3, and Megatron-LM's default.
_DROPOUT: Final = 0.1

#: Arguments of activations; GELU has none.
ACTIVATION_FLAGS: Final = {"swiglu": ("--swiglu",), "relu2": ("--squared-relu",), "gelu": ()}
POSITIONS: Final = {"rope": "rope", "learned": "learned_absolute", "none": "none"}


def model_arguments(job: Job) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of model and sequences; raises InexpressibleError for what there is none."""
    model, length = job.model, job.workload.sequence_length
    _refuse_missing_parts(model)
    if model.positions == "learned" and length > (model.max_positions or length):
        raise InexpressibleError(f"sequences of {length} tokens with {model.max_positions} learned positions")
    yield ("--num-layers", str(model.layers))
    yield ("--hidden-size", str(model.hidden_size))
    yield ("--ffn-hidden-size", str(model.ffn_size))
    yield ("--num-attention-heads", str(model.heads))
    yield from _attention(model)
    yield ("--seq-length", str(length))
    yield ("--max-position-embeddings", str(max(model.max_positions or 0, length)))
    yield ("--position-embedding-type", POSITIONS[model.positions])
    yield ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm")
    if flags := ACTIVATION_FLAGS[model.activation]:
        yield flags
    if not model.bias.mlp:
        yield ("--disable-bias-linear",)
        if model.bias.qkv:
            yield ("--add-qkv-bias",)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    yield ("--vocab-size", str(model.vocabulary))
    yield from dropout_arguments(job)
    yield from _experts(job)


def dropout_rate(job: Job) -> float:
    """Return the probability of dropout in attention and after each part: none where no mask is priced."""
    return _DROPOUT if dropout_masks(job) else 0.0


def dropout_arguments(job: Job) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of dropout, which Megatron-LM has at 0.1 unless it is told."""
    yield ("--attention-dropout", f"{dropout_rate(job)}")
    yield ("--hidden-dropout", f"{dropout_rate(job)}")


def arguments_left_out(job: Job) -> tuple[str, ...]:
    """Return the arguments that decide what the model computes and that no model of the catalogue knows.

    None of them changes a time or a size; their values stand in the config.json of the model.
    """
    model = job.model
    groups = {
        ("--norm-epsilon", "--init-method-std"): True,
        ("--rotary-base", "--rotary-percent"): model.positions == "rope",
        ("--use-rope-scaling", "--rope-scaling-factor"): model.positions == "rope" and model.mla is None,
        ("--rope-type", "--rotary-scaling-factor", "--mscale", "--mscale-all-dim"): model.mla is not None,
        ("--moe-router-load-balancing-type", "--moe-aux-loss-coeff"): model.moe is not None,
        ("--moe-router-topk-scaling-factor",): model.moe is not None,
        ("--tokenizer-type", "--tokenizer-model"): True,
    }
    return tuple(name for names, has in groups.items() if has for name in names)


def _attention(model: ModelSpec) -> Iterator[tuple[str, ...]]:
    mla = model.mla
    if mla is not None:
        yield ("--multi-latent-attention",)
        if mla.q_lora_rank is not None:
            yield ("--q-lora-rank", str(mla.q_lora_rank))
        yield ("--kv-lora-rank", str(mla.kv_lora_rank))
        yield ("--qk-head-dim", str(mla.qk_nope_head_dim))
        yield ("--qk-pos-emb-head-dim", str(mla.qk_rope_head_dim))
        yield ("--v-head-dim", str(mla.v_head_dim))
    elif model.kv_heads < model.heads:
        yield ("--group-query-attention",)
        yield ("--num-query-groups", str(model.kv_heads))
    if mla is None and model.head_dim * model.heads != model.hidden_size:
        yield ("--kv-channels", str(model.head_dim))
    # With latent attention, this is the norm of the latents, which the model has.
    if model.qk_norm or mla is not None:
        yield ("--qk-layernorm",)
    if model.attention_sinks:
        yield ("--softmax-type", "learnable")
    if (local := model.sliding_window) is not None:
        yield ("--window-size", f"{local.window - 1},0")
        if local.every is not None:
            yield ("--window-attn-skip-freq", str(local.every))


def _experts(job: Job) -> Iterator[tuple[str, ...]]:
    moe = job.model.moe
    if moe is None:
        return
    yield ("--num-experts", str(moe.experts))
    yield ("--moe-router-topk", str(moe.top_k))
    yield ("--moe-ffn-hidden-size", str(moe.expert_ffn_size))
    if moe.shared_expert_ffn_size:
        yield ("--moe-shared-expert-intermediate-size", str(moe.shared_expert_ffn_size))
    if moe.shared_expert_gate:
        yield ("--moe-shared-expert-gate",)
    if frequency := _frequency(job.model):
        yield ("--moe-layer-freq", frequency)
    if moe.router_bias and not job.model.bias.mlp:
        # The bias that balances experts belongs to sigmoid scores.
        yield ("--moe-router-score-function", "sigmoid")
        yield ("--moe-router-enable-expert-bias",)
    if job.routing.capacity_factor is not None:
        yield ("--moe-expert-capacity-factor", f"{job.routing.capacity_factor:g}")
    if job.routing.padded:
        yield ("--moe-pad-expert-input-to-capacity",)
    yield ("--moe-token-dispatcher-type", "alltoall")
    if job.stack.experts is not None and job.stack.experts.grouped_gemm:
        yield ("--moe-grouped-gemm",)


def _frequency(model: ModelSpec) -> str:
    """Return which layers have experts; empty where all do."""
    layers = [int(model.is_moe_layer(layer)) for layer in range(model.layers)]
    if all(layers):
        return ""
    first = layers.index(1)
    if all(layers[first:]):
        return f"([0]*{first}+[1]*{len(layers) - first})"
    return f"[{','.join(map(str, layers))}]"


def _refuse_missing_parts(model: ModelSpec) -> None:
    """Raise InexpressibleError for the first part of ``model`` that Megatron-LM's GPT model does not have."""
    bias, moe = model.bias, model.moe
    parts = {
        f"the activation {model.activation}": model.activation not in ACTIVATION_FLAGS,
        f"{model.positions} positions": model.positions not in POSITIONS,
        "attention and MLP in parallel": model.parallel_block,
        "norms after attention and MLP": model.post_norms,
        "a norm after the embedding": model.embedding_norm,
        "no final norm": not model.final_norm,
        "a bias of the output projection onto the vocabulary": bias.head,
        "biases of the MLP without those of attention": bias.mlp and not (bias.qkv and bias.attention_output),
        "a bias after attention alone": bias.attention_output and not bias.mlp,
        "LayerNorm without a bias": model.norm == "layernorm" and not bias.norm,
        "RMSNorm with a bias": model.norm == "rmsnorm" and bias.norm,
        "norms of queries and keys in addition to those of latents": model.qk_norm and model.mla is not None,
        "router biases without those of the MLP": (
            moe is not None and moe.router_bias != bias.mlp and bias.mlp
        ),
    }
    for part, missing in parts.items():
        if missing:
            raise InexpressibleError(f"{part} (in {model.name})")
