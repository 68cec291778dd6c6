"""Time of one kernel on one device: GEMM, fused attention, memory-bound kernels.

Notation (this file only)::

    m, n, k  extents of a GEMM: [m, k] times [k, n]              [1]
    P        achieved rate of a large GEMM                       [FLOP/s]
    W        achieved HBM bandwidth                              [byte/s]
    x_half   extent at which the rate is half of P               [1]
    t0       fixed time of a kernel of any size                  [s]

The curves are fitted to measured sweeps (``costmodels/kernels``): on the A100, H100, H200, B200 and L40S
GEMM tables ``gemm_seconds`` has a median error of 4 to 8 % over all shapes with m, n, k >= 256.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernel_tables import (
    AttentionGrid,
    GemmGrid,
    attention_efficiency,
    attention_inside,
    gemm_efficiency,
    gemm_inside,
)
from autoplan.costs.device.machine import Machine, Rate

#: Sharpness of the transition between compute-bound and memory-bound; 4 fits the sweeps best.
_BLEND = 4.0

#: Time that the device idles where the host waits for it, over that of a kernel launch: a copy to the host,
#: and the launches of the copy and of the next kernel.
_WAIT_LAUNCHES = 3

#: Kernels read and write matrices at multiples of so many bytes.
_ALIGNMENT = 16

#: Bytes of a kernel over those of the last-level cache at which half of its traffic stays in the cache, and
#: how sharply that falls: fitted to activations and norms of the RTX 4090 (72 MiB) and RTX PRO 6000 (128):
#: where traffic runs at 2.5, 1.9, 1.25 and 1.0 times the rate of memory at 0.25, 0.6, 1.2 and 2.3 caches.
_CACHE_HALF = 0.85
_CACHE_FALL = 2.0


class Gemm(NamedTuple):
    """Extents of a GEMM, and the number of such GEMMs in a layer.

    ``groups`` of them, with a weight each, run as one kernel (grouped GEMM).
    """

    m: Array
    n: Array
    k: Array
    number: Array | float = 1.0
    groups: Array | float = 1.0


def smooth_maximum(one: Array, other: Array, sharpness: float) -> Array:
    """Return the p-norm (a^x + b^x)^(1/x), in the unit of a and b: at least their maximum.

    At most 2^(1/x) times the maximum. Work that takes a on one resource and b on another at the same time
    takes max(a, b) only if the same resource limits all its parts; otherwise the sum of the parts' maxima is
    larger.

    >>> smooth_maximum(np.array([3.0, 0.0]), np.array([4.0, 0.0]), sharpness=2.0).tolist()
    [5.0, 0.0]

    Source: the p-norm; ``sharpness`` is chosen where it is used.
    """
    longer: Array = np.maximum(one, other)
    shorter: Array = np.minimum(one, other)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    maximum: Array = longer * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
    return maximum


def waiting_seconds(waits: Array | float, machine: Machine) -> Array:
    """Return the time that the device idles while the host waits ``waits`` times for a number from it [s].

    >>> round(float(waiting_seconds(1000.0, SimpleNamespace(host_launch=8e-6))), 6)
    0.024

    Leaves out: what the device has left to do when the host begins to wait.
    Source: an estimate; loops of one wait a token take 17 to 25 us each beside a launch of 8 us (prime-rl,
    trainer/utils.py, get_response_lengths: its policy loss against its cross entropy, benchmarks/accuracy).
    """
    return _WAIT_LAUNCHES * machine.host_launch * np.asarray(waits, dtype=np.float64)


def _compute_seconds(flops: Array, extents: tuple[Array, ...], rate: Rate) -> Array:
    seconds = flops / rate.peak
    for extent, half in zip(extents, rate.halves, strict=False):
        seconds = seconds * (1.0 + half / extent)
    return seconds


def gemm_seconds(m: Array, n: Array, k: Array, machine: Machine, groups: Array | float = 1.0) -> Array:
    """Return the time of a GEMM, [m, k] times [k, n], or of a grouped GEMM of ``groups`` such [s].

    T = (C^4 + M^4)^(1/4) + t0 with C = 2mnk/P (1 + m_half/m)(1 + n_half/n)(1 + k_half/k) and M = bytes/W: the
    rate saturates with each extent, and compute overlaps with HBM traffic. A grouped GEMM has the rate of all
    its rows together; each of its GEMMs reads its own weight.

    >>> halves = Rate(1e12, (1000.0, 1000.0, 1000.0), 0.0)
    >>> machine = SimpleNamespace(element_bytes=2, hbm_bandwidth=np.inf, gemm=halves)
    >>> round(float(gemm_seconds(1000, 1000, 1000, machine)), 6)  # 2e9 / 1e12 x 2 x 2 x 2
    0.016

    Leaves out: tile and wave quantisation (up to 20 % on single shapes), fp32 accumulation into an
    existing gradient, transposed layouts.
    Source: fitted to the sweeps named in costmodels/kernels.
    """
    return gemm_seconds_at_rate((m, n, k), machine.gemm, machine.hbm_bandwidth, machine.element_bytes, groups)


def gemm_seconds_at_rate(
    extents: tuple[Array, Array, Array],
    rate: Rate,
    bandwidth: Array | float,
    element_bytes: int,
    groups: Array | float = 1.0,
) -> Array:
    """Return the time [s] of GEMMs of ``extents`` (m, n, k) at the given rate, see ``gemm_seconds``.

    ``bandwidth`` [byte/s] is that of HBM.

    >>> extents = (np.asarray(1000), np.asarray(1000), np.asarray(1000))
    >>> round(float(gemm_seconds_at_rate(extents, Rate(1e12, (1000.0, 1000.0, 1000.0), 0.0), np.inf, 2)), 6)
    0.016
    """
    m, n, k, g = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (*extents, groups)))
    flops, hbm_bytes = gemm_work((m, n, k), element_bytes, g)
    m = g * m
    if isinstance(rate.table, GemmGrid):
        if rate.beyond and gemm_inside(m, n, k, rate.table).all():
            return np.zeros(m.shape)
        # The launch counts with memory traffic: compute hides it in large GEMMs.
        compute = flops / (rate.peak * gemm_efficiency(m, n, k, rate.table))
        seconds = smooth_maximum(compute, hbm_bytes / bandwidth + rate.launch, _BLEND)
        return np.where(gemm_inside(m, n, k, rate.table), 0.0, seconds) if rate.beyond else seconds
    compute = _compute_seconds(flops, (m, n, k), rate)
    return smooth_maximum(compute, hbm_bytes / bandwidth, _BLEND) + rate.launch


def unaligned_gemm_seconds(m: Array, n: Array, k: Array, machine: Machine, width: Array) -> Array:
    """Return the time of GEMMs of which some operand has rows of ``width`` elements [s].

    Kernels load and store 16 bytes at once. Where rows do not begin at multiples of that, slower ones run, at
    ``machine.unaligned_share`` of the rate.

    >>> rates = {"gemm": Rate(1e12, (), 0.0), "unaligned_share": 0.5}
    >>> machine = SimpleNamespace(element_bytes=2, hbm_bandwidth=np.inf, **rates)
    >>> v = np.array([50_304.0, 50_257.0])
    >>> (unaligned_gemm_seconds(1000, v, 1000, machine, v) / (2e6 * v / 1e12)).tolist()
    [1.0, 2.0]

    Leaves out: rows that begin at multiples of 4 or 8 bytes, whose kernels are a little faster.
    Source: cuBLAS, "Tensor Core Usage"; pytorch/pytorch#181718 for the kernels' names (align1, align8).
    """
    plain, aligned = gemm_seconds(m, n, k, machine), width * machine.element_bytes % _ALIGNMENT == 0
    if machine.unaligned_share == 1.0 or aligned.all():
        return plain
    slow = replace(machine.gemm, peak=machine.gemm.peak * machine.unaligned_share)
    slower = gemm_seconds_at_rate((m, n, k), slow, machine.hbm_bandwidth, machine.element_bytes)
    return np.where(aligned, plain, slower)


def gemm_work(extents: tuple[Array, Array, Array], element_bytes: int, groups: Array) -> tuple[Array, Array]:
    """Return FLOPs and the least HBM traffic [byte] of GEMMs of ``extents`` (m, n, k), each grouped.

    2mnk and the elements of all operands, both for all groups, each of which has a weight of its own.

    >>> one = np.array(1000.0)
    >>> [float(x) for x in gemm_work((one, one, one), 2, np.array(1.0))]  # 2e9, 3 x 2e6
    [2000000000.0, 6000000.0]

    Leaves out: operands that are read more than once.
    """
    m, n, k = extents
    m = groups * m
    return 2.0 * m * n * k, element_bytes * (m * n + m * k + groups * (n * k))


def attention_seconds(
    sequences: Array, tokens: Array, keys: Array | float, heads: Array, head_dim: float, rate: Rate
) -> Array:
    """Return the time of fused causal attention over ``sequences`` of ``tokens`` tokens [s].

    T = 4 b s k_mean a d / P (1 + s_half/s)(1 + r_half/(a b s)) + t0 in forward, where ``keys`` is the mean
    number of keys that a token attends to: (s + 1)/2 when causal. The backward has its own rate and 2.5
    times the FLOPs (five GEMMs instead of two).

    >>> rate, one, two = Rate(1e12, (), 0.0), np.array(1.0), np.array(2.0)
    >>> float(attention_seconds(one, 1000 * one, 500.0, two, 125, rate))  # 4 x 1.25e8 / 1e12
    0.0005

    Leaves out: fewer reads of keys and values under grouped-query attention (small above 1,000 tokens).
    Source: Dao 2023 (FlashAttention-2), arXiv:2307.08691, section 4.1, for the FLOPs; the curve is fitted to
    the sweeps named in costmodels/kernels.
    """
    rows = heads * sequences * tokens
    flops = 4.0 * rows * keys * head_dim
    if isinstance(rate.table, AttentionGrid):
        shape = (tokens, heads * sequences, head_dim)
        seconds = np.asarray(flops / (rate.peak * attention_efficiency(*shape, rate.table)) + rate.launch)
        return np.where(attention_inside(*shape, rate.table), 0.0, seconds) if rate.beyond else seconds
    extents = (tokens, rows)
    return _compute_seconds(flops, extents, rate) + rate.launch


def memory_bound_seconds(hbm_bytes: Array, machine: Machine, calls: float = 1.0) -> Array:
    """Return the time of ``calls`` memory-bound kernels with ``hbm_bytes`` of HBM traffic in total [s].

    T = bytes/W + calls t0.

    >>> machine = SimpleNamespace(hbm_bandwidth=2e12, memory_bound_launch=1e-6)
    >>> round(float(memory_bound_seconds(np.array(4e9), machine, calls=3)), 9)  # 4e9 / 2e12 + 3e-6
    0.002003

    Leaves out: hits in the last-level cache, see ``from_memory``.
    Source: fitted to the sweeps named in costmodels/kernels.
    """
    return hbm_bytes / machine.hbm_bandwidth + calls * machine.memory_bound_launch


def from_memory(kernel_bytes: Array, machine: Machine) -> Array:
    """Return the share of a kernel's time from memory that remains with the last-level cache [1].

    A share h = 1 / (1 + (x / 0.85)^2) of the traffic stays in the cache, where x is the bytes that the kernel
    touches over the cache, and runs at ``machine.cache_speedup`` times the rate of memory: 1 - h (1 - 1/r).

    >>> machine = SimpleNamespace(cache_bytes=100.0, cache_speedup=2.0)
    >>> [round(float(from_memory(np.array(x), machine)), 2) for x in (0.0, 85.0, 8500.0)]
    [0.5, 0.75, 1.0]

    Leaves out: what the kernel before it has left in the cache.
    Source: fitted to casys-kaist/LLMServingSim's layers of the RTX 4090 and RTX PRO 6000.
    """
    if machine.cache_bytes == 0.0:
        return np.ones_like(kernel_bytes)
    cached_share = 1.0 / (1.0 + (kernel_bytes / (_CACHE_HALF * machine.cache_bytes)) ** _CACHE_FALL)
    return 1.0 - cached_share * (1.0 - 1.0 / machine.cache_speedup)
