"""Least times of the kernels of an engine, and how near to them products of few tokens come.

Notation (this file only)::

    B  requests          k  key-value heads of a device    g  query heads of each    [1]
    a  query heads       c  tokens of a request            w  keys of a window       [1]
    d  width of a head   s  bytes of an element of keys and values           [1] or [byte]
    r  rows of experts   E  experts of a device            e  weights of a matrix    [1]
    W  memory bandwidth                                                      [byte/s]
    P  peak rate                                                             [FLOP/s]

Of products of few tokens::

    m  tokens    n  output features    k  input features                             [1]
    b  bits of a weight    e  share of the peak rate that is reached                 [1]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.sizes import causal_keys
from autoplan.costs.device.kernel_tables import ShapeGrid, grid, interpolated
from autoplan.schema.costmodel.engine_kernels import KernelName, SmallGemmTable
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_layout import FORMATS, WeightFormat

#: Widths of DeepSeek's latent attention that the sweeps were made with: latent and rotary key, values; and
#: keys and values of a head in prefill.
LATENT_WIDTH = 576
LATENT_VALUE = 512
_PREFILL_WIDTHS = 192 + 128


@dataclass(frozen=True, slots=True)
class KernelShape:
    """What a kernel's least time depends on besides its extents; ``bits`` of keys, values or weights."""

    kernel: KernelName
    bits: float
    head_dim: int = 0
    window: int = 0
    #: Matrices of an expert: 3 with a gate, else 2.
    matrices: int = 3


def distinct_experts(experts: Array, rows: Array) -> Array:
    """Return how many of ``experts`` at least one of ``rows`` visits [1]: E (1 - (1 - 1/E)^r).

    >>> rows = 8 * np.array([1.0, 8, 16, 32, 64])  # 8 of 128 experts for each of so many tokens
    >>> distinct_experts(np.array(128.0), rows).round().tolist()
    [8.0, 51.0, 81.0, 111.0, 126.0]

    Leaves out: that the experts of one token differ; skew, which makes them fewer.
    Source: the expectation of draws with replacement.
    """
    several = np.maximum(experts, 1.0)
    hit: Array = several * (1.0 - (1.0 - 1.0 / np.maximum(several, 1.0 + 1e-9)) ** rows)
    return np.minimum(hit, rows)


def least_seconds(shape: KernelShape, extents: tuple[Array, Array, Array], device: DeviceSpec) -> Array:
    """Return the least time of kernels on a device [s]; extents are those of ``EngineKernelTable``.

    Decode: 2 B k min(c, w) d s / W, and its products 4 B k g c d / P. Prefill: 4 B a c n d / P, n mean keys.
    Experts: the larger of reading the distinct ones and 2 x matrices r e / P.

    >>> one = np.ones(())
    >>> decode = KernelShape("decode-attention", 16, 128)
    >>> float(least_seconds(decode, (512 * one, 1024 * one, 4 * one), h100)) * 3.35e12  # 2 x 512 x 1024 x 256
    268435456.0

    Leaves out: queries and outputs; partly filled blocks of the cache.
    Source: Pope et al. 2022, arXiv:2211.05102, section 3.3; Williams et al. 2009,
    doi:10.1145/1498765.1498785.
    """
    a, b, c = extents
    bandwidth, peak = device.memory.bandwidth.value, _peak(device, shape)
    if shape.kernel == "decode-attention":
        seen = np.minimum(b, shape.window or np.inf)
        moved = 2.0 * a * seen * shape.head_dim * shape.bits / 8
        return np.asarray(np.maximum(moved / bandwidth, 4.0 * a * c * seen * shape.head_dim / peak))
    if shape.kernel == "prefill-attention":
        seen = causal_keys(b, shape.window or np.inf)
        return np.asarray(4.0 * a * b * seen * shape.head_dim / peak)
    if shape.kernel == "latent-decode":
        moved, work = b * c * LATENT_WIDTH * shape.bits / 8, 2.0 * a * b * c * (LATENT_WIDTH + LATENT_VALUE)
        return np.asarray(np.maximum(moved / bandwidth, work / peak))
    if shape.kernel == "latent-prefill":
        return np.asarray(a * b * c * c * _PREFILL_WIDTHS / peak)
    read = expert_read_seconds(shape, extents, device)
    return np.asarray(np.maximum(read, 2.0 * shape.matrices * a * c / peak))


def expert_read_seconds(shape: KernelShape, extents: tuple[Array, Array, Array], device: DeviceSpec) -> Array:
    """Return the time to read the experts that r rows visit [s]: E' matrices e s / W, E' distinct experts.

    >>> one = np.ones(())
    >>> float(expert_read_seconds(KernelShape("experts", 16), (one, 8 * one, 1e6 * one), h100)) * 3.35e12
    6000000.0

    Leaves out: rows, which are read and written.
    """
    rows, experts, weights = extents
    read: Array = distinct_experts(experts, rows) * shape.matrices * weights * shape.bits / 8
    return read / device.memory.bandwidth.value


def _peak(device: DeviceSpec, shape: KernelShape) -> float:
    """Return the rate that a kernel can compute in [FLOP/s]: 16 bits, or that of its narrower elements."""
    plain = device.peak_flops("bf16") or device.peak_flops("fp16") or 1.0
    narrow = device.peak_flops("fp8") if shape.bits <= 8 else None
    four = device.peak_flops("fp4") if shape.bits < 8 else None
    return max(plain, narrow or 0.0, four or 0.0)


#: Rates that formats compute in where a device has them; others, and integers, in 16 bits.
_RATES: dict[WeightFormat, str] = {"fp8": "fp8", "fp8-block": "fp8", "nvfp4": "fp4"}


def arithmetic_peak(device: DeviceSpec, weights: WeightFormat) -> float:
    """Return the peak rate that a format computes in [FLOP/s]: that of the format, else that of 16 bits.

    >>> round(arithmetic_peak(h100, "int4-awq") / 1e12), round(arithmetic_peak(h100, "fp8") / 1e12)
    (989, 1979)
    """
    native = device.peak_flops(_RATES.get(weights, "bf16"))
    return native or device.peak_flops("bf16") or device.peak_flops("fp16") or 0.0


def gemm_light_seconds(m: int, n: int, k: int, weights: WeightFormat, device: DeviceSpec) -> float:
    """Return the least time of a product [s]: max((n k b/8 + 2 m (n + k)) / W, 2 m n k / P).

    >>> gemm_light_seconds(1, 4096, 4096, "bf16", h100) * 3.35e12  # 2 x 4,096 x 4,096 and 2 x 8,192 bytes
    33570816.0

    Leaves out: scales of weights; weights that stay in a cache from step to step.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    moved = n * k * FORMATS[weights].bits / 8 + 2.0 * m * (n + k)
    return max(moved / device.memory.bandwidth.value, 2.0 * m * n * k / arithmetic_peak(device, weights))


def ridge_tokens(weights: WeightFormat, device: DeviceSpec) -> float:
    """Return the tokens above which computing takes longer than reading the weights [1]: P b / 16 W.

    >>> [round(ridge_tokens(x, h100)) for x in ("bf16", "fp8", "int4-awq")]
    [295, 295, 74]

    Leaves out: reads and writes of activations; scales (78 with those of int4).
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    return arithmetic_peak(device, weights) * FORMATS[weights].bits / 16.0 / device.memory.bandwidth.value


def table_gemm_seconds(m: Array, n: int, k: int, table: SmallGemmTable, device: DeviceSpec) -> Array:
    """Return the time of products of m tokens by the table of ``device`` alone [s]: 2 m n k / (P e).

    e is interpolated in logarithms between measured shapes, and is that of the edge beyond them. Sweeps
    repeat one product, whose weights may stay in the cache; a step reads all, so the least time holds, too.

    >>> kernels = load_entry("engine-kernels", "h100-sxm5-80gb")
    >>> times = table_gemm_seconds(np.array([1.0, 512.0]), 8192, 8192, kernels.gemm[0], h100)
    >>> bool(times[1] > times[0])
    True

    Leaves out: padding of m to the tile; what is fused with the product.
    Source: the table's file; autoplan/costs/device/kernel_tables.py for the interpolation.
    """
    peak = device.peak_flops(table.arithmetic) or arithmetic_peak(device, table.weights)
    seconds: Array = 2.0 * m * n * k / (peak * interpolated(_grid(table), m, n, k))
    return seconds


def _grid(table: SmallGemmTable) -> ShapeGrid:
    return _cached_grid(table.tokens, table.outputs, table.inner, table.shares)


@lru_cache(maxsize=64)
def _cached_grid(
    tokens: tuple[int, ...],
    outputs: tuple[int, ...],
    inner: tuple[int, ...],
    shares: tuple[tuple[tuple[float, ...], ...], ...],
) -> ShapeGrid:
    return grid([tokens, outputs, inner], np.array(shares))
