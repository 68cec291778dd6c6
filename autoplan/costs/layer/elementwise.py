"""Time of a layer's memory-bound kernels: norms, additions, dropout, rotary embedding, activation, casts.

Notation (this file only)::

    h     hidden size, over the sequence-parallel degree                                 [1]
    q, k  widths of all queries and of all keys on a rank; f  inner width of the MLP     [1]
    t     tensor-parallel degree                                                         [1]

An access is a read or a write of one 16-bit element in HBM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.sizes import (
    attention_widths,
    column_gemms,
    dropout_masks,
    has_formula_gelu,
    runs_under_autocast,
    sequence_parallel_degree,
)
from autoplan.costs.device.kernels import from_memory, memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.casts import cast_elements
from autoplan.costs.layer.mla import mla_elements
from autoplan.costs.layer.moe import (
    clamp_elements,
    expert_bias_elements,
    expert_elements,
    permute_elements,
    routed_activation_elements,
)
from autoplan.schema.job import Job

#: Memory-bound kernels of a layer: norms, rotary embedding, activation, additions.
_MEMORY_BOUND_KERNELS = 7
#: Accesses of dropout per element: a read, a write, and half an access for the mask of bytes.
DROPOUT_ACCESSES: Final = 2.5
#: Accesses of a residual addition per element, in forward and in backward: two reads and a write.
_ADDITION = 3
#: Accesses of the output gate of attention: a sigmoid and a product, in backward three kernels (transformers,
#: models/qwen3_next/modeling_qwen3_next.py, Qwen3NextAttention.forward).
_GATE = 5
_GATE_BACKWARD = 9
#: Kernels of a GELU by its formula, x/2 (1 + tanh(c (x + a x^3))), and their accesses per element in forward
#: and in backward, of 2 bytes under autocast, of the element elsewhere. Forward: x/2, power, a x^3, sum,
#: c times it, tanh, plus one, product; under autocast the power takes a cast of x, and what follows is in
#: fp32 until the next product casts it. Backward: both factors of the product, tanh, c, a, the power's three
#: kernels, x/2 and two sums; under autocast with four casts.
_GELU_KERNELS: Final = 10
_GELU: Final = (18.0, 28.0)
_GELU_AUTOCAST: Final = (38.0, 59.0)
#: Accesses of forward dropout per element where it is fused with the addition: the mask.
_FUSED_DROPOUT = 0.5


def elementwise_seconds(
    job: Job, tokens: Array, candidates: Candidates, machine: Machine
) -> tuple[Array, Array]:
    """Return the memory-bound time of a layer [s], forward and backward, each of shape [C].

    The sum of accesses per token: norms, of queries and keys too, two residual additions (3h each, in
    backward as well), rotary embedding and activation, see ``_Accesses``. In forward, dropout is fused with
    the addition unless the stack says otherwise; in backward it is a separate kernel. Eager attention
    transposes its output, and in backward copies the gradients of queries, keys and values into the packed
    QKV gradient. Biases may have separate kernels. MoE layers add permutation and routing; MLA replaces the
    rotary embedding by its own.

    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    >>> forward, backward = elementwise_seconds(job, np.full(1, 8192.0), candidate("tp=8"), machine)
    >>> plain, others = 10 * 4096 / 8, 2 * 5 * 128 + 3 * 14336 / 8  # norms, additions; rotary, activation
    >>> block = job.stack.block
    >>> elements = block.norm_traffic.value * plain + block.elementwise_traffic.value * others
    >>> bool(np.isclose(forward[0], 2 * 8192 * elements / 1e12))
    True

    Leaves out: what one kernel leaves in the last-level cache for the next.
    Source: bytes that each kernel reads and writes. The stack's ``norm_traffic`` and ``elementwise_traffic``
    scale the traffic of norms and additions, and of all other kernels but the permutation of tokens, the
    biases of experts and a GELU by its formula, which is what their kernels move.
    """
    moe_share, policy = moe_layer_share(job.model), job.stack.experts
    block, permuted = job.stack.block, permute_elements(job, candidates)
    groups = [
        (4, block.norm_traffic.value, _norms_and_additions(job, candidates)),
        (4, block.norm_traffic.value, _bias_elements(job, candidates)),
        (2, block.elementwise_traffic.value, _attention_and_mlp(job, candidates)),
        (4, block.elementwise_traffic.value, _mla_moe_cast_elements(job, candidates)),
        (4, 1.0, (permuted, permuted)),
        (4, 1.0, expert_bias_elements(job, candidates)),
        (_GELU_KERNELS, 1.0, _formula_gelu_elements(job, candidates)),
    ]
    tensor_bytes = machine.element_bytes * tokens
    calls = _MEMORY_BOUND_KERNELS + (moe_share * policy.routing_kernels if policy else 0.0)
    forward = backward = np.zeros(1)
    for kernels, factor, (accesses, accesses_backward) in groups:
        size, size_backward = tensor_bytes * accesses, tensor_bytes * accesses_backward
        forward = forward + factor * size * from_memory(size / kernels, machine)
        backward = backward + factor * size_backward * from_memory(size_backward / kernels, machine)
    return memory_bound_seconds(forward, machine, calls=calls), memory_bound_seconds(
        backward, machine, calls=calls
    )


def module_elementwise_seconds(
    module: str, job: Job, tokens: Array, candidates: Candidates, machine: Machine
) -> Array:
    """Return the memory-bound forward time of a recompute module [s], of the average layer, shape [C].

    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    >>> seconds = module_elementwise_seconds("mlp", job, np.full(1, 8192.0), candidate("tp=8"), machine)
    >>> block = job.stack.block
    >>> norm, activation = block.norm_traffic.value * 2 * 4096 / 8, 3 * 14336 / 8
    >>> elements = norm + block.elementwise_traffic.value * activation
    >>> bool(np.isclose(seconds[0], 2 * 8192 * elements / 1e12))
    True

    Leaves out: separate kernels of biases.
    Source: as of ``elementwise_seconds``; what a module has, ``autoplan.costs.layer.recomputed_modules``.
    """
    groups, calls = _MODULE_ELEMENTS[module](job, candidates)
    seconds = np.zeros(1)
    for factor, elements in groups:
        size = machine.element_bytes * tokens * elements
        seconds = seconds + factor * size * from_memory(size, machine)
    return memory_bound_seconds(seconds, machine, calls=calls)


#: Factors on traffic with elements per token, and the number of kernels.
_Module: TypeAlias = "tuple[list[tuple[float, Array]], float]"


def _norms_recomputed(job: Job, candidates: Candidates) -> _Module:
    """Norms that are kernels of their own: before experts, and before latent attention."""
    h = job.model.hidden_size / sequence_parallel_degree(candidates)
    norms = moe_layer_share(job.model) + (job.model.mla is not None)
    return [(job.stack.block.norm_traffic.value, norms * _Accesses.of(job).norm * h)], norms


def _expert_activation(job: Job, candidates: Candidates) -> _Module:
    activation = routed_activation_elements(job, candidates, _Accesses.of(job).activation)
    factor = job.stack.block.elementwise_traffic.value
    return [(factor, activation), (1.0, clamp_elements(job, candidates))], moe_layer_share(job.model)


def _latents_to_heads(job: Job, candidates: Candidates) -> _Module:
    t, sp_degree = candidates.tp.astype(np.float64), sequence_parallel_degree(candidates)
    elements = mla_elements(job.model, t, sp_degree, _Accesses.of(job).norm)
    # Two norms; queries are rotated by one kernel, keys and values assembled by another.
    return [(job.stack.block.elementwise_traffic.value, elements)], 4.0 * (job.model.mla is not None)


def _dense_mlp(job: Job, candidates: Candidates) -> _Module:
    accesses, block = _Accesses.of(job), job.stack.block
    dense = 1.0 - moe_layer_share(job.model)
    h = job.model.hidden_size / sequence_parallel_degree(candidates)
    _, _, f = _widths(job, candidates)
    norm, activation = dense * accesses.norm * h, accesses.activation * f
    return [(block.norm_traffic.value, norm), (block.elementwise_traffic.value, activation)], 2 * dense


def _expert_layer(job: Job, candidates: Candidates) -> _Module:
    policy, factor = job.stack.experts, job.stack.block.elementwise_traffic.value
    kernels = policy.routing_kernels if policy else 0
    activation = expert_elements(job, candidates, _Accesses.of(job).activation)
    others = permute_elements(job, candidates) + expert_bias_elements(job, candidates)[0]
    return [(factor, activation), (1.0, others)], moe_layer_share(job.model) * kernels


_MODULE_ELEMENTS: Final[Mapping[str, Callable[[Job, Candidates], _Module]]] = {
    "layernorm": _norms_recomputed,
    "moe_act": _expert_activation,
    "mla_up_proj": _latents_to_heads,
    "mlp": _dense_mlp,
    "moe": _expert_layer,
}


def _norms_and_additions(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return accesses per token of norms, residual additions and dropout [1], forward and backward.

    Where queries and keys are normalised, their norms are kernels of their own on what a rank has of them.
    """
    accesses, masks = _Accesses.of(job), dropout_masks(job)
    h = job.model.hidden_size / sequence_parallel_degree(candidates)
    q, k, _ = _widths(job, candidates)
    normalised = (4 if job.model.post_norms else 2) * h + job.model.qk_norm * (q + k)
    dropped = _FUSED_DROPOUT if job.stack.block.fused_residual else DROPOUT_ACCESSES
    forward = accesses.norm * normalised + (2 * _ADDITION + 2 * dropped * masks) * h
    backward = accesses.norm_backward * normalised + (2 * _ADDITION + 2 * DROPOUT_ACCESSES * masks) * h
    return forward, backward


def _attention_and_mlp(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return accesses per token of rotary embedding, activation, and copies of inputs of products [1]."""
    accesses, model = _Accesses.of(job), job.model
    q, k, f = _widths(job, candidates)
    rotated = q + k if model.positions == "rope" and model.mla is None else 0.0 * q
    forward = accesses.rotation * rotated + accesses.activation * f
    backward = accesses.rotation_backward * rotated + accesses.activation_backward * f
    if job.stack.block.column_inputs_copied:
        copied = column_gemms(job) * model.hidden_size
        forward = forward + np.where(candidates.tp > 1, 2.0 * copied, 0.0)
    if job.stack.block.attention == "eager":
        forward = forward + 2 * q
        backward = backward + 2 * q + 2 * (q + 2 * k)
    if model.attention_output_gate:
        forward = forward + _GATE * q
        backward = backward + _GATE_BACKWARD * q
    return forward, backward


def _formula_gelu_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return accesses per token of a GELU whose formula is an operation each [1], forward and backward.

    Source: huggingface/transformers src/transformers/activations.py, NewGELUActivation, and the derivatives
    of its operations in PyTorch, tools/autograd/derivatives.yaml.
    """
    _, _, f = _widths(job, candidates)
    accesses = _GELU_AUTOCAST if runs_under_autocast(job) else _GELU
    forward, backward = (has_formula_gelu(job) * x * f for x in accesses)
    return forward, backward


def _bias_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return accesses per token of kernels that only add biases, and of bias gradients [1].

    The QKV bias is added after the GEMM. Biases before a GELU or a residual addition are fused with those
    kernels, where the stack fuses them. Backward reads each gradient once.
    """
    block, bias = job.stack.block, job.model.bias
    q, k, f = _widths(job, candidates)
    h = job.model.hidden_size / sequence_parallel_degree(candidates)
    packed, output, inner = bias.qkv * (q + 2 * k), bias.attention_output * h, bias.mlp * f
    outer = bias.mlp * h
    unfused = packed if block.fused_residual else packed + output + inner + outer
    zero = np.zeros(1)
    return (2 * unfused, packed + output + inner + outer) if block.separate_bias_kernels else (zero, zero)


def _mla_moe_cast_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return accesses per token of MLA, of MoE permutation and routing, and of casts to FP8 [1]."""
    model, accesses = job.model, _Accesses.of(job)
    t, sp_degree = candidates.tp.astype(np.float64), sequence_parallel_degree(candidates)
    forward = backward = np.zeros(1)
    if model.mla is not None:
        forward = forward + mla_elements(model, t, sp_degree, accesses.norm)
        backward = backward + mla_elements(model, t, sp_degree, accesses.norm_backward)
    if moe_layer_share(model):
        forward = forward + expert_elements(job, candidates, accesses.activation)
        backward = backward + expert_elements(job, candidates, accesses.activation_backward)
    casts = cast_elements(job, candidates)
    return forward + casts[0], backward + casts[1]


def _widths(job: Job, candidates: Candidates) -> tuple[Array, Array, Array]:
    """Return q, k and f on a rank [1]; f is weighted by the share of layers with a dense MLP.

    q and k are those of softmax attention.
    """
    model, t = job.model, candidates.tp.astype(np.float64)
    q, k = attention_widths(model, t)
    if model.linear_attention is not None:  # Its kernels are in ``linear_seconds``.
        q, k = 0.0 * q, 0.0 * k
    return q, k, (1.0 - moe_layer_share(model)) * model.ffn_size / t


@dataclass(frozen=True, slots=True)
class _Accesses:
    """HBM accesses of an operation per element that it processes.

    Fused: a norm has 1 read and 1 write; its backward 2 reads and 1 write, and 2 more reads where the weight
    gradient is a separate kernel. Rotary embedding has 1 read and 1 write. A gated activation has 2 reads and
    1 write, its backward 3 reads and 2 writes. Unfused, every step of the formula is a kernel: RMSNorm casts
    to fp32, squares, averages, scales, casts and multiplies by the weight (36 bytes, backward 64); rotary
    embedding casts, multiplies and casts (20 bytes); SiLU and the product are two kernels.
    """

    norm: float
    norm_backward: float
    rotation: float
    rotation_backward: float
    activation: float
    activation_backward: float

    @staticmethod
    def of(job: Job) -> _Accesses:
        """Return the accesses of the job's stack."""
        block, model = job.stack.block, job.model
        # A LayerNorm is one kernel in every stack; a GELU by its formula is priced apart.
        fused = (2.0, 5.0) if block.separate_norm_wgrad else (2.0, 3.0)
        norm = fused if block.fused_norms or model.norm == "layernorm" else (18.0, 32.0)
        rotation = (2.0, 2.0) if block.fused_rope else (10.0, 10.0)
        gated = (3.0, 5.0) if block.fused_activation else (5.0, 9.0)
        single = (0.0, 0.0) if has_formula_gelu(job) else (2.0, 3.0)
        return _Accesses(*norm, *rotation, *(gated if model.gated else single))
