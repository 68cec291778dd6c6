"""Time of one transformer layer for one microbatch.

Notation (this file only)::

    T   tokens of a microbatch on one rank                   [1]
    h   hidden size                                          [1]
    q   width of all queries (heads x head_dim), k of keys   [1]
    f   inner width of the MLP                               [1]
    t   tensor-parallel degree                               [1]

Forward GEMMs on one rank: QKV [T, h] x [h, (q+2k)/t]; attention output [T, q/t] x [q/t, h]; up (and gate)
[T, h] x [h, f/t]; down [T, f/t] x [f/t, h]. Backward has two GEMMs for each: the input gradient (m, k, n) and
the weight gradient (k, n, m). Tensor parallelism follows Narayanan et al. 2021 (arXiv:2104.04473), sequence
parallelism Korthikanti et al. 2022 (arXiv:2205.05198).

Time of attention without a fused kernel, whose scores go through memory.

Notation (this file only)::

    b, s  sequences of a microbatch, tokens of a sequence                [1]
    a, d  heads on a rank, width of a head                               [1]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.frozen_weights import forward_passes
from autoplan.costs.core.parameters import layer_tensors
from autoplan.costs.core.rank_parameters import layer_weights
from autoplan.costs.core.scope import at_precision, microbatches, sequences_of, tokens_of
from autoplan.costs.core.sizes import (
    backward_split,
    dropout_masks,
    has_formula_gelu,
    sequence_parallel_degree,
    softmax_in_fp32,
)
from autoplan.costs.device.kernels import (
    Gemm,
    gemm_seconds,
    gemm_seconds_at_rate,
    memory_bound_seconds,
    smooth_maximum,
    waiting_seconds,
)
from autoplan.costs.device.machine import VECTOR_SHARE, Machine, Rate
from autoplan.costs.layer.adapter_time import (
    adapter_gemms,
    adapter_kernels,
    adapter_traffic_seconds,
    dequantization_seconds,
)
from autoplan.costs.layer.alternate_recompute import alternate_gemms, products_of_attention
from autoplan.costs.layer.attended_keys import visited_keys
from autoplan.costs.layer.casts import weight_cast_seconds
from autoplan.costs.layer.context_parallel import attention_steps, context_times, step_kernel_seconds
from autoplan.costs.layer.elementwise import DROPOUT_ACCESSES, elementwise_seconds
from autoplan.costs.layer.expert_adapters import adapted_expert_gemms
from autoplan.costs.layer.gemm_shapes import (
    dense_gemms,
    input_gradient_gemms,
    packed_gemms,
    weight_gradient_gemms,
)
from autoplan.costs.layer.linear_attention_time import linear_gemms, linear_kernels, linear_seconds
from autoplan.costs.layer.mla import head_widths, mla_gemms
from autoplan.costs.layer.moe import expert_gemms, expert_kernels, expert_tensors, expert_waits
from autoplan.costs.layer.moe_dispatch import dispatch_seconds
from autoplan.costs.layer.recomputed_modules import RecomputeTimes, recomputed_module_times
from autoplan.costs.layer.tensor_parallel import regather_seconds, tensor_exposed, tensor_seconds
from autoplan.costs.network.overlap import Traffic, exposed_seconds
from autoplan.costs.network.tensor_calls import Calls, TensorCalls, tensor_calls
from autoplan.schema.job import Job
from autoplan.schema.recompute import listed_modes

#: Backward kernels per forward kernel: a GEMM has two gradients, most other operations one.
_BACKWARD_KERNELS = 2
#: Kernels of eager attention in forward less one, with a softmax that is fused with scale and mask, or not.
_FUSED_SOFTMAX_KERNELS = 4
_EAGER_SOFTMAX_KERNELS = 7
#: Kernels of a GELU's formula in forward less one.
_GELU_KERNELS = 9
#: Host time of a collective over that of a kernel launch: besides the launch it records and waits for CUDA
#: events. An estimate: runs of small models (benchmarks/accuracy) distinguish 4 from 0, but not from 8.
_COLLECTIVE_LAUNCHES = 4
#: Exponent of the smooth maximum of host launches and compute: the host may be late at small kernels although
#: it is early at large ones. Runs of small models (benchmarks/accuracy) are fitted as well by 1.7.
_LAUNCH_SHARPNESS = 1.75


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer for one microbatch, arrays of shape [C].

    ``forward`` and ``backward`` are compute, forward that of all passes (``forward_passes``); ``weight`` is
    the part of ``backward`` for weight gradients. ``recompute`` is what each recompute mode adds to backward.
    ``tensor_*`` is exposed tensor-parallel
    communication of forward and of backward (``tensor_weight``: the part in a split weight-gradient pass);
    ``context_*`` is exposed context-parallel communication. ``dispatch`` is MoE dispatch and combine, the
    same in forward and backward.
    """

    forward: Array
    backward: Array
    weight: Array
    recompute: Mapping[str, RecomputeTimes]
    tensor_forward: Array
    tensor_backward: Array
    tensor_weight: Array
    context_forward: Array
    context_backward: Array
    dispatch: Array


def layer_times(job: Job, candidates: Candidates, machine: Machine) -> LayerTimes:
    """Return the times of one layer for one microbatch [s], arrays of shape [C].

    Compute is the sum of GEMMs, attention and memory-bound kernels; a smooth maximum of compute and host
    launches is the time.

    >>> one = candidate("tp=8")
    >>> fastest = ideal(machine, job)
    >>> float(round(layer_times(job, one, fastest).forward[0] * fastest.peak_flops / 1e9, 1))  # GFLOP
    515.4
    >>> round((2 * 8192 * 218_103_808 + 4 * 8192 * 4096.5 * 4096) / 8 / 1e9, 1)  # gemms and attention
    515.4

    Leaves out: contention between collectives and compute; differences between layer types, which are priced
    one type at a time.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.3, for tensor parallelism; rates of
    ``machine``.
    """
    tokens = tokens_of(job, candidates)
    forward_gemm, input_gemm, weight_gemm = _layer_gemm_passes(job, tokens, candidates, machine)
    attention = _attention(job, candidates, machine)
    memory_bound, memory_bound_backward = elementwise_seconds(job, tokens, candidates, machine)
    calls = tensor_calls(job, candidates)
    launches, launches_backward = _launch_seconds(job, candidates, machine, calls)
    casts = weight_cast_seconds(job, candidates, machine)
    adapted, adapted_backward = _adapter_seconds(job, tokens, candidates, machine)
    forward_compute = forward_gemm + attention.forward + memory_bound + casts + adapted
    forward, context_forward = _with_launches(forward_compute, attention.exposed_forward, launches)
    waits = waiting_seconds(expert_waits(job, candidates), machine)
    forwards = forward + _without_gradient(job, candidates, machine, forward_compute, launches)
    accumulation = _accumulation_seconds(job, candidates, machine)
    backward_compute = (
        input_gemm + weight_gemm + attention.backward + memory_bound_backward + accumulation + casts
    )
    backward_compute = backward_compute + adapted_backward
    backward, context_backward = _with_launches(
        backward_compute, attention.exposed_backward, launches_backward
    )
    dispatch = dispatch_seconds(job, candidates, machine)
    exposed_dispatch = _exposed_dispatch(job, candidates, machine, dispatch, forward + backward)
    repeated = forward_compute - _early_stop_seconds(job, tokens, candidates, machine)
    recompute = {
        "selective": _selective_times(job, candidates, machine, attention, memory_bound, dispatch),
        "full": RecomputeTimes(
            compute=smooth_maximum(repeated, launches, _LAUNCH_SHARPNESS) + waits,
            tensor=tensor_exposed(job, candidates, machine, calls.recompute["layer"], forward_gemm),
            context=context_forward,
            dispatch=dispatch,
        ),
    }
    recompute |= recomputed_module_times(job, candidates, machine, dispatch, waits)
    regathered = regather_seconds(job, candidates, machine, calls.backward)
    return LayerTimes(
        forward=forwards + (1 + forward_passes(job).total) * waits,
        backward=backward,
        # Launch overhead is split in proportion between the input-gradient and the weight-gradient pass.
        weight=(weight_gemm + accumulation) / backward_compute * backward,
        recompute={mode: recompute[mode] for mode in listed_modes(job.stack.rules.recompute)},
        tensor_forward=tensor_exposed(job, candidates, machine, calls.forward, forward_gemm),
        tensor_backward=_tensor_backward(job, candidates, machine, calls.backward, input_gemm) + regathered,
        tensor_weight=regathered,
        context_forward=context_forward,
        context_backward=context_backward,
        dispatch=exposed_dispatch,
    )


def _exposed_dispatch(
    job: Job, candidates: Candidates, machine: Machine, dispatch: Array, compute: Array
) -> Array:
    """Return the exposed seconds of dispatch and combine in forward, or in backward, shape [C].

    Where the stack overlaps them, those of one microbatch run beside the forward and backward ``compute`` of
    another; the first microbatch's forward and the last one's backward have none beside them.
    Source: Megatron-LM, --overlap-moe-expert-parallel-comm.
    """
    policy = job.stack.experts
    if policy is None or not policy.dispatch_overlap:
        return dispatch
    beside = exposed_seconds(compute, Traffic(2.0 * dispatch, 2.0 * dispatch), machine) / 2.0
    alone = 1.0 / np.maximum(microbatches(job, candidates), 1.0)
    exposed: Array = alone * dispatch + (1.0 - alone) * np.minimum(beside, dispatch)
    return exposed


def _without_gradient(
    job: Job, candidates: Candidates, machine: Machine, compute: Array, launches: Array
) -> Array:
    """Return the time of forward passes without a gradient [s], shape [C]: of the policy, of the reference.

    A forward of ``compute`` and ``launches`` each; adapters are off in those of the reference.
    """
    passes = forward_passes(job)
    if not passes.total:
        return np.zeros(1)
    policy = smooth_maximum(compute, launches, _LAUNCH_SHARPNESS)
    if job.adapters is None:
        return passes.total * policy
    tokens, adapters = tokens_of(job, candidates), job.adapters
    alone = adapters.model_copy(update={"base": None, "double_quantization": None})
    added = _total_seconds(adapter_gemms(job, tokens, candidates), machine)
    added = added + adapter_traffic_seconds(job, tokens, candidates, machine)[0]
    launched = adapter_kernels(replace(job, adapters=alone)) * machine.host_launch
    reference = smooth_maximum(compute - added, launches - launched, _LAUNCH_SHARPNESS)
    return passes.reference * reference + passes.policy * policy


def _selective_times(
    job: Job,
    candidates: Candidates,
    machine: Machine,
    attention: _Attention,
    memory_bound: Array,
    dispatch: Array,
) -> RecomputeTimes:
    """Return what selective recompute adds to backward [s]: attention, or all but the outputs of GEMMs."""
    zero: Array = np.zeros(1)
    linear = job.model.linear_attention is not None
    if job.stack.block.selective == "attention":
        # Recompute of core attention leaves linear attention alone.
        repeated = attention.forward * (not linear)
        return RecomputeTimes(repeated, zero, attention.exposed_forward, 0.0 * dispatch)
    # Outputs of expert GEMMs are not saved: experts are recomputed, with their dispatch and combine.
    gemms = _total_seconds(_recomputed_gemms(job, tokens_of(job, candidates), candidates), machine)
    # Kernels of linear attention are not in the list of saved operations.
    gemms = gemms + attention.forward * linear
    calls = tensor_calls(job, candidates).recompute["layer"]
    exposed = tensor_exposed(job, candidates, machine, calls, gemms)
    return RecomputeTimes(memory_bound + gemms, exposed, 0.0 * attention.exposed_forward, dispatch)


def _launch_seconds(
    job: Job, candidates: Candidates, machine: Machine, calls: TensorCalls
) -> tuple[Array, Array]:
    """Return the host time to launch a layer's kernels and collectives [s], forward and backward.

    The host launches them one by one; a device that is faster idles.
    """
    dense = job.stack.block.kernels + _eager_kernels(job) + has_formula_gelu(job) * _GELU_KERNELS
    kernels = dense + expert_kernels(job, candidates) + adapter_kernels(job) + linear_kernels(job.model)
    hooks = _hook_launches(job, candidates)
    forward = kernels + hooks + _COLLECTIVE_LAUNCHES * calls.forward.number
    backward = _BACKWARD_KERNELS * kernels + hooks + _COLLECTIVE_LAUNCHES * calls.backward.number
    return forward * machine.host_launch, backward * machine.host_launch


def _eager_kernels(job: Job) -> int:
    """Return the kernels of eager attention in forward beside the one that fused attention has [1].

    Source: NVIDIA/Megatron-LM megatron/core/transformer/dot_product_attention.py: scores, a fused softmax,
    dropout, context and its copy; huggingface/transformers models/llama/modeling_llama.py,
    eager_attention_forward: scores, scale, mask, cast, softmax, cast, context and its copy.
    """
    block = job.stack.block
    if block.attention != "eager":
        return 0
    return _FUSED_SOFTMAX_KERNELS if block.fused_softmax else _EAGER_SOFTMAX_KERNELS


def _hook_launches(job: Job, candidates: Candidates) -> Array:
    """Return the host time of hooks around the tensors of a layer in one pass, in kernel launches [1].

    DeepSpeed's ZeRO-3 gathers and releases each parameter in Python hooks of its module, both ways.
    """
    hooks = job.stack.overlap.hook_launches
    if hooks is None:
        return np.zeros(len(candidates))
    tensors = layer_tensors(job.model) + expert_tensors(job, candidates)
    launches: Array = (candidates.zero == 3) * hooks.value * tensors
    return launches


def _with_launches(compute: Array, exposed: Array, launches: Array) -> tuple[Array, Array]:
    """Return the smooth maximum of compute and launches [s], and the time that exposed communication adds."""
    seconds = smooth_maximum(compute, launches, _LAUNCH_SHARPNESS)
    return seconds, smooth_maximum(compute + exposed, launches, _LAUNCH_SHARPNESS) - seconds


def _early_stop_seconds(job: Job, tokens: Array, candidates: Candidates, machine: Machine) -> Array:
    """Return the forward time that full recompute skips with early stop [s]: the down-projection.

    Recompute stops at the last tensor that backward needs, the input of the last GEMM. Experts are recomputed
    completely.
    """
    if not job.stack.block.checkpoint_early_stop:
        return np.zeros(1)
    return _total_seconds(dense_gemms(job.model, tokens, candidates.tp.astype(np.float64))[1:], machine)


def _recomputed_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the GEMMs that selective recompute repeats where it drops more than core attention."""
    experts = expert_gemms(job, tokens, candidates)
    if job.stack.block.selective == "matmul-outputs":
        return experts
    t, sp_degree = candidates.tp.astype(np.float64), sequence_parallel_degree(candidates)
    hidden = job.stack.block.experts_hide_products and job.model.moe is not None
    dropped = products_of_attention if hidden else alternate_gemms
    return [*dropped(job.model, tokens, t, sp_degree), *experts]


def layer_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """Return the forward GEMMs of a layer [1]: attention, dense MLP and experts.

    >>> gemms = layer_gemms(job, np.full(1, 8192.0), candidate("tp=8"))
    >>> [tuple(int(np.max(x)) for x in gemm[:3]) for gemm in gemms]
    [(8192, 768, 4096), (8192, 4096, 512), (8192, 3584, 4096), (8192, 4096, 1792)]

    Leaves out: adapters, and the products of unfused attention.
    """
    model, t = job.model, candidates.tp.astype(np.float64)
    attention = packed_gemms(model, tokens, t)
    if model.mla is not None:
        attention = mla_gemms(model, tokens, t, sequence_parallel_degree(candidates))
    if model.linear_attention is not None:
        attention = linear_gemms(model, tokens, t)
    return [*attention, *dense_gemms(model, tokens, t), *expert_gemms(job, tokens, candidates)]


def _tensor_backward(job: Job, candidates: Candidates, machine: Machine, calls: Calls, gemms: Array) -> Array:
    """Return the exposed tensor-parallel communication of backward [s], shape [C].

    A stack with overlap reduces the input gradient of a column-parallel GEMM while it computes the weight
    gradient. A split backward has no such overlap.
    """
    split = backward_split(candidates) > 0
    if machine.overlap.tp_comm or not machine.overlap.tp_dgrad_reduce or job.adapters or split.all():
        return tensor_exposed(job, candidates, machine, calls, gemms)
    zero = np.zeros(len(candidates))
    gathers = replace(calls, reduce_scatter=zero, all_reduce=zero)
    reductions = replace(calls, all_gather=zero, regathers=zero)
    weight_seconds = _total_seconds(weight_gradient_gemms(_column_gemms(job, candidates)), machine)
    reduce_seconds = tensor_seconds(job, candidates, machine, reductions)
    exposed = exposed_seconds(weight_seconds, Traffic(reduce_seconds, reduce_seconds), machine)
    fused: Array = tensor_seconds(job, candidates, machine, gathers) + exposed
    return np.where(split, tensor_seconds(job, candidates, machine, calls), fused) if split.any() else fused


def _column_gemms(job: Job, candidates: Candidates) -> list[Gemm]:
    """Return the column-parallel GEMMs, whose input gradients are reduced."""
    model, t, tokens = job.model, candidates.tp.astype(np.float64), tokens_of(job, candidates)
    up = dense_gemms(model, tokens, t)[:1]
    if model.mla is not None:
        return [*mla_gemms(model, tokens, t, sequence_parallel_degree(candidates))[-3:-1], *up]
    if model.linear_attention is not None:
        return [*linear_gemms(model, tokens, t)[:1], *up]
    return [*packed_gemms(model, tokens, t)[:1], *up]


def _gemm_passes(gemms: list[Gemm], machine: Machine) -> tuple[Array, Array, Array]:
    """Return the seconds of the GEMMs in forward, for input gradients and for weight gradients."""
    seconds = _gemm_seconds([*gemms, *input_gradient_gemms(gemms), *weight_gradient_gemms(gemms)], machine)
    number = len(gemms)
    forward, backward, weight = (
        sum(seconds[start * number : (start + 1) * number], np.zeros(1)) for start in range(3)
    )
    return forward, backward, weight


def _layer_gemm_passes(
    job: Job, tokens: Array, candidates: Candidates, machine: Machine
) -> tuple[Array, Array, Array]:
    """Return the seconds of a layer's GEMMs in forward, for input gradients and for weight gradients.

    With adapters only these have weight gradients, and the experts that they are merged into.
    """
    forward, input_gradient, weight = _gemm_passes(layer_gemms(job, tokens, candidates), machine)
    if not job.adapters:
        return forward, input_gradient, weight
    adapter_forward, adapter_input, adapter_weight = _gemm_passes(
        adapter_gemms(job, tokens, candidates), machine
    )
    merged = weight_gradient_gemms(adapted_expert_gemms(job, tokens, candidates))
    adapter_weight = adapter_weight + _total_seconds(merged, machine)
    return forward + adapter_forward, input_gradient + adapter_input, adapter_weight


def _adapter_seconds(
    job: Job, tokens: Array, candidates: Candidates, machine: Machine
) -> tuple[Array, Array]:
    """Return the memory-bound time of adapters and of their quantised base, forward and backward [s]."""
    traffic = adapter_traffic_seconds(job, tokens, candidates, machine)
    dequantized = dequantization_seconds(job, candidates, machine)
    return traffic[0] + dequantized[0], traffic[1] + dequantized[1]


def _total_seconds(gemms: list[Gemm], machine: Machine) -> Array:
    return sum(_gemm_seconds(gemms, machine), np.zeros(1))


def _gemm_seconds(gemms: list[Gemm], machine: Machine) -> list[Array]:
    """Return the time of every GEMM [s]; one vectorised table lookup for all is faster."""
    if not gemms:
        return []
    shape = np.broadcast_shapes(*(np.shape(x) for gemm in gemms for x in gemm))
    extents = np.empty((5, len(gemms), *shape))
    for i, gemm in enumerate(gemms):
        for extent, x in zip(extents, gemm, strict=True):
            extent[i] = x
    m, n, k, number, grouped = extents
    return list(number * gemm_seconds(m, n, k, machine, grouped))


def _accumulation_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the time to accumulate a layer's weight gradients of a microbatch [s].

    Every microbatch reads and writes all gradients, independent of its tokens: 8 bytes per parameter with
    fp32 main gradients, more where a 16-bit gradient is written first.
    """
    trained = layer_weights(job, candidates).trained[:, 0]
    traffic_bytes = at_precision(job).stack.memory.accumulation_traffic * trained
    return memory_bound_seconds(traffic_bytes, machine, calls=0)


def attention_kernel_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return the time of one fused attention kernel, forward and backward [s], shape [C] each.

    Backward GEMMs: recomputed scores, dQ and dK have the key width; dV and dP the value width.

    >>> forward, backward = attention_kernel_seconds(job, candidate("tp=8"), ideal(machine, job))
    >>> round(float(backward[0] / forward[0]), 6)  # five GEMMs instead of two
    2.5

    Leaves out: kernels that do not split the sequence evenly, as ``step_kernel_seconds``; a mask's bytes.
    Source: Dao 2023 (FlashAttention-2), arXiv:2307.08691, section 4.1.
    """
    keys = visited_keys(job)
    wide, narrow = head_widths(job.model)
    forward = step_kernel_seconds(job, candidates, keys, machine.attention_forward)
    backward = step_kernel_seconds(job, candidates, keys, machine.attention_backward)
    return forward, (3 * wide + 2 * narrow) / (wide + narrow) * backward


@dataclass(frozen=True, slots=True)
class _Attention:
    """Seconds of a layer's attention, and exposed context-parallel communication, shape [C]."""

    forward: Array
    backward: Array
    exposed_forward: Array
    exposed_backward: Array


def _attention(job: Job, candidates: Candidates, machine: Machine) -> _Attention:
    if job.model.linear_attention is not None:
        zero = np.zeros(len(candidates))
        return _Attention(*linear_seconds(job, candidates, machine), zero, zero)
    if job.stack.block.attention == "eager":
        zero = np.zeros(len(candidates))
        return _Attention(*eager_attention_seconds(job, candidates, machine), zero, zero)
    forward, backward = attention_kernel_seconds(job, candidates, machine)
    context = context_times(job, candidates, machine, forward, backward)
    steps = attention_steps(job, candidates)
    return _Attention(
        forward=steps * forward + context.merge_forward,
        backward=steps * backward + context.merge_backward,
        exposed_forward=context.exposed_forward,
        exposed_backward=context.exposed_backward,
    )


#: Tensor cores read matrices and rows that begin at multiples of so many bytes (cuBLAS, "Tensor Core Usage").
_ALIGNMENT: Final = 16


def eager_attention_seconds(job: Job, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return forward and backward of a layer's unfused attention [s], each of shape [C].

    Two batched GEMMs of a b matrices, [s, d] x [d, s] and [s, s] x [s, d], four in backward, and memory-bound
    kernels over a b s^2 scores. Between the GEMMs a fused kernel scales, masks and takes the softmax: 1 read
    and 1 write, in backward 2 reads and 1 write. Unfused, four kernels (scale, two for the mask, softmax)
    read and write; backward has three of them. Dropout has additional accesses. Heads whose rows do not begin
    at multiples of 16 bytes are multiplied by vector units.

    >>> free = {"hbm_bandwidth": np.inf, "memory_bound_launch": 0.0, "gemm": Rate(1e9, (), 0.0)}
    >>> forward, backward = eager_attention_seconds(job, candidate("tp=8"), replace(machine, **free))
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
    softmax, softmax_backward = _softmax_accesses(job)
    forward = memory_bound_seconds((softmax + dropout) * machine.element_bytes * scores, machine, calls=2)
    backward = memory_bound_seconds(
        (softmax_backward + dropout_backward) * machine.element_bytes * scores, machine, calls=2
    )
    return products + forward, 2 * products + backward


def _softmax_accesses(job: Job) -> tuple[float, float]:
    """Return the accesses per score between both GEMMs without dropout [1], forward and backward.

    In fp32 a softmax without a mask reads or writes 4 bytes: scale and mask have 8 bytes, then the softmax 8
    and the cast 6; backward 6 of the cast, 12, and 4 of the scale. Where the scores are in bf16 another cast
    makes them fp32, 6 bytes both ways; of fp16 the softmax's kernel reads and writes 2 bytes itself.

    Source: PyTorch, aten/src/ATen/native/SoftMax.cpp, softmax: half_to_float is for Half alone.
    """
    if job.stack.block.fused_softmax:
        return 2.0, 3.0
    if not softmax_in_fp32(job):
        return 8.0, 7.0
    return (10.0, 10.0) if job.precision == "fp16" else (14.0, 14.0)


def _product_seconds(extents: tuple[Array, Array, Array], width: Array, machine: Machine) -> Array:
    """Return the time of a batched GEMM over heads of ``width`` elements [s]."""
    aligned = float(width) * machine.element_bytes % _ALIGNMENT == 0
    rate = machine.gemm
    if not aligned and machine.vector_flops is not None:
        rate = Rate(VECTOR_SHARE * machine.vector_flops, (), machine.gemm.launch)
    return gemm_seconds_at_rate(extents, rate, machine.hbm_bandwidth, machine.element_bytes)


def _dropout_accesses(job: Job) -> tuple[float, float]:
    """Return the accesses per score of attention dropout besides the softmax [1], forward and backward.

    A fused kernel writes the softmax for backward, the result and the mask; backward reads the mask.
    """
    return (2.0, 0.5) if job.stack.block.fused_attention_dropout else (DROPOUT_ACCESSES, DROPOUT_ACCESSES)
