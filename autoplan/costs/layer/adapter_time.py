"""Time of adapters and of a quantised base in a layer: low-rank GEMMs, memory-bound kernels, dequantisation.

Notation (this file only)::

    T     tokens of a microbatch on one rank                  [1]
    n, m  inputs and outputs of a GEMM with an adapter        [1]
    r     rank of the adapter                                 [1]
    Q     quantised parameters of a layer on one rank         [1]
    b, e  bytes of one of them, of an element             [byte]
"""

from __future__ import annotations

from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.frozen_weights import quantized_bytes
from autoplan.costs.core.parameters import moe_layer_share
from autoplan.costs.core.rank_parameters import adapter_extents, experts_quantized, layer_weights
from autoplan.costs.core.sizes import element_bytes
from autoplan.costs.device.kernels import Gemm, memory_bound_seconds
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.expert_adapters import (
    expert_adapter_elements,
    expert_adapter_gemms,
    expert_adapter_kernels,
)
from autoplan.costs.layer.moe import dequantized_stacks
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

#: Kernels of an adapter's forward: two GEMMs, the scaling and the sum; DoRA adds the product of the matrices,
#: sum, norm and division, and two products with the magnitude. Source: huggingface/peft, tuners/lora/layer.py
#: and dora.py; meta-pytorch/torchtune, modules/peft/lora.py.
_KERNELS: Final = 4
_DORA_KERNELS: Final = 6
#: Kernels that make a 16-bit weight of a quantised one; with double quantisation two make its scales first.
_DEQUANTIZATION_KERNELS: Final = 1
_NESTED_KERNELS: Final = 3


def adapter_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the forward GEMMs of the adapters of a layer [1]: [T, n] x [n, r] and [T, r] x [r, m] a target.

    Behind them are those of experts (``expert_adapter_gemms``).

    DoRA multiplies the two matrices, [m, r] x [r, n], for the norms of the adapted weight's rows.

    >>> one = candidate("tp=8")
    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=16, targets=("k_proj",)))
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in adapter_gemms(job, np.full(1, 8192.0), one)]
    [(8192, 16, 4096), (8192, 128, 16)]

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """
    adapters = job.adapters
    if adapters is None:
        return []
    rank = np.asarray(float(adapters.rank))
    extents = adapter_extents(job, candidates.tp.astype(np.float64))
    pairs = [(Gemm(tokens, rank, n), Gemm(tokens, m, rank)) for n, m in extents]
    norms = [Gemm(m, n, rank) for n, m in extents] if adapters.dora else []
    experts = expert_adapter_gemms(job, tokens, candidates)
    return [*(gemm for pair in pairs for gemm in pair), *norms, *experts]


def adapter_kernels(job: Job) -> float:
    """Return the kernels that adapters and their quantised base add to a layer's forward [1].

    >>> bases = (AdapterSpec(rank=8), AdapterSpec(rank=8, base="nf4"))
    >>> [adapter_kernels(replace(job, adapters=x)) for x in bases]  # 7 x 4, and 7 x 3
    [28.0, 49.0]
    """
    adapters = job.adapters
    if adapters is None:
        return 0.0
    targets = len(adapter_extents(job, np.ones(1)))
    of_base = 0.0
    if adapters.base is not None:
        matrices = _quantized_matrices(job)
        of_base = matrices * (_NESTED_KERNELS if adapters.doubly_quantized else _DEQUANTIZATION_KERNELS)
    of_targets = targets * (_KERNELS + _DORA_KERNELS * adapters.dora)
    return float(of_targets + of_base + expert_adapter_kernels(job))


def _quantized_matrices(job: Job) -> float:
    """Return the quantised tensors of the average layer [1]: attention's, and those of its MLP or experts."""
    moe, mlp, share = job.model.moe, 2.0 + job.model.gated, moe_layer_share(job.model)
    attention = _attention_matrices(job.model)
    if moe is None:
        return attention + mlp
    grouped = job.stack.experts is not None and job.stack.experts.grouped_gemm
    experts = experts_quantized(job) * (2.0 if grouped else mlp * moe.experts)
    shared = mlp if moe.shared_expert_ffn_size else 0.0
    return attention + (1.0 - share) * mlp + share * (experts + shared)


def _attention_matrices(model: ModelSpec) -> float:
    """Return the linear modules of a layer's attention [1]."""
    if model.linear_attention is not None:
        return 1.0 + len(model.linear_attention.projections)
    return 4.0 if model.mla is None else 4.0 + (model.mla.q_lora_rank is not None)


def adapter_traffic_seconds(
    job: Job, tokens: Array, candidates: Candidates, machine: Machine
) -> tuple[Array, Array]:
    """Return the memory-bound time of a layer's adapters, forward and backward [s], shape [C].

    Forward scales the adapter's output (2 e m a token) and adds it to the target's (3 e m); backward scales
    its gradient (2 e m) and adds the gradients of the input (3 e n). Dropout reads and writes the input and
    its mask, (2 e + 1) n each way. DoRA weighs both outputs by magnitudes (4 e m) and makes the adapted
    weight, 5 e m n, each way.

    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=16, targets=("k_proj",)))
    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0, cache_bytes=0.0)
    >>> both = adapter_traffic_seconds(job, np.full(1, 8192.0), candidate("tp=1"), machine)
    >>> [float(x[0] * 1e12 / 8192) for x in both]  # 10 x 1024, and 4 x 1024 + 6 x 4096
    [10240.0, 28672.0]

    Leaves out: compilers, which scale and add in one kernel.
    """
    adapters, e = job.adapters, element_bytes(job)
    zero = np.zeros(len(candidates))
    if adapters is None:
        return zero, zero
    forward, backward = zero, zero
    for n, m in adapter_extents(job, candidates.tp.astype(np.float64)):
        dropped = float(adapters.dropout > 0) * (2.0 * e + 1.0) * n * tokens
        magnitudes = adapters.dora * e * (4.0 * m * tokens + 5.0 * m * n)
        forward = forward + 5.0 * e * m * tokens + dropped + magnitudes
        backward = backward + e * (2.0 * m + 3.0 * n) * tokens + dropped + magnitudes
    of_experts = expert_adapter_elements(job, tokens, candidates)
    forward, backward = forward + e * of_experts[0], backward + e * of_experts[1]
    return memory_bound_seconds(forward, machine, calls=0), memory_bound_seconds(backward, machine, calls=0)


def dequantization_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return the time to make a layer's quantised weights 16-bit ones, forward and backward [s], shape [C].

    Q (b + e) bytes in each pass, whatever its tokens, times the traffic of the stack's kernels. int8 weights
    are multiplied as they are in forward. Stacks of experts are dequantised in forward alone, which keeps
    their copies; frozen weights in fp32 are cast in forward alone, too, 4 + a bytes each.

    >>> job = replace(load_job("llama3-8b-8x-a100"), adapters=AdapterSpec(rank=8, base="int8"))
    >>> machine = replace(machine_of(job), hbm_bandwidth=1e12, memory_bound_launch=0.0)
    >>> both = dequantization_seconds(job, candidate("zero=3"), machine)
    >>> [round(float(x[0]) * 1e12 / 218_103_808, 3) for x in both]
    [0.0, 3.001]

    Leaves out: kernels that multiply 4-bit weights as they are; outliers of int8.
    Source: bitsandbytes, autograd/_functions.py, MatMul4Bit and MatMul8bitLt; torchao,
    dtypes/nf4tensor.py, LinearNF4; for casts, that of ``cast_weight_bytes``.
    """
    zero, memory = np.zeros(len(candidates)), job.stack.memory
    if job.adapters is None:
        return zero, zero
    if job.adapters.base is None:
        weights = layer_weights(job, candidates)
        cast = memory.gathered_bytes > 2 and memory.autocast_bytes > 0
        each = (memory.gathered_bytes + memory.autocast_bytes) * float(cast)
        frozen = (weights.total - weights.trained)[:, 0]
        return memory_bound_seconds(each * frozen, machine, calls=0), zero
    policy = job.stack.fine_tuning
    traffic = policy.dequantization_traffic.value if policy and policy.dequantization_traffic else 1.0
    moved = quantized_bytes(job.adapters, job.model.hidden_size) + element_bytes(job)
    quantized = layer_weights(job, candidates).quantized[:, 0]
    stacks = moe_layer_share(job.model) * dequantized_stacks(job, candidates)
    in_forward = stacks if job.adapters.base == "int8" else quantized

    def seconds(parameters: Array) -> Array:
        return memory_bound_seconds(traffic * moved * parameters, machine, calls=0)

    return seconds(in_forward), seconds(quantized - stacks)
