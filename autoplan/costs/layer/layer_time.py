"""Time of one transformer layer on one microbatch, per candidate.

Notation (this file only)::

    T   tokens of a microbatch on one rank                   [1]
    h   hidden size                                          [1]
    q   width of all queries (heads x head_dim), k of keys   [1]
    f   inner width of the MLP                               [1]
    t   tensor-parallel degree                               [1]

Shapes of the products on one rank, forward: qkv [T, h] x [h, (q+2k)/t]; attention output
[T, q/t] x [q/t, h]; up (and gate) [T, h] x [h, f/t]; down [T, f/t] x [f/t, h]. Backward has two products
for each: the input gradient (m, k, n) and the weight gradient (k, n, m). After Narayanan et al. 2021
(arXiv 2104.04473) for the split and Korthikanti et al. 2022 (arXiv 2205.05198) for sequence parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoplan.costs.core.candidates import Array, Candidates
from autoplan.costs.core.parameters import expert_share
from autoplan.costs.core.rank_parameters import weights_of
from autoplan.costs.core.scope import at_precision, tokens_of
from autoplan.costs.core.sizes import backward_split, dropout_masks, sequence_split
from autoplan.costs.device.kernels import Gemm, gemm_seconds, memory_bound_seconds, smooth_maximum
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.alternate_recompute import alternate_gemms
from autoplan.costs.layer.casts import weight_cast_seconds
from autoplan.costs.layer.context_parallel import attention_steps, context_times, step_kernel_seconds
from autoplan.costs.layer.elementwise import DROPOUT_TRIPS, elementwise_seconds
from autoplan.costs.layer.gemm_shapes import attention_gemms, mlp_gemms
from autoplan.costs.layer.mla import head_widths, latent_gemms
from autoplan.costs.layer.moe import expert_gemms, expert_kernels
from autoplan.costs.layer.moe_dispatch import dispatch_seconds
from autoplan.costs.layer.tensor_parallel import regather_seconds, tensor_exposed, tensor_seconds
from autoplan.costs.network.overlap import Traffic, exposed_seconds
from autoplan.costs.network.tensor_calls import Calls, TensorCalls, tensor_calls
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

__all__ = ["BlockTimes", "block_times", "mean_keys"]

#: Kernels of backward over those of forward: a product has two gradients, most others one.
_BACKWARD_KERNELS = 2
#: Time that a collective takes the host over that of a kernel: beside its launch it marks places in streams
#: and waits for them. A guess; runs of small models (benchmarks/accuracy) tell 4 from none, not from 8.
_COLLECTIVE_KERNELS = 4
#: How sharply launches and compute blend where they are close: the host is behind at small kernels even
#: where it is ahead at large ones. Runs of small models (benchmarks/accuracy) are fitted as well by 1.7.
_PACE = 1.75


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one layer and one microbatch, arrays of shape [C].

    ``weight`` is the part of ``backward`` that weight gradients take;
    ``selective`` and ``full`` are compute done again in backward under each recompute mode;
    ``tensor_forward``, ``tensor_backward`` and ``tensor_full`` the tensor-parallel collectives of
    forward, backward (``tensor_weight``: of that, what weight gradients wait for where they are done apart)
    and of a forward done again, ``context_*`` what is exposed of the context axis.
    ``exchange`` sends rows to experts and back, in forward as in backward, and again in whole recompute
    (``dispatch_selective``: in selective).
    """

    forward: Array
    backward: Array
    weight: Array
    selective: Array
    full: Array
    tensor_forward: Array
    tensor_backward: Array
    tensor_weight: Array
    tensor_full: Array
    context_forward: Array
    context_backward: Array
    context_selective: Array
    context_full: Array
    exchange: Array
    dispatch_selective: Array


def block_times(job: Job, candidates: Candidates, machine: Machine) -> BlockTimes:
    """Return the times of one layer and one microbatch for each candidate [s], arrays of shape [C].

    The sum of its products, attention and what moves bytes, beside its launches.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.device.machine import ideal, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> fastest = ideal(machine_of(job), job)
    >>> float(round(block_times(job, one, fastest).forward[0] * fastest.peak_flops / 1e9, 1))  # GFLOP
    515.4
    >>> round((2 * 8192 * 218_103_808 + 4 * 8192 * 4096.5 * 4096) / 8 / 1e9, 1)  # gemms and attention
    515.4

    Leaves out: contention between collectives and compute; how layers of several kinds differ: it is given
    one kind at a time, or averages.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.3, for the split; the rates are of ``machine``.
    """
    tokens = tokens_of(job, candidates)
    gemms = _gemms(job, tokens, candidates)
    trained = _adapter_gemms(job, tokens, candidates) if job.adapters else gemms
    forward_gemm, input_gemm, weight_gemm = _passes(gemms, machine)
    if job.adapters:
        adapter_forward, adapter_input, weight_gemm = _passes(trained, machine)
        forward_gemm, input_gemm = forward_gemm + adapter_forward, input_gemm + adapter_input
    backward_gemm = input_gemm + weight_gemm
    attention = _attention(job, candidates, machine)
    stream, stream_backward = elementwise_seconds(job, tokens, candidates, machine)
    calls = tensor_calls(job, candidates)
    launches, launches_back = _launches(job, candidates, machine, calls)
    casts = weight_cast_seconds(job, candidates, machine)
    first = forward_gemm + attention.forward + stream + casts
    forward, waits = _paced(first, attention.wait_forward, launches)
    recompute = first - _not_repeated(job, tokens, candidates, machine)
    accumulated = _accumulation_seconds(job, candidates, machine)
    computed = backward_gemm + attention.backward + stream_backward + accumulated + casts
    backward, waits_backward = _paced(computed, attention.wait_backward, launches_back)
    core = job.stack.block.selective == "attention"
    exchange = dispatch_seconds(job, candidates, machine)
    if not core:
        # The products of experts are no plain ones: they are done again, and their rows sent again.
        stream = stream + _together(_recomputed_gemms(job, tokens, candidates), machine)
    regathered = regather_seconds(job, candidates, machine, calls.backward)
    return BlockTimes(
        forward=forward,
        backward=backward,
        # A host that is too slow for one half of backward is too slow for the other.
        weight=(weight_gemm + accumulated) / computed * backward,
        selective=attention.forward if core else stream,
        full=smooth_maximum(recompute, launches, _PACE),
        tensor_forward=tensor_exposed(job, candidates, machine, calls.forward, forward_gemm),
        tensor_backward=_tensor_backward(job, candidates, machine, calls.backward, input_gemm) + regathered,
        tensor_weight=regathered,
        tensor_full=tensor_exposed(job, candidates, machine, calls.recompute, forward_gemm),
        context_forward=waits,
        context_backward=waits_backward,
        context_selective=attention.wait_forward * core,
        context_full=waits,
        exchange=exchange,
        dispatch_selective=exchange * float(not core),
    )


def _launches(job: Job, candidates: Candidates, machine: Machine, calls: TensorCalls) -> tuple[Array, Array]:
    """Return what the host takes to launch a layer's kernels and collectives [s], forward and backward.

    It launches them one by one; a device that is faster waits for it.
    """
    kernels = job.stack.block.kernels + expert_kernels(job, candidates)
    forward = kernels + _COLLECTIVE_KERNELS * calls.forward.number
    backward = _BACKWARD_KERNELS * kernels + _COLLECTIVE_KERNELS * calls.backward.number
    return forward * machine.host_launch, backward * machine.host_launch


def _paced(compute: Array, wait: Array, launches: Array) -> tuple[Array, Array]:
    """Return compute beside its launches, nearly as long as the longer, and what a wait adds to that."""
    paced = smooth_maximum(compute, launches, _PACE)
    return paced, smooth_maximum(compute + wait, launches, _PACE) - paced


def _not_repeated(job: Job, tokens: Array, candidates: Candidates, machine: Machine) -> Array:
    """Return what full recompute leaves out of a layer's forward [s]: its last product, where it stops early.

    Recomputation is over with the last tensor that backward asks for, the input of the last product; where
    experts come last, they are all done again.
    """
    if not job.stack.block.checkpoint_stops_early:
        return np.zeros(1)
    return _together(_dense_gemms(job, tokens, candidates)[1:], machine)


def _recomputed_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """The products that selective recompute does again where it drops more than core attention."""
    experts = expert_gemms(job, tokens, candidates)
    if job.stack.block.selective == "matmul-outputs":
        return experts
    t, whole = candidates.tp.astype(np.float64), sequence_split(candidates)
    return [*alternate_gemms(job.model, tokens, t, whole), *experts]


def _gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """The products of a layer's forward: attention's, the dense MLP's, the experts'."""
    model, t = job.model, candidates.tp.astype(np.float64)
    attention = _packed_gemms(model, tokens, t)
    if model.mla is not None:
        attention = latent_gemms(model, tokens, t, sequence_split(candidates))
    dense = _dense_gemms(job, tokens, candidates)
    return [*attention, *dense, *expert_gemms(job, tokens, candidates)]


def _dense_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """The products of the dense MLP, up (with gate) and down: of the share of layers that have one."""
    *ups, down = mlp_gemms(job.model, tokens, candidates.tp.astype(np.float64))
    together = ups[0]._replace(n=len(ups) * ups[0].n)
    return [together, down] if expert_share(job.model) < 1 else []


def _tensor_backward(job: Job, candidates: Candidates, machine: Machine, calls: Calls, gemms: Array) -> Array:
    """Return what is exposed of the collectives of backward [s], shape [C].

    Where the stack does so, the gradient of a column-split product's input is reduced while the gradient of
    its weight is computed; not where that is done apart.
    """
    apart = backward_split(candidates) > 0
    if machine.overlap.tensor or not machine.overlap.tensor_backward or job.adapters or apart.all():
        return tensor_exposed(job, candidates, machine, calls, gemms)
    none = np.zeros(len(candidates))
    gathers = replace(calls, reduce_scatter=none, all_reduce=none)
    reduces = replace(calls, all_gather=none, regathers=none)
    computed = _together(_weight_gemms(_column_gemms(job, candidates)), machine)
    reduced = tensor_seconds(job, candidates, machine, reduces)
    exposed = exposed_seconds(computed, Traffic(reduced, reduced), machine)
    hidden: Array = tensor_seconds(job, candidates, machine, gathers) + exposed
    return np.where(apart, tensor_seconds(job, candidates, machine, calls), hidden) if apart.any() else hidden


def _column_gemms(job: Job, candidates: Candidates) -> list[Gemm]:
    """The products that are split by columns and reduce the gradient of their input."""
    model, t, tokens = job.model, candidates.tp.astype(np.float64), tokens_of(job, candidates)
    up = _dense_gemms(job, tokens, candidates)[:1]
    if model.mla is not None:
        return [*latent_gemms(model, tokens, t, sequence_split(candidates))[-3:-1], *up]
    return [*_packed_gemms(model, tokens, t)[:1], *up]


def _packed_gemms(model: ModelSpec, tokens: Array, t: Array) -> list[Gemm]:
    """The product that makes queries, keys and values at once, and the output's."""
    queries, keys, values, output = attention_gemms(model, tokens, t)
    return [queries._replace(n=queries.n + keys.n + values.n), output]


def _adapter_gemms(job: Job, tokens: Array, candidates: Candidates) -> list[Gemm]:
    """The two narrow products beside each target of an adapter; the target's own weight is frozen."""
    adapters = job.adapters
    if adapters is None:
        return []
    rank = np.asarray(float(adapters.rank))
    targets = _gemms(job, tokens, candidates)
    wanted = targets if adapters.targets == "all" else targets[:2]
    narrow = [(Gemm(m, rank, k), Gemm(m, n, rank)) for m, n, k, *_ in wanted]
    return [gemm for pair in narrow for gemm in pair]


def _passes(gemms: list[Gemm], machine: Machine) -> tuple[Array, Array, Array]:
    """Return the seconds of the products: forward, for the gradients of inputs and for those of weights."""
    inputs = [Gemm(m, k, n, x, g) for m, n, k, x, g in gemms]
    each = _each_seconds([*gemms, *inputs, *_weight_gemms(gemms)], machine)
    forward, backward, weight = (
        sum(each[first : first + len(gemms)], np.zeros(1)) for first in range(0, len(each), len(gemms))
    )
    return forward, backward, weight


def _weight_gemms(gemms: list[Gemm]) -> list[Gemm]:
    return [Gemm(k, n, m, x, g) for m, n, k, x, g in gemms]


def _together(gemms: list[Gemm], machine: Machine) -> Array:
    return sum(_each_seconds(gemms, machine), np.zeros(1))


def _each_seconds(gemms: list[Gemm], machine: Machine) -> list[Array]:
    """Return the time of each of ``gemms`` [s]: all looked up at once, which is quicker."""
    if not gemms:
        return []
    shape = np.broadcast_shapes(*(np.shape(x) for gemm in gemms for x in gemm))
    m, n, k, number, alike = (
        np.stack([np.broadcast_to(x, shape) for x in extent]) for extent in zip(*gemms, strict=True)
    )
    return list(number * gemm_seconds(m, n, k, machine, alike))


def _accumulation_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the time to add a microbatch's weight gradients of a layer to those that are kept.

    Every microbatch reads and writes all of them, however few its tokens: with fp32 main gradients
    8 bytes a parameter, more where a 16-bit gradient is written first.
    """
    trained = weights_of(job, candidates).layer.trained[:, 0]
    moved = at_precision(job).stack.memory.accumulation_traffic * trained
    return memory_bound_seconds(moved, machine, calls=0)


def mean_keys(model: ModelSpec, sequence_length: int) -> float:
    """Return the keys that a token attends to, averaged over tokens and layers.

    (s + 1)/2 for causal attention; with a window w < s, w - w(w-1)/(2s) [1].

    >>> from autoplan.catalog import load_job
    >>> mean_keys(load_job("llama3-8b-8x-a100").model, 8192)  # 8,193 / 2
    4096.5

    Leaves out: documents packed into one sequence, which do not see each other.
    Source: the sum of min(i, w) over i = 1..s, over s.
    """
    s = sequence_length
    total = 0.0
    for layer in range(model.layers):
        w = min(model.attention_window(layer) or s, s)
        total += w - w * (w - 1) / (2 * s)
    return total / model.layers


@dataclass(frozen=True, slots=True)
class _Attention:
    """Seconds of a layer's attention, and what it waits for others on the context axis."""

    forward: Array
    backward: Array
    wait_forward: Array
    wait_backward: Array


def _attention(job: Job, candidates: Candidates, machine: Machine) -> _Attention:
    if job.stack.block.attention == "eager":
        return _eager_attention(job, candidates, machine)
    keys = mean_keys(job.model, job.workload.sequence_length)
    wide, narrow = head_widths(job.model)
    forward = step_kernel_seconds(job, candidates, keys, machine.attention_forward)
    backward = step_kernel_seconds(job, candidates, keys, machine.attention_backward)
    # Recomputed scores, dQ and dK are as wide as a key, dV and dP as a value; forward has one of each.
    backward = (3 * wide + 2 * narrow) / (wide + narrow) * backward
    context = context_times(job, candidates, machine, forward, backward)
    steps = attention_steps(job, candidates)
    return _Attention(
        forward=steps * forward + context.merge_forward,
        backward=steps * backward + context.merge_backward,
        wait_forward=context.wait_forward,
        wait_backward=context.wait_backward,
    )


def _eager_attention(job: Job, candidates: Candidates, machine: Machine) -> _Attention:
    """Two batched products over all s^2 scores, and the scores' trips through memory between them.

    The products write and read scores themselves. Between them a fused kernel masks, scales and takes the
    softmax: it reads and writes them, backward it reads two and writes one; unfused, four kernels (scale,
    two for the mask, softmax) read and write, of which backward has three. Dropout has trips of its own.
    """
    model, s = job.model, job.workload.sequence_length
    matrices = candidates.microbatch * np.maximum(1.0, model.heads / candidates.tp)
    wide, narrow = (np.asarray(float(width)) for width in head_widths(model))
    length = np.asarray(float(s))
    scores = matrices * float(s) ** 2
    # Batched products fill the device together: priced as one tall product.
    first = gemm_seconds(matrices * length, length, wide, machine)
    second = gemm_seconds(matrices * length, narrow, length, machine)
    dropped, dropped_back = (dropout_masks(job) * x for x in _dropout_accesses(job))
    trips, back = (2.0, 3.0) if job.stack.block.fused_softmax else (8.0, 7.0)
    forward = memory_bound_seconds((trips + dropped) * machine.element_bytes * scores, machine, calls=2)
    backward = memory_bound_seconds((back + dropped_back) * machine.element_bytes * scores, machine, calls=2)
    none = np.zeros(len(candidates))
    return _Attention(first + second + forward, 2 * (first + second) + backward, none, none)


def _dropout_accesses(job: Job) -> tuple[float, float]:
    """Return the trips that dropout adds to those of the softmax, forward and backward.

    A kernel that does both writes its softmax for backward, the result, and writes and reads a mask; backward
    it reads the mask.
    """
    return (2.0, 0.5) if job.stack.block.fused_attention_dropout else (DROPOUT_TRIPS, DROPOUT_TRIPS)
