"""Bytes that one layer and the head keep for backward, per candidate.

Notation (this file only)::

    h   hidden size      q, k  width of queries, of keys     f   inner width of the MLP      [1]
    a   query heads      s     tokens of a sequence          t   tensor-parallel degree      [1]
    V   vocabulary, padded                                                                    [1]
    e   bytes of an element: 2, or 4 in fp32                                              [byte]

All results are bytes for one token of a microbatch on one rank, except where said. The forms are those of
Korthikanti et al. 2022 (arXiv 2205.05198) for GPT blocks, extended to gated blocks, grouped-query
attention, experts and fused kernels, and agree with counts on real PyTorch modules to under half a byte (with
experts, to under five).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates, flag
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.rank_parameters import padded_vocabulary
from autoplan.costs.core.sizes import attention_widths, dropout_masks, element_bytes, sequence_split
from autoplan.costs.layer.alternate_recompute import alternate_bytes
from autoplan.costs.layer.mla import latent_saved
from autoplan.costs.layer.moe import expert_saved
from autoplan.schema.job import Job
from autoplan.schema.precision import EIGHT_BITS

__all__ = ["Saved", "input_bytes", "logit_columns", "product_input", "saved_bytes_per_token"]


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes kept for backward for one token, arrays of shape [C].

    ``none``, ``selective`` and ``full`` are one layer's under each recompute mode; ``mlp`` is the part of
    ``none`` that is free again when backward reaches attention. ``entry`` is the input of a stage's first
    layer, ``embedding_mask`` its dropout mask, ``head_inputs`` what the output layer keeps beside logits.
    """

    none: Array
    selective: Array
    full: Array
    mlp: Array
    entry: Array
    embedding_mask: Array
    head_inputs: Array


def logit_columns(job: Job, candidates: Candidates) -> Array:
    """Return the logits of a token that a rank's loss works on [1]: V, or V / t where the loss is split.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> float(logit_columns(load_job("llama3-8b-8x-a100"), one)[0])  # 129,024 / 8, padded from 128,256
    16128.0

    Leaves out: losses that work on a few tokens at a time and never have all logits.
    Source: Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py.
    """
    t = candidates.tp.astype(np.float64)
    columns: Array = padded_vocabulary(job, t)
    return columns / t if job.stack.block.vocabulary_parallel_loss else columns


def saved_bytes_per_token(job: Job, candidates: Candidates) -> Saved:
    """Return what is kept for backward, for each candidate [byte], of one token, shape [C].

    Without recompute a GPT block with flash attention keeps 32h + 4a + 16 (34h with dropout), a gated
    block 8h + 2(q+2k) + 2q + 8f + 4a + 8 (6f where the activation is fused); tensor parallelism divides
    what is inside attention and MLP (keys only by their number of heads), sequence parallelism the rest
    too. Whole recompute keeps 2h, shared by the layers of one checkpoint.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.schema.layout import parse_layout
    >>> job = load_job("llama3-8b-8x-a100")
    >>> one = Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> saved = saved_bytes_per_token(job, one)
    >>> float(saved.none[0])  # Megatron: (8h + 2(q+2k) + 2(q+k) + 2q + 6f + 4a + 8) / 8
    18705.0
    >>> float(saved.full[0])  # 2h / 8
    1024.0

    Leaves out: buffers that a stack shares between layers; rotary tables; how layers of several kinds differ:
    it is given one kind at a time, or averages.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, sections 4 and 5; counted on real PyTorch modules,
    benchmarks/memory.
    """
    e = element_bytes(job)
    t = candidates.tp.astype(np.float64)
    whole = sequence_split(candidates)
    outside = _outside(job, e, t, whole)
    attention = _attention(job, candidates, e, t) + _given_back(job, e, candidates)
    core = _core_attention(job, e, t)
    mlp = _mlp(job, candidates, e)
    none = outside + attention + core + mlp
    full = e * job.model.hidden_size / whole / candidates.checkpoint
    selective = _selective(job, e, t, whole, none - core)
    return Saved(
        none=none,
        selective=np.minimum(selective, none),
        full=np.minimum(full, none),
        mlp=mlp + product_input(job, e, t, whole),
        entry=e * job.model.hidden_size / whole,
        embedding_mask=dropout_masks(job) * job.model.hidden_size / whole,
        head_inputs=product_input(job, e, t, whole) + _norm_copies(job, e, whole, norms=1),
    )


def _norm_copies(job: Job, e: float, whole: Array, *, norms: int) -> Array:
    """Statistics of norms, and the fp32 copies of their inputs that unfused norms keep."""
    statistics = 4.0 if job.model.norm == "rmsnorm" else 8.0
    copies = job.stack.block.norm_copy_bytes * job.model.hidden_size * (e / 2)
    return norms * (statistics + copies) / whole


def product_input(job: Job, e: float, t: Array, whole: Array) -> Array:
    """Return what a column-parallel product keeps of its input for a token [byte]: split, or gathered.

    >>> from autoplan.catalog import load_job
    >>> one, eight = np.ones(1), np.full(1, 8.0)
    >>> [float(product_input(load_job("llama3-8b-8x-a100"), 2.0, eight, x)[0]) for x in (one, eight)]
    [8192.0, 1024.0]
    """
    kept_whole = job.stack.block.gathered_inputs_kept
    width = input_bytes(job, e) * job.model.hidden_size
    split = np.where(whole > 1, 1.0 if kept_whole else t, 1.0)
    return width / split


def input_bytes(job: Job, e: float) -> float:
    """Return the bytes of an element that a product keeps of its input: one where one fp8 copy serves all.

    With scales of rows the input is cast again for the gradient of the weight, from what it was.

    >>> from autoplan.catalog import load_job
    >>> input_bytes(load_job("llama3-8b-8x-a100"), 2.0)  # bf16
    2.0

    Leaves out: scales of blocks.
    """
    return 1.0 if job.precision in EIGHT_BITS and job.stack.block.fp8_scales == "tensor" else e


def _outside(job: Job, e: float, t: Array, whole: Array) -> Array:
    """Norm inputs, the inputs of the column-parallel products, dropout masks, statistics."""
    model = job.model
    norms = 4 if model.post_norms else 2
    shared = 1 if model.parallel_block and model.shared_block_norm else 2
    local = (norms * e + 2.0 * dropout_masks(job)) * model.hidden_size / whole
    return local + _norm_copies(job, e, whole, norms=norms) + shared * product_input(job, e, t, whole)


def _attention(job: Job, candidates: Candidates, e: float, t: Array) -> Array:
    """Queries, keys, values and the output, and packed or normed copies of them."""
    model = job.model
    if model.mla is not None:
        return latent_saved(model, candidates, e, sequence_split(candidates))
    q, k = attention_widths(model, t)
    kept = e * (q + 2 * k) + e * q
    if input_bytes(job, e) < e:
        kept = kept + q
    if job.stack.block.packed_qkv_kept and model.positions == "rope":
        kept = kept + e * (q + k)
    if model.qk_norm:
        kept = kept + e * (q + k)
    if job.adapters is not None:
        kept = kept + 4 * e * job.adapters.rank
    return kept


def _given_back(job: Job, e: float, candidates: Candidates) -> Array:
    """The output that all-to-all gave back, beside the one that attention keeps."""
    context = job.stack.context
    if context is None or context.exchange != "all-to-all":
        return np.zeros(len(candidates))
    return flag(candidates.cp > 1) * e * job.model.heads * job.model.head_dim / candidates.tp


def _core_attention(job: Job, e: float, t: Array) -> Array:
    """Scores in memory, softmax and mask, or the flash kernel's one number a head."""
    if job.stack.block.attention != "eager":
        return 4.0 * job.model.heads / t
    scores = 2 * e + 1 if dropout_masks(job) else e
    return scores * job.model.heads * job.workload.sequence_length / t


def _mlp(job: Job, candidates: Candidates, e: float) -> Array:
    """The MLP's inner tensors; those of experts, and their rows in and out, by their share of layers."""
    model, t = job.model, candidates.tp.astype(np.float64)
    last = input_bytes(job, e)
    up = (2 if job.stack.block.fused_activation else 3) if model.gated else 1
    adapted = 3 * e * job.adapters.rank if job.adapters and job.adapters.targets == "all" else 0.0
    inner = e * up + last
    dense: Array = inner * model.ffn_size / t + adapted
    if model.moe is None:
        return dense
    share = expert_share(model)
    return (1.0 - share) * dense + share * expert_saved(job, candidates, inner, e)


def _selective(job: Job, e: float, t: Array, whole: Array, without_attention: Array) -> Array:
    """What selective recompute keeps: all but core attention, or the input and outputs of products."""
    if job.stack.block.selective == "attention":
        return without_attention
    model = job.model
    q, k = attention_widths(model, t)
    attention = e * (2 * q + 2 * k) + 4.0 * model.heads / t
    if model.mla is not None:
        mla, latents = model.mla, (model.mla.q_lora_rank or 0) + model.mla.kv_lora_rank
        heads = model.head_dim + mla.qk_nope_head_dim + 2 * mla.v_head_dim
        attention = e * ((latents + mla.qk_rope_head_dim) / whole + model.heads * heads / t)
        attention = attention + 4.0 * model.heads / t
    if job.stack.block.selective == "every-second-matmul":
        attention = attention - alternate_bytes(model, t, whole, e)
    # Outputs of products that sum over ranks are kept as they are before their reduction, whole.
    stream = e * model.hidden_size / whole + e * model.hidden_size
    up, share = 2 if model.gated else 1, expert_share(model)
    mlp = e * (model.hidden_size + up * model.ffn_size / t)
    if model.moe is not None:
        # Grouped products are no plain ones: of the experts only the router's logits are kept.
        mlp = (1.0 - share) * mlp + share * e * model.moe.experts
    kept: Array = stream + attention + mlp
    return kept
