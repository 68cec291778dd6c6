"""Parameters that one rank holds before any sharding over the data axis, part by part.

Notation (this file only)::

    h  hidden size              V  vocabulary, padded        t  tensor-parallel degree      [1]
    q, k  width of queries, of keys                          f  inner width of the MLP      [1]
    b  block that a stack pads the vocabulary to             r  rank of an adapter          [1]

Counts, not bytes. Arrays have one row a candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, column
from autoplan.costs.core.parameters import (
    embedding_norm_parameters,
    expert_share,
    final_norm_parameters,
    layer_parameters,
    position_parameters,
)
from autoplan.costs.core.sizes import attention_widths
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

__all__ = ["Part", "Weights", "adapter_parameters", "padded_vocabulary", "weights_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one part of the model on one rank, each of shape [C, 1].

    Of ``total``, ``trained`` change, and of these ``trained_vectors`` are whole on every rank of the tensor
    axis (norms, row biases). ``largest`` is the largest single tensor whose gradient is computed,
    ``gradient_excess`` what storages of whole gradients hold beyond ``trained``; ``experts`` are those of
    ``total`` that routed experts hold.
    """

    total: Array
    trained: Array
    trained_vectors: Array
    largest: Array
    gradient_excess: Array
    experts: Array


@dataclass(frozen=True, slots=True)
class Weights:
    """A layer, what stands before the layers and what stands behind them; ``table`` is V h / t."""

    layer: Part
    embedding: Part
    head: Part
    table: Array
    tied: bool


def padded_vocabulary(job: Job, tp: Array) -> Array:
    """Return V [1]: the vocabulary, padded to a multiple of the stack's block times t, ceil(v / bt) bt.

    >>> from autoplan.catalog import load_job
    >>> job = load_job("llama3-8b-8x-a100")
    >>> padded_vocabulary(job, np.array([1.0, 8.0])).tolist()  # 1,002 x 128 as it is, and 126 x 1,024
    [128256.0, 129024.0]

    Leaves out: a multiple that a user sets by hand.
    Source: Megatron-LM, megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    multiple = job.stack.rules.vocabulary_multiple * tp
    padded: Array = np.ceil(job.model.vocabulary / multiple) * multiple
    return padded


def weights_of(job: Job, candidates: Candidates) -> Weights:
    """Return the parameters of one rank [1], shape [C, 1].

    Tensor parallelism divides matrices by t; key and value heads only as far as there are any: with t
    above their number each rank holds one, a copy of its neighbour's. Norms and row biases are whole.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> weights = weights_of(load_job("llama3-8b-8x-a100"), one)
    >>> float(weights.layer.total[0, 0])  # (218,112,000 - 8,192) / 2 + 8,192
    109060096.0
    >>> float(weights.head.total[0, 0])  # 128,256 x 4,096 / 2 + 4,096
    262672384.0

    Leaves out: padding of rows where a number of ranks does not divide them; how layers of several kinds
    differ: it is given one kind at a time, or averages.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; counted on real PyTorch modules,
    benchmarks/memory.
    """
    model, t = job.model, column(candidates.tp)
    table = column(padded_vocabulary(job, candidates.tp.astype(np.float64))) * model.hidden_size / t
    before = position_parameters(model) + embedding_norm_parameters(model)
    # Tied embeddings on a pipeline are a copy on the last stage, kept equal.
    tied = model.tied_embeddings and candidates.pp == 1
    own = np.zeros_like(table) if tied else table
    after = final_norm_parameters(model)
    frozen = job.adapters is not None
    # A tied table's gradient is a sum, and a tensor of its own.
    excess = 1.0 if job.stack.memory.embedding_gradient_whole and not tied else 0.0
    return Weights(
        layer=_layer(job, candidates, t),
        embedding=_part(
            table + before, np.full_like(t, before), table, excess * table * (t - 1), frozen=frozen
        ),
        head=_part(own + after, np.full_like(t, after), own, np.zeros_like(t), frozen=frozen),
        table=table,
        tied=tied,
    )


def _part(total: Array, vectors: Array, largest: Array, excess: Array, *, frozen: bool) -> Part:
    zero = np.zeros_like(total)
    if frozen:
        return Part(total, zero, zero, zero, zero, zero)
    return Part(total, total, vectors, largest, excess, zero)


def _layer(job: Job, candidates: Candidates, t: Array) -> Part:
    model = job.model
    mean = _mean_layer(model)
    heads = mean("key_value") / np.minimum(t, model.kv_heads)
    divided = (mean("tensor_parallel") - mean("key_value")) / t + heads
    vectors = np.full_like(t, mean("replicated") - mean("router"))
    ep, etp = column(candidates.ep), column(candidates.etp)
    zero, experts = np.zeros_like(t), mean("experts") / (ep * etp) + mean("experts_replicated") / ep
    total = divided + mean("replicated") + experts
    if job.adapters is not None:
        adapters = adapter_parameters(job, t)
        return Part(total + adapters, adapters, zero, adapters, zero, experts)
    return Part(total, total, vectors, _largest(model, candidates, t), zero, experts)


def _mean_layer(model: ModelSpec) -> Callable[[str], float]:
    """Return what gives a part's parameters in the average layer."""
    layers = range(model.layers)
    kinds = {kind: next((i for i in layers if model.is_moe_layer(i) == kind), 0) for kind in (False, True)}
    dense, sparse = (layer_parameters(model, kinds[kind]) for kind in (False, True))
    share = expert_share(model)

    def mean(name: str) -> float:
        return float(share * getattr(sparse, name) + (1.0 - share) * getattr(dense, name))

    return mean


def _largest(model: ModelSpec, candidates: Candidates, t: Array) -> Array:
    """The largest weight of a layer: h f / t of the MLP, of all experts of a rank as one tensor."""
    moe = model.moe
    others = max(model.heads * model.head_dim, model.ffn_size if expert_share(model) < 1 else 0)
    if moe is None:
        return model.hidden_size * others / t
    experts = moe.experts * moe.expert_ffn_size / column(candidates.ep * candidates.etp)
    largest: Array = model.hidden_size * np.maximum(experts, others / t)
    return largest


def adapter_parameters(job: Job, t: Array) -> Array:
    """Return the trained parameters of a layer's low-rank adapters on one rank [1], shape as ``t``.

    Two matrices a target of n inputs and m outputs, r(n + m); the side that tensor parallelism splits
    in the target is split in the adapter.

    >>> from autoplan.catalog import load_job
    >>> from dataclasses import replace
    >>> from autoplan.schema.job import AdapterSpec
    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=16, targets="attention"))
    >>> float(adapter_parameters(job, np.ones(1))[0])  # 16 (2 (4096 + 4096) + 2 (4096 + 1024))
    425984.0

    Leaves out: adapters on the embedding, the head and on experts.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """
    adapters, model = job.adapters, job.model
    if adapters is None:
        return np.zeros_like(t)
    h, (q, k) = model.hidden_size, attention_widths(model, t)
    count = (h + q) + 2 * (h + k) + (q + h)
    if adapters.targets == "all":
        up = 2 if model.gated else 1
        count = count + (up + 1) * (h + model.ffn_size / t)
    parameters: Array = adapters.rank * count
    return parameters
