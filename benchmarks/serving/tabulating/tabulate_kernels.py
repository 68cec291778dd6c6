"""Tables of the kernels of inference engines from sweeps, for costmodels/engine_kernels.

    python -m benchmarks.serving.tabulating.tabulate_kernels SWEEPS DEVICE > TABLES.yaml

SWEEPS is a folder with the CSV files of ai-dynamo/aiconfigurator's sweeps: matrix products (see
``tabulate_gemm``), attention_decode, attention_prefill, attention_serving_decode, attention_serving_prefill,
mla_kernel, moe_layer, moe_serving_GPU and custom_allreduce. The values at the nodes are those whose
interpolation is nearest to the measured points by least squares of logarithms; one point in ten is left out.
"""

from __future__ import annotations

import argparse
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from autoplan.catalog import load_entry
from autoplan.costs.serving.iteration.measured_kernels import shape_of
from autoplan.costs.serving.least_times import least_seconds
from autoplan.schema.hardware import DeviceSpec
from benchmarks.serving.tabulating.tabulate_gemm import (
    ENGINES,
    GPUS,
    HELD_OUT,
    Floats,
    digits,
    gemm_lines,
    hats,
    monotone,
    points_of,
    rows_of,
)

__all__ = ["KernelPoint", "kernel_points", "kernel_table"]

#: Weight of the smooth prior beside one point.
_RIDGE: Final = 0.05
#: Candidate nodes of each kernel; those within what was measured, and its ends, are kept.
_NODES: Final = {
    "decode-attention": (
        (1, 4, 16, 64, 256, 1024, 4096, 16384),
        (128, 512, 2048, 8192, 32768, 131072),
        (1, 4, 8, 16),
    ),
    "prefill-attention": (
        (4, 8, 16, 32, 64, 256, 1024, 8192),
        (128, 256, 512, 1024, 2048, 4096, 16384),
        (1, 4, 16),
    ),
    "latent-decode": ((8, 16, 32, 64, 128), (1, 4, 16, 64, 256, 1024), (128, 1024, 4096, 16384, 131072)),
    "latent-prefill": ((8, 16, 32, 64, 128), (1, 4, 16), (128, 512, 2048, 8192, 16384)),
    "experts": (
        (1, 4, 16, 64, 256, 1024, 4096, 16384, 131072),
        (8, 16, 32, 128, 256, 384),
        (10**6, 4 * 10**6, 16 * 10**6, 10**8),
    ),
    "split-experts": (
        (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536),
        (1, 4, 16, 64, 192),
        (10**6, 4 * 10**6, 16 * 10**6, 10**8),
    ),
}
_KV: Final = {"bfloat16": "bf16", "fp8": "fp8"}
#: Formats of experts; of mxfp4 the kernels with activations in 16 bits come first, then those with 8.
_EXPERTS: Final = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4-awq",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
Key = tuple[str, str, str, int, int]


class KernelPoint(NamedTuple):
    """One measured kernel: engine, kernel, format, head width, window; its three extents."""

    key: Key
    extents: tuple[float, float, float]
    seconds: float

    @property
    def held_out(self) -> bool:
        """Whether the fit leaves it out; the same points in every run."""
        return zlib.crc32(repr(self[:2]).encode()) % HELD_OUT == 0


def kernel_points(sweeps: Path, gpu: str) -> list[KernelPoint]:
    """Return the fastest kernel of each shape."""
    best: dict[tuple[Key, tuple[float, float, float]], float] = {}
    for key, extents, microseconds in (
        *_attention(sweeps, gpu),
        *_latent(sweeps, gpu),
        *_experts(sweeps, gpu),
    ):
        at = (key, extents)
        best[at] = min(best.get(at, np.inf), microseconds * 1e-6)
    return [KernelPoint(*at, seconds) for at, seconds in best.items()]


#: Tokens of the curves of experts.
_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)


#: Devices with the same multiprocessors, of which each tells where a sweep of the other was disturbed.
_SISTERS: Final = {"h100_sxm": "h200_sxm", "h200_sxm": "h100_sxm"}
#: More than the time of one of them may be over that of the other: bandwidths differ by 1.43.
_DISTURBED: Final = 1.6
Curves = dict[tuple[Any, ...], dict[tuple[int, int], list[float]]]


def _expert_curves(sweeps: Path, gpu: str) -> Curves:
    """Return the fastest times of each kind of layer and sharding [us] over all tokens of a curve."""
    rows: dict[tuple[Any, ...], dict[tuple[int, int], dict[int, float]]]
    rows = defaultdict(lambda: defaultdict(dict))
    for row in _expert_rows(sweeps, gpu):
        layer = (row.experts, row.top_k, row.hidden, row.inter)
        curve = rows[ENGINES[row.framework], _EXPERTS[row.kind], *layer][row.tp, row.ep]
        if row.tokens in _CURVE:
            curve[row.tokens] = min(curve.get(row.tokens, np.inf), row.microseconds)
    return {
        kind: {
            at: [curve[tokens] for tokens in _CURVE]
            for at, curve in sorted(shardings.items())
            if len(curve) == len(_CURVE)
        }
        for kind, shardings in sorted(rows.items())
    }


def _expert_lines(sweeps: Path, gpu: str) -> Iterator[str]:
    """Yield a table for each kind of layer: a curve for each sharding, made non-decreasing.

    Without the few curves that take far longer than on a device with the same multiprocessors.
    """
    sister = _expert_curves(sweeps, _SISTERS[gpu]) if gpu in _SISTERS else {}
    for kind, curves in _expert_curves(sweeps, gpu).items():
        others = sister.get(kind, {})
        undisturbed = {
            at: curve
            for at, curve in curves.items()
            if at not in others or np.median(np.divide(curve, others[at])) < _DISTURBED
        }
        if not undisturbed:
            continue
        engine, weights, experts, top_k, hidden, inter = kind
        yield f"- engine: {engine}\n  format: {weights}\n  experts: {experts}\n  top_k: {top_k}"
        yield f"  hidden_size: {hidden}\n  ffn_size: {inter}\n  kind: measured\n  source: aic"
        yield f"  tokens: [{', '.join(map(str, _CURVE))}]"
        yield f"  shardings: [{', '.join(f'[{tp}, {ep}]' for tp, ep in undisturbed)}]"
        yield "  microseconds:"
        for curve in undisturbed.values():
            times = np.exp(monotone(np.log(curve).reshape(-1, 1, 1)).ravel())
            yield f"  - [{', '.join(map(digits, times))}]"


class _ExpertRow(NamedTuple):
    framework: str
    kind: str
    experts: int
    top_k: int
    hidden: int
    inter: int
    tp: int
    ep: int
    tokens: int
    microseconds: float


def _expert_rows(sweeps: Path, gpu: str) -> Iterator[_ExpertRow]:
    """Yield the experts of a device, with tokens by a power law of exponent 1.2."""
    for row in (*rows_of(sweeps / f"moe_serving_{gpu}.csv"), *rows_of(sweeps / "moe_layer.csv")):
        layer = "gpu" in row
        other = layer and (row["gpu"] != gpu or gpu not in {"a100_sxm", "l40s"})
        if other or row["moe_dtype"] not in _EXPERTS or (layer and row["distribution"] != "power_law_1.2"):
            continue
        size = "_size" if layer else ""
        yield _ExpertRow(
            row["framework"],
            row["moe_dtype"],
            int(row["num_experts" if layer else "experts"]),
            int(row["topk"]),
            int(row[f"hidden{size}"]),
            int(row[f"inter{size}"]),
            int(row[f"moe_tp{size}"]),
            int(row[f"moe_ep{size}"]),
            int(row["num_tokens"]),
            float(row["latency_us"]),
        )


Points = Iterator[tuple[Key, tuple[float, float, float], float]]


def _attention(sweeps: Path, gpu: str) -> Points:
    for phase, length in (("decode", "kv_len"), ("prefill", "isl")):
        for name in (f"attention_{phase}.csv", f"attention_serving_{phase}.csv"):
            for row in rows_of(sweeps / name):
                if row["gpu"] == gpu:
                    heads, kv_heads = int(row["num_heads"]), int(row["num_key_value_heads"])
                    wide = kv_heads if phase == "decode" else heads
                    extents = (int(row["batch_size"]) * wide, int(row[length]), heads / kv_heads)
                    kv = _KV[row.get("kv_cache_dtype", "bfloat16")]
                    head_dim, window = int(row.get("head_dim", 128)), int(row.get("window", 0))
                    key = (ENGINES[row["framework"]], f"{phase}-attention", kv, head_dim, window)
                    yield key, extents, float(row["latency_us"])


def _latent(sweeps: Path, gpu: str) -> Points:
    for row in rows_of(sweeps / "mla_kernel.csv"):
        if row["gpu"] == gpu:
            key = (ENGINES[row["framework"]], f"latent-{row['phase']}", _KV[row["kv_cache_dtype"]], 0, 0)
            extents = (int(row["num_heads"]), int(row["batch_size"]), int(row["length"]))
            yield key, extents, float(row["latency_us"])


def _experts(sweeps: Path, gpu: str) -> Points:
    for row in _expert_rows(sweeps, gpu):
        weights = row.hidden * row.inter / row.tp
        if weights >= 10**5:
            name = "experts" if row.ep == 1 else "split-experts"
            key = (ENGINES[row.framework], name, _EXPERTS[row.kind], 0, 0)
            rows = max(1.0, row.tokens * row.top_k / row.ep)
            yield key, (rows, row.experts / row.ep, weights), row.microseconds


def _nodes(kernel: str, points: list[KernelPoint]) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of a table: the candidates within what was measured, between its ends."""
    axes = []
    for axis, candidates in enumerate(_NODES[kernel]):
        values = [point.extents[axis] for point in points]
        low, high = round(min(values)), round(max(values))
        inside = [n for n in candidates if low * 1.3 <= n <= high / 1.3]
        axes.append(tuple(sorted({low, *inside, high})))
    return tuple(axes)


def kernel_table(
    points: list[KernelPoint], nodes: tuple[tuple[int, ...], ...], least: Callable[[Floats], Floats]
) -> Floats:
    """Return the seconds at each node.

    Where points are missing the prior holds: the least time and a fixed time, times the usual ratio.
    """
    fitted = [point for point in points if not point.held_out]
    extents = np.array([point.extents for point in fitted])
    measured = np.log([point.seconds for point in fitted])
    floor = np.exp(np.quantile(measured, 0.02))
    usual = np.median(measured - np.log(least(extents) + floor))
    at = np.stack(np.meshgrid(*map(np.array, nodes), indexing="ij"), -1).reshape(-1, 3).astype(float)
    prior = np.log(least(at) + floor) + usual
    system = np.vstack([hats(list(extents.T), nodes), _RIDGE * np.eye(len(at))])
    logs = np.linalg.lstsq(system, np.concatenate([measured, _RIDGE * prior]), rcond=None)[0]
    seconds: Floats = np.exp(monotone(logs.reshape([len(axis) for axis in nodes])))
    return seconds


def _least(key: Key, device: DeviceSpec) -> Callable[[Floats], Floats]:
    """Return what scales a kernel's time beyond what was measured [s], of extents [points, 3]."""
    shape = shape_of(key)

    def seconds(x: Floats) -> Floats:
        return np.asarray(least_seconds(shape, (x[:, 0], x[:, 1], x[:, 2]), device))

    return seconds


def _kernel_lines(points: list[KernelPoint], device: DeviceSpec) -> Iterator[str]:
    groups: dict[Key, list[KernelPoint]] = defaultdict(list)
    for point in points:
        groups[point.key].append(point)
    for key, group in sorted(groups.items()):
        engine, kernel, kind, head_dim, window = key
        nodes = _nodes(kernel, group)
        yield f"- engine: {engine}\n  kernel: {kernel}\n  format: {kind}"
        yield f"  head_dim: {head_dim}\n  window: {window}\n  kind: measured\n  source: aic"
        yield f'  valid_for: "{len(group)} shapes between the first and the last nodes"'
        for name, axis in zip(("first", "second", "third"), nodes, strict=True):
            yield f"  {name}: [{', '.join(map(str, axis))}]"
        yield "  microseconds:"
        for block in kernel_table(group, nodes, _least(key, device)) * 1e6:
            rows = ", ".join(f"[{', '.join(map(digits, row))}]" for row in block)
            yield f"  - [{rows}]"


_MODES: Final = {"cuda_graph": "graph", "cuda_graph_trtllm": "graph", "eager": "eager"}


def _all_reduce_lines(sweeps: Path, gpu: str) -> Iterator[str]:
    """Yield tables of the newest version of each engine; a larger all-reduce takes no less time."""
    lines: dict[tuple[str, str, int], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows_of(sweeps / "custom_allreduce.csv"):
        size = int(row["bytes"])
        if row["gpu"] == gpu and 4096 <= size <= 2**28:
            key = (ENGINES[row["framework"]], _MODES[row["mode"]], int(row["num_gpus"]))
            lines[key][row["framework_version"]][size] = float(row["latency_us"])
    for (engine, mode, ranks), versions in sorted(lines.items()):
        version = max(versions, key=lambda text: [int(x) for x in text.replace("rc", ".").split(".")])
        sizes = sorted(versions[version])
        times = np.maximum.accumulate([versions[version][size] for size in sizes])
        yield f"- engine: {engine}\n  mode: {mode}\n  ranks: {ranks}\n  kind: measured\n  source: aic"
        yield f'  valid_for: "{engine} {version}"'
        yield f"  bytes: [{', '.join(map(str, sizes))}]"
        yield f"  microseconds: [{', '.join(map(digits, times))}]"


_SOURCE: Final = (
    "ai-dynamo/aiconfigurator 0.12.0 (095f58a51), Apache-2.0, sweeps of vllm 0.24.0 (on A100 0.14.0), sglang"
    " 0.5.14 and trtllm 1.3.0rc20 (on A100 1.0.0);"
    " benchmarks/serving/tabulating/tabulate_kernels.py made the tables"
)
#: Devices of the same architecture and kind of memory, for which shares of the least time hold.
_ALIKE: Final = {
    "a100-sxm4-80gb": ("a100-sxm4-40gb", "a100-pcie-80gb", "a100-pcie-40gb", "a800-sxm4-80gb"),
    "b200-sxm-180gb": ("b300-sxm-288gb", "gb200-186gb", "gb300-288gb"),
    "h100-sxm5-80gb": ("h100-pcie-80gb", "h100-nvl-94gb", "h800-sxm5-80gb", "gh200-96gb"),
    "h200-sxm-141gb": ("h200-nvl-141gb", "gh200-144gb"),
    "l40s": ("l4", "rtx-6000-ada"),
}


def _file(sweeps: Path, name: str) -> Iterator[str]:
    device = load_entry("device", name)
    assert isinstance(device, DeviceSpec)  # noqa: S101 - the catalogue checks kinds
    served = ", ".join((name, *_ALIKE[name]))
    yield f"schema: 1\nkind: engine-kernels\nname: {name}\ndevices: [{served}]\nsources:"
    yield f'  aic: "{_SOURCE}"\ngemm:'
    yield from gemm_lines(points_of(sweeps, name), device)
    yield "kernels:"
    yield from _kernel_lines(kernel_points(sweeps, GPUS[name]), device)
    yield "experts:"
    yield from _expert_lines(sweeps, GPUS[name])
    yield "all_reduce:"
    yield from _all_reduce_lines(sweeps, GPUS[name])


def main() -> None:
    """Print the file of a device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", type=Path)
    parser.add_argument("device", choices=sorted(GPUS))
    parser.add_argument("--held-out", choices=("gemm", "kernels"), help="print what the fits leave out")
    options = parser.parse_args()
    if options.held_out == "gemm":
        for point in points_of(options.sweeps, options.device):
            if point.held_out:
                print(options.device, *point[:-1], f"{point.seconds * 1e6:.4g}", sep=",")
    elif options.held_out == "kernels":
        for kernel in kernel_points(options.sweeps, GPUS[options.device]):
            if kernel.held_out:
                print(options.device, *kernel.key, *kernel.extents, f"{kernel.seconds * 1e6:.4g}", sep=",")
    else:
        print("\n".join(_file(options.sweeps, options.device)))


if __name__ == "__main__":
    main()
