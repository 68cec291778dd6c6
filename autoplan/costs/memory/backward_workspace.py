"""Backward workspace of one layer: tensors in addition to its saved activations.

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
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.rank_parameters import expert_adapters, experts_quantized
from autoplan.costs.core.scope import Scope
from autoplan.costs.core.sizes import (
    element_bytes,
    residual_bytes,
    sequence_parallel_degree,
    softmax_in_fp32,
)
from autoplan.costs.layer.context_parallel import context_buffer_bytes
from autoplan.costs.layer.linear_attention_time import linear_workspace_elements
from autoplan.costs.layer.moe import routed_per_token, stacked_parameters
from autoplan.costs.memory.activations import Saved, mlp_in_place
from autoplan.costs.memory.model_states import gradients_persist
from autoplan.schema.model import ModelSpec


def unreduced_bytes(scope: Scope, parameters: Array) -> Array:
    """Return unreduced gradients, as backward computes them [byte], shape as ``parameters``: e n.

    >>> float(unreduced_bytes(scope_of(job, candidate("tp=2")), np.array(1e6)))  # bf16: 2 each
    2000000.0

    Leaves out: GEMMs that accumulate into the gradient buffer (gradient accumulation fusion).
    Source: a gradient has the type of the parameter copy in the GEMM; counted on real PyTorch modules,
    benchmarks/memory.
    """
    unreduced: Array = element_bytes(scope.job) * parameters
    return unreduced


def unreduced_layer_gradients(scope: Scope) -> Array:
    """Return 1 where unreduced gradients of a layer stay until its backward ends [1], shape [C, 1].

    They do where reduce-scatter works per layer (FSDP2), and where they are the gradients of the optimizer.
    Otherwise each is accumulated into a gradient buffer at once, or copied into a bucket.

    >>> one = candidate("zero=3")
    >>> scopes = [scope_of(replace(job, stack=stack(name)), one) for name in ("fsdp2", "deepspeed")]
    >>> [float(unreduced_layer_gradients(scope)[0, 0]) for scope in scopes]  # by layer, by bucket
    [1.0, 0.0]

    Leaves out: buckets, which are in ``gather_buffers_of``.
    Source: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, post_backward; counted on
    real PyTorch modules, benchmarks/memory.
    """
    by_layer = (scope.job.stack.memory.reduction == "layer") & (scope.parameters_sharded > 0)
    without_buffers = (gradients_persist(scope) == 0) & (scope.gradients_sharded == 0)
    return flag(by_layer | without_buffers)


def backward_workspace_bytes(scope: Scope, saved: Saved) -> Array:
    """Return the backward workspace of one layer at its peak [byte], shape [C, 1].

    The largest of three events, each with the gradient e h T of the layer's output (over t under sequence
    parallelism): the weight gradient of the MLP's last GEMM (gradient of its input e f T / t, of its weight
    e w, the output's gradient all-gathered under sequence parallelism; of experts, e h per token dispatched
    from another rank); backward of the activation (two inner gradients where gated and not in place, else
    one); backward of attention, after the MLP's saved activations are freed (gradient of scores e a s T / t
    of eager attention, and buffers of context parallelism).

    >>> from autoplan.costs.memory.activations import saved_bytes_per_token
    >>> scope = scope_of(job, candidate("tp=2"))
    >>> saved = saved_bytes_per_token(scope.job, scope.candidates)
    >>> float(backward_workspace_bytes(scope, saved)[0, 0]) / 2**20  # MiB: e (h T / 2 + h T + f T / 2 + w)
    264.0
    >>> 32 + 64 + 112 + 56
    264

    Leaves out: workspaces of kernels; fp32 accumulators of flash attention; gradients of queries, keys and
    values.
    Source: counted on real PyTorch modules, benchmarks/memory.
    """
    job, e, tokens = scope.job, element_bytes(scope.job), scope.tokens
    model = job.model
    sp = column(sequence_parallel_degree(scope.candidates))
    residual = residual_bytes(job) * model.hidden_size * tokens / sp
    dropout = residual if job.stack.block.dropout and not model.gated else 0.0
    gathered = np.where(sp > 1, e * model.hidden_size * tokens, 0.0)
    inner = e * _inner_width(scope) * tokens
    dispatched = e * _dispatched_tokens(scope) * model.hidden_size * tokens
    persist = unreduced_layer_gradients(scope)
    largest_unreduced = unreduced_bytes(scope, scope.weights.layer.largest)
    all_unreduced = unreduced_bytes(scope, scope.weights.layer.trained)
    weight_gradient = gathered + dropout + inner + largest_unreduced + dispatched + dequantized_bytes(scope)
    inner_gradients = 2 if model.gated and not mlp_in_place(job) else 1
    activation = inner_gradients * inner + persist * largest_unreduced
    attention = persist * all_unreduced + _core_attention_bytes(scope) - tokens * column(saved.mlp)
    attention = attention + column(context_buffer_bytes(job, scope.candidates, e))
    workspace: Array = residual + np.maximum(np.maximum(weight_gradient, activation), attention)
    return workspace


def dequantized_bytes(scope: Scope) -> Array:
    """Return the 16-bit copies of a frozen base's largest weight in its GEMM [byte], shape [C, 1]: e w or 0.

    Copies of stacked experts are among the saved activations.

    DoRA also makes the product of the adapter's matrices and its sum with the weight, of whose rows it takes
    the norms.

    >>> one = candidate("tp=2")
    >>> cases = (None, False), ("nf4", False), ("nf4", True)
    >>> bases = [AdapterSpec(rank=8, base=base, dora=dora) for base, dora in cases]
    >>> [float(dequantized_bytes(scope_of(replace(job, adapters=x), one))[0, 0]) / 2**20 for x in bases]
    [0.0, 56.0, 168.0]

    Leaves out: workspaces of a kernel that multiplies quantised weights as they are.
    Source: bitsandbytes, autograd/_functions.py, MatMul4Bit: dequantize_4bit in forward and again in
    backward; torchao, dtypes/nf4tensor.py, LinearNF4; huggingface/peft, tuners/lora/dora.py.
    """
    adapters, model = scope.job.adapters, scope.job.model
    if adapters is None:
        return np.zeros_like(scope.tokens)
    attention = model.heads * model.head_dim
    if model.linear_attention is not None:
        attention = max(attention, *model.linear_attention.projections)
    widest = max(attention, _widest_mlp(model)) / column(scope.candidates.tp)
    copies = float(adapters.base is not None) + 2.0 * adapters.dora
    copied: Array = copies * element_bytes(scope.job) * model.hidden_size * widest
    return np.maximum(copied, _stack_copies_bytes(scope))


def _stack_copies_bytes(scope: Scope) -> Array:
    """Return the 16-bit copies of the larger stack of experts in backward [byte]: 2 e g h f E, or 0.

    Of merged adapters these are the gradient of the sum and its scaled copy, of a stack that is dequantised
    again itself and its transpose. Source: huggingface/peft, tuners/lora/layer.py, ParamWrapper;
    unslothai/unsloth-zoo, temporary_patches/moe_utils.py, _GroupedMMRecompute.
    """
    job, policy = scope.job, scope.job.stack.experts
    again = policy is not None and policy.dequantized_again and experts_quantized(job)
    if not again and expert_adapters(job) != "merged":
        return np.zeros_like(scope.tokens)
    larger = 2.0 / 3.0 if job.model.gated else 0.5
    return 2.0 * element_bytes(job) * larger * column(stacked_parameters(job, scope.candidates))


def _widest_mlp(model: ModelSpec) -> int:
    """Return the largest inner width of a dense MLP, of an expert or of a shared one [1]."""
    if model.moe is None:
        return model.ffn_size
    dense = model.ffn_size if moe_layer_share(model) < 1 else 0
    return max(dense, model.moe.expert_ffn_size, model.moe.shared_expert_ffn_size)


def _inner_width(scope: Scope) -> Array:
    """Return f / t, or the width of the experts of a rank per token where that is larger."""
    model, c = scope.job.model, scope.candidates
    dense = model.ffn_size / column(c.tp)
    if model.moe is None:
        return dense
    experts = column(routed_per_token(scope.job, c) * model.moe.expert_ffn_size / c.etp)
    experts = experts + model.moe.shared_expert_ffn_size / column(c.tp)
    return np.maximum(experts, dense) if moe_layer_share(model) < 1 else experts


def _dispatched_tokens(scope: Scope) -> Array:
    """Return routed tokens per token whose gradients come from other ranks (all-to-all of combine)."""
    c = scope.candidates
    exchanged = (c.ep > 1) | ((c.etp > 1) & (c.sequence_parallel == 1))
    return column(np.where(exchanged, routed_per_token(scope.job, c), 0.0))


def _core_attention_bytes(scope: Scope) -> Array:
    """Return the gradients of scores of eager attention, or what linear attention allocates [byte].

    Backward of a softmax in fp32 has its gradient and its input's beside it, 4 bytes each; the cast of 2
    bytes, which was saved, is gone by then.
    """
    job, linear = scope.job, scope.job.model.linear_attention
    if linear is not None:
        elements = element_bytes(job) * linear_workspace_elements(linear)
        return elements * scope.tokens / column(scope.candidates.tp)
    if job.stack.block.attention != "eager":
        return np.zeros_like(scope.tokens)
    gradients = 4.0 + 4.0 - 2.0 if softmax_in_fp32(job) else element_bytes(job)
    scores = gradients * job.model.heads * job.workload.sequence_length
    return scores * scope.tokens / column(scope.candidates.tp)
