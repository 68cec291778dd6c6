"""What a model file may say: the architecture of a decoder-only transformer.

Everything here decides a count (of parameters, of FLOPs, of bytes). Nothing here depends on how a
model is trained or served: vocabulary padding, precision and dropout belong to the job and the
stack. ``specs/models/README.md`` explains the fields to people who write such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from autoplan.schema.base import Frozen, LeftOutAtDefault, Sourced
from autoplan.schema.linear_attention import LinearAttention

#: The most that any width may be: far above any model, and low enough that no product gets absurd.
MAX_SIZE: Final = 10_000_000

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
OptionalSize = Annotated[int, Field(ge=0, le=MAX_SIZE)]
LayerCount = Annotated[int, Field(ge=1, le=10_000)]
ExpertCount = Annotated[int, Field(ge=1, le=100_000)]
TokenCount = Annotated[int, Field(ge=1, le=1_000_000_000)]
HubName = Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)?$", max_length=200)]

Activation = Literal["swiglu", "geglu", "reglu", "gelu", "relu", "relu2", "silu"]
Positions = Literal["rope", "learned", "alibi", "none"]

#: The activations whose MLP has a gate in addition to the up-projection: three matrices rather than two.
GATED_ACTIVATIONS: Final = frozenset({"swiglu", "geglu", "reglu"})


class Biases(Frozen):
    """Which linear layers and norms carry a bias; what a file leaves out follows the norm."""

    qkv: bool = Field(default=False, description="query, key and value projections")
    attention_output: bool = Field(default=False, description="projection after the attention")
    mlp: bool = Field(default=False, description="every matrix of the MLP and of the experts")
    norm: bool = Field(default=False, description="norms: LayerNorm has a bias, RMSNorm has not")
    head: bool = Field(default=False, description="output projection onto the vocabulary")


class MultiHeadLatentAttention(Frozen):
    """Attention through low-rank latents (DeepSeek)."""

    q_lora_rank: Size | None = Field(
        default=None, description="width of the query latent; null projects queries directly"
    )
    kv_lora_rank: Size = Field(description="width of the key-value latent, which is what is cached")
    qk_nope_head_dim: Size = Field(description="part of a query or key head without rotation")
    qk_rope_head_dim: Size = Field(description="part of a query or key head that is rotated")
    v_head_dim: Size = Field(description="width of a value head")


class SlidingWindow(Frozen):
    """Local attention in some layers or in all."""

    window: TokenCount = Field(description="keys that a token sees in a local layer, itself included")
    every: LayerCount | None = Field(
        default=None,
        description="one layer in every N, the last of each N, sees everything; null: none does",
    )


class MixtureOfExperts(Frozen):
    """The experts of a sparse model. Its dense layers, if any, use the model's `ffn_size`."""

    experts: ExpertCount = Field(description="routed experts in a layer")
    top_k: ExpertCount = Field(description="routed experts that a token visits")
    expert_ffn_size: Size = Field(description="inner width of one routed expert")
    shared_expert_ffn_size: OptionalSize = Field(
        default=0, description="inner width of all shared experts together; 0: none"
    )
    shared_expert_gate: bool = Field(
        default=False, description="a learned scalar gates the shared experts (Qwen2-MoE)"
    )
    first_dense_layers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=0, description="layers at the start that have a dense MLP"
    )
    every: LayerCount = Field(
        default=1, description="one layer in every N has experts, the last of each N; 1: all"
    )
    router_bias: bool = Field(default=False, description="the router has one bias for each expert")


class PublishedCount(Sourced):
    """A parameter count that someone published, exact or rounded."""

    value: int = Field(ge=1, le=10**18, description="the count as published")
    rounding: int = Field(
        default=1,
        ge=1,
        le=10**15,
        description="the step it is rounded to: 1 is exact, 1000000000 is 'in billions'",
    )


def _drop_default(schema: dict[str, Any]) -> None:
    """Keep a placeholder default out of the JSON Schema."""
    schema.pop("default", None)


class ModelSpec(Frozen):
    """One architecture: everything that decides its parameters, FLOPs and activations."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this file format")
    kind: Literal["model"] = Field(default="model", description="says that this file is a model")
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=200, description="the name; the file's too"
    )
    title: str | None = Field(default=None, description="the name as its makers write it")
    source: str = Field(min_length=3, description="where the architecture comes from")
    # No part of what a model is: a resolved job does not hold it, nor do answers.
    aliases: tuple[HubName, ...] = Field(
        default=(),
        exclude=True,
        description="checkpoints on the Hugging Face hub with the same architecture, such as tuned ones; a"
        " job may name the model so",
    )
    layers: LayerCount = Field(description="transformer layers")
    hidden_size: Size = Field(description="width of the residual stream")
    heads: Size = Field(description="query heads")
    kv_heads: Size = Field(
        default=0,
        description="key-value heads; default: as many as query heads",
        json_schema_extra=_drop_default,
    )
    head_dim: Size = Field(
        default=0,
        description="width of a query head; default: hidden_size / heads, with mla its two parts",
        json_schema_extra=_drop_default,
    )
    ffn_size: Size = Field(description="inner width of a dense layer's MLP")
    vocabulary: Size = Field(description="rows of the embedding table, without a stack's padding")
    positions: Positions = Field(default="rope", description="how tokens know their place")
    max_positions: TokenCount | None = Field(
        default=None, description="longest context; with learned positions, rows of their table"
    )
    activation: Activation = Field(
        default="swiglu", description="of the MLP; swiglu, geglu and reglu have a gate matrix"
    )
    activation_clamp: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="gate and up-projection of the MLP are clamped before the activation (gpt-oss)",
    )
    norm: Literal["rmsnorm", "layernorm"] = Field(default="rmsnorm", description="kind of norm")
    bias: Biases = Field(
        default=Biases(),
        description="which parts carry biases; default: all but the head with layernorm, else none",
        json_schema_extra=_drop_default,
    )
    tied_embeddings: bool = Field(
        default=False, description="the output projection is the embedding table itself"
    )
    parallel_block: bool = Field(
        default=False, description="attention and MLP read the same input and are added together"
    )
    shared_block_norm: bool = Field(
        default=False, description="in a parallel block, one norm serves attention and MLP"
    )
    qk_norm: bool = Field(
        default=False, description="queries and keys are normalised, one weight for each head_dim"
    )
    qk_norm_across_heads: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False,
        description="with qk_norm, one weight for each element of all query and all key heads (OLMo 2)",
    )
    post_norms: bool = Field(
        default=False, description="two more norms in a layer, after attention and after the MLP"
    )
    embedding_norm: bool = Field(default=False, description="a norm follows the embedding (BLOOM)")
    final_norm: bool = Field(default=True, description="a norm precedes the output projection")
    attention_sinks: bool = Field(
        default=False, description="one learned logit for each head joins the softmax (gpt-oss)"
    )
    attention: Literal["full", "mla"] = Field(
        default="full", description="full: queries, keys, values by head; mla: through latents"
    )
    mla: MultiHeadLatentAttention | None = Field(
        default=None, description="sizes of the latent attention; needed when attention is mla"
    )
    sliding_window: SlidingWindow | None = Field(
        default=None, description="local attention; absent: every layer sees everything"
    )
    linear_attention: Annotated[LinearAttention | None, LeftOutAtDefault()] = Field(
        default=None,
        description="layers with a recurrent state instead of softmax attention; absent: no layer has one",
    )
    attention_output_gate: Annotated[bool, LeftOutAtDefault()] = Field(
        default=False, description="softmax attention has an output gate as wide as its queries (Qwen3-Next)"
    )
    moe: MixtureOfExperts | None = Field(default=None, description="experts; absent: a dense model")
    published_parameters: PublishedCount | None = Field(
        default=None, description="parameter count as published, which a test holds ours against"
    )
    published_active_parameters: PublishedCount | None = Field(
        default=None, description="parameters that one token uses, as published"
    )

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate matrix in addition to the up-projection."""
        return self.activation in GATED_ACTIVATIONS

    def is_moe_layer(self, layer: int) -> bool:
        """Return whether layer ``layer`` (from 0) has experts instead of a dense MLP."""
        moe = self.moe
        return moe is not None and layer >= moe.first_dense_layers and (layer + 1) % moe.every == 0

    def is_linear_layer(self, layer: int) -> bool:
        """Return whether layer ``layer`` (from 0) has linear attention instead of softmax attention."""
        return self.linear_attention is not None and self.linear_attention.is_linear_layer(layer)

    def layer_kind(self, layer: int) -> tuple[bool, bool]:
        """Return whether layer ``layer`` (from 0) has experts, and whether it has linear attention."""
        return self.is_moe_layer(layer), self.is_linear_layer(layer)

    def attention_window(self, layer: int) -> int | None:
        """Return how many keys a token sees in layer ``layer`` (from 0); None means all."""
        local = self.sliding_window
        if local is None or (local.every is not None and (layer + 1) % local.every == 0):
            return None
        return local.window

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        filled = dict(data)
        for key, value in (
            ("kv_heads", filled.get("heads")),
            ("head_dim", _default_head_dim(filled)),
        ):
            if key not in filled and type(value) is int and value > 0:
                filled[key] = value
        filled["bias"] = _default_biases(filled)
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        wrong = [*_shape_problems(self), *_expert_problems(self), *_linear_problems(self)]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def _default_head_dim(data: Mapping[str, Any]) -> int | None:
    """Return the head width that the other fields imply, or None where they imply none."""
    if data.get("mla") is not None:
        parts = [_get(data["mla"], key) for key in ("qk_nope_head_dim", "qk_rope_head_dim")]
        numbers = [part for part in parts if type(part) is int]
        return sum(numbers) if len(numbers) == len(parts) else None
    hidden, heads = data.get("hidden_size"), data.get("heads")
    if type(hidden) is int and type(heads) is int and heads > 0 and hidden % heads == 0:
        return hidden // heads
    return None


def _get(source: object, key: str) -> object:
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


def _default_biases(data: Mapping[str, object]) -> object:
    """Return the biases as given, with what is missing filled in from the kind of norm."""
    biases = data.get("bias", {})
    if not isinstance(biases, Mapping):
        return biases
    everywhere = data.get("norm") == "layernorm"
    usual = dict.fromkeys(("qkv", "attention_output", "mlp", "norm"), everywhere)
    return {**usual, **biases}


def _shape_problems(model: ModelSpec) -> list[str]:
    """Return a sentence for each way in which the attention and block fields disagree."""
    hidden, heads, kv_heads, mla = model.hidden_size, model.heads, model.kv_heads, model.mla
    latent = 0 if mla is None else mla.qk_nope_head_dim + mla.qk_rope_head_dim
    rules = {
        f"hidden_size {hidden} is no multiple of heads {heads}, so head_dim must be given": (
            model.head_dim == 0
        ),
        f"heads {heads} must be a multiple of kv_heads {kv_heads}": (kv_heads == 0 or heads % kv_heads != 0),
        "attention: mla and the section mla belong together: give both or neither": (
            (model.attention == "mla") != (mla is not None)
        ),
        f"with mla, head_dim is qk_nope_head_dim + qk_rope_head_dim = {latent}; leave it out": (
            mla is not None and model.head_dim != latent
        ),
        "learned positions need max_positions, the rows of their table": (
            model.positions == "learned" and model.max_positions is None
        ),
        "shared_block_norm needs parallel_block": (model.shared_block_norm and not model.parallel_block),
        "qk_norm_across_heads needs qk_norm": (model.qk_norm_across_heads and not model.qk_norm),
    }
    return [sentence for sentence, broken in rules.items() if broken]


def _expert_problems(model: ModelSpec) -> list[str]:
    """Return a sentence for each way in which the experts disagree with the model."""
    moe = model.moe
    if moe is None:
        return []
    first, every = moe.first_dense_layers, moe.every
    rules = {
        f"moe.top_k {moe.top_k} is more than moe.experts {moe.experts}": moe.top_k > moe.experts,
        f"no layer has experts: {model.layers} layers, the first {first} dense, one in {every}": (
            not any(map(model.is_moe_layer, range(model.layers)))
        ),
        "moe.shared_expert_gate needs moe.shared_expert_ffn_size": (
            moe.shared_expert_gate and moe.shared_expert_ffn_size == 0
        ),
    }
    return [sentence for sentence, broken in rules.items() if broken]


def _linear_problems(model: ModelSpec) -> list[str]:
    """Return a sentence for each way in which linear attention disagrees with the model."""
    linear = model.linear_attention
    rules = {
        "attention_output_gate is of softmax attention by heads: leave it out with mla": (
            model.attention_output_gate and model.mla is not None
        ),
    }
    if linear is not None:
        beyond = [layer for layer in linear.attention_layers if layer >= model.layers]
        rules |= {
            f"linear_attention.attention_layers names layer {max(beyond, default=0)}, but the last of"
            f" {model.layers} layers is layer {model.layers - 1}": bool(beyond),
            f"no layer has linear attention: leave out linear_attention, or every {linear.every}": (
                not any(map(linear.is_linear_layer, range(model.layers)))
            ),
            "linear_attention with a parallel block is not supported": model.parallel_block,
            "linear_attention beside mla is not supported": model.mla is not None,
            "linear_attention beside sliding_window is not supported": model.sliding_window is not None,
        }
    return [sentence for sentence, broken in rules.items() if broken]
