"""Efficiency of a kernel by its shape, read from measured tables.

Notation (this file only)::

    m, n, k  extents of a matrix product: [m, k] times [k, n]                    [1]
    A        entries of its output with idle parts of waves, at least m n        [1]
    s, r, d  tokens of a sequence; heads x sequences; head size                  [1]
    x        position on an axis of a table, one of the above                    [1]
    e        share of the device's peak that is reached, in (0, 1]               [1]
    u        slowness: time at a given peak, up to a constant: product of x / e  [1]

Between the cells of a table log u is multilinear in the logarithms of the extents, beyond its edges e
stays what it is at the edge. Time never falls when an extent grows, by construction: ``grid`` takes the
running maximum of u along each axis, so u never falls from cell to cell; a multilinear function of such
corners never falls along an axis; and with e constant u grows with x itself. Where a measured table is
monotone, as smoothed ones are, the running maximum changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoplan.costs.core.candidates import Array
from autoplan.schema.costmodel.measured_tables import AttentionTable, GemmTable, WaveRounding

__all__ = [
    "AttentionGrid",
    "GemmGrid",
    "ShapeGrid",
    "attention_efficiency",
    "attention_grid",
    "attention_inside",
    "gemm_efficiency",
    "gemm_grid",
    "gemm_inside",
    "grid",
    "interpolated",
    "within",
]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ShapeGrid:
    """A table made ready: logarithms of the extents of each axis, and log u in each cell."""

    axes: tuple[Array, ...]
    slowness: Array


@dataclass(frozen=True, slots=True, eq=False)
class GemmGrid:
    """Share of peak of matrix products over A and k, and what rounds m n up to A.

    ``half_inner`` is the inner width at which a product reaches half of its rate.
    """

    shares: ShapeGrid
    waves: WaveRounding | None
    half_inner: float


@dataclass(frozen=True, slots=True, eq=False)
class AttentionGrid:
    """Share of peak of fused attention in one direction over s and r, and rates over d."""

    shares: ShapeGrid
    head_dim: ShapeGrid


def grid(axes: Sequence[Sequence[int]], shares: ArrayLike) -> ShapeGrid:
    """Return the table of ``shares`` over ``axes``, with a time that never falls along an axis.

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
    """Return the share of peak at ``extents``, one array an axis; beyond an edge, that at the edge.

    e = product of x / u with log u multilinear in log x.
    """
    clamped = [
        np.clip(np.log(np.asarray(x, dtype=np.float64)), logs[0], logs[-1])
        for x, logs in zip(extents, table.axes, strict=True)
    ]
    brackets = [_bracket(x, logs) for x, logs in zip(clamped, table.axes, strict=True)]
    slowness: Array = np.zeros(())
    for box in product((0, 1), repeat=len(brackets)):
        weight: Array = np.ones(())
        for upper, (_, share) in zip(box, brackets, strict=True):
            weight = weight * (share if upper else 1.0 - share)
        cell = tuple(
            np.minimum(low + upper, len(logs) - 1)
            for upper, (low, _), logs in zip(box, brackets, table.axes, strict=True)
        )
        slowness = slowness + weight * table.slowness[cell]
    shares: Array = np.exp(sum(clamped, np.zeros(())) - slowness)
    return shares


def within(table: ShapeGrid, *extents: ArrayLike) -> Mask:
    """Return where ``extents`` lie between the first and the last of each axis: there it was measured."""
    inside: Mask = np.ones((), dtype=np.bool_)
    for x, logs in zip(extents, table.axes, strict=True):
        position = np.log(np.asarray(x, dtype=np.float64))
        inside = inside & (position >= logs[0]) & (position <= logs[-1])
    return inside


def gemm_grid(table: GemmTable, *, half_inner: float = 0.0) -> GemmGrid:
    """Return ``table`` made ready for ``gemm_efficiency``."""
    return GemmGrid(grid([table.outputs, table.inner], table.shares), table.waves, half_inner)


def gemm_efficiency(m: ArrayLike, n: ArrayLike, k: ArrayLike, table: GemmGrid) -> Array:
    """Return the share of peak that [m, k] times [k, n] reaches while compute limits it.

    e = e(A, k) m n / A, and below the least inner width k0 of the table e(A, k0) (1 + x/k0) / (1 + x/k) with
    the half width x, as a product that short fills and empties its pipeline as often. The time
    2 m n k / (P e) never falls when m, n or k grows.

    Leaves out: memory traffic, which the caller holds against it; transposed layouts; which of m and n
    is the larger (2 % of the time in the median of the sweeps, 10 % in one of ten).
    """
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    outputs = _with_idle_parts(m, n, table.waves)
    efficiency: Array = interpolated(table.shares, outputs, k) * (m * n / outputs)
    least = np.exp(table.shares.axes[1][0])
    short: Array = (1.0 + table.half_inner / least) / (1.0 + table.half_inner / np.minimum(k, least))
    return efficiency * short


def gemm_inside(m: ArrayLike, n: ArrayLike, k: ArrayLike, table: GemmGrid) -> Mask:
    """Return which products lie inside the range that was measured."""
    outputs = np.asarray(m, dtype=np.float64) * np.asarray(n, dtype=np.float64)
    return within(table.shares, outputs, k)


def attention_grid(table: AttentionTable, *, backward: bool = False) -> AttentionGrid:
    """Return ``table`` in one direction, made ready for ``attention_efficiency``."""
    shares = np.asarray(table.forward.shares)
    if backward:
        ratios = grid([table.backward.at], table.backward.values)
        shares = np.minimum(1.0, shares * interpolated(ratios, table.forward.sequences)[:, None])
    axes = [table.forward.sequences, table.forward.rows]
    return AttentionGrid(grid(axes, shares), grid([table.head_dim.at], table.head_dim.values))


def attention_efficiency(
    tokens: ArrayLike, rows: ArrayLike, head_dim: ArrayLike, table: AttentionGrid
) -> Array:
    """Return the share of peak of fused attention over ``rows`` (heads x sequences) of ``tokens`` tokens.

    e = min(1, e(s, r) rate(d)); the time, r s d / e at a given number of keys, never falls when s, r or d
    grows.

    Leaves out: how many heads share keys and values; masks other than the causal one.
    """
    shares = interpolated(table.shares, tokens, rows)
    efficiency: Array = np.minimum(1.0, shares * interpolated(table.head_dim, head_dim))
    return efficiency


def attention_inside(tokens: ArrayLike, rows: ArrayLike, head_dim: ArrayLike, table: AttentionGrid) -> Mask:
    """Return which shapes lie inside the range that was measured."""
    inside: Mask = within(table.shares, tokens, rows) & within(table.head_dim, head_dim)
    return inside


def _bracket(x: Array, nodes: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the cell below each of ``x`` and how far it is on the way to the next one, from 0 to 1."""
    low = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, max(len(nodes) - 2, 0))
    high = np.minimum(low + 1, len(nodes) - 1)
    width = np.where(high > low, nodes[high] - nodes[low], 1.0)
    return low, (x - nodes[low]) / width


def _with_idle_parts(m: Array, n: Array, waves: WaveRounding | None) -> Array:
    """Return A: m n, in part ``weight`` rounded up to whole waves of the best tile.

    A = m n (min over tiles of S a b ceil(ceil(m/a) ceil(n/b) / S) / rate / (m n))^weight for tiles of
    a x b on S multiprocessors; never below m n, and it grows with m and n as each factor does.
    """
    outputs: Array = m * n
    if waves is None:
        return outputs
    processors = float(waves.multiprocessors)
    whole: Array = np.full(outputs.shape, np.inf)
    for tile in waves.tiles:
        for a, b in {(tile.rows, tile.columns), (tile.columns, tile.rows)}:
            filled = np.ceil(np.ceil(m / a) * np.ceil(n / b) / processors)
            whole = np.minimum(whole, processors * a * b * filled / tile.rate)
    rounded: Array = outputs ** (1.0 - waves.weight) * whole**waves.weight
    return np.maximum(outputs, rounded)
