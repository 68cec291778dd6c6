"""Time of the experts of a layer from measured curves of the same kind of layer.

Notation (this file only)::

    m     tokens that enter the layer                                                [1]
    y, x  sharding of a measured curve, and that of the layout                       [1]
    T     measured time                                                              [s]
    u     least time                                                                 [s]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.serving.iteration.measured_kernels import MeasuredKernels, shape_of
from autoplan.costs.serving.least_times import least_seconds
from autoplan.schema.costmodel.engine_kernels import ExpertTable
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.weight_formats import WeightFormat

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

    >>> measured = MeasuredKernels(*engine_kernels_for("h100-sxm5-80gb"), engine="vllm")
    >>> layer = ExpertLayer("bf16", 128, 8, 4096, 1536, (4, 1))
    >>> times = curve_seconds(np.array([1.0, 64.0]), layer, measured, measured.measured_on)
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
