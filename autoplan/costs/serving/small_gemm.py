"""Time of matrix products of few tokens, as a decode step has them, by weight format.

Notation (this file only)::

    m  tokens    n  output features    k  input features                             [1]
    b  bits of a weight                                                              [1]
    e  share of the peak rate that is reached                                        [1]
    P  peak rate                                                                     [FLOP/s]
    W  memory bandwidth                                                              [byte/s]
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernel_tables import ShapeGrid, grid, interpolated
from autoplan.schema.costmodel.engine_kernels import SmallGemmTable
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.weight_formats import FORMATS, WeightFormat

#: Rates that formats compute in where a device has them; others, and integers, in 16 bits.
_RATES: dict[WeightFormat, str] = {"fp8": "fp8", "fp8-block": "fp8", "nvfp4": "fp4"}


def arithmetic_peak(device: DeviceSpec, weights: WeightFormat) -> float:
    """Return the peak rate that a format computes in [FLOP/s]: that of the format, else that of 16 bits.

    >>> h100 = load_entry("device", "h100-sxm5-80gb")
    >>> round(arithmetic_peak(h100, "int4-awq") / 1e12), round(arithmetic_peak(h100, "fp8") / 1e12)
    (989, 1979)
    """
    native = device.peak_flops(_RATES.get(weights, "bf16"))
    return native or device.peak_flops("bf16") or device.peak_flops("fp16") or 0.0


def gemm_light_seconds(m: int, n: int, k: int, weights: WeightFormat, device: DeviceSpec) -> float:
    """Return the least time of a product [s]: max((n k b/8 + 2 m (n + k)) / W, 2 m n k / P).

    >>> h100 = load_entry("device", "h100-sxm5-80gb")
    >>> gemm_light_seconds(1, 4096, 4096, "bf16", h100) * 3.35e12  # 2 x 4,096 x 4,096 and 2 x 8,192 bytes
    33570816.0

    Leaves out: scales of weights; weights that stay in a cache from step to step.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    moved = n * k * FORMATS[weights].bits / 8 + 2.0 * m * (n + k)
    return max(moved / device.memory.bandwidth.value, 2.0 * m * n * k / arithmetic_peak(device, weights))


def ridge_tokens(weights: WeightFormat, device: DeviceSpec) -> float:
    """Return the tokens above which computing takes longer than reading the weights [1]: P b / 16 W.

    >>> h100 = load_entry("device", "h100-sxm5-80gb")
    >>> [round(ridge_tokens(x, h100)) for x in ("bf16", "fp8", "int4-awq")]
    [295, 295, 74]

    Leaves out: reads and writes of activations; scales (78 with those of int4).
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    return arithmetic_peak(device, weights) * FORMATS[weights].bits / 16.0 / device.memory.bandwidth.value


def small_gemm_seconds(m: int, n: int, k: int, table: SmallGemmTable, device: DeviceSpec) -> float:
    """Return the time of a product inside an engine [s]: 2 m n k / (P e), at least its least time.

    e is interpolated in logarithms between measured shapes, and is that of the edge beyond them. Sweeps
    repeat one product, whose weights may stay in the cache; a step reads all, so the least time holds.

    >>> h100, kernels = load_entry("device", "h100-sxm5-80gb"), load_entry("engine-kernels", "h100-sxm5-80gb")
    >>> bf16 = next(x for x in kernels.gemm if (x.engine, x.weights) == ("sglang", "bf16"))
    >>> round(small_gemm_seconds(1, 8192, 8192, bf16, h100) * 1e6)  # 134 MB of weights; 40 us are the least
    49

    Leaves out: padding of m to the tile; what is fused with the product.
    Source: the table's file; autoplan/costs/device/kernel_tables.py for the interpolation.
    """
    measured = float(table_gemm_seconds(np.asarray(float(m)), n, k, table, device))
    return max(measured, gemm_light_seconds(m, n, k, table.weights, device))


def table_gemm_seconds(m: Array, n: int, k: int, table: SmallGemmTable, device: DeviceSpec) -> Array:
    """Return the time of products of m tokens by the table of ``device`` alone [s]: 2 m n k / (P e).

    >>> h100, kernels = load_entry("device", "h100-sxm5-80gb"), load_entry("engine-kernels", "h100-sxm5-80gb")
    >>> times = table_gemm_seconds(np.array([1.0, 512.0]), 8192, 8192, kernels.gemm[0], h100)
    >>> bool(times[1] > times[0])
    True
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
