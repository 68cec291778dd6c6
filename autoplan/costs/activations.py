"""Bytes that one layer, the head and the loss keep for backward, per candidate.

Notation (this file only)::

    h   hidden size      q, k  width of queries, of keys     f   inner width of the MLP
    a   query heads      s     tokens of a sequence          t   tensor-parallel degree
    V   vocabulary, padded

All results are bytes for one token of a microbatch on one rank, except where said. The forms are those of
Korthikanti et al. 2022 (arXiv 2205.05198) for GPT blocks, extended to gated blocks, grouped-query
attention and fused kernels, and agree with counts on real PyTorch modules to under half a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.arrays import Array, Candidates
from autoplan.schema.costmodel import BlockPolicy
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

__all__ = ["Saved", "padded_vocabulary", "saved_bytes_per_token"]


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes kept for backward for one token, arrays of shape [C].

    ``none``, ``selective`` and ``full`` are one layer's under each recompute mode; ``working`` what
    backward of one layer needs beside them; ``head`` what the output layer keeps and ``loss`` what the
    loss has alive at its worst moment.
    """

    none: Array
    selective: Array
    full: Array
    working: Array
    head: Array
    loss: Array


def saved_bytes_per_token(job: Job, candidates: Candidates) -> Saved:
    """Return what is kept for backward, for each candidate.

    Without recompute a GPT block with flash attention keeps 32h + 4a + 16 (34h with dropout), a gated
    block 8h + 2(q+2k) + 2q + 8f + 4a + 8 (6f where the activation is fused); tensor parallelism divides
    what is inside attention and MLP, sequence parallelism the rest too. Whole recompute keeps 2h.

    Leaves out: gathered buffers shared between layers; fp8 copies.
    """
    e = 4.0 if job.precision == "fp32" else 2.0
    t = candidates.tp.astype(np.float64)
    sp = candidates.sequence_parallel == 1
    whole = np.where(sp, t, 1.0)
    divided, attention = _divided(job.model, job.stack.block, job.workload.sequence_length, e)
    none = _replicated(job, e, t, sp) + (divided + attention) / t
    full = e * job.model.hidden_size / whole
    selective = _selective(job, e, t, whole, none - attention / t)
    head, loss = _head(job, t, whole)
    return Saved(
        none=none,
        selective=np.minimum(selective, none),
        full=np.minimum(full, none),
        working=_working(job.model, e, t, whole),
        head=head,
        loss=loss,
    )


def _replicated(job: Job, e: float, t: Array, sp: Array) -> Array:
    """Norm inputs, the inputs of the column-parallel products, dropout masks, statistics."""
    model, block = job.model, job.stack.block
    h = model.hidden_size
    norms = 4 if model.post_norms else 2
    shared = 1 if model.parallel_block and model.shared_block_norm else 2
    statistics = norms * (4.0 if model.norm == "rmsnorm" else 8.0)
    gathered = shared * e * h
    local = norms * e * h + statistics + (2.0 * h if _drops(model, block) else 0.0)
    kept_whole = gathered if block.gathered_inputs_kept else gathered / t
    replicated: Array = np.where(sp, local / t + kept_whole, local + gathered)
    return replicated


def _drops(model: ModelSpec, block: BlockPolicy) -> bool:
    # Gated blocks of today train without dropout, GPT blocks with it where the stack keeps masks.
    return block.dropout and not model.gated


def _divided(model: ModelSpec, block: BlockPolicy, s: int, e: float) -> tuple[float, float]:
    """Return what tensor parallelism divides: all but core attention, and core attention."""
    q, k, f = model.heads * model.head_dim, model.kv_heads * model.head_dim, model.ffn_size
    qkv = e * (q + 2 * k)
    if block.packed_qkv_kept and model.positions == "rope":
        qkv += e * (q + k)
    copies = (3 if block.fused_activation else 4) if model.gated else 2
    mlp = e * copies * f
    scores = 2 * e + 1 if _drops(model, block) else e
    attention = scores * model.heads * s if block.attention == "eager" else 4.0 * model.heads
    return qkv + e * q + mlp, attention


def _selective(job: Job, e: float, t: Array, whole: Array, without_attention: Array) -> Array:
    """What selective recompute keeps: all but core attention, or matmul outputs and the input."""
    if job.stack.block.selective == "attention":
        return without_attention
    model = job.model
    q, k = model.heads * model.head_dim, model.kv_heads * model.head_dim
    up = 2 if model.gated else 1
    outputs = e * (2 * q + 2 * k + up * model.ffn_size) + 4.0 * model.heads
    kept: Array = 3 * e * model.hidden_size / whole + outputs / t
    return kept


def _working(model: ModelSpec, e: float, t: Array, whole: Array) -> Array:
    """Gradients alive in backward of the MLP, the widest place: of its inner tensors and its input."""
    inner = (3 if model.gated else 2) * e * model.ffn_size / t
    working: Array = inner + 2 * e * model.hidden_size / whole
    return working


def padded_vocabulary(job: Job, tp: Array) -> Array:
    """Return the vocabulary, padded to a multiple of the stack's block times tp."""
    multiple = job.stack.rules.vocabulary_multiple * tp
    padded: Array = np.ceil(job.model.vocabulary / multiple) * multiple
    return padded


def _head(job: Job, t: Array, whole: Array) -> tuple[Array, Array]:
    """Return bytes a token that the head keeps, and the most that the loss has alive.

    Kept: softmax of the logits in fp32, norm input and head input 2 x 2h; alive at the loss's worst
    moment: kept, its gradient and that of the logits (4 + 4 + 4 bytes a logit when in fp32).
    """
    block = job.stack.block
    columns = padded_vocabulary(job, t) / (t if block.vocabulary_parallel_loss else 1.0)
    inputs = 4.0 * job.model.hidden_size / whole
    return block.logits_bytes * columns + inputs, block.logits_peak_bytes * columns + inputs
