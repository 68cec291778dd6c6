"""Which collectives a step has, on which axis and of how many bytes.

Notation (this file only)::

    A  bytes of one activation, e T h                                                            [byte]
    T  tokens of a microbatch     h  hidden size                 V  vocabulary, padded              [1]
    n  parameters on one rank     m  microbatches of a step      l  layers of a stage               [1]
    c, r  bytes of a parameter's gathered copy, of its gradient being reduced                    [byte]

Bytes are of the full tensor: what is gathered, reduced, or not yet scattered. A ring of g ranks sends
(g-1)/g of that for all-gather and reduce-scatter, twice as much for all-reduce. Prices are in ``block`` and
``step``, which count calls with the functions of this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from autoplan.costs.activations import element_bytes
from autoplan.costs.arrays import Array, Candidates, column, flag
from autoplan.costs.collectives import Operation
from autoplan.costs.latent import latent_gathers
from autoplan.costs.mesh import replica_group
from autoplan.costs.parameters import expert_share
from autoplan.costs.scope import Scope
from autoplan.schema.job import Job

__all__ = ["OPERATIONS", "Calls", "TensorCalls", "loss_bytes", "stage_traffic", "tensor_calls"]

OPERATIONS: Final[tuple[Operation, ...]] = ("all_gather", "reduce_scatter", "all_reduce")

#: Numbers that a loss on split logits reduces for each token: maximum, label's logit, sum; in fp32.
_LOSS_BYTES = 3 * 4


@dataclass(frozen=True, slots=True)
class Calls:
    """Collectives over [T, h], arrays of shape [C]; ``regathers`` run beside the product they are for."""

    all_gather: Array
    reduce_scatter: Array
    all_reduce: Array
    regathers: Array

    @staticmethod
    def of(
        candidates: Candidates, gathers: float, scatters: float, reduces: float, again: float = 0.0
    ) -> Calls:
        """Return gathers and scatters where sequences are split, reduces where tensors only are [1].

        >>> from autoplan.schema.layout import parse_layout
        >>> three = [parse_layout(text, layers=32, devices=8) for text in ("tp=2", "tp=2,sp=off", "tp=1")]
        >>> calls = Calls.of(Candidates.of(three), 2, 2, 2)
        >>> calls.all_gather.tolist(), calls.all_reduce.tolist()
        ([2.0, 0.0, 0.0], [0.0, 2.0, 0.0])

        Leaves out: other ways to split activations.
        Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.
        """
        tensor = candidates.tp > 1
        split = np.where(tensor & (candidates.sequence_parallel == 1), 1.0, 0.0)
        plain = np.where(tensor & (candidates.sequence_parallel == 0), 1.0, 0.0)
        return Calls(gathers * split, scatters * split, reduces * plain, again * split)

    @property
    def number(self) -> Array:
        """All of them [1].

        >>> one = np.ones(2)
        >>> Calls(2 * one, 2 * one, 0 * one, one).number.tolist()
        [5.0, 5.0]

        Leaves out: how long each takes. Source: a sum.
        """
        number: Array = self.all_gather + self.reduce_scatter + self.all_reduce + self.regathers
        return number


@dataclass(frozen=True, slots=True)
class TensorCalls:
    """Tensor-parallel collectives of a layer (``again``: of its recompute), and outside layers."""

    forward: Calls
    backward: Calls
    again: Calls
    embedding_forward: Calls
    embedding_backward: Calls
    head_forward: Calls
    head_backward: Calls


def tensor_calls(job: Job, candidates: Candidates) -> TensorCalls:
    """Return the tensor-parallel collectives of one microbatch over [T, h] [1], each of shape [C].

    Each half of a layer reduces its output forward and the gradient of its input backward: an all-reduce,
    or with sequence parallelism a reduce-scatter and an all-gather. A stack that does not keep gathered
    inputs gathers them again for the weight gradients. Of latent attention only the latents are gathered, and
    routed experts have their own exchange. The embedding reduces its rows forward, the output
    layer its input's gradient backward.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> backward = tensor_calls(load_job("llama3-8b-8x-a100"), one).backward
    >>> [float(count[0]) for count in (backward.all_gather, backward.reduce_scatter, backward.regathers)]
    [2.0, 2.0, 2.0]

    Leaves out: dropout's random state.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2; counted on real PyTorch modules,
    benchmarks/memory.
    """
    block, halves = job.stack.block, 1 if job.model.parallel_block else 2
    regathered = 0 if block.gathered_inputs_kept else 1
    apart = _column_products(job) if block.products_reduced_apart else halves
    last = 1 if block.checkpoint_stops_early else 0

    # Rows of routed experts are exchanged on axes of their own, see ``experts``.
    mlp = 1.0 - expert_share(job.model) * (1.0 if _routed_only(job) else 0.0)
    scatters = 1.0 if job.model.parallel_block else 1.0 + mlp
    gathers = scatters - 1.0 + latent_gathers(job.model)

    def calls(*counts: float) -> Calls:
        return Calls.of(candidates, *counts)

    return TensorCalls(
        forward=calls(gathers, scatters, halves),
        backward=calls(scatters, gathers, apart, regathered * gathers),
        again=calls(gathers, scatters - last, halves - last),
        embedding_forward=calls(0, 1, 1),
        embedding_backward=calls(1, 0, 0),
        head_forward=calls(1, 0, 0),
        head_backward=calls(0, 1, 1, regathered),
    )


def _routed_only(job: Job) -> bool:
    moe = job.model.moe
    return moe is not None and moe.shared_expert_ffn_size == 0


def _column_products(job: Job) -> int:
    """Return the products of a layer that are split along their outputs: qkv as one or three, up, gate."""
    packed = job.stack.block.packed_qkv or job.stack.block.packed_qkv_kept
    return (1 if packed else 3) + (2 if job.model.gated else 1)


def loss_bytes(scope: Scope) -> tuple[Array, Array]:
    """Return what the loss reduces and gathers over the tensor axis [byte], each of shape [C, 1].

    A loss on split logits reduces 12 T; one on whole logits gathers e T V.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> [float(x[0, 0]) for x in loss_bytes(scope_of(load_job("llama3-8b-8x-a100"), one))]  # 12 x 8,192
    [98304.0, 0.0]

    Leaves out: label smoothing.
    Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py, which reduces three fp32 a token.
    """
    tensor = column(scope.candidates.tp > 1)
    if scope.job.stack.block.vocabulary_parallel_loss:
        return _LOSS_BYTES * scope.tokens * tensor, np.zeros_like(tensor)
    width = scope.weights.table * column(scope.candidates.tp) / scope.job.model.hidden_size
    return np.zeros_like(tensor), element_bytes(scope.job) * scope.tokens * width * tensor


def stage_traffic(scope: Scope, layers: Array, selective: Array, full: Array) -> dict[str, Array]:
    """Return full tensors of a step by operation [byte], on one rank of each stage, shape [C, p].

    m A for each call of ``tensor_calls``, c n and r n on the data axis.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> found = stage_traffic(scope_of(load_job("llama3-8b-8x-a100"), one), 32.0, 0.0, 0.0)
    >>> float(found["reduce_scatter"][0, 0])  # (32 x 4 + 2) calls x 128 x 2 x 8,192 x 4,096
    1116691496960.0

    Leaves out: transfers between stages; rows that experts exchange; scalars such as the gradient norm; rows
    that padding adds; which kinds of layers a stage holds, where there are several: it has average ones.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2; Rajbhandari et al. 2020,
    arXiv:1910.02054, section 7; counted on real PyTorch modules, benchmarks/memory.
    """
    tensor, data = _tensor_bytes(scope, layers, selective, full), _data_bytes(scope, layers)
    return {name: tensor[name] + data[name] for name in OPERATIONS}


def _tensor_bytes(scope: Scope, layers: Array, selective: Array, full: Array) -> dict[str, Array]:
    job = scope.job
    calls = tensor_calls(job, scope.candidates)
    size = element_bytes(job) * scope.tokens * job.model.hidden_size * scope.microbatches
    rerun = full + (0.0 if job.stack.block.selective == "attention" else selective)
    weighted = (
        (layers, calls.forward),
        (layers, calls.backward),
        (rerun, calls.again),
        (scope.first, calls.embedding_forward),
        (scope.first, calls.embedding_backward),
        (scope.last, calls.head_forward),
        (scope.last, calls.head_backward),
    )
    reduced, gathered = (scope.microbatches * x for x in loss_bytes(scope))
    found: dict[str, Array] = {
        name: size * sum(n * column(getattr(c, name)) for n, c in weighted) for name in OPERATIONS
    }
    found["all_gather"] = found["all_gather"] + size * sum(n * column(c.regathers) for n, c in weighted)
    found["all_gather"] = found["all_gather"] + scope.last * gathered
    found["all_reduce"] = found["all_reduce"] + scope.last * reduced + _norm_bytes(scope, layers)
    return found


def _norm_bytes(scope: Scope, layers: Array) -> Array:
    """Gradients of norms, which each rank of a split sequence has a part of."""
    job, parts = scope.job, scope.weights
    if not job.stack.block.norm_gradients_reduced:
        return 0.0 * layers
    split = column((scope.candidates.tp > 1) & (scope.candidates.sequence_parallel == 1))
    vectors = layers * parts.layer.trained_vectors + scope.last * parts.head.trained_vectors
    vectors = vectors * np.where(scope.parameters_sharded > 0, scope.microbatches, 1.0)
    return split * element_bytes(job) * vectors


def _data_bytes(scope: Scope, layers: Array) -> dict[str, Array]:
    """Gathers of parameters and reductions of gradients over the data axis.

    Sharded parameters are gathered every microbatch, under ZeRO-3 again in backward but for the output
    layer's, which is still there; their gradients are reduced every microbatch. Otherwise gradients are
    reduced once a step (ZeRO-2 without local accumulation: every microbatch), and under ZeRO-1 and 2 the
    updated parameters gathered once. Copies of shared state reduce their shares on top.
    """
    job, parts, m = scope.job, scope.weights, scope.microbatches
    c, r = job.stack.memory.gathered_bytes, job.stack.overlap.gradient_bytes
    head, some = scope.last * parts.head.total, scope.candidates
    # Experts that a rank holds alone, or shares with none, are not gathered, scattered or reduced.
    alone, unshared = 1.0 - column(some.edp > 1), 1.0 - column(some.expert_shard > 1)
    padded = scope.padded(parts.layer) - unshared * scope.padding * parts.layer.experts
    total = layers * padded + scope.first * parts.embedding.total + head
    part = parts.layer.trained / parts.layer.total
    outside = scope.first * parts.embedding.trained + scope.last * parts.head.trained
    trained = layers * part * padded + outside
    experts = layers * part * scope.padding * parts.layer.experts
    reduced = trained + (unshared - alone) * experts
    # What a rank keeps of them is reduced over the copies.
    kept = (trained - (1.0 - unshared) * experts) / scope.shards
    kept = kept + (1.0 - alone) * experts / column(some.expert_shard)
    several, sharded = flag(scope.shards > 1), scope.parameters_sharded
    twice = sharded * column(some.zero == 3)
    still_there = np.zeros_like(total) if parts.tied else head
    gathers = m * c * (sharded * total + twice * (total - still_there))
    each = np.where((sharded > 0) | ((scope.zero == 2) & (scope.gradients_sharded > 0)), m, 1.0)
    whole = m if job.stack.overlap.every_microbatch else np.ones_like(m)
    updated = several * (1 - sharded) * column(some.zero >= 1)
    scattered = several * column(some.zero >= 1)
    scattered = scattered * float(not job.stack.overlap.reduces_whole)
    copies = flag(replica_group(some).ranks > 1)
    return {
        "all_gather": gathers + updated * c * trained,
        "reduce_scatter": scattered * each * r * trained,
        "all_reduce": several * (1 - scattered) * r * reduced * whole + copies * scattered * each * r * kept,
    }
