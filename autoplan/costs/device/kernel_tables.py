"""Efficiency of a kernel by its shape, interpolated in measured tables.

Notation (this file only)::

    m, n, k  extents of a GEMM: [m, k] times [k, n]                              [1]
    A        entries of its output under tile and wave quantisation, >= m n      [1]
    s, r, d  tokens of a sequence; heads x sequences; head size                  [1]
    x        position on an axis of a table, one of the above                    [1]
    e        efficiency: achieved rate over the device's peak, in (0, 1]         [1]
    u        slowness: time at a given peak, up to a constant: product of x / e  [1]

Between the cells of a table log u is multilinear in the logarithms of the extents; beyond its edges e is
constant. Time is non-decreasing in every extent by construction: ``grid`` takes the running maximum of u
along each axis, a multilinear function of monotone corners is monotone, and at constant e u grows with x. A
measured table that is monotone is not changed by the running maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoplan.costs.core.candidates import Array
from autoplan.schema.costmodel.kernel_spec import AttentionTable, GemmTable, Ratios, WaveRounding

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ShapeGrid:
    """Interpolation table: logarithms of the extents of each axis, and log u in each cell."""

    axes: tuple[Array, ...]
    slowness: Array


@dataclass(frozen=True, slots=True, eq=False)
class GemmGrid:
    """Efficiency of GEMMs over A and k, and the wave quantisation that rounds m n up to A.

    ``half_inner`` is the inner width at which a GEMM has half of its rate.
    """

    shares: ShapeGrid
    waves: WaveRounding | None
    half_inner: float


@dataclass(frozen=True, slots=True, eq=False)
class AttentionGrid:
    """Efficiency of fused attention in forward or backward over s and r, and relative rates over d."""

    shares: ShapeGrid
    head_dim: ShapeGrid


def grid(axes: Sequence[Sequence[int]], shares: ArrayLike) -> ShapeGrid:
    """Return the interpolation table of ``shares`` over ``axes``, with time non-decreasing along every axis.

    >>> table = grid([[1024, 4096]], [0.4, 0.8])
    >>> interpolated(table, [1024, 2048, 4096, 9999]).round(3).tolist()
    [0.4, 0.566, 0.8, 0.8]
    >>> interpolated(grid([[1024, 2048]], [0.3, 0.9]), [1024, 2048]).round(3).tolist()  # 2 x / 0.9 < x / 0.3
    [0.3, 0.6]
    """
    logs = tuple(np.log(np.asarray(axis, dtype=np.float64)) for axis in axes)
    slowness: Array = sum(np.ix_(*logs), np.zeros(())) - np.log(np.asarray(shares, dtype=np.float64))
    for axis in range(len(logs)):
        slowness = np.maximum.accumulate(slowness, axis=axis)
    return ShapeGrid(logs, slowness)


def interpolated(table: ShapeGrid, *extents: ArrayLike) -> Array:
    """Return the interpolated efficiency at ``extents``, one array an axis; beyond an edge, that at the edge.

    e = product of x / u with log u multilinear in log x.
    """
    clamped = [
        np.clip(np.log(np.asarray(x, dtype=np.float64)), logs[0], logs[-1])
        for x, logs in zip(extents, table.axes, strict=True)
    ]
    brackets = [_bracket(x, logs) for x, logs in zip(clamped, table.axes, strict=True)]
    slowness: Array = np.zeros(())
    for corner in product((0, 1), repeat=len(brackets)):
        weight: Array = np.ones(())
        for upper, (_, fraction) in zip(corner, brackets, strict=True):
            weight = weight * (fraction if upper else 1.0 - fraction)
        cell = tuple(
            np.minimum(low + upper, len(logs) - 1)
            for upper, (low, _), logs in zip(corner, brackets, table.axes, strict=True)
        )
        slowness = slowness + weight * table.slowness[cell]
    shares: Array = np.exp(sum(clamped, np.zeros(())) - slowness)
    return shares


def within(table: ShapeGrid, *extents: ArrayLike) -> Mask:
    """Return where ``extents`` are inside the measured range of every axis."""
    inside: Mask = np.ones((), dtype=np.bool_)
    for x, logs in zip(extents, table.axes, strict=True):
        position = np.log(np.asarray(x, dtype=np.float64))
        inside = inside & (position >= logs[0]) & (position <= logs[-1])
    return inside


def gemm_grid(table: GemmTable, *, half_inner: float = 0.0) -> GemmGrid:
    """Return the interpolation table for ``gemm_efficiency``."""
    return GemmGrid(grid([table.outputs, table.inner], table.shares), table.waves, half_inner)


def gemm_efficiency(m: ArrayLike, n: ArrayLike, k: ArrayLike, table: GemmGrid) -> Array:
    """Return the efficiency of a compute-bound GEMM, [m, k] times [k, n].

    e = e(A, k) m n / A, and below the smallest inner width k0 of the table e(A, k0) (1 + x/k0) / (1 + x/k)
    with the half width x, since prologue and epilogue of a tile do not shrink with k. The time 2 m n k / (P
    e) is non-decreasing in m, n and k.

    Leaves out: memory traffic, which the caller compares with it; transposed layouts; whether m or n is the
    larger (2 % of the time in the median of the sweeps, 10 % in one of ten).
    """
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    outputs = _quantised_outputs(m, n, table.waves)
    efficiency: Array = interpolated(table.shares, outputs, k) * (m * n / outputs)
    smallest = np.exp(table.shares.axes[1][0])
    short_k: Array = (1.0 + table.half_inner / smallest) / (1.0 + table.half_inner / np.minimum(k, smallest))
    return efficiency * short_k


def gemm_inside(m: ArrayLike, n: ArrayLike, k: ArrayLike, table: GemmGrid) -> Mask:
    """Return which GEMMs are inside the measured range."""
    outputs = np.asarray(m, dtype=np.float64) * np.asarray(n, dtype=np.float64)
    return within(table.shares, outputs, k)


def attention_grid(table: AttentionTable, *, backward: bool = False, flash2: bool = False) -> AttentionGrid:
    """Return the interpolation table of forward or backward for ``attention_efficiency``.

    With ``flash2`` that of FlashAttention-2, where the table has it: newer kernels are much faster on long
    sequences, and hardly on short ones.
    """
    older = table.flash2 if flash2 else None
    shares, head_dim = np.asarray(table.forward.shares), (older or table).head_dim
    for ratio in (table.training, table.backward if backward else None, older):
        if ratio is not None:
            ratios = _plain_ratio(ratio, table.forward.sequences)
            shares = np.minimum(1.0, shares * ratios[:, None])
    axes = [table.forward.sequences, table.forward.rows]
    return AttentionGrid(grid(axes, shares), grid([head_dim.at], head_dim.values))


def _plain_ratio(ratio: Ratios, extents: Sequence[int]) -> Array:
    """Return a ratio at ``extents``, linear in their logarithm; beyond those of ``at`` it stays."""
    value: Array = np.interp(np.log(extents), np.log(ratio.at), ratio.values)
    return value


def attention_efficiency(
    tokens: ArrayLike, rows: ArrayLike, head_dim: ArrayLike, table: AttentionGrid
) -> Array:
    """Return the efficiency of fused attention over ``rows`` (heads x sequences) of ``tokens`` tokens.

    e = min(1, e(s, r) rate(d)); the time, r s d / e at a given number of keys, is non-decreasing in s, r and
    d.

    Leaves out: grouped-query attention; masks other than the causal one.
    """
    shares = interpolated(table.shares, tokens, rows)
    efficiency: Array = np.minimum(1.0, shares * interpolated(table.head_dim, head_dim))
    return efficiency


def attention_inside(tokens: ArrayLike, rows: ArrayLike, head_dim: ArrayLike, table: AttentionGrid) -> Mask:
    """Return which shapes are inside the measured range."""
    inside: Mask = within(table.shares, tokens, rows) & within(table.head_dim, head_dim)
    return inside


def _bracket(x: Array, nodes: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the lower cell of ``x`` and the position between it and the next one, from 0 to 1."""
    low = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, max(len(nodes) - 2, 0))
    high = np.minimum(low + 1, len(nodes) - 1)
    width = np.where(high > low, nodes[high] - nodes[low], 1.0)
    return low, (x - nodes[low]) / width


def _quantised_outputs(m: Array, n: Array, waves: WaveRounding | None) -> Array:
    """Return A: m n under wave quantisation with the best tile, to the power ``weight``.

    A = m n (min over tiles of S a b ceil(ceil(m/a) ceil(n/b) / S) / rate / (m n))^weight for tiles of
    a x b on S multiprocessors; at least m n, and non-decreasing in m and n.
    """
    outputs: Array = m * n
    if waves is None:
        return outputs
    processors = float(waves.multiprocessors)
    quantised: Array = np.full(outputs.shape, np.inf)
    for tile in waves.tiles:
        for a, b in {(tile.rows, tile.columns), (tile.columns, tile.rows)}:
            waves_needed = np.ceil(np.ceil(m / a) * np.ceil(n / b) / processors)
            quantised = np.minimum(quantised, processors * a * b * waves_needed / tile.rate)
    rounded: Array = outputs ** (1.0 - waves.weight) * quantised**waves.weight
    return np.maximum(outputs, rounded)
