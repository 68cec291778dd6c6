"""Tables of matrix products from sweeps of inference engines, see ``tabulate_kernels``.

Sweeps are gemm_serving_GPU.csv, gemm_GPU.csv and gemm_int_weights.csv, columns framework, gemm_dtype, m, n,
k, latency_us (ai-dynamo/aiconfigurator's gemm_perf). The values at the nodes are those whose interpolation is
nearest to all measured points by least squares of logarithms; one point in ten is left out, and a test holds
the tables against these.
"""

from __future__ import annotations

import csv
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.serving.engine_layout import FORMATS, WeightFormat

__all__ = [
    "ENGINES",
    "GPUS",
    "HELD_OUT",
    "GemmPoint",
    "digits",
    "gemm_lines",
    "hats",
    "monotone",
    "points_of",
    "rows_of",
    "table_of",
]

TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
OUTPUTS: Final = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
INNER: Final = (1024, 2048, 4096, 8192, 16384, 51200)
#: One point in so many is left out of the fit.
HELD_OUT: Final = 10
#: Weight of the smooth prior beside one point.
_RIDGE: Final = 0.05
GPUS: Final = {
    "a100-sxm4-80gb": "a100_sxm",
    "b200-sxm-180gb": "b200_sxm",
    "h100-sxm5-80gb": "h100_sxm",
    "h200-sxm-141gb": "h200_sxm",
    "l40s": "l40s",
}
ENGINES: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
_FORMATS: Final[dict[str, WeightFormat]] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4-awq",
}
_ARITHMETIC: Final = {"bf16": "bf16", "fp8": "fp8", "fp8-block": "fp8", "nvfp4": "fp4", "int4-awq": "bf16"}

Floats = npt.NDArray[np.float64]


class GemmPoint(NamedTuple):
    """One measured product."""

    engine: str
    weights: WeightFormat
    m: int
    n: int
    k: int
    seconds: float

    @property
    def held_out(self) -> bool:
        """Whether the fit leaves it out; the same points in every run."""
        return zlib.crc32(repr(self[:5]).encode()) % HELD_OUT == 0


def points_of(sweeps: Path, device: str) -> list[GemmPoint]:
    """Return the fastest kernel of each shape."""
    best: dict[tuple[str, WeightFormat, int, int, int], float] = {}
    gpu = GPUS[device]
    plain = {"trtllm", "vllm"} if gpu == "a100_sxm" else {"trtllm"}
    files = ((f"gemm_serving_{gpu}.csv", set(ENGINES)), (f"gemm_{gpu}.csv", plain))
    for name, engines in (*files, ("gemm_int_weights.csv", {"trtllm"})):
        for row in rows_of(sweeps / name):
            m, n, k = (int(row[axis]) for axis in "mnk")
            wanted = row["framework"] in engines and row.get("gpu", gpu) == gpu
            if wanted and row["gemm_dtype"] in _FORMATS and m <= TOKENS[-1] and min(n, k) >= 1024:
                key = (ENGINES[row["framework"]], _FORMATS[row["gemm_dtype"]], m, n, k)
                best[key] = min(best.get(key, np.inf), float(row["latency_us"]) * 1e-6)
    return [GemmPoint(*key, seconds) for key, seconds in best.items()]


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a sweep; none where the file is not there."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def table_of(points: Iterable[GemmPoint], device: DeviceSpec) -> Floats:
    """Return the share of the peak at each node, of shape [tokens, outputs, inner]."""
    fitted = [point for point in points if not point.held_out]
    peak = device.peak_flops(_ARITHMETIC[fitted[0].weights]) or 0.0
    measured = np.log([point.seconds for point in fitted])
    light = np.log([_light(p.m, p.n, p.k, p.weights, device) for p in fitted])
    usual = np.median(measured - light)
    weights = hats([[getattr(p, axis) for p in fitted] for axis in "mnk"], (TOKENS, OUTPUTS, INNER))
    nodes = [(m, n, k) for m in TOKENS for n in OUTPUTS for k in INNER]
    prior = np.log([_light(m, n, k, fitted[0].weights, device) for m, n, k in nodes]) + usual
    system = np.vstack([weights, _RIDGE * np.eye(len(nodes))])
    logs = np.linalg.lstsq(system, np.concatenate([measured, _RIDGE * prior]), rcond=None)[0]
    shape = (len(TOKENS), len(OUTPUTS), len(INNER))
    work = np.array([2.0 * m * n * k for m, n, k in nodes]).reshape(shape)
    shares: Floats = np.minimum(1.0, work / peak / np.exp(monotone(logs.reshape(shape))))
    return shares


def monotone(logs: Floats, axes: tuple[int, ...] = (0, 1, 2)) -> Floats:
    """Return values near ``logs`` that fall along no axis: more work takes no less time.

    Pools adjacent violators along each axis in turn until nothing changes, so that noise is averaged, where a
    running maximum would keep the slowest of it.
    """
    for _ in range(200):
        before = logs
        for axis in axes:
            logs = np.apply_along_axis(_pooled, axis, logs)
        if np.abs(logs - before).max() < 1e-9:
            break
    return logs


def _pooled(line: Floats) -> Floats:
    """Return the non-decreasing values that are nearest to ``line`` by least squares."""
    blocks: list[tuple[float, int]] = []
    for value in line:
        mean, size = float(value), 1
        while blocks and blocks[-1][0] > mean:
            above, count = blocks.pop()
            mean, size = (mean * size + above * count) / (size + count), size + count
        blocks.append((mean, size))
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])


def _light(m: int, n: int, k: int, weights: WeightFormat, device: DeviceSpec) -> float:
    peak = device.peak_flops(_ARITHMETIC[weights]) or 1.0
    moved = n * k * FORMATS[weights].bits / 8 + 2 * m * (n + k)
    return max(moved / device.memory.bandwidth.value, 2.0 * m * n * k / peak)


def hats(extents: Sequence[Sequence[float]], nodes: Sequence[tuple[int, ...]]) -> Floats:
    """Return the weight of each node for each point, multilinear in logarithms."""
    parts = [_hat(values, at) for values, at in zip(extents, nodes, strict=True)]
    weights: Floats = np.einsum("pi,pj,pk->pijk", *parts).reshape(len(parts[0]), -1)
    return weights


def _hat(values: Sequence[float], nodes: tuple[int, ...]) -> Floats:
    logs, at = np.log(values), np.log(nodes)
    columns: Floats = np.stack([np.interp(logs, at, row) for row in np.eye(len(nodes))], axis=1)
    return columns


def gemm_lines(points: list[GemmPoint], device: DeviceSpec) -> Iterator[str]:
    """Yield the lines of the tables of a device."""
    groups: dict[tuple[str, WeightFormat], list[GemmPoint]] = defaultdict(list)
    for point in points:
        groups[point.engine, point.weights].append(point)
    for (engine, weights), group in sorted(groups.items()):
        yield f"- engine: {engine}\n  weights: {weights}\n  arithmetic: {_ARITHMETIC[weights]}"
        yield "  kind: measured\n  source: aic"
        yield f'  valid_for: "m 1 to 8,192, n and k from 1,024; {len(group)} shapes"'
        for name, nodes in (("tokens", TOKENS), ("outputs", OUTPUTS), ("inner", INNER)):
            yield f"  {name}: [{', '.join(map(str, nodes))}]"
        yield "  shares:"
        for block in table_of(group, device):
            rows = ", ".join(f"[{', '.join(map(digits, row))}]" for row in block)
            yield f"  - [{rows}]"


def digits(share: float) -> str:
    """Return three digits without an exponent, which YAML 1.1 would take for text."""
    return np.format_float_positional(share, precision=3, fractional=False, trim="-")
