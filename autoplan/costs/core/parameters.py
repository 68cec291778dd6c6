"""Exact parameter counts of a model, part by part, and the optimizer's bytes of a parameter.

Notation (this file only; counts are numbers of parameters, multiply by bytes elsewhere)::

    L  layers                      h  hidden_size              V  vocabulary      [1]
    a  query heads                 k  key-value heads          d  head_dim        [1]
    f  inner width of an MLP       g  gates: 1 if the MLP is gated, else 0        [1]
    E  routed experts              K  experts that a token visits                 [1]
    b  1 where that part has a bias, else 0                                       [1]
    K, V  widths of all keys and of all values of linear attention, H heads of values, c taps    [1]
    b  of an optimizer's states: bytes of one moment of one parameter          [byte]

The parts of a layer follow tensor parallelism. *Column-parallel* matrices (query, key, value, up and gate)
are sharded along their outputs, with their biases. *Row-parallel* matrices (attention output, MLP down) are
sharded along their inputs, and their biases are replicated. Norms, the router and the latent down-projections
of MLA are replicated.

For comparison: a GPT-3 style model has L(12h^2 + 13h) + (V + s)h + 2h parameters with s positions.
Source: the modules of transformers (``models/*/modeling_*.py``); a test compares every model of the catalogue
with its publisher's count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from autoplan.schema.costmodel.stack import MemoryPolicy
from autoplan.schema.linear_attention import LinearAttention
from autoplan.schema.model import ModelSpec, MultiHeadLatentAttention
from autoplan.schema.precision import Optimizer


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Moments of a parameter of a matrix and of any other, and b where the optimizer defines it.

    Those of a ``paged`` one are in managed memory, which the driver moves between host and device.
    """

    matrix_moments: int
    other_moments: int
    moment_bytes: float | None = None
    paged: bool = False


#: Kingma and Ba 2015 (Adam), Loshchilov and Hutter 2019 (AdamW): two moments; SGD with momentum and Lion
#: (Chen et al. 2023, arXiv 2302.06675) one; Muon (Jordan et al. 2024) one for matrices, AdamW for the rest.
#: 8-bit Adam (Dettmers et al. 2022, arXiv 2110.02861): a byte, and an fp32 scale for every 256 of them, as
#: in bitsandbytes from 0.44 on (pull request 1365; 2,048 in the paper). Paged ones (Dettmers et al. 2023,
#: arXiv 2305.14314, section 3; bitsandbytes, optim/optimizer.py, get_state_buffer: F.get_paged) have their
#: moments in cudaMallocManaged, outside of PyTorch's allocator; fp32 ones are paged_adamw_32bit.
OPTIMIZERS: Final[dict[Optimizer, OptimizerState]] = {
    "adamw": OptimizerState(2, 2),
    "adam": OptimizerState(2, 2),
    "adamw-8bit": OptimizerState(2, 2, 1 + 4 / 256),
    "paged-adamw": OptimizerState(2, 2, 4.0, paged=True),
    "paged-adamw-8bit": OptimizerState(2, 2, 1 + 4 / 256, paged=True),
    "adamw-bf16": OptimizerState(2, 2, 2.0),
    "sgd": OptimizerState(1, 1),
    "lion": OptimizerState(1, 1),
    "muon": OptimizerState(1, 2),
}


def state_bytes(optimizer: Optimizer, policy: MemoryPolicy) -> tuple[float, float]:
    """Return the optimizer bytes of a parameter of a matrix, and of any other [byte]: master + moments x b.

    >>> megatron = stack("megatron-core").memory
    >>> [state_bytes(name, megatron) for name in ("adamw", "sgd", "muon", "adamw-8bit")]
    [(12, 12), (8, 8), (8, 12), (6.03125, 6.03125)]

    Leaves out: tensors below 4,096 elements and embeddings, whose states 8-bit optimizers may store in fp32.
    Source: the papers named at ``OPTIMIZERS``; master parameters are the stack's policy.
    """
    state = OPTIMIZERS[optimizer]
    moment = policy.state_bytes if state.moment_bytes is None else state.moment_bytes
    return (
        policy.master_bytes + state.matrix_moments * moment,
        policy.master_bytes + state.other_moments * moment,
    )


def unfused_bytes(optimizer: Optimizer, policy: MemoryPolicy) -> float:
    """Return what kernels of Adam move for a parameter beside one fused kernel [byte]: passes x b.

    >>> listed = stack("ddp").memory.model_copy(update={"update_passes": 13})
    >>> [unfused_bytes(name, listed) for name in ("adamw", "adamw-8bit")]  # 20 - 7 of 4 bytes
    [52.0, 0.0]

    Leaves out: other optimizers, whose kernels are one (bitsandbytes) or were not counted.
    Source: PyTorch 2.13, torch/optim/adam.py, counted.
    """
    return float(policy.update_passes * policy.state_bytes) if optimizer in {"adam", "adamw"} else 0.0


def paged_bytes(optimizer: Optimizer, policy: MemoryPolicy) -> float:
    """Return the bytes of a parameter's moments that are in pages [byte]: all of a paged optimizer, else 0.

    They are taken to be on the host: a step reads and writes each of them once, in an order in which the
    pages that the device has room for are never the next ones.

    >>> [paged_bytes(name, stack("torchtune").memory) for name in ("paged-adamw-8bit", "adamw-8bit")]
    [2.03125, 0.0]

    Leaves out: pages that stay on a device which has room for all of them.
    Source: bitsandbytes, optim/optimizer.py, Optimizer8bit.step: prefetch_state, update_step, and one
    synchronisation at the end.
    """
    state = OPTIMIZERS[optimizer]
    moment = policy.state_bytes if state.moment_bytes is None else state.moment_bytes
    return state.matrix_moments * moment if state.paged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Parameters of one layer, by how they are sharded over devices."""

    #: Query projection and its bias, and attention sinks: sharded over tp (by heads). Of linear attention
    #: what belongs to a head of values.
    query: int
    #: Key and value projections and their biases: sharded over tp, at most to one kv head a rank. Of linear
    #: attention what belongs to a head of keys.
    key_value: int
    #: Attention output matrix: sharded over tp.
    attention_output: int
    #: Attention output bias, q and k norms, MLA down-projections and their norms: replicated.
    attention_replicated: int
    #: Matrices and column biases of the dense MLP or of the shared experts: sharded over tp.
    mlp_divided: int
    #: Row bias of that MLP and the gate of the shared experts: replicated.
    mlp_replicated: int
    #: Matrices and column biases of all routed experts: sharded over ep, and over etp within an expert.
    experts: int
    #: Row biases of all routed experts: sharded over ep only.
    experts_replicated: int
    #: Router matrix and bias: replicated.
    router: int
    #: Norms before (and after) attention and MLP: replicated.
    norms: int

    @property
    def attention(self) -> int:
        """Parameters of attention, without the norm before it."""
        return self.query + self.key_value + self.attention_output + self.attention_replicated

    @property
    def mlp(self) -> int:
        """Parameters of the dense MLP, or of all experts, routed and shared; without the router."""
        return self.mlp_divided + self.mlp_replicated + self.expert_parallel

    @property
    def expert_parallel(self) -> int:
        """Parameters that expert parallelism shards."""
        return self.experts + self.experts_replicated

    @property
    def tensor_parallel(self) -> int:
        """Parameters that tensor parallelism shards, without the routed experts."""
        return self.query + self.key_value + self.attention_output + self.mlp_divided

    @property
    def replicated(self) -> int:
        """Parameters that are replicated over the tensor axis, without the routed experts."""
        return self.attention_replicated + self.mlp_replicated + self.router + self.norms

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.tensor_parallel + self.replicated + self.expert_parallel


def layer_parameters(model: ModelSpec, layer_index: int) -> LayerParameters:
    """Count the parameters of one layer, ``layer_index`` from 0: dense or MoE.

    Dense: (a + 2k)d(h + b) + h*a*d + (2 + g)h*f, plus row biases and norms.

    >>> llama3_8b = ModelSpec(
    ...     name="x", source="doctest", layers=32, hidden_size=4096, heads=32, kv_heads=8,
    ...     ffn_size=14336, vocabulary=128256)
    >>> layer = layer_parameters(llama3_8b, 0)
    >>> layer.query, layer.key_value  # 4096 * 4096 and 2 * 4096 * 1024
    (16777216, 8388608)
    >>> layer.mlp_divided  # 3 * 4096 * 14336
    176160768
    >>> layer.norms, layer.total
    (8192, 218112000)

    Leaves out: replicas of key-value heads when tp exceeds their number, and buffers without gradients
    (rotary tables, masks).
    """
    attention = _linear_attention if model.is_linear_layer(layer_index) else _attention
    query, key_value, output, replicated = attention(model)
    mlp_divided, mlp_replicated = _mlp(model, layer_index)
    experts, experts_replicated, router = _experts(model, layer_index)
    return LayerParameters(
        query=query,
        key_value=key_value,
        attention_output=output,
        attention_replicated=replicated,
        mlp_divided=mlp_divided,
        mlp_replicated=mlp_replicated,
        experts=experts,
        experts_replicated=experts_replicated,
        router=router,
        norms=_layer_norms(model) * _norm(model, model.hidden_size),
    )


def embedding_parameters(model: ModelSpec) -> int:
    """Count the token embedding table: V*h.

    >>> embedding_parameters(_gpt2())  # 50257 * 768
    38597376

    Leaves out: padding of the vocabulary, positions, a norm after the embedding.
    """
    return model.vocabulary * model.hidden_size


def position_parameters(model: ModelSpec) -> int:
    """Count the table of learned positions: max_positions * h, else 0.

    >>> position_parameters(_gpt2())  # 1024 * 768
    786432
    """
    rows = model.max_positions if model.positions == "learned" else None
    return (rows or 0) * model.hidden_size


def embedding_norm_parameters(model: ModelSpec) -> int:
    """Count the norm after the embedding: h(1 + b), or 0 without one.

    >>> embedding_norm_parameters(_gpt2())
    0
    """
    return _norm(model, model.hidden_size) if model.embedding_norm else 0


def final_norm_parameters(model: ModelSpec) -> int:
    """Count the norm before the output projection: h(1 + b), or 0 without one.

    >>> final_norm_parameters(_gpt2())  # weight and bias of 768
    1536
    """
    return _norm(model, model.hidden_size) if model.final_norm else 0


def head_parameters(model: ModelSpec) -> int:
    """Count the output projection: V*h, or 0 when tied to the embedding; plus V*b.

    >>> head_parameters(_gpt2())
    0

    Leaves out: the copy of a tied table on the last stage of a pipeline.
    """
    matrix = 0 if model.tied_embeddings else embedding_parameters(model)
    return matrix + model.bias.head * model.vocabulary


def total_parameters(model: ModelSpec) -> int:
    """Count the parameters of the model: sum over layers + embedding + positions + norms + head.

    >>> total_parameters(_gpt2())
    124439808

    Leaves out: heads other than the language model's (multi-token prediction, vision, reward).
    """
    layers = _sum_over_layers(model, lambda layer: layer.total)
    return layers + _outside_layers(model)


def layer_kinds(model: ModelSpec) -> list[tuple[int, int]]:
    """Return an index and the number of layers of each kind: dense or MoE, softmax or linear attention [1].

    >>> layer_kinds(_gpt2())
    [(0, 12)]
    """
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for layer in range(model.layers):
        kinds.setdefault(model.layer_kind(layer), []).append(layer)
    return [(layers[0], len(layers)) for layers in kinds.values()]


def key_heads_of_layer(model: ModelSpec, layer: int) -> int:
    """Return the heads of keys in layer ``layer`` (from 0), which tensor parallelism replicates beyond [1].

    >>> key_heads_of_layer(_gpt2(), 0)
    12
    """
    linear = model.linear_attention
    return linear.key_heads if linear is not None and model.is_linear_layer(layer) else model.kv_heads


def layer_tensors(model: ModelSpec) -> int:
    """Return the number of parameter tensors of a layer with a dense MLP [1].

    The projections of queries, keys and values are one tensor, gate and up are one. Linear attention has
    seven: projections of its wide tensors and of its scalars, convolution, time-step bias, decay, norm and
    output. Mamba-2 has one projection, and a skip weight and a bias of the convolution besides.

    >>> layer_tensors(_gpt2())  # two norms and four matrices, each with a bias
    12

    Leaves out: experts.
    Source: Megatron-LM, megatron/core/transformer: linear_qkv, linear_proj, linear_fc1, linear_fc2.
    """
    bias = model.bias
    norms = _layer_norms(model) + 2 * model.qk_norm + (2 if model.mla else 0)
    attention = (5 if model.mla else 2) + bias.qkv + bias.attention_output
    if model.linear_attention is not None and model.is_linear_layer(0):
        linear = model.linear_attention
        norms = norms - 2 * model.qk_norm
        attention = 7 + linear.conv_bias + 2 * linear.bias
    return norms * (1 + bias.norm) + attention + 2 + 2 * bias.mlp


def active_parameters(model: ModelSpec) -> int:
    """Count the parameters active for one token: all but those of unvisited experts, (1 - K/E) of them.

    >>> active_parameters(_gpt2()) == total_parameters(_gpt2())
    True

    Leaves out: that a token reads one row of the embedding table; the full table is counted, as most
    publishers do.
    """
    moe = model.moe
    if moe is None:
        return total_parameters(model)
    routed = _sum_over_layers(model, lambda layer: layer.expert_parallel)
    return total_parameters(model) - routed // moe.experts * (moe.experts - moe.top_k)


def moe_layer_share(model: ModelSpec) -> float:
    """Return the share of MoE layers [1].

    >>> [moe_layer_share(load_entry("model", name)) for name in ("llama3-8b", "mixtral-8x7b", "deepseek-v3")]
    [0.0, 1.0, 0.9508196721311475]
    >>> 58 / 61  # three dense layers
    0.9508196721311475

    Source: the model's file.
    """
    return 0.0 if model.moe is None else sum(map(model.is_moe_layer, range(model.layers))) / model.layers


def _outside_layers(model: ModelSpec) -> int:
    return (
        embedding_parameters(model)
        + position_parameters(model)
        + embedding_norm_parameters(model)
        + final_norm_parameters(model)
        + head_parameters(model)
    )


def _sum_over_layers(model: ModelSpec, part: Callable[[LayerParameters], int]) -> int:
    """Return the sum of ``part`` over all layers of each kind."""
    return sum(count * part(layer_parameters(model, index)) for index, count in layer_kinds(model))


def _norm(model: ModelSpec, width: int) -> int:
    return width * (1 + model.bias.norm)


def _layer_norms(model: ModelSpec) -> int:
    return (1 if model.shared_block_norm else 2) + (2 if model.post_norms else 0)


def _attention(model: ModelSpec) -> tuple[int, int, int, int]:
    """Return the query, key-value, output and replicated parameters of one layer's attention."""
    if model.mla is not None:
        return _latent_attention(model, model.mla)
    h, a, k, d = model.hidden_size, model.heads, model.kv_heads, model.head_dim
    rows = h + model.bias.qkv
    normalised = (a + k) * d if model.qk_norm_across_heads else 2 * d
    replicated = h * model.bias.attention_output + (_norm(model, normalised) if model.qk_norm else 0)
    sinks = a if model.attention_sinks else 0
    gated = 2 if model.attention_output_gate else 1
    return gated * a * d * rows + sinks, 2 * k * d * rows, h * a * d, replicated


def _latent_attention(model: ModelSpec, mla: MultiHeadLatentAttention) -> tuple[int, int, int, int]:
    """Return the same for MLA: replicated down-projections to latents, sharded up-projections to heads.

    Query: h*q + q*a*(n + r), or h*a*(n + r) without a query latent; key-value: h*(c + r) +
    c*a*(n + v); output: a*v*h; q and c are the latents, n, r, v the parts of a head.
    """
    h, a, bias = model.hidden_size, model.heads, int(model.bias.qkv)
    c, r = mla.kv_lora_rank, mla.qk_rope_head_dim
    q = mla.q_lora_rank or 0
    down = q * (h + bias) + (c + r) * (h + bias)
    latent_norms = (_norm(model, q) if q else 0) + _norm(model, c)
    query = (q or h) * a * model.head_dim
    key_value = c * a * (mla.qk_nope_head_dim + mla.v_head_dim)
    replicated = down + latent_norms + h * model.bias.attention_output
    sinks = a if model.attention_sinks else 0
    return query + sinks, key_value, a * mla.v_head_dim * h, replicated


def _linear_attention(model: ModelSpec) -> tuple[int, int, int, int]:
    """Return the same for linear attention; keys and queries are 2K wide, values and output gate 2V.

    A gated delta net has (2K + 2V + 2H)h + c(2K + V) + 2H + a norm of one head, and Vh; Mamba-2
    (2K + 2V + H)h + c(2K + V) + 3H + a norm of V, and Vh (transformers, models/qwen3_next and
    models/granitemoehybrid).
    """
    linear = model.linear_attention
    assert linear is not None  # noqa: S101 - the caller asks
    h, V, H = model.hidden_size, linear.values, linear.value_heads
    rows, taps = h + linear.bias, linear.conv_kernel + linear.conv_bias
    query = rows * (2 * V + linear.gates) + taps * V + _vectors_of_heads(linear)
    replicated = h * linear.bias + (linear.value_dim if linear.kind == "gated-delta-net" else 0)
    return query, 2 * linear.keys * (rows + taps), H * linear.value_dim * h, replicated


def _vectors_of_heads(linear: LinearAttention) -> int:
    """Return the parameters of single heads: decay, time-step bias, and of Mamba-2 the skip and its norm."""
    if linear.kind == "gated-delta-net":
        return 2 * linear.value_heads
    return 3 * linear.value_heads + linear.values


def _mlp_of_width(model: ModelSpec, f: int) -> tuple[int, int]:
    """Return the sharded and replicated parameters of one MLP: (2 + g)h*f + (1 + g)f*b, and h*b."""
    columns = 2 if model.gated else 1
    divided = (columns + 1) * model.hidden_size * f + columns * f * model.bias.mlp
    return divided, model.hidden_size * model.bias.mlp


def _mlp(model: ModelSpec, layer_index: int) -> tuple[int, int]:
    """Return the sharded and replicated parameters of the dense MLP, or of the shared experts."""
    if model.moe is None or not model.is_moe_layer(layer_index):
        return _mlp_of_width(model, model.ffn_size)
    if model.moe.shared_expert_ffn_size == 0:
        return 0, 0
    divided, replicated = _mlp_of_width(model, model.moe.shared_expert_ffn_size)
    gate = model.hidden_size if model.moe.shared_expert_gate else 0
    return divided, replicated + gate


def _experts(model: ModelSpec, layer_index: int) -> tuple[int, int, int]:
    """Return the sharded and replicated parameters of all routed experts, and of the router."""
    moe = model.moe
    if moe is None or not model.is_moe_layer(layer_index):
        return 0, 0, 0
    divided, replicated = _mlp_of_width(model, moe.expert_ffn_size)
    router = moe.experts * (model.hidden_size + moe.router_bias)
    return moe.experts * divided, moe.experts * replicated, router


def _gpt2() -> ModelSpec:
    """Return GPT-2 (124M), for the examples above."""
    return ModelSpec(
        name="gpt2",
        source="example",
        layers=12,
        hidden_size=768,
        heads=12,
        ffn_size=3072,
        vocabulary=50257,
        positions="learned",
        max_positions=1024,
        activation="gelu",
        norm="layernorm",
        tied_embeddings=True,
    )
