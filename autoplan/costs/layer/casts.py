"""Memory traffic of casts to FP8, with tensorwise, rowwise or block (MXFP8) scales.

Notation (this file only)::

    h, q, k, f  hidden size, widths of queries and of keys, inner width of the MLP      [1]
    t           tensor-parallel degree                                                  [1]

The GEMM of X [m, k] and W [k, n] and its two backward GEMMs with dY [m, n] sum over k, n and m. With
tensorwise scales one 8-bit copy serves all three GEMMs, transposed where a kernel needs that. With rowwise
scales every GEMM needs its own copies, since scales run across the summed dimension: X by rows in forward and
by columns for the weight gradient, dY by rows for the input gradient and by columns for the weight gradient,
W both ways.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.rank_parameters import layer_weights
from autoplan.costs.core.sizes import attention_widths, sequence_parallel_degree
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.moe import routed_per_token
from autoplan.schema.job import Job
from autoplan.schema.precision import NARROW

#: HBM traffic of a tensorwise cast in 16-bit elements: it reads 16 bits and writes 8, plain and transposed.
_TENSOR_CAST: Final = 2.0
#: HBM traffic of a rowwise cast: one read for the row maxima, one read to cast, and a write of 8 bits.
_ROW_CAST: Final = 2.5
#: HBM traffic of a block cast (scales of 32 elements), which finds the maximum in the same read.
_BLOCK_CAST: Final = 1.5


def cast_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return the HBM traffic of a layer's casts per token, forward and backward [16-bit elements], [C].

    Tensorwise scales: 2 for each element of the GEMM inputs in forward and of their gradients in backward;
    0 where the preceding kernel casts (fused casts). Rowwise scales: 2.5 for each element (1.5 with scales of
    32 elements): the inputs in forward; inputs and gradients by columns and gradients by rows in backward.
    Casts by rows may also be fused, except after attention and before a sequence-parallel all-gather.

    >>> job = replace(load_job("llama3-8b-8x-h100"), precision="fp8")
    >>> one = candidate("zero=3")
    >>> casts = [cast_elements(replace(job, stack=stack(x)), one) for x in ("fsdp2", "fsdp2-rowwise")]
    >>> [(float(np.max(forward)), float(np.max(backward))) for forward, backward in casts]
    [(53248.0, 86016.0), (10240.0, 174080.0)]
    >>> 2 * (3 * 4096 + 14336), 2 * (3 * 4096 + 2 * 1024 + 2 * 14336)
    (53248, 86016)
    >>> 2.5 * 4096, 2.5 * ((3 * 4096 + 14336) + (3 * 4096 + 2 * 1024 + 2 * 14336))
    (10240.0, 174080.0)

    Leaves out: casts of weights, see ``weight_cast_seconds``; the output layer, which remains in 16 bits.
    Source: pytorch/ao @6243040807, torchao/float8/float8_linear.py, matmul_with_hp_or_float8_args, for the
    axis along which an operand is cast; NVIDIA/TransformerEngine, cast and transpose in one kernel.
    """
    zero = np.zeros(len(candidates))
    if job.precision not in NARROW:
        return zero, zero
    inputs, gradients, hidden = _cast_extents(job, candidates)
    fused = job.stack.block.fused_casts
    if job.stack.block.fp8_scales == "tensor":
        return (zero, zero) if fused else (_TENSOR_CAST * inputs, _TENSOR_CAST * gradients)
    traffic = _rowwise_traffic(job)
    if not fused:
        return traffic * inputs, traffic * (inputs + 2 * gradients)
    gathered = np.where(sequence_parallel_degree(candidates) > 1, 2.0 * hidden, 0.0)
    heads, _ = attention_widths(job.model, candidates.tp.astype(np.float64))
    return traffic * (gathered + heads), traffic * (inputs + gradients + gathered)


def _rowwise_traffic(job: Job) -> float:
    return _BLOCK_CAST if job.precision == "mxfp8" else _ROW_CAST


def _cast_extents(job: Job, candidates: Candidates) -> tuple[Array, Array, Array]:
    """Return elements per token [1]: inputs of all GEMMs of a layer, their output gradients, one input."""
    model, t = job.model, candidates.tp.astype(np.float64)
    moe_share, routed, policy = moe_layer_share(model), routed_per_token(job, candidates), job.stack.experts
    h, (q, k) = np.asarray(float(model.hidden_size)), attention_widths(model, t)
    f = (1.0 - moe_share) * model.ffn_size / t
    if model.moe is not None:
        separate = not (policy and policy.fused_mlp)
        inner = separate * routed * model.moe.expert_ffn_size / candidates.etp
        inner = inner + model.moe.shared_expert_ffn_size / t
        f, h = f + moe_share * inner, h + moe_share * routed * h / 2
    up_projections = 2 if model.gated else 1
    if model.linear_attention is not None:
        inner_width, packed = model.linear_attention.values / t, model.linear_attention.projected / t
        return 2 * h + inner_width + f, 2 * h + packed + up_projections * f, h
    if model.attention_output_gate:
        return 2 * h + q + f, 2 * h + 2 * q + 2 * k + up_projections * f, h
    return 2 * h + q + f, 2 * h + q + 2 * k + up_projections * f, h


def weight_cast_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the time to cast a layer's weights in forward, or in backward, of a microbatch [s], shape [C].

    Rowwise scales only: 5 bytes per parameter (3 with scales of 32 elements), independent of the number of
    tokens. Forward casts along one axis and backward along the other.

    >>> job = replace(load_job("llama3-8b-8x-h100"), precision="fp8", stack=stack("fsdp2-rowwise"))
    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    >>> float(weight_cast_seconds(job, candidate("zero=3"), machine)[0] * 1e12 / 5)  # parameters of a layer
    218112000.0

    Leaves out: weights cast once for several microbatches; shards cast before the all-gather, as with
    tensorwise scales.
    """
    if job.precision not in NARROW or job.stack.block.fp8_scales == "tensor":
        return np.zeros(len(candidates))
    cast_bytes = 2.0 * _rowwise_traffic(job) * layer_weights(job, candidates).total[:, 0]
    return memory_bound_seconds(cast_bytes, machine, calls=0)
