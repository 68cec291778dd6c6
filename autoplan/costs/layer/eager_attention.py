"""Time of attention without a fused kernel, whose scores go through memory.

Notation (this file only)::

    b, s  sequences of a microbatch, tokens of a sequence                [1]
    a, d  heads on a rank, width of a head                               [1]
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.scope import sequences_of
from autoplan.costs.core.sizes import dropout_masks
from autoplan.costs.device.kernels import gemm_seconds_at_rate, memory_bound_seconds
from autoplan.costs.device.machine import Machine, Rate
from autoplan.costs.layer.elementwise import DROPOUT_ACCESSES
from autoplan.costs.layer.mla import head_widths
from autoplan.schema.job import Job

__all__ = ["eager_attention_seconds"]

#: Tensor cores read matrices and rows that begin at multiples of so many bytes (cuBLAS, "Tensor Core Usage").
_ALIGNMENT: Final = 16
#: Rate of 16-bit products on vector units over the data sheet's of fp32: in bf16 384 products of [1024, 1024]
#: and [1024, 140] reach 12.21 TFLOP/s on an A100 of 19.5; those of width 128, on tensor cores, 132.7
#: (pytorch/pytorch#83272, CUDA 11.6, where fp16 reaches 53.9).
_VECTOR_SHARE: Final = 12.21 / 19.5


def eager_attention_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return forward and backward of a layer's unfused attention [s], each of shape [C].

    Two batched GEMMs of a b matrices, [s, d] x [d, s] and [s, s] x [s, d], four in backward, and memory-bound
    kernels over a b s^2 scores. Between the GEMMs a fused kernel scales, masks and takes the softmax: 1 read
    and 1 write, in backward 2 reads and 1 write. Unfused, four kernels (scale, two for the mask, softmax)
    read and write; backward has three of them. Dropout has additional accesses. Heads whose rows do not begin
    at multiples of 16 bytes are multiplied by vector units.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> free = {"hbm_bandwidth": np.inf, "memory_bound_launch": 0.0, "gemm": Rate(1e9, (), 0.0)}
    >>> forward, backward = eager_attention_seconds(job, one, replace(machine_of(job), **free))
    >>> float(forward[0]), float(backward[0])  # 2 x 2 x 4 heads x 8,192^2 x 128 / 1e9, and twice that
    (137.438953472, 274.877906944)

    Leaves out: products of one sequence in fp16 that cuBLAS pads for tensor cores.
    Source: Megatron-LM v2.4, megatron/model/transformer.py, CoreAttention's baddbmm and bmm over [s, b a, d];
    counted accesses of megatron/fused_kernels.
    """
    model, s = job.model, job.workload.sequence_length
    matrices = sequences_of(job, candidates) * np.maximum(1.0, model.heads / candidates.tp)
    wide, narrow = (np.asarray(float(width)) for width in head_widths(model))
    length = np.asarray(float(s))
    scores = matrices * float(s) ** 2
    # The matrices of a batched GEMM fill the device together: priced as one tall GEMM.
    products = _product_seconds((matrices * length, length, wide), wide, machine)
    products = products + _product_seconds((matrices * length, narrow, length), narrow, machine)
    dropout, dropout_backward = (dropout_masks(job) * x for x in _dropout_accesses(job))
    softmax, softmax_backward = (2.0, 3.0) if job.stack.block.fused_softmax else (8.0, 7.0)
    forward = memory_bound_seconds((softmax + dropout) * machine.element_bytes * scores, machine, calls=2)
    backward = memory_bound_seconds(
        (softmax_backward + dropout_backward) * machine.element_bytes * scores, machine, calls=2
    )
    return products + forward, 2 * products + backward


def _product_seconds(extents: tuple[Array, Array, Array], width: Array, machine: Machine) -> Array:
    """Return the time of a batched GEMM over heads of ``width`` elements [s]."""
    aligned = float(width) * machine.element_bytes % _ALIGNMENT == 0
    rate = machine.gemm
    if not aligned and machine.vector_flops is not None:
        rate = Rate(_VECTOR_SHARE * machine.vector_flops, (), machine.gemm.launch)
    return gemm_seconds_at_rate(extents, rate, machine.hbm_bandwidth, machine.element_bytes)


def _dropout_accesses(job: Job) -> tuple[float, float]:
    """Return the accesses per score of attention dropout besides the softmax [1], forward and backward.

    A fused kernel writes the softmax for backward, the result and the mask; backward reads the mask.
    """
    return (2.0, 0.5) if job.stack.block.fused_attention_dropout else (DROPOUT_ACCESSES, DROPOUT_ACCESSES)
