"""Times of an engine's kernels from its measured tables, on the device itself or on one that is alike.

Notation (this file only)::

    x   extents of a kernel, or the sharding of a layout                             [1]
    y   the nearest extents, or the sharding of a curve, that were measured          [1]
    m   tokens that enter the layer                                                  [1]
    T   measured time on the device of the table                                     [s]
    u   least time on the device of the table, u' on the device that is priced       [s]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernel_tables import ShapeGrid
from autoplan.costs.serving.least_times import KernelShape, least_seconds, table_gemm_seconds
from autoplan.schema.costmodel.engine_kernels import (
    EngineKernelSpec,
    EngineKernelTable,
    ExpertTable,
    KernelName,
    SmallGemmTable,
)
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_layout import FORMATS, WeightFormat

#: Formats whose tables stand for another: 16-bit floats alike, AWQ and GPTQ run in the same kernels.
_ALIKE: dict[str, str] = {"fp16": "bf16", "int4-gptq": "int4-awq"}

#: A sweep whose smallest product takes over so many times another engine's has the host's launches in it.
_LAUNCH_BOUND = 3.0


def shape_of(key: tuple[str, str, str, int, int]) -> KernelShape:
    """Return what the least time of a table depends on.

    >>> shape_of(("vllm", "decode-attention", "fp8", 128, 0)).bits
    8.0
    """
    _, kernel, name, head_dim, window = key
    stored = FORMATS[name]  # type: ignore[index]  # the schema admits formats alone
    bits = (
        stored.bits + (stored.scale_bits + stored.zero_bits) / stored.group
        if stored.group
        else float(stored.bits)
    )
    return KernelShape(kernel, bits, head_dim, window)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class MeasuredKernels:
    """The tables of one engine for one device; ``measured_on`` is the device that they were measured on."""

    spec: EngineKernelSpec
    measured_on: DeviceSpec
    engine: str
    #: Whose experts in mxfp4 it runs where a device has no products in 4 bits; None: its own.
    triton_experts: str | None = None

    def engine_of_experts(self, weights: str) -> str:
        """Return the engine whose tables of experts in a format stand for those of this one.

        >>> spec, h200 = engine_kernels_for("h200-sxm-141gb")
        >>> measured = MeasuredKernels(spec, h200, engine="sglang", triton_experts="vllm")
        >>> measured.engine_of_experts("mxfp4"), measured.engine_of_experts("fp8-block")
        ('vllm', 'sglang')
        """
        triton = weights == "mxfp4" and self.measured_on.peak_flops("fp4") is None
        return self.triton_experts or self.engine if triton else self.engine

    def gemm(self, weights: WeightFormat) -> SmallGemmTable | None:
        """Return the table of products in a format; where the engine has none, that of another engine.

        >>> measured = MeasuredKernels(*engine_kernels_for("h100-sxm5-80gb"), engine="vllm")
        >>> measured.gemm("fp16").weights, measured.gemm("fp8").engine, measured.gemm("int4-awq")
        ('bf16', 'vllm', None)
        """
        name = _ALIKE.get(weights, weights)
        tables = [table for table in self.spec.gemm if table.weights == name]
        return next((x for x in tables if x.engine == self.engine), tables[0] if tables else None)

    def dequantizes(self, weights: str) -> bool:
        """Whether experts of a format are computed in 16 bits: none were measured, the device has no rate.

        >>> spec, a100 = engine_kernels_for("a100-sxm4-80gb")
        >>> measured = MeasuredKernels(spec, a100, engine="vllm")
        >>> measured.dequantizes("mxfp4"), measured.dequantizes("bf16")
        (True, False)
        """
        stored = FORMATS[weights]  # type: ignore[index]  # the schema admits formats alone
        narrow = "fp8" if stored.bits == 8 else "fp4"
        tables = [x for x in self.spec.kernels if x.kernel == "experts" and x.format == weights]
        return stored.bits < 16 and not tables and self.measured_on.peak_flops(narrow) is None

    def launch_bound(self, table: SmallGemmTable) -> tuple[float, SmallGemmTable] | None:
        """Return below which time a sweep of products is that of its launches [s], and whose is not.

        A sweep that launches products of many kernels from the host takes the host's time for each, however
        small. In a graph they take what another engine's sweep of the same format says.
        Twice the time of the smallest product, where this is over three times another engine's; else None.

        >>> measured = MeasuredKernels(*engine_kernels_for("h200-sxm-141gb"), engine="vllm")
        >>> measured.launch_bound(measured.gemm("bf16")) is None
        True
        >>> floor, other = measured.launch_bound(measured.gemm("fp8-block"))
        >>> 100e-6 < floor < 140e-6, other.engine
        (True, 'sglang')
        """
        smallest = (np.ones(()), table.outputs[0], table.inner[0])
        floor = float(table_gemm_seconds(*smallest, table, self.measured_on))
        others = [x for x in self.spec.gemm if x.weights == table.weights and x.engine != table.engine]
        times = {x.engine: float(table_gemm_seconds(*smallest, x, self.measured_on)) for x in others}
        if not times or min(times.values()) * _LAUNCH_BOUND > floor:
            return None
        return 2 * floor, min(others, key=lambda x: times[x.engine])

    def quantization(self, table: SmallGemmTable, device: DeviceSpec) -> float:
        """Return the time of the quantization of inputs that a sweep of products holds [s].

        What the smallest product takes above that of 16 bits, whose input needs none.

        >>> h100_measured().quantization(h100_measured().gemm("bf16"), h100_measured().measured_on)
        0.0
        """
        plain = self.gemm("bf16")
        if plain is None or table.weights not in {"fp8", "nvfp4"}:
            return 0.0
        smallest = (np.ones(()), table.outputs[0], table.inner[0])
        times = [float(table_gemm_seconds(*smallest, x, device)) for x in (table, plain)]
        return max(0.0, times[0] - times[1])

    def kernel(
        self, name: KernelName, kind: str, head_dim: int = 0, window: int = 0
    ) -> tuple[EngineKernelTable, ...]:
        """Return the tables of a kernel: those of the engine first, then those of other engines.

        Prefill with keys and values in 8 bits has the tables of 16 bits, since only those were measured.

        >>> h100_measured().kernel("decode-attention", "bf16", 128)[0].engine
        'vllm'
        """
        kind = _ALIKE.get(kind, kind)
        tables = [x for x in self.spec.kernels if x.key[1:] == (name, kind, head_dim, window)]
        if not tables and kind == "fp8" and name == "prefill-attention":
            return self.kernel(name, "bf16", head_dim, window)
        experts = name in {"experts", "split-experts"}
        engine = self.engine_of_experts(kind) if experts else self.engine
        return tuple(sorted(tables, key=lambda x: x.engine != engine))

    def all_reduce(self, ranks: int, *, graph: bool) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
        """Return sizes [byte] and times [us] of all-reduces; None where they were not measured.

        >>> sizes, times = h100_measured().all_reduce(8, graph=True)
        >>> len(sizes) == len(times), h100_measured().all_reduce(3, graph=True)
        (True, None)
        """
        modes = ("graph", "eager") if graph else ("eager", "graph")
        tables = [x for mode in modes for x in self.spec.all_reduce if (x.mode, x.ranks) == (mode, ranks)]
        of_engine = [x for x in tables if x.engine == self.engine] or tables
        return (of_engine[0].bytes, of_engine[0].microseconds) if of_engine else None


def table_seconds(
    tables: tuple[EngineKernelTable, ...],
    extents: tuple[Array, Array, Array],
    on: DeviceSpec,
    device: DeviceSpec,
) -> Array:
    """Return the time of a kernel on ``device`` by the first of ``tables``, measured on ``on`` [s].

    T(y) u'(y) / u(y) u'(x) / u'(y), at least u'(x) and the shortest time of the table: between nodes
    interpolated in logarithms, beyond the ends as the least time changes, on another device by the ratio of
    the least times. Where another table reaches further, it says how the time changes beyond the first.

    >>> tables, h100 = h100_measured().kernel("decode-attention", "bf16", 128), h100_measured().measured_on
    >>> seconds = table_seconds(tables, (np.array(512.0), np.array(1024.0), np.array(4.0)), h100, h100)
    >>> 80e-6 < float(seconds) < 140e-6
    True

    Source: the tables' files.
    """
    table = tables[0]
    shape = shape_of(table.key)
    a, b, c = np.broadcast_arrays(*extents)
    x = (a, b, c)
    y = _clipped(table, x)
    measured = _measured(table, y)
    at_edge, least = least_seconds(shape, y, device), least_seconds(shape, x, device)
    growth = least / at_edge
    for other in tables[1:]:
        if _reach(other, x) > _reach(table, x):
            reached = _clipped(other, x)
            growth = _measured(other, reached) / _measured(other, _clipped(other, y))
            growth = growth * least / least_seconds(shape, reached, device)
            break
    transfer = 1.0 if on.name == device.name else at_edge / least_seconds(shape, y, on)
    shortest = min(t for block in table.microseconds for row in block for t in row) * 1e-6
    beyond = np.maximum(measured * transfer * growth, np.minimum(shortest, measured))
    seconds: Array = np.maximum(beyond, least)
    return seconds


def _clipped(table: EngineKernelTable, x: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """Return the nearest extents that a table has."""
    a, b, c = (
        np.clip(extent, axis[0], axis[-1])
        for extent, axis in zip(x, (table.first, table.second, table.third), strict=True)
    )
    return a, b, c


def _reach(table: EngineKernelTable, x: tuple[Array, Array, Array]) -> float:
    """Return the share of extents that a table has, over its last two axes [1]."""
    inside = np.ones(x[1].shape)
    for extent, axis in zip(x[1:], (table.second, table.third), strict=True):
        inside = inside * ((extent >= 0.97 * axis[0]) & (extent <= 1.03 * axis[-1]))
    return float(inside.mean())


def _measured(table: EngineKernelTable, x: tuple[Array, Array, Array]) -> Array:
    seconds: Array = np.exp(_logs(_log_grid((table.first, table.second, table.third), table.microseconds), x))
    return seconds


@lru_cache(maxsize=512)
def _log_grid(
    axes: tuple[tuple[int, ...], ...], microseconds: tuple[tuple[tuple[float, ...], ...], ...]
) -> ShapeGrid:
    logs = tuple(np.log(np.asarray(axis, dtype=np.float64)) for axis in axes)
    return ShapeGrid(logs, np.log(np.asarray(microseconds) * 1e-6))


def _logs(table: ShapeGrid, extents: tuple[Array, ...]) -> Array:
    """Return the logarithm of the time, multilinear in those of the extents."""
    total: Array = np.zeros(())
    brackets = []
    for x, logs in zip(extents, table.axes, strict=True):
        at = np.log(x)
        low = np.clip(np.searchsorted(logs, at, side="right") - 1, 0, max(len(logs) - 2, 0))
        high = np.minimum(low + 1, len(logs) - 1)
        width = np.where(high > low, logs[high] - logs[low], 1.0)
        share = (at - logs[low]) / width
        brackets.append(((low, 1.0 - share), (high, share)))
    for i, u in brackets[0]:
        for j, v in brackets[1]:
            for k, w in brackets[2]:
                total = total + u * v * w * table.slowness[i, j, k]
    return total


Sharding = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A kind of layer of experts, and how a device shares it."""

    weights: WeightFormat
    experts: int
    top_k: int
    hidden_size: int
    ffn_size: int
    sharding: Sharding

    def least(self, m: Array, sharding: Sharding, device: DeviceSpec) -> Array:
        """Return the least time on a device [s].

        >>> layer = ExpertLayer("bf16", 8, 2, 4096, 14336, (1, 1))
        >>> seconds = layer.least(np.array(512.0), (1, 1), load_entry("device", "h100-sxm5-80gb"))
        >>> round(float(seconds) * 3.35e12 / (8 * 3 * 4096 * 14336 * 2), 3)  # all experts are read
        1.0
        """
        tp, ep = sharding
        shape = shape_of(("", "experts", self.weights, 0, 0))
        rows = np.maximum(1.0, m * self.top_k / ep)
        weights = np.asarray(float(self.hidden_size) * self.ffn_size / tp)
        return least_seconds(shape, (rows, np.asarray(self.experts / ep), weights), device)


def curve_seconds(
    m: Array, layer: ExpertLayer, measured: MeasuredKernels, device: DeviceSpec
) -> Array | None:
    """Return the time of experts for ``m`` tokens [s]; None where this kind of layer was not measured.

    The engine's curve with the nearest sharding. Of other engines that have both shardings,
    the most alike tells how the time changes from one to the other, else the least time: T(y) u(x) / u(y),
    at least u(x) and the shortest time that was measured of the engine and the layer.

    >>> layer = ExpertLayer("bf16", 128, 8, 4096, 1536, (4, 1))
    >>> times = curve_seconds(np.array([1.0, 64.0]), layer, h100_measured(), h100_measured().measured_on)
    >>> bool(times[1] > times[0])
    True

    Source: the tables' files.
    """
    tables = [x for x in measured.spec.experts if x.key[1:] == _key(layer)]
    tables.sort(key=lambda x: x.engine != measured.engine_of_experts(layer.weights))
    if not tables:
        return _dequantized(m, layer, measured, device)
    x, on = layer.sharding, measured.measured_on
    table = tables[0]
    y = min(table.shardings, key=lambda at: _distance(at, x))
    least = layer.least(m, x, device)
    seconds = _curve(m, table, y, layer, on) * layer.least(m, y, device) / layer.least(m, y, on)
    if y != x:
        growth = least / layer.least(m, y, device)
        both = [other for other in tables[1:] if {x, y} <= set(other.shardings)]
        if both:
            both.sort(key=lambda other: _unlike(m, table, other, y, layer, on))
            growth = _curve(m, both[0], x, layer, on) / _curve(m, both[0], y, layer, on)
        # Kernels around the products take as long with any sharding.
        seconds = np.maximum(seconds * growth, min(times[0] for times in table.microseconds) * 1e-6)
    return np.asarray(np.maximum(seconds, least))


def _dequantized(m: Array, layer: ExpertLayer, measured: MeasuredKernels, device: DeviceSpec) -> Array | None:
    """Return the time of experts whose weights are made 16-bit on the way, from curves in 16 bits [s].

    Devices without products of a format (Marlin on Ampere): as many FLOPs, fewer bytes.
    """
    if layer.weights == "bf16" or not measured.dequantizes(layer.weights):
        return None
    plain = replace(layer, weights="bf16")
    seconds = curve_seconds(m, plain, measured, device)
    if seconds is None:
        return None
    at = layer.sharding
    return np.asarray(seconds * layer.least(m, at, device) / plain.least(m, at, device))


def _key(layer: ExpertLayer) -> tuple[str, int, int, int, int]:
    return layer.weights, layer.experts, layer.top_k, layer.hidden_size, layer.ffn_size


def _distance(one: Sharding, other: Sharding) -> float:
    return float(sum(abs(np.log2(a / b)) for a, b in zip(one, other, strict=True)))


def _unlike(
    m: Array, one: ExpertTable, other: ExpertTable, sharding: Sharding, layer: ExpertLayer, on: DeviceSpec
) -> float:
    """Return how far two engines differ with one sharding [1]: mean absolute logarithm."""
    ratio = _curve(m, one, sharding, layer, on) / _curve(m, other, sharding, layer, on)
    return float(np.abs(np.log(ratio)).mean())


def _curve(m: Array, table: ExpertTable, sharding: Sharding, layer: ExpertLayer, on: DeviceSpec) -> Array:
    """Return the time of a curve, beyond its last node as the least time grows [s]."""
    times = table.microseconds[table.shardings.index(sharding)]
    inside = np.clip(m, table.tokens[0], table.tokens[-1])
    between = np.exp(np.interp(np.log(inside), np.log(table.tokens), np.log(times))) * 1e-6
    beyond: Array = between * np.maximum(
        1.0, layer.least(m, sharding, on) / layer.least(inside, sharding, on)
    )
    return beyond
