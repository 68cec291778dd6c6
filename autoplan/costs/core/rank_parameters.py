"""Parameters on one rank before sharding over the data axis, part by part.

Notation (this file only)::

    h  hidden size              V  vocabulary, padded        t  tensor-parallel degree      [1]
    q, k  width of queries, of keys                          f  inner width of the MLP      [1]
    b  multiple to which the vocabulary is padded            r  rank of an adapter          [1]
    n, m  inputs and outputs of a GEMM with an adapter                                      [1]

Counts, not bytes. Arrays have one row a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column
from autoplan.costs.core.parameters import (
    embedding_norm_parameters,
    final_norm_parameters,
    key_heads_of_layer,
    layer_kinds,
    layer_parameters,
    moe_layer_share,
    position_parameters,
)
from autoplan.costs.core.sizes import attention_widths
from autoplan.schema.adapters import ATTENTION_MODULES, MLP_MODULES, TargetModule
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one part of the model on one rank, of shape [C, 1].

    Of ``total``, ``trained`` have gradients, and of these ``trained_vectors`` are replicated over the tensor
    axis (norms, row biases). ``largest`` is the largest tensor with a gradient, ``gradient_excess`` the
    elements of unsharded gradient storages beyond ``trained``; ``experts`` of ``total`` are in routed
    experts, ``quantized`` in matrices of a frozen base that is in 4 or 8 bits.
    """

    total: Array
    trained: Array
    trained_vectors: Array
    largest: Array
    gradient_excess: Array
    experts: Array
    quantized: Array


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of a layer, of the embedding and of the head on one rank; ``table`` is V h / t."""

    layer: Part
    embedding: Part
    head: Part
    table: Array
    tied: bool


def padded_vocabulary(job: Job, tp: Array) -> Array:
    """Return the padded vocabulary V [1]: the next multiple of b t, ceil(v / bt) bt.

    >>> padded_vocabulary(job, np.array([1.0, 8.0])).tolist()  # 1,002 x 128 without padding, and 126 x 1,024
    [128256.0, 129024.0]

    Leaves out: a multiple that a user sets (--make-vocab-size-divisible-by).
    Source: Megatron-LM, megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    multiple = job.stack.rules.make_vocab_size_divisible_by * tp
    padded: Array = np.ceil(job.model.vocabulary / multiple) * multiple
    return padded


def weights_of(job: Job, candidates: Candidates) -> Weights:
    """Return the parameters of one rank [1], shape [C, 1].

    Tensor parallelism divides matrices by t. With t above the number of key-value heads, every rank has one,
    which neighbours replicate. Norms and row biases are replicated.

    >>> weights = weights_of(job, candidate("tp=2"))
    >>> float(weights.layer.total[0, 0])  # (218,112,000 - 8,192) / 2 + 8,192
    109060096.0
    >>> float(weights.head.total[0, 0])  # 128,256 x 4,096 / 2 + 4,096
    262672384.0

    Leaves out: padding of rows that the number of ranks does not divide; differences between layer types: a
    layer is the average of the model's.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; counted on real PyTorch modules,
    benchmarks/memory.
    """
    model, t = job.model, column(candidates.tp)
    table = column(padded_vocabulary(job, candidates.tp.astype(np.float64))) * model.hidden_size / t
    replicated = position_parameters(model) + embedding_norm_parameters(model)
    # With a pipeline, tied embeddings have a replica on the last stage.
    tied = model.tied_embeddings and candidates.pp == 1
    output = np.zeros_like(table) if tied else table
    final_norm = final_norm_parameters(model)
    frozen = job.adapters is not None
    # The gradient of a tied table is the sum of two, in a separate tensor.
    excess = 1.0 if job.stack.memory.embedding_gradient_full_vocabulary and not tied else 0.0
    return Weights(
        layer=layer_weights(job, candidates),
        embedding=_part(
            table + replicated, np.full_like(t, replicated), table, excess * table * (t - 1), frozen=frozen
        ),
        head=_part(output + final_norm, np.full_like(t, final_norm), output, np.zeros_like(t), frozen=frozen),
        table=table,
        tied=tied,
    )


def layer_weights(job: Job, candidates: Candidates) -> Part:
    """Return the parameters of a layer on one rank [1], shape [C, 1], of candidates of any depths.

    >>> float(layer_weights(job, candidate("tp=2")).total[0, 0])
    109060096.0
    """
    return _layer(job, candidates, column(candidates.tp))


def _part(total: Array, vectors: Array, largest: Array, excess: Array, *, frozen: bool) -> Part:
    zero = np.zeros_like(total)
    if frozen:
        return Part(total, zero, zero, zero, zero, zero, zero)
    return Part(total, total, vectors, largest, excess, zero, zero)


def _layer(job: Job, candidates: Candidates, t: Array) -> Part:
    model = job.model
    mean = _mean_layer(model)
    heads = _key_value(model, mean, t)
    divided = (mean("tensor_parallel") - mean("key_value")) / t + heads
    vectors = np.full_like(t, mean("replicated") - mean("router"))
    ep, etp = column(candidates.ep), column(candidates.etp)
    zero, experts = np.zeros_like(t), mean("experts") / (ep * etp) + mean("experts_replicated") / ep
    total = divided + mean("replicated") + experts
    if job.adapters is not None:
        adapters = adapter_parameters(job, t) + expert_adapter_parameters(job, candidates)
        left = _unquantized(job, experts, mean("router"))
        quantized = float(job.adapters.base is not None) * (total - vectors - left)
        return Part(total + adapters, adapters, zero, adapters, zero, experts, quantized)
    return Part(total, total, vectors, _largest(model, candidates, t), zero, experts, zero)


def _unquantized(job: Job, experts: Array, router: float) -> Array | float:
    """Return the parameters of experts and router that are in no linear module or quantised stack [1]."""
    if job.stack.experts is None or not job.stack.experts.grouped_gemm:
        return 0.0
    return router if experts_quantized(job) else experts + router


def experts_quantized(job: Job) -> bool:
    """Return whether weights of experts have the format of a frozen base, too.

    Experts of a loop are linear modules, as all that is quantised; grouped ones are two stacked parameters,
    which the stack quantises or leaves in 16 bits.

    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), adapters=AdapterSpec(rank=8, base="nf4"))
    >>> cases = [SoftwareSpec(), SoftwareSpec(quantized_experts=True), SoftwareSpec(experts="loop")]
    >>> [experts_quantized(replace(job, stack=with_software(stack("hf-trainer"), x))) for x in cases]
    [False, True, True]

    Source: bitsandbytes-foundation/bitsandbytes #1849; axolotl, monkeypatch/moe_quant.py.
    """
    policy = job.stack.experts
    if job.adapters is None or job.adapters.base is None or policy is None:
        return False
    return policy.quantized or not policy.grouped_gemm


def expert_adapters(job: Job) -> Literal["merged", "split"] | None:
    """Return how the stack of ``job`` runs adapters of stacked experts; None where these have none.

    >>> adapters = AdapterSpec(rank=8, targets="attention", experts=True)
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), adapters=adapters)
    >>> [expert_adapters(replace(job, stack=stack(name))) for name in ("hf-trainer", "unsloth")]
    ['merged', 'split']
    """
    adapters, policy = job.adapters, job.stack.fine_tuning
    if adapters is None or not adapters.experts or job.model.moe is None or policy is None:
        return None
    return policy.expert_adapters


def expert_adapter_parameters(job: Job, candidates: Candidates) -> Array:
    """Return the parameters of the experts' adapters in the average layer on one rank [1], shape [C, 1].

    r E (h + g f) + r E (f + h): two matrices of each of E experts at the stack of gate and up (g = 2, or 1
    without a gate), and at that of down.

    >>> adapters = AdapterSpec(rank=16, targets="attention", experts=True)
    >>> job = replace(load_job("mixtral-8x7b-8x-h200"), adapters=adapters)
    >>> float(expert_adapter_parameters(job, candidate("dp=8"))[0, 0]), 16 * 8 * (2 * 4096 + 3 * 14336)
    (6553600.0, 6553600)

    Source: huggingface/peft, tuners/lora/layer.py, ParamWrapper.update_layer.
    """
    moe, adapters, model = job.model.moe, job.adapters, job.model
    if moe is None or adapters is None or not adapters.experts:
        return np.zeros((len(candidates), 1))
    inner = moe.expert_ffn_size / column(candidates.etp)
    widths = 2.0 * model.hidden_size + (3.0 if model.gated else 2.0) * inner
    experts = moe_layer_share(model) * moe.experts / column(candidates.ep)
    parameters: Array = adapters.rank * experts * widths
    return parameters


def _mean_layer(model: ModelSpec) -> Callable[[str], float]:
    """Return what gives a part's parameters in the average layer."""
    if model.linear_attention is not None:
        return _mean_of_kinds(model)
    layers = range(model.layers)
    first = {moe: next((i for i in layers if model.is_moe_layer(i) == moe), 0) for moe in (False, True)}
    dense, sparse = (layer_parameters(model, first[moe]) for moe in (False, True))
    share = moe_layer_share(model)

    def mean(name: str) -> float:
        return float(share * getattr(sparse, name) + (1.0 - share) * getattr(dense, name))

    return mean


def _mean_of_kinds(model: ModelSpec) -> Callable[[str], float]:
    """Return the same for a model in which layers differ in attention."""
    kinds = [(layer_parameters(model, index), number) for index, number in layer_kinds(model)]
    return lambda name: sum(number * getattr(part, name) for part, number in kinds) / model.layers


def _key_value(model: ModelSpec, mean: Callable[[str], float], t: Array) -> Array:
    """Return the parameters of keys and values of the average layer on one rank, at least of one head [1]."""
    if model.linear_attention is None:
        return np.asarray(mean("key_value") / np.minimum(t, model.kv_heads))
    parts = (
        number * layer_parameters(model, index).key_value / np.minimum(t, key_heads_of_layer(model, index))
        for index, number in layer_kinds(model)
    )
    return np.asarray(sum(parts, np.zeros_like(t)) / model.layers)


def _largest(model: ModelSpec, candidates: Candidates, t: Array) -> Array:
    """Return the largest weight of a layer: h f / t of the MLP, or all experts of a rank as one tensor."""
    moe = model.moe
    dense = max(_widest_projection(model), model.ffn_size if moe_layer_share(model) < 1 else 0)
    if moe is None:
        return model.hidden_size * dense / t
    experts = moe.experts * moe.expert_ffn_size / column(candidates.ep * candidates.etp)
    largest: Array = model.hidden_size * np.maximum(experts, dense / t)
    return largest


def _widest_projection(model: ModelSpec) -> int:
    """Return the width of the largest matrix of attention [1]."""
    queries = model.heads * model.head_dim * (2 if model.attention_output_gate else 1)
    return queries if model.linear_attention is None else max(queries, model.linear_attention.projected)


def adapter_extents(
    job: Job, t: Array, modules: Collection[TargetModule] = (*ATTENTION_MODULES, *MLP_MODULES)
) -> list[tuple[Array, Array]]:
    """Return n and m of the GEMMs among ``modules`` that have an adapter (LoRA), on one rank [1].

    Experts, which are stacked parameters and no linear modules, are counted apart. Latent attention has
    adapters at all of its GEMMs wherever attention has some; linear attention, of a job with layers of this
    type alone, where all linear modules have.

    >>> adapters = AdapterSpec(rank=16, targets=("k_proj", "down_proj"))
    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=adapters)
    >>> [(float(n[0]), float(m[0])) for n, m in adapter_extents(job, np.ones(1))]
    [(4096.0, 1024.0), (14336.0, 4096.0)]

    Leaves out: adapters of the embedding and the head.
    """
    if job.adapters is None:
        return []
    model = job.model
    chosen = [name for name in job.adapters.modules if name in modules]
    h, f = np.full_like(t, float(model.hidden_size)), model.ffn_size / t
    mlp = {"gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}
    if model.moe is not None:
        mlp = {}
    of_mlp = [mlp[name] for name in chosen if name in mlp and (model.gated or name != "gate_proj")]
    if model.mla is None and model.linear_attention is None:
        attention = _attention_extents(model, t)
        return [*(attention[name] for name in chosen if name in attention), *of_mlp]
    whole = job.adapters.targets == "all" or model.mla is not None
    if not whole or not set(chosen) & set(ATTENTION_MODULES):
        return of_mlp
    return [*(_latent_extents(model, t) if model.mla is not None else _linear_extents(model, t)), *of_mlp]


def _attention_extents(model: ModelSpec, t: Array) -> dict[TargetModule, tuple[Array, Array]]:
    """Return inputs and outputs of the GEMMs of softmax attention; an output gate is beside the queries."""
    h, (q, k) = np.full_like(t, float(model.hidden_size)), attention_widths(model, t)
    queries = (2.0 if model.attention_output_gate else 1.0) * q
    return {"q_proj": (h, queries), "k_proj": (h, k), "v_proj": (h, k), "o_proj": (q, h)}


def _latent_extents(model: ModelSpec, t: Array) -> list[tuple[Array, Array]]:
    """Return the same of multi-head latent attention, whose down-projections are replicated."""
    mla = model.mla
    if mla is None:
        return []
    one, a = np.ones_like(t), model.heads / t
    h, latent = model.hidden_size * one, float(mla.kv_lora_rank) * one
    queries, inner = a * model.head_dim, a * mla.v_head_dim
    low = h if mla.q_lora_rank is None else float(mla.q_lora_rank) * one
    down = [] if mla.q_lora_rank is None else [(h, low)]
    keys = (latent, a * (mla.qk_nope_head_dim + mla.v_head_dim))
    return [*down, (low, queries), (h, latent + mla.qk_rope_head_dim), keys, (inner, h)]


def _linear_extents(model: ModelSpec, t: Array) -> list[tuple[Array, Array]]:
    """Return the same of linear attention: its projections and its output."""
    linear = model.linear_attention
    if linear is None:
        return []
    h = np.full_like(t, float(model.hidden_size))
    return [*((h, width / t) for width in linear.projections), (linear.values / t, h)]


def adapter_parameters(job: Job, t: Array) -> Array:
    """Return the parameters of a layer's low-rank adapters (LoRA) on one rank [1], shape as ``t``.

    r(n + m) for a target of n inputs and m outputs; tensor parallelism shards the same side of the adapter as
    of the target. DoRA adds a magnitude for each output, m. Of the average layer, where some have linear
    attention.

    >>> both = [AdapterSpec(rank=16, targets="attention", dora=x) for x in (False, True)]
    >>> lora, dora = (float(adapter_parameters(replace(job, adapters=x), np.ones(1))[0]) for x in both)
    >>> lora, dora - lora  # 16 (2 (4096 + 4096) + 2 (4096 + 1024)), and 2 (4096 + 1024)
    (425984.0, 10240.0)

    Leaves out: adapters of the embedding and the head; those of experts.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; Liu et al. 2024 (DoRA), arXiv:2402.09353.
    """
    adapters, model = job.adapters, job.model
    if adapters is None:
        return np.zeros_like(t)
    total = np.zeros_like(t)
    for index, number in layer_kinds(model):
        linear = model.linear_attention if model.is_linear_layer(index) else None
        of_kind = replace(job, model=model.model_copy(update={"linear_attention": linear}))
        for n, m in adapter_extents(of_kind, t):
            total = total + number * (adapters.rank * (n + m) + adapters.dora * m)
    return total / model.layers
