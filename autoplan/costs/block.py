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

from dataclasses import dataclass

import numpy as np

from autoplan.costs.activations import sequence_split
from autoplan.costs.arrays import Array, Candidates
from autoplan.costs.collectives import Group, collective_seconds
from autoplan.costs.context import attention_steps, context_times, step_kernel_seconds
from autoplan.costs.experts import (
    exchange_seconds,
    expert_elements,
    expert_kernels,
    expert_products,
    rows_per_token,
)
from autoplan.costs.latent import head_widths, latent_elements, latent_products
from autoplan.costs.machine import Machine
from autoplan.costs.operations import Product, gemm_seconds, stream_seconds
from autoplan.costs.parameters import expert_share
from autoplan.costs.scope import tokens_of
from autoplan.costs.traffic import OPERATIONS, Calls, tensor_calls
from autoplan.costs.weights import weights_of
from autoplan.schema.job import Job
from autoplan.schema.model import ModelSpec

__all__ = ["BlockTimes", "block_times", "mean_keys", "tensor_group", "tensor_seconds"]

#: Kernels of backward over those of forward: a product has two gradients, most others one.
_BACKWARD_KERNELS = 2
#: Kernels of a layer besides matrix products and attention: norms, rotation, activation, additions.
_SMALL_KERNELS = 7


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one layer and one microbatch, arrays of shape [C].

    ``selective`` and ``full`` are compute done again in backward under each recompute mode;
    ``tensor_forward``, ``tensor_backward`` and ``tensor_full`` the tensor-parallel collectives of
    forward, backward and of a forward done again, ``context_*`` what is exposed of the context axis.
    ``exchange`` sends rows to experts and back, in forward as in backward, and again in whole recompute
    (``exchange_selective``: in selective).
    """

    forward: Array
    backward: Array
    selective: Array
    full: Array
    tensor_forward: Array
    tensor_backward: Array
    tensor_full: Array
    context_forward: Array
    context_backward: Array
    context_selective: Array
    context_full: Array
    exchange: Array
    exchange_selective: Array


def block_times(job: Job, candidates: Candidates, machine: Machine) -> BlockTimes:
    """Return the times of one layer and one microbatch for each candidate [s], arrays of shape [C].

    The sum of its products, attention and what moves bytes, or its launches where those take longer.

    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import ideal, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> fastest = ideal(machine_of(job), job)
    >>> float(round(block_times(job, one, fastest).forward[0] * fastest.peak_flops / 1e9, 1))  # GFLOP
    515.4
    >>> round((2 * 8192 * 218_103_808 + 4 * 8192 * 4096.5 * 4096) / 8 / 1e9, 1)  # products and attention
    515.4

    Leaves out: contention between collectives and compute; local windows, and dense layers among those with
    experts, are averaged over layers.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.3, for the split; the rates are of ``machine``.
    """
    tokens = tokens_of(job, candidates)
    products = _products(job, tokens, candidates)
    trained = _adapter_products(job, tokens, candidates) if job.adapters else products
    forward_gemm = _forward_seconds(products, machine)
    backward_gemm = _input_seconds(products, machine) + _weight_seconds(trained, machine)
    if job.adapters:
        forward_gemm = forward_gemm + _forward_seconds(trained, machine)
        backward_gemm = backward_gemm + _input_seconds(trained, machine)
    attention = _attention(job, candidates, machine)
    stream, stream_backward = _streams(job, tokens, candidates, machine)
    # The host launches kernels one by one; a device that is faster waits for it.
    launches = (job.stack.block.kernels + expert_kernels(job, candidates)) * machine.host_launch
    forward, waits = _paced(forward_gemm + attention.forward + stream, attention.wait_forward, launches)
    accumulated = _accumulation_seconds(job, candidates, machine)
    backward, waits_backward = _paced(
        backward_gemm + attention.backward + stream_backward + accumulated,
        attention.wait_backward,
        _BACKWARD_KERNELS * launches,
    )
    core = job.stack.block.selective == "attention"
    exchange = exchange_seconds(job, candidates, machine)
    if not core:
        # The products of experts are no plain ones: they are done again, and their rows sent again.
        stream = stream + _forward_seconds(expert_products(job, tokens, candidates), machine)
    calls = tensor_calls(job, candidates)
    return BlockTimes(
        forward=forward,
        backward=backward,
        selective=attention.forward if core else stream,
        full=forward,
        tensor_forward=tensor_seconds(job, candidates, machine, calls.forward),
        tensor_backward=tensor_seconds(job, candidates, machine, calls.backward),
        tensor_full=tensor_seconds(job, candidates, machine, calls.again),
        context_forward=waits,
        context_backward=waits_backward,
        context_selective=attention.wait_forward * core,
        context_full=waits,
        exchange=exchange,
        exchange_selective=exchange * float(not core),
    )


def _paced(compute: Array, wait: Array, launches: Array) -> tuple[Array, Array]:
    """Return compute, or its launches where those take longer, and what a wait adds to that."""
    paced = np.maximum(compute, launches)
    return paced, np.maximum(compute + wait, launches) - paced


def _products(job: Job, tokens: Array, candidates: Candidates) -> list[Product]:
    """The products of a layer's forward: attention's, the dense MLP's, the experts'."""
    model, t = job.model, candidates.tp.astype(np.float64)
    dense = 1.0 - expert_share(model)
    h = np.asarray(float(model.hidden_size))
    q = model.heads * model.head_dim / t
    k = np.maximum(model.kv_heads / t, 1.0) * model.head_dim
    f = model.ffn_size / t
    up = 2 * f if model.gated else f
    attention = [Product(tokens, q + 2 * k, h), Product(tokens, h, q)]
    if model.mla is not None:
        attention = latent_products(model, tokens, t, sequence_split(candidates))
    mlp = [Product(tokens, up, h, dense), Product(tokens, h, f, dense)] if dense else []
    return [*attention, *mlp, *expert_products(job, tokens, candidates)]


def _adapter_products(job: Job, tokens: Array, candidates: Candidates) -> list[Product]:
    """The two narrow products beside each target of an adapter; the target's own weight is frozen."""
    adapters = job.adapters
    if adapters is None:
        return []
    rank = np.asarray(float(adapters.rank))
    targets = _products(job, tokens, candidates)
    wanted = targets if adapters.targets == "all" else targets[:2]
    narrow = [(Product(m, rank, k), Product(m, n, rank)) for m, n, k, *_ in wanted]
    return [product for pair in narrow for product in pair]


def _forward_seconds(products: list[Product], machine: Machine) -> Array:
    return sum((x * gemm_seconds(m, n, k, machine, g) for m, n, k, x, g in products), np.zeros(1))


def _input_seconds(products: list[Product], machine: Machine) -> Array:
    return sum((x * gemm_seconds(m, k, n, machine, g) for m, n, k, x, g in products), np.zeros(1))


def _weight_seconds(products: list[Product], machine: Machine) -> Array:
    return sum((x * gemm_seconds(k, n, m, machine, g) for m, n, k, x, g in products), np.zeros(1))


def _accumulation_seconds(job: Job, candidates: Candidates, machine: Machine) -> Array:
    """Return the time to add a microbatch's weight gradients of a layer to those that are kept.

    Every microbatch reads and writes all of them, however few its tokens: with fp32 main gradients
    8 bytes a parameter, more where a 16-bit gradient is written first.
    """
    trained = weights_of(job, candidates).layer.trained[:, 0]
    moved = job.stack.memory.accumulation_traffic * trained
    return stream_seconds(moved, machine, calls=0)


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
    """Two batched products over all s^2 scores, and the scores' trips through memory.

    A score is written by the product, read and written by mask with softmax, then by dropout, which writes
    its mask, too, and is read by the second product: 7 trips of 2 bytes forward and as many backward.
    """
    model, s = job.model, job.workload.sequence_length
    matrices = candidates.microbatch * np.maximum(1.0, model.heads / candidates.tp)
    wide, narrow = (np.asarray(float(width)) for width in head_widths(model))
    length = np.asarray(float(s))
    scores = matrices * float(s) ** 2
    # Batched products fill the device together: priced as one tall product.
    first = gemm_seconds(matrices * length, length, wide, machine)
    second = gemm_seconds(matrices * length, narrow, length, machine)
    softmax = stream_seconds(7 * machine.element_bytes * scores, machine, calls=3)
    none = np.zeros(len(candidates))
    return _Attention(first + second + softmax, 2 * (first + second) + softmax, none, none)


def _streams(job: Job, tokens: Array, candidates: Candidates, machine: Machine) -> tuple[Array, Array]:
    """Return the memory-bound time of a layer, forward and backward.

    Elements moved for each token by norms, two residual additions (3h each, and as much when their
    gradients are added), rotation and activation; see ``_Trips``. Experts add theirs, latents take the place
    of the rotation.
    """
    model, e, policy = job.model, machine.element_bytes, job.stack.experts
    trips = _Trips.of(job)
    share = expert_share(model)
    t = candidates.tp.astype(np.float64)
    whole = np.where(candidates.sequence_parallel == 1, t, 1.0)
    h = model.hidden_size / whole
    turned = model.heads / t + np.maximum(model.kv_heads / t, 1.0) if model.positions == "rope" else 0.0 * t
    rotated = turned * model.head_dim if model.mla is None else 0.0 * t
    f = (1.0 - share) * model.ffn_size / t
    norms = 4 if model.post_norms else 2
    forward = (norms * trips.norm + 6) * h + trips.rotation * rotated + trips.activation * f
    backward = (norms * trips.norm_back + 6) * h + trips.rotation_back * rotated + trips.activation_back * f
    if model.mla is not None:
        forward = forward + latent_elements(model, t, whole, trips.norm)
        backward = backward + latent_elements(model, t, whole, trips.norm_back)
    if share:
        forward = forward + expert_elements(job, candidates, trips.activation)
        backward = backward + expert_elements(job, candidates, trips.activation_back)
    if job.precision == "fp8" and not job.stack.block.fused_casts:
        casts = _cast_elements(job, candidates)
        forward, backward = forward + casts[0], backward + casts[1]
    traffic = e * tokens * job.stack.block.elementwise_traffic.value
    calls = _SMALL_KERNELS + (share * policy.kernels if policy else 0.0)
    return (
        stream_seconds(traffic * forward, machine, calls=calls),
        stream_seconds(traffic * backward, machine, calls=calls),
    )


def _cast_elements(job: Job, candidates: Candidates) -> tuple[Array, Array]:
    """Elements moved for a token to cast what 8-bit products read: forward their inputs, backward gradients.

    Each is read in 16 bits and written in 8, as it is and transposed: two elements of 16 bits.
    """
    model, t = job.model, candidates.tp.astype(np.float64)
    share, rows = expert_share(model), rows_per_token(job, candidates)
    h, q = np.asarray(float(model.hidden_size)), model.heads * model.head_dim / t
    f = (1.0 - share) * model.ffn_size / t
    k = model.kv_heads * model.head_dim / np.minimum(t, model.kv_heads)
    if model.moe is not None:
        inner = rows * model.moe.expert_ffn_size / candidates.etp + model.moe.shared_expert_ffn_size / t
        f, h = f + share * inner, h + share * rows * h / 2
    up = 2 if model.gated else 1
    return 2 * (2 * h + q + f), 2 * (2 * h + q + 2 * k + up * f)


@dataclass(frozen=True, slots=True)
class _Trips:
    """Elements of 16 bits moved for each element that an operation works on, read and written.

    Fused: a norm reads and writes its element, backward reads two and writes one; a rotation reads and
    writes; a gated activation reads two and writes one, backward reads three and writes two. Unfused, each
    step of the formula is a kernel: an RMSNorm casts to fp32, squares, averages, scales, casts and weighs
    (36 bytes, backward 64); a rotation casts, multiplies and casts (20 bytes); SiLU and product are two.
    """

    norm: float
    norm_back: float
    rotation: float
    rotation_back: float
    activation: float
    activation_back: float

    @staticmethod
    def of(job: Job) -> _Trips:
        """Return the trips of the job's block."""
        block, model = job.stack.block, job.model
        # A LayerNorm or a GELU is one kernel in every stack.
        norm = (2.0, 3.0) if block.fused_norms or model.norm == "layernorm" else (18.0, 32.0)
        rotation = (2.0, 2.0) if block.fused_rotation else (10.0, 10.0)
        gated = (3.0, 5.0) if block.fused_activation else (5.0, 9.0)
        return _Trips(*norm, *rotation, *(gated if model.gated else (2.0, 3.0)))


def tensor_group(candidates: Candidates) -> Group:
    """Return the tensor-parallel group, t neighbours: ranks and stride [1], shape [C].

    >>> from autoplan.schema.layout import parse_layout
    >>> group = tensor_group(Candidates.of([parse_layout("tp=4", layers=32, devices=8)]))
    >>> group.ranks.tolist(), group.stride.tolist()
    ([4.0], [1.0])

    Leaves out: other orders of the axes.
    Source: Megatron-LM, megatron/core/parallel_state.py, whose order is tp-cp-ep-dp-pp.
    """
    return Group(candidates.tp.astype(np.float64), np.ones(len(candidates)))


def tensor_seconds(job: Job, candidates: Candidates, machine: Machine, calls: Calls) -> Array:
    """Return the exposed time of tensor-parallel collectives over [T, h], shape [C] [s].

    The sum over operations of calls times the time of one on e T h bytes; what is gathered again for a
    weight gradient runs beside the product before it.

    >>> from dataclasses import replace
    >>> from autoplan.catalog import load_job
    >>> from autoplan.costs.machine import Links, machine_of
    >>> from autoplan.schema.layout import parse_layout
    >>> job, one = load_job("llama3-8b-8x-a100"), Candidates.of([parse_layout("tp=8", layers=32, devices=8)])
    >>> links = Links(8, 7 * 2.0**23, 7 * 2.0**23, False, 0.0, 1.0, 0.0, 0.0, ())  # 7 x 8 MiB/s
    >>> forward = tensor_calls(job, one).forward  # two gathers and two scatters of 7/8 x 64 MiB
    >>> tensor_seconds(job, one, replace(machine_of(job), links=links), forward).tolist()
    [4.0]

    Leaves out: the slowdown of that product.
    Source: Megatron-LM, megatron/core/tensor_parallel/layers.py, for what runs beside a product.
    """
    if machine.overlap.everything:
        return np.zeros(len(candidates))
    tokens = tokens_of(job, candidates)
    size = machine.element_bytes * job.model.hidden_size * tokens
    group, links = tensor_group(candidates), machine.links
    seconds = np.zeros(len(candidates))
    for operation in OPERATIONS:
        seconds = seconds + getattr(calls, operation) * collective_seconds(operation, size, group, links)
    return seconds
