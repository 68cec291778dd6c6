"""What casting to 8 bits moves, under one scale for a tensor or one for each row.

Notation (this file only)::

    h, q, k, f  hidden size, widths of queries and of keys, inner width of the MLP      [1]
    t           tensor-parallel degree                                                  [1]

A product of X [m, k] and W [k, n], and backward of dY [m, n], takes its sums along k, n and m. With one scale
for a tensor one 8-bit copy serves every sum, transposed where a kernel wants it so; with scales of rows (and
columns) each sum has copies of its own, as scales run across it: X by rows forward and by columns for the
gradient of W, dY by rows for that of X and by columns for that of W, W both ways.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.rank_parameters import weights_of
from autoplan.costs.core.sizes import attention_widths, sequence_split
from autoplan.costs.device.kernels import memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.moe import routed_per_token
from autoplan.schema.job import Job
from autoplan.schema.precision import EIGHT_BITS

__all__ = ["cast_elements", "weight_cast_seconds"]

#: Elements of 16 bits that a cast moves: it reads 16 bits and writes 8, as they are and transposed.
_TENSOR_CAST: Final = 2.0
#: One with scales of rows reads all of them for the largest of each, reads them again and writes 8 bits.
_ROW_CAST: Final = 2.5
#: One with scales of 32 elements sees the largest of them at once.
_BLOCK_CAST: Final = 1.5


def cast_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Return elements of 16 bits moved for a token by casts of a layer [1], forward and backward, shape [C].

    With scales of tensors: two for each element of the products' inputs forward, of their gradients
    backward; none where the kernel before a product casts. With scales of rows, 2.5 each (1.5 with those of
    32 elements): forward the inputs, backward inputs and gradients by columns, and gradients by rows. What
    is by rows the kernel before may still do, but not attention's, nor before a gather of split sequences.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("llama3-8b-8x-h100"), precision="fp8")
    >>> one = Candidates.of([parse_layout("zero=3", layers=32, devices=8)])
    >>> rows = [cast_elements(replace(job, stack=stack(x)), one) for x in ("fsdp2-compile", "fsdp2-rowwise")]
    >>> [(float(np.max(forward)), float(np.max(backward))) for forward, backward in rows]
    [(0.0, 0.0), (10240.0, 174080.0)]
    >>> 2.5 * 4096, 2.5 * ((3 * 4096 + 14336) + (3 * 4096 + 2 * 1024 + 2 * 14336))
    (10240.0, 174080.0)

    Leaves out: casts of weights, see ``weight_cast_seconds``; the output layer, which stays in 16 bits.
    Source: pytorch/ao @6243040807, torchao/float8/float8_linear.py, matmul_with_hp_or_float8_args: which
    operand is cast along which axis; NVIDIA/TransformerEngine, cast and transpose in one kernel.
    """
    none = np.zeros(len(candidates))
    if job.precision not in EIGHT_BITS:
        return none, none
    inputs, gradients, hidden = _extents(job, candidates)
    fused = job.stack.block.fused_casts
    if job.stack.block.fp8_scales == "tensor":
        return (none, none) if fused else (_TENSOR_CAST * inputs, _TENSOR_CAST * gradients)
    each = _row_cast(job)
    if not fused:
        return each * inputs, each * (inputs + 2 * gradients)
    gathered = np.where(sequence_split(candidates) > 1, 2.0 * hidden, 0.0)
    heads, _ = attention_widths(job.model, candidates.tp.astype(np.float64))
    return each * (gathered + heads), each * (inputs + gradients + gathered)


def _row_cast(job: Job) -> float:
    return _BLOCK_CAST if job.precision == "mxfp8" else _ROW_CAST


def _extents(job: Job, candidates: Candidates) -> tuple[Array, Array, Array]:
    """Return elements of a token in inputs of a layer's products, in their gradients, and in one input."""
    model, t = job.model, candidates.tp.astype(np.float64)
    share, rows = expert_share(model), routed_per_token(job, candidates)
    h, (q, k) = np.asarray(float(model.hidden_size)), attention_widths(model, t)
    f = (1.0 - share) * model.ffn_size / t
    if model.moe is not None:
        inner = rows * model.moe.expert_ffn_size / candidates.etp + model.moe.shared_expert_ffn_size / t
        f, h = f + share * inner, h + share * rows * h / 2
    up = 2 if model.gated else 1
    return 2 * h + q + f, 2 * h + q + 2 * k + up * f, h


def weight_cast_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the time to cast a layer's weights for one direction of one microbatch [s], shape [C].

    Only with scales of rows, and whatever the number of tokens: 5 bytes a parameter (3 with scales of 32
    elements), forward along one axis and backward along the other.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job, stack
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job = replace(load_job("llama3-8b-8x-h100"), precision="fp8", stack=stack("fsdp2-rowwise"))
    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    >>> one = Candidates.of([parse_layout("zero=3", layers=32, devices=8)])
    >>> float(weight_cast_seconds(job, one, machine)[0] * 1e12 / 5)  # parameters of a layer
    218112000.0

    Leaves out: weights that are cast once for several microbatches, or in parts before they are gathered, as
    with scales of tensors.
    """
    if job.precision not in EIGHT_BITS or job.stack.block.fp8_scales == "tensor":
        return np.zeros(len(candidates))
    moved = 2.0 * _row_cast(job) * weights_of(job, candidates).layer.total[:, 0]
    return memory_bound_seconds(moved, machine, calls=0)
