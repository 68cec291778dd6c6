"""Weights of one device of an inference engine, by format.

Notation (this file only)::

    t  tensor-parallel degree                     k  key-value heads                  [1]
    h  hidden size                                f  inner width of an expert         [1]
    b  bits of a weight    g  weights that share a scale    s  bits of scale and zero [1]
    V  rows of the vocabulary                     L  layers                           [1]
    p  pipeline stages                            E  experts                          [1]
"""

from __future__ import annotations

from collections import Counter

from autoplan.costs.core.parameters import (
    LayerParameters,
    embedding_norm_parameters,
    embedding_parameters,
    final_norm_parameters,
    key_heads_of_layer,
    layer_parameters,
    position_parameters,
)
from autoplan.costs.core.serving.capacity import WeightBytes
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.schema.model import Biases, ModelSpec
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import UnquantizedPart
from autoplan.schema.serving.weight_formats import FORMATS, WeightFormat


def matrix_bytes(weights: float, weight_format: WeightFormat, row: int) -> float:
    """Return the bytes of ``weights`` weights of matrices whose rows have ``row`` of them [byte].

    n (b + s/g) / 8; where an output row has one scale, g is the row.

    >>> [matrix_bytes(1024 * 4096, x, 4096) / (1024 * 4096) for x in ("bf16", "nvfp4", "mxfp4", "int4-awq")]
    [2.0, 0.5625, 0.53125, 0.51953125]
    >>> matrix_bytes(1024 * 4096, "fp8", 4096) - 1024 * 4096  # one fp32 scale for each of 1,024 rows
    4096.0

    Leaves out: scales of a tensor; rows that differ in width within a layer, for which the hidden size
    stands.
    Source: vLLM 0.33.0, model_executor/layers/quantization; Open Compute Project, Microscaling Formats 1.0.
    """
    stored = FORMATS[weight_format]
    group = stored.group or row
    return weights * (stored.bits + (stored.scale_bits + stored.zero_bits) / group) / 8


def stage_weights(scope: EngineScope, stage: int) -> WeightBytes:
    """Return the weights of a device of ``stage`` [byte].

    Tensor parallelism divides matrices by t, key and value at most by k; latent down-projections, norms,
    routers and row biases are replicated. Experts are divided by all t x adp devices of a stage. Embedding
    and output projection stay in 16 bits, and where they are one table, a pipeline keeps it twice.

    >>> job = load_serving_job("llama3.1-8b-1x-h100")
    >>> rope = 131_072 * 128 * 2  # the table of rotary positions
    >>> stage_weights(EngineScope(job, EngineLayout()), 0).total - rope - 2 * 8_030_261_248
    0.0
    >>> stage_weights(EngineScope(job, EngineLayout(tp=16)), 0).attention / 32 / 2  # 2 x 4096 / 16 + 2 x 128
    3145728.0

    Leaves out: weights of drafts (drafts.py); that convolutions and scalars of heads of linear attention are
    never quantised; a table of rotary positions in fp32.
    Source: Shoeybi et al. 2019, arXiv:1909.08053; vLLM 0.33.0, model_executor/layers/linear.py, and
    attention/mla_attention.py, process_weights_after_loading, for the 16-bit copy of latent
    up-projections.
    """
    model, layers = scope.model, scope.stages[stage]
    kinds = Counter(map(model.layer_kind, layers))
    example = {model.layer_kind(index): index for index in layers}
    parts = [0.0, 0.0, 0.0, 0.0]
    for kind, count in kinds.items():
        parts = [a + count * b for a, b in zip(parts, _layer(scope, example[kind]), strict=True)]
    attention, mlp, experts, other = parts
    embeddings, vectors = _ends(scope, stage)
    return WeightBytes(attention, mlp, experts, embeddings, other + vectors + _rotary_bytes(model))


def _layer(scope: EngineScope, index: int) -> tuple[float, float, float, float]:
    """Return the bytes of a layer: attention, MLP or shared experts, routed experts, and the rest."""
    model, t = scope.model, scope.layout.tp
    bare = layer_parameters(_without_vectors(model), index)
    full = layer_parameters(model, index)
    h = model.hidden_size
    dense: UnquantizedPart = "shared_experts" if model.is_moe_layer(index) else "dense_mlp"
    key_heads = key_heads_of_layer(model, index)
    attention = matrix_bytes(_attention_weights(bare, t, key_heads), scope.format_of("attention"), h)
    if model.mla is not None and FORMATS[scope.format_of("attention")].bits < 16:
        attention += 2 * bare.key_value / t
    mlp = matrix_bytes(bare.mlp_divided / t + bare.mlp_replicated, scope.format_of(dense), h)
    experts = matrix_bytes(_expert_weights(scope, bare), scope.format_of("experts"), h)
    return attention, mlp, experts, 2.0 * _vectors(full, bare, scope.layout)


def _attention_weights(bare: LayerParameters, t: int, key_heads: int) -> float:
    heads = bare.key_value / min(t, key_heads)
    return (bare.query + bare.attention_output) / t + heads + bare.attention_replicated


def _expert_weights(scope: EngineScope, bare: LayerParameters) -> float:
    """Return the weights of a device's experts, padded where the format's kernels pad."""
    moe, layout = scope.model.moe, scope.layout
    if moe is None or not bare.experts:
        return 0.0
    weights = bare.experts / (layout.ep * layout.expert_tensor)
    if scope.format_of("experts") != "mxfp4":
        return weights
    padding = scope.facts.padding
    h, f = scope.model.hidden_size, moe.expert_ffn_size / layout.expert_tensor
    wide, deep = _rounded(h, padding.mxfp4_hidden.value), _rounded(f, padding.mxfp4_ffn.value)
    return weights * (wide * deep) / (h * f)


def _vectors(full: LayerParameters, bare: LayerParameters, layout: EngineLayout) -> float:
    """Return the biases, norms and routers of a layer on one device."""
    divided = (full.tensor_parallel - bare.tensor_parallel) / layout.tp
    replicated = full.replicated - bare.attention_replicated - bare.mlp_replicated
    experts = (full.experts - bare.experts) / (layout.ep * layout.expert_tensor)
    return divided + replicated + experts + full.experts_replicated / layout.ep


def _without_vectors(model: ModelSpec) -> ModelSpec:
    """Return ``model`` with its matrices alone; its norms and routers stay, in separate fields."""
    return model.model_copy(update={"bias": Biases(), "qk_norm": False, "attention_sinks": False})


def _ends(scope: EngineScope, stage: int) -> tuple[float, float]:
    """Return the bytes of embedding and output projection on a stage, and of their vectors."""
    model, layout = scope.model, scope.layout
    multiple = scope.facts.padding.vocabulary.value
    rows = _rounded(_rounded(model.vocabulary, multiple), layout.tp) / model.vocabulary
    table = 2.0 * embedding_parameters(model) * rows / layout.tp
    first, last = stage == 0, stage == layout.pp - 1
    shared = model.tied_embeddings and first
    tables = table * first + (0.0 if shared else table * last)
    vectors = float(first * (position_parameters(model) + embedding_norm_parameters(model)))
    vectors += last * (final_norm_parameters(model) + model.bias.head * model.vocabulary / layout.tp)
    return tables, 2.0 * vectors


def _rotary_bytes(model: ModelSpec) -> float:
    """Return the bytes of the table of rotary positions: a cosine and a sine for each pair, in 16 bits."""
    if model.positions != "rope" or model.max_positions is None:
        return 0.0
    width = model.head_dim if model.mla is None else model.mla.qk_rope_head_dim
    return 2.0 * model.max_positions * width


def _rounded(size: float, multiple: int) -> int:
    """Return the least multiple that is no smaller than ``size``."""
    return int(-(-size // multiple)) * multiple
