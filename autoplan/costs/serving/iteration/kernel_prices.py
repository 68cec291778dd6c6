"""Prices of single kernels of an engine: measured where there is a table, else by training's kernels.

The matrices of a layer are packed as engines pack them.

Notation (this file only)::

    m, n, k  tokens, output and input features of a product                          [1]
    W        memory bandwidth that kernels reach                                     [byte/s]
    t0       fixed time of a kernel                                                  [s]
    h        hidden size                     q, k     widths of queries and of keys  [1]
    t        tensor-parallel degree          f        inner width of an MLP          [1]
    r, l     query and key-value latents     n, p, v  widths of a latent head's parts [1]
    a        heads                                                                   [1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Final, NamedTuple

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.sizes import attention_widths, causal_keys
from autoplan.costs.device.kernel_tables import GemmGrid
from autoplan.costs.device.kernels import attention_seconds, gemm_seconds_at_rate, smooth_maximum
from autoplan.costs.device.machine import Links, attention_rate_of, gemm_rate_of, links_of
from autoplan.costs.network.collectives import Group, Operation, collective_seconds, point_to_point_seconds
from autoplan.costs.serving.engine_memory import matrix_bytes
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.measured_kernels import (
    ExpertLayer,
    MeasuredKernels,
    curve_seconds,
    shape_of,
    table_seconds,
)
from autoplan.costs.serving.least_times import (
    KernelShape,
    expert_read_seconds,
    gemm_light_seconds,
    least_seconds,
    table_gemm_seconds,
)
from autoplan.schema.costmodel.engine_kernels import KernelName, SmallGemmTable
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.job import Cluster
from autoplan.schema.model import ModelSpec
from autoplan.schema.precision import Precision
from autoplan.schema.serving.engine_layout import WeightFormat


class Matrix(NamedTuple):
    """A weight matrix on one device: ``outputs`` times ``inner`` weights."""

    outputs: int
    inner: int
    weights: WeightFormat


def attention_matrices(scope: EngineScope, layer: int = 0) -> list[Matrix]:
    """Return the matrices of a layer's attention: queries, keys and values in one, and the output.

    [h, (q + 2k)/t] and [q/t, h]; a device has at least one key head, and an output gate is as wide as the
    queries. Linear attention: all projections in one, with at least one group of keys, and the output.
    Latent: [h, r + l + p], [r, a (n + p)/t], [l, a (n + v)/t], [a v/t, h].

    >>> scope = EngineScope(serving_job, EngineLayout(tp=4))
    >>> [matrix[:2] for matrix in attention_matrices(scope)]
    [(1536, 4096), (4096, 1024)]

    Leaves out: that decodes multiply by the latent up-projections head by head, after and before attention.
    Source: vLLM 0.33.0, model_executor/layers/linear.py, QKVParallelLinear; attention/mla_attention.py.
    """
    model, t = scope.model, scope.layout.tp
    weight_format, h = scope.format_of("attention"), model.hidden_size
    if model.is_linear_layer(layer):
        return _linear_matrices(model, t, weight_format)
    if model.mla is None:
        queries, keys = (float(np.max(x)) for x in attention_widths(model, np.array(float(t))))
        packed = queries * (2 if model.attention_output_gate else 1) + 2 * keys
        return [Matrix(round(packed), h, weight_format), Matrix(h, round(queries), weight_format)]
    return _latent_matrices(model, t, weight_format)


def _linear_matrices(model: ModelSpec, t: int, weight_format: WeightFormat) -> list[Matrix]:
    linear, h = model.linear_attention, model.hidden_size
    assert linear is not None  # noqa: S101 - the caller asks
    keys = 2 * linear.keys / min(t, linear.key_heads)
    wide = keys + (2 * linear.values + linear.gates) / t
    return [Matrix(round(wide), h, weight_format), Matrix(h, round(linear.values / t), weight_format)]


def _latent_matrices(model: ModelSpec, t: int, weight_format: WeightFormat) -> list[Matrix]:
    mla = model.mla
    assert mla is not None  # noqa: S101 - the caller asks
    h, a = model.hidden_size, model.heads / t
    latent = (mla.q_lora_rank or 0) + mla.kv_lora_rank + mla.qk_rope_head_dim
    up = Matrix(round(a * (mla.qk_nope_head_dim + mla.v_head_dim)), mla.kv_lora_rank, weight_format)
    queries = Matrix(round(a * model.head_dim), mla.q_lora_rank or h, weight_format)
    return [
        Matrix(latent, h, weight_format),
        queries,
        up,
        Matrix(h, round(a * mla.v_head_dim), weight_format),
    ]


def dense_matrices(scope: EngineScope, layer: int) -> list[Matrix]:
    """Return the matrices of the dense MLP of a layer, or of its shared experts and its router.

    [h, 2f/t] with a gate, and [f/t, h]. Data-parallel attention replicates shared experts on every device.

    >>> scope = EngineScope(serving_job, EngineLayout(tp=4))
    >>> [matrix[:2] for matrix in dense_matrices(scope, 0)]
    [(7168, 4096), (4096, 3584)]

    Leaves out: routed experts.
    Source: vLLM 0.33.0, model_executor/layers/linear.py, MergedColumnParallelLinear.
    """
    model, layout, h = scope.model, scope.layout, scope.model.hidden_size
    gate = 2 if model.gated else 1
    moe = model.moe if model.is_moe_layer(layer) else None
    if moe is None:
        weight_format = scope.format_of("dense_mlp")
        return [
            Matrix(gate * model.ffn_size // layout.tp, h, weight_format),
            Matrix(h, model.ffn_size // layout.tp, weight_format),
        ]
    matrices = [Matrix(moe.experts, h, "bf16")]
    if moe.shared_expert_ffn_size:
        weight_format, f = scope.format_of("shared_experts"), moe.shared_expert_ffn_size // layout.tp
        matrices += [Matrix(gate * f, h, weight_format), Matrix(h, f, weight_format)]
    return matrices


#: Precision of training's products that a format computes in, where the device has it.
_PRECISIONS: Final[dict[WeightFormat, Precision]] = {"fp8": "fp8", "fp8-block": "fp8", "nvfp4": "nvfp4"}
#: Share of PCIe that collectives reach: 20 of 32 GB/s with two L40S (ai-dynamo/aiconfigurator's nccl_perf).
#: With more devices that one host falls to 5 and 1.4 GB/s, which others do not.
_PCIE_SHARE: Final = 0.62
#: Exchange of small messages between nodes [s]: all-reduces of up to 34 kB between two devices of two nodes
#: take 31 to 44 us (microsoft/vidur data/profiling/network, a100_dgx); more nodes take one for each doubling.
_NODE_EXCHANGE: Final = 40e-6
#: Fixed time of an engine's own all-reduce in a full mesh of links [s], a guess: eight devices on switches
#: take 4 to 8 us.
_MESH_REDUCE: Final = 10e-6
#: Sharpness of the transition between computing and reading, as of training's products.
_BLEND: Final = 4.0


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """Prices of the kernels of one engine on one cluster."""

    cluster: Cluster
    measured: MeasuredKernels | None
    kernels: KernelSpec
    #: Formats whose inputs norms and activations quantize; sweeps of products include it.
    fuses_quantization: tuple[WeightFormat, ...] = ()

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth that kernels reach [byte/s].

        >>> 0.5 < h100_prices().bandwidth / 3.35e12 < 1
        True
        """
        share = self.kernels.memory_bound.bandwidth_share.value
        return self.cluster.device.memory.bandwidth.value * share

    @property
    def launch(self) -> float:
        """Fixed time of a memory-bound kernel [s].

        >>> 1e-6 < h100_prices().launch < 1e-5
        True
        """
        return self.kernels.memory_bound.launch.value

    @property
    def engine_share(self) -> float:
        """Rate of the engine's kernels over these prices [1]: where none were measured, that of its device.

        >>> h100_prices().engine_share
        1.0
        """
        share = self.kernels.engine_share
        return share.value if share is not None and self.measured is None else 1.0

    def product(self, m: Array, matrix: Matrix) -> Array:
        """Return the time of products of ``m`` tokens with ``matrix`` [s], never below the least time.

        >>> seconds = h100_prices().product(np.array([1.0]), Matrix(8192, 8192, "bf16"))
        >>> 40e-6 < float(seconds[0]) < 70e-6  # 40 us to read its 134 MB
        True
        """
        n, k, weights = matrix
        device = self.cluster.device
        light = np.array([gemm_light_seconds(x, n, k, weights, device) for x in m.tolist()])
        table = self.measured.gemm(weights) if self.measured else None
        if table is None or self.measured is None:
            return np.asarray(np.maximum(self._product_beyond(m, matrix), light))
        on = self.measured.measured_on
        wide, deep = max(n, table.outputs[0]), max(k, table.inner[0])
        seconds = table_gemm_seconds(np.maximum(m, 1.0), wide, deep, table, on)
        if weights in self.fuses_quantization:
            quantized = self.measured.quantization(table, on) + 3.0 * m * k / on.memory.bandwidth.value
            seconds = np.maximum(seconds - quantized, seconds / 4)
        else:
            seconds = self._in_graph(seconds, m, (wide, deep), table)
        if on.name != device.name:
            moved = (matrix_bytes(n * k, weights, k) + 2.0 * m * (n + k)) / self.bandwidth
            least = np.array([gemm_light_seconds(x, n, k, weights, on) for x in m.tolist()])
            seconds = _on_device(seconds, light / least, moved, (on, device))
        return np.asarray(np.maximum(seconds, light))

    def _in_graph(self, seconds: Array, m: Array, size: tuple[int, int], table: SmallGemmTable) -> Array:
        """Return the time of products whose sweep holds the host's launches, which a step does not wait for.

        That of another engine's sweep, and the kernel that quantizes the input in blocks.
        """
        measured = self.measured
        bound = measured.launch_bound(table) if measured else None
        if bound is None or measured is None:
            return seconds
        floor, other = bound
        product = table_gemm_seconds(np.maximum(m, 1.0), *size, other, measured.measured_on)
        quantized = self.launch + 3.0 * m * size[1] / self.bandwidth
        return np.where(seconds < floor, np.minimum(seconds, product + quantized), seconds)

    def _product_beyond(self, m: Array, matrix: Matrix) -> Array:
        """Return the time where the engine was not measured: training's rate, and bytes over W."""
        n, k, weights = matrix
        size = np.asarray(float(n)), np.asarray(float(k))
        wanted = _PRECISIONS.get(weights, "bf16")
        peak = self.cluster.device.peak_flops
        has = wanted == "bf16" or peak("fp4" if wanted == "nvfp4" else wanted) is not None
        precision: Precision = wanted if has else "bf16"
        if precision == "bf16" and peak("bf16") is None:
            precision = "fp16"
        rate = gemm_rate_of(self.cluster, self.kernels, precision)
        # The launch counts once: with memory traffic where GEMMs were measured, as in training, else apart.
        computing = gemm_seconds_at_rate((m, *size), replace(rate, launch=0.0), np.inf, 2)
        reading = (matrix_bytes(n * k, weights, k) + 2.0 * m * (n + k)) / self.bandwidth
        if isinstance(rate.table, GemmGrid):
            return smooth_maximum(computing, reading + rate.launch, _BLEND)
        return smooth_maximum(computing, reading, _BLEND) + rate.launch

    def experts(self, m: Array, layer: ExpertLayer) -> Array | None:
        """Return the time of experts by curves of the same kind of layer [s]; None if none exist.

        >>> h100_prices().experts(np.array([1.0]), ExpertLayer("bf16", 7, 2, 4096, 1536, (1, 1))) is None
        True
        """
        if self.measured is None:
            return None
        return curve_seconds(m, layer, self.measured, self.cluster.device)

    def kernel(
        self,
        name: KernelName,
        kind: WeightFormat,
        extents: tuple[Array, Array, Array],
        *,
        head_dim: int = 0,
        window: int = 0,
    ) -> Array:
        """Return the time of attention or experts [s]; ``extents`` are those of ``EngineKernelTable``.

        >>> at = (np.array(512.0), np.array(1024.0), np.array(4.0))
        >>> seconds = float(h100_prices().kernel("decode-attention", "bf16", at, head_dim=128))
        >>> 80e-6 < seconds < 140e-6  # 80 us of reads
        True
        """
        device, measured = self.cluster.device, self.measured
        tables = measured.kernel(name, kind, head_dim, window) if measured else ()
        if not tables and measured and head_dim and name in {"decode-attention", "prefill-attention"}:
            return self._other_width(name, kind, extents, head_dim, window)
        if tables and measured is not None:
            return table_seconds(tables, extents, measured.measured_on, device)
        if measured and name in {"experts", "split-experts"} and measured.dequantizes(kind):
            plain, shapes = self.kernel(name, "bf16", extents), (("", name, x, 0, 0) for x in (kind, "bf16"))
            narrow, wide = (least_seconds(shape_of(x), extents, device) for x in shapes)
            return np.asarray(plain * narrow / wide)
        return self._kernel_beyond(shape_of(("", name, kind, head_dim, window)), extents)

    def _other_width(
        self,
        name: KernelName,
        kind: WeightFormat,
        extents: tuple[Array, Array, Array],
        width: int,
        window: int,
    ) -> Array:
        """Return the time with heads or windows that were not measured.

        That of heads of 128 or 64, complete or with the keys of the window, by the ratio of the least times.
        """
        measured = self.measured
        assert measured is not None  # noqa: S101 - the caller asks
        near = [x for x in ((128, 0), (64, 0)) if measured.kernel(name, kind, *x)]
        if not near or (near[0][0] == width and not window):
            return self._kernel_beyond(shape_of(("", name, kind, width, window)), extents)
        a, b, c = extents
        seen = np.minimum(b, window) if window else b
        unscaled = self.kernel(name, kind, (a, seen, c), head_dim=near[0][0])
        least = least_seconds(shape_of(("", name, kind, width, window)), extents, self.cluster.device)
        scale = least / least_seconds(
            shape_of(("", name, kind, near[0][0], 0)), (a, seen, c), self.cluster.device
        )
        return np.maximum(unscaled * np.maximum(scale, 1.0 if window else 0.0), least)

    def _kernel_beyond(self, shape: KernelShape, extents: tuple[Array, Array, Array]) -> Array:
        """Return the time of a kernel that no engine was measured for: bytes over W, training's attention."""
        a, b, c = np.broadcast_arrays(*extents)
        device = self.cluster.device
        least = least_seconds(shape, (a, b, c), device)
        share = self.kernels.memory_bound.bandwidth_share.value
        if shape.kernel in {"prefill-attention", "latent-prefill"}:
            latent = shape.kernel == "latent-prefill"
            tokens, rows, width = (c, a * b, 160.0) if latent else (b, a, float(shape.head_dim))
            keys = causal_keys(tokens, shape.window or np.inf)
            rate = attention_rate_of(self.cluster, self.kernels)
            one = np.ones_like(tokens)
            seconds = attention_seconds(one, tokens, keys, rows, width, rate)
            return np.maximum(seconds, least)
        rate = gemm_rate_of(self.cluster, self.kernels, "bf16" if device.peak_flops("bf16") else "fp16")
        if shape.kernel in {"experts", "split-experts"}:
            rate = replace(rate, launch=0.0)
            groups = np.maximum(1.0, np.minimum(a, b))
            rows = np.maximum(1.0, a / groups)
            computing = gemm_seconds_at_rate(
                (rows, shape.matrices * np.sqrt(c), np.sqrt(c)), rate, np.inf, 2, groups
            )
            narrow = least_seconds(
                KernelShape(shape.kernel, 16.0, matrices=shape.matrices), (a, b, c), device
            )
            gain = np.minimum(1.0, least / narrow)
            reading = expert_read_seconds(shape, (a, b, c), device) / share + 2 * self.launch
            return np.maximum(smooth_maximum(computing * gain, reading, _BLEND), least)
        return np.asarray(least / share + 2 * self.launch)


def _on_device(seconds: Array, slower: Array, moved: Array, devices: tuple[DeviceSpec, DeviceSpec]) -> Array:
    """Return the time of products on the second of two ``devices`` that take ``seconds`` on the first [s].

    ``slower``: the ratio of their least times, of which the product reaches the same share. The same chip
    with slower memory reaches a larger one: its multiprocessors have as many bytes on their way, and the rate
    is that over the latency, up to W, with which the product takes ``moved``.
    """
    swept, device = devices
    alike = np.asarray(seconds * slower)
    if device.multiprocessors is None or device.multiprocessors != swept.multiprocessors:
        return alike
    return np.asarray(np.minimum(alike, np.maximum(seconds, moved)))


def all_reduce_seconds(prices: KernelPrices, size: Array, ranks: int, *, graph: bool) -> Array:
    """Return the time of all-reduces of ``size`` bytes over neighbouring devices [s].

    Sweeps over a switch are taken as measured. Those over PCIe tell of one host alone: others are several
    times faster or slower.

    >>> float(all_reduce_seconds(h100_prices(), np.array(8192.0), 1, graph=True))
    0.0
    >>> 2e-6 < float(all_reduce_seconds(h100_prices(), np.array(16384.0), 8, graph=True)) < 30e-6
    True
    """
    if ranks == 1:
        return np.zeros_like(size)
    table = prices.measured.all_reduce(ranks, graph=graph) if prices.measured else None
    node = prices.cluster.node
    if ranks > node.devices:
        inside = all_reduce_seconds(prices, size, node.devices, graph=graph)
        exchanges = ceil(log2(ranks / node.devices))
        across = nccl_seconds(prices, "all_reduce", size, ranks)
        return np.asarray(np.maximum(across, inside + exchanges * _NODE_EXCHANGE))
    if node.fabric.topology == "mesh" and graph:
        return _mesh_seconds(prices, size, ranks)
    if table is None or node.fabric.topology != "switch":
        return nccl_seconds(prices, "all_reduce", size, ranks)
    sizes, times = np.asarray(table[0], dtype=np.float64), np.asarray(table[1]) * 1e-6
    between = np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), np.log(times)))
    seconds: Array = np.where(size > sizes[-1], times[-1] * size / sizes[-1], between)
    return seconds


def _mesh_seconds(prices: KernelPrices, size: Array, ranks: int) -> Array:
    """Return the time of all-reduces between devices that are all linked to each other [s].

    One kernel reads from all peers at once, as engines' own all-reduces do: no ring, no hops; twice V/n over
    the link to each peer.
    """
    link = _links(prices).fabric_bandwidth / (prices.cluster.node.devices - 1)
    moved = 2.0 * size / ranks / link
    return np.asarray(np.minimum(_MESH_REDUCE + moved, nccl_seconds(prices, "all_reduce", size, ranks)))


def nccl_seconds(prices: KernelPrices, operation: Operation, size: Array, ranks: int) -> Array:
    """Return the time of a collective of NCCL over neighbouring devices [s].

    >>> sizes = np.array(1e6), np.array(1e8)
    >>> small, large = (float(nccl_seconds(h100_prices(), "all_gather", x, 8)) for x in sizes)
    >>> small < large
    True
    """
    group = Group(np.asarray(float(ranks)), np.asarray(1.0))
    return collective_seconds(operation, size, group, _links(prices))


def send_seconds(prices: KernelPrices, size: Array, stages: int, stride: int) -> Array:
    """Return the time of a send from one pipeline stage to the next [s].

    >>> float(send_seconds(h100_prices(), np.array(1e6), 2, 1)) > 1e6 / 450e9
    True
    """
    group = Group(np.asarray(float(stages)), np.asarray(float(stride)))
    return point_to_point_seconds(size, group, _links(prices))


def _links(prices: KernelPrices) -> Links:
    """Return the links of the cluster: over PCIe, with the share of it that collectives reach."""
    links = links_of(prices.cluster, prices.kernels)
    fabric = prices.cluster.node.fabric
    if fabric.topology not in {"pcie-switch", "host"}:
        return links
    reached = _PCIE_SHARE * fabric.bandwidth.value
    return replace(links, tables=(), least=(), fabric_bandwidth=reached, pair_bandwidth=reached)
