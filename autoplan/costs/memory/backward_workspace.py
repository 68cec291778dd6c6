"""What backward of one layer has alive beside the tensors that forward kept.

Notation (this file only)::

    h  hidden size     f  inner width of the MLP     a  query heads     s  tokens of a sequence      [1]
    t  tensor-parallel degree     T  tokens of a microbatch                                          [1]
    n  parameters of the layer on one rank     w  of its largest weight                              [1]
    e  bytes of an element                                                                        [byte]

All results are bytes of one rank, shape [C, 1].
"""

from __future__ import annotations

import numpy as np

from autoplan.costs.core.candidates import Array, column, flag
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import element_bytes, sequence_split
from autoplan.costs.layer.context_parallel import context_buffer_bytes
from autoplan.costs.layer.moe import routed_per_token
from autoplan.costs.memory.activations import Saved
from autoplan.costs.memory.model_states import gradients_stand

__all__ = ["backward_workspace_bytes", "unreduced_bytes", "unreduced_kept"]


def unreduced_bytes(scope: Scope, parameters: Array) -> Array:
    """Return gradients as backward computes them [byte], shape as ``parameters``: e n.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> float(unreduced_bytes(scope_of(load_job("llama3-8b-8x-a100"), one), np.array(1e6)))  # bf16: 2 each
    2000000.0

    Leaves out: kernels that add to the kept gradient as they multiply, and write none.
    Source: a gradient has the type of the copy that was multiplied; counted on real PyTorch modules,
    benchmarks/memory.
    """
    fresh: Array = element_bytes(scope.job) * parameters
    return fresh


def unreduced_kept(scope: Scope) -> Array:
    """Return 1 where all fresh gradients of a layer stay until it is done [1], shape [C, 1].

    They do where a layer is reduced as one, and where they are the gradients that are kept; elsewhere each
    is added to the kept one at once, or leaves in a bucket.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> one = Candidates.of([parse_layout("zero=3", layers=32, devices=8)])
    >>> job = load_job("llama3-8b-8x-a100")
    >>> scopes = [scope_of(replace(job, stack=stack(name)), one) for name in ("fsdp2", "deepspeed")]
    >>> [float(unreduced_kept(scope)[0, 0]) for scope in scopes]  # reduced a layer at a time, and in buckets
    [1.0, 0.0]

    Leaves out: buckets, which are in ``gather_buffers_of``.
    Source: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, post_backward; counted on
    real PyTorch modules, benchmarks/memory.
    """
    by_layer = (scope.job.stack.memory.reduction == "layer") & (scope.parameters_sharded > 0)
    are_kept = (gradients_stand(scope) == 0) & (scope.gradients_sharded == 0)
    return flag(by_layer | are_kept)


def backward_workspace_bytes(scope: Scope, saved: Saved) -> Array:
    """Return the most that backward of a layer needs beside its kept tensors [byte], shape [C, 1].

    The largest of three moments, each with the gradient e h T of the layer's output (over t where sequences
    are split): the weight gradient of the MLP's last product (gradient of its input e f T / t, the weight's
    e w, the output's gradient gathered under sequence parallelism; of experts, e h for each row from another
    rank); the activation's backward (two inner gradients where gated, one else); attention, when the MLP's
    tensors are free again (scores' gradient e a s T / t where they are in memory, and what the context axis
    sends).

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.memory.activations import saved_bytes_per_token
    >>> from autoplan.costs.core.candidates import Candidates
    >>> from autoplan.costs.core.scope import scope_of
    >>> from autoplan.schema.layout import parse_layout
    >>> two = Candidates.of([parse_layout("tp=2", layers=32, devices=8)])
    >>> scope = scope_of(load_job("llama3-8b-8x-a100"), two)
    >>> saved = saved_bytes_per_token(scope.job, scope.candidates)
    >>> float(backward_workspace_bytes(scope, saved)[0, 0]) / 2**20  # MiB: e (h T / 2 + h T + f T / 2 + w)
    264.0
    >>> 32 + 64 + 112 + 56
    264

    Leaves out: workspaces of kernels; what flash attention accumulates in fp32; gradients of queries, keys
    and values.
    Source: counted on real PyTorch modules, benchmarks/memory.
    """
    job, e, tokens = scope.job, element_bytes(scope.job), scope.tokens
    model = job.model
    whole = column(sequence_split(scope.candidates))
    residual = e * model.hidden_size * tokens / whole
    dropped = residual if job.stack.block.dropout and not model.gated else 0.0
    gathered = np.where(whole > 1, e * model.hidden_size * tokens, 0.0)
    inner = e * _inner_width(scope) * tokens
    sent = e * _sent_rows(scope) * model.hidden_size * tokens
    kept = unreduced_kept(scope)
    largest = unreduced_bytes(scope, scope.weights.layer.largest)
    all_fresh = unreduced_bytes(scope, scope.weights.layer.trained)
    product = gathered + dropped + inner + largest + sent
    activation = (2 if model.gated else 1) * inner + kept * largest
    attention = kept * all_fresh + _score_bytes(scope) - tokens * column(saved.mlp)
    attention = attention + column(context_buffer_bytes(job, scope.candidates, e))
    most: Array = residual + np.maximum(np.maximum(product, activation), attention)
    return most


def _inner_width(scope: Scope) -> Array:
    """Return f / t, or the width of what the experts of a rank do for a token where that is more."""
    model, c = scope.job.model, scope.candidates
    dense = model.ffn_size / column(c.tp)
    if model.moe is None:
        return dense
    experts = column(routed_per_token(scope.job, c) * model.moe.expert_ffn_size / c.etp)
    experts = experts + model.moe.shared_expert_ffn_size / column(c.tp)
    return np.maximum(experts, dense) if expert_share(model) < 1 else experts


def _sent_rows(scope: Scope) -> Array:
    """Return rows of a token whose gradients experts have got from other ranks and not sent back."""
    c = scope.candidates
    apart = (c.ep > 1) | ((c.etp > 1) & (c.sequence_parallel == 1))
    return column(np.where(apart, routed_per_token(scope.job, c), 0.0))


def _score_bytes(scope: Scope) -> Array:
    job = scope.job
    if job.stack.block.attention != "eager":
        return np.zeros_like(scope.tokens)
    scores = element_bytes(job) * job.model.heads * job.workload.sequence_length
    return scores * scope.tokens / column(scope.candidates.tp)
