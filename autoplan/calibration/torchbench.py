"""Timing of points and of links between devices with PyTorch, an optional dependency imported on first use.

Points that a file already contains are skipped. Under torchrun every process times its part of the links, or
nccl-tests do; over nodes, the group of all ranks tells the network's rate.

Notation (this file only)::

    r, n  ranks in this node, in all        V  bytes of a message        B  bandwidth of a ring [byte/s]
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from autoplan.calibration.record import (
    Environment,
    Point,
    PointGrid,
    Record,
    collective_points,
    device_points,
)
from autoplan.errors import UnsupportedError
from autoplan.schema.base import Sourced
from autoplan.schema.costmodel.kernel_spec import Collectives, KernelSpec
from autoplan.schema.hardware import Fabric, NodeSpec

#: Number of repeats, of which the median counts, and the minimum duration of one.
_REPEATS: Final = 7
_REPEAT_SECONDS: Final = 5e-3
_WARM_UP: Final = 3
_MOST_CALLS: Final = 200
_BYTES: Final = 2


def open_bench(device: str) -> TorchBench:
    """Return the benchmark runner for ``device`` of this process: cuda (also for ROCm), or cpu as a trial.

    Raises UnsupportedError without PyTorch, and without such a device.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError(
            "measuring needs PyTorch, which is not installed: install the build for your accelerator as"
            " https://pytorch.org/get-started says, such as `pip install torch`, then repeat the command"
        ) from error
    if device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(
            f"PyTorch {torch.__version__} sees no accelerator on this machine: run this on the machine that"
            " trains, or try it out on the processor with --device cpu"
        )
    return TorchBench(torch, device)


class TorchBench:
    """Benchmark runner on one accelerator, or several under torchrun, timed with CUDA events."""

    def __init__(self, torch: Any, device: str) -> None:  # noqa: ANN401 - a module that may be absent
        self.torch = torch
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.cuda = device == "cuda"
        self.device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if self.cuda else "cpu")
        self.dtype = torch.bfloat16
        if self.cuda:
            torch.cuda.set_device(self.device)
            self.dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        self.groups: dict[int, Any] = {}
        if self.ranks > 1:
            self._join()
        self.environment = self._environment()

    def _join(self) -> None:
        """Initialise torch.distributed and create the process groups of the collectives."""
        dist = self.torch.distributed
        dist.init_process_group("nccl" if self.cuda else "gloo")
        sizes = sorted({2**i for i in range(1, self.ranks.bit_length())} | {self.ranks})
        self.groups = {n: dist.new_group(list(range(n))) for n in sizes if n <= self.ranks}

    def leave(self) -> None:
        """End the process group, whose threads would abort a process that exits while others still call."""
        if self.ranks > 1:
            self.torch.distributed.barrier()
            self.torch.distributed.destroy_process_group()

    def _environment(self) -> Environment:
        torch = self.torch
        if not self.cuda:
            return Environment("cpu", torch.__version__, "none")
        runtime = torch.version.cuda or torch.version.hip or "unknown"
        return Environment(torch.cuda.get_device_name(self.device), torch.__version__, f"runtime {runtime}")

    def agreed(self, keys: list[str]) -> list[str]:
        """Return the first rank's keys."""
        if self.ranks == 1:
            return keys
        objects = [keys]
        self.torch.distributed.broadcast_object_list(objects, src=0)
        return objects[0]

    def seconds(self, point: Point) -> float:
        """Return the median time of one call of ``point``."""
        try:
            call = getattr(self, f"_{point.operation}")(point)
            return 0.0 if call is None else self._timed(call)
        except (self.torch.OutOfMemoryError, RuntimeError) as error:
            if self.ranks > 1:
                raise  # the collective of the other ranks would not end
            raise CannotRunError(str(error).splitlines()[0][:200]) from error
        finally:
            if self.cuda:
                self.torch.cuda.empty_cache()

    def _timed(self, call: Callable[[], object]) -> float:
        for _ in range(_WARM_UP):
            call()
        first = self._elapsed(call, 1)
        wanted = int(_REPEAT_SECONDS / max(first, 1e-6))
        calls = self._first_ranks_count(max(1, min(_MOST_CALLS, wanted)))
        return statistics.median(self._elapsed(call, calls) for _ in range(_REPEATS))

    def _first_ranks_count(self, calls: int) -> int:
        """Return ``calls`` of the first rank, on all ranks: unequal numbers of collectives would hang."""
        if self.ranks == 1 or self.group is None:
            return calls
        objects = [calls]
        self.torch.distributed.broadcast_object_list(objects, src=0, group=self.group)
        return int(objects[0])

    def _elapsed(self, call: Callable[[], object], calls: int) -> float:
        """Return the mean seconds of one call, of ``calls`` in a row."""
        if not self.cuda:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - began) / calls
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        self.torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def _random(self, *shape: int) -> Any:  # noqa: ANN401 - a tensor
        return self.torch.randn(*shape, device=self.device, dtype=self.dtype)

    def _gemm(self, point: Point) -> Callable[[], object]:
        """A GEMM with the memory layout of a linear layer: weights [n, k], activations [m, k]."""
        rows, columns, inner = point.sizes
        if point.variant == "forward":
            left, right = self._random(rows, inner), self._random(columns, inner).t()
        elif point.variant == "input":
            left, right = self._random(rows, inner), self._random(inner, columns)
        else:
            left, right = self._random(inner, rows).t(), self._random(inner, columns)
        return lambda: self.torch.mm(left, right)

    def _attention(self, point: Point) -> Callable[[], object]:
        sequence, heads, size = point.sizes
        attend = self.torch.nn.functional.scaled_dot_product_attention
        q, k, v = (self._random(1, heads, sequence, size) for _ in range(3))
        if point.variant == "forward":
            return lambda: attend(q, k, v, is_causal=True)
        for x in (q, k, v):
            x.requires_grad_()
        out = attend(q, k, v, is_causal=True)
        gradient = self.torch.randn_like(out)
        return lambda: self.torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    def _memory_bound(self, point: Point) -> Callable[[], object]:
        """A memory-bound kernel; the size of a point is HBM reads and writes together [byte]."""
        elements = point.sizes[0] // _BYTES // (3 if point.variant == "add" else 2)
        width = 4096
        source = self._random(elements // width, width)
        target = self.torch.empty_like(source)
        if point.variant == "copy":
            return lambda: target.copy_(source)
        if point.variant == "add":
            other = self._random(elements // width, width)
            return lambda: self.torch.add(source, other, out=target)
        norm = self.torch.nn.functional.layer_norm
        return lambda: norm(source, (width,))

    group: Any = None

    def _collective(self, point: Point) -> Callable[[], object] | None:
        """A collective, None on ranks outside its group; the size of a point is that of the full tensor."""
        ranks, size = point.sizes
        self.group = self.groups[ranks] if self.rank < ranks else None
        self.torch.distributed.barrier()
        if self.group is None:
            return None
        dist, group = self.torch.distributed, self.group
        shard_elements = max(1, size // _BYTES // ranks)
        full_tensor, shard = self._random(shard_elements * ranks), self._random(shard_elements)
        if point.variant == "all_reduce":
            return lambda: dist.all_reduce(full_tensor, group=group)
        if point.variant == "all_gather":
            return lambda: dist.all_gather_into_tensor(full_tensor, shard, group=group)
        return lambda: dist.reduce_scatter_tensor(shard, full_tensor, group=group)


#: Called with the number of points done, their total number, and the name of the next one.
Progress: TypeAlias = Callable[[int, int, str], None]


class CannotRunError(Exception):
    """A point that this machine cannot run, for example because it does not fit in memory."""


class Bench(Protocol):
    """Benchmark runner that times points: on an accelerator, or a fake one in tests."""

    rank: int
    ranks: int
    environment: Environment

    def seconds(self, point: Point) -> float:
        """Return the time of one call; raises CannotRunError."""
        ...

    def agreed(self, keys: list[str]) -> list[str]:
        """Return the keys of the first rank, on every rank."""
        ...


def measure_points(bench: Bench, path: Path, grid: PointGrid, progress: Progress) -> Record | None:
    """Measure points that ``path`` does not contain, and return all; None on all ranks but the first.

    One rank measures kernels of its device; several ranks measure collectives.
    """
    wanted = collective_points(grid, bench.ranks) if bench.ranks > 1 else device_points(grid)
    record = Record(path, bench.environment) if bench.rank == 0 else None
    measured = record.seconds if record else {}
    open_keys = set(bench.agreed([point.key for point in wanted if point not in measured]))
    missing = [point for point in wanted if point.key in open_keys]
    done = len(wanted) - len(missing)
    for count, point in enumerate(missing):
        progress(done + count, len(wanted), point.key)
        _measure(bench, point, record)
    progress(len(wanted), len(wanted), "")
    return record


def _measure(bench: Bench, point: Point, record: Record | None) -> None:
    try:
        seconds, reason = bench.seconds(point), None
    except CannotRunError as error:
        seconds, reason = None, str(error)
    if record:
        record.add(point, seconds, reason=reason)


S = TypeVar("S", bound=Sourced)

#: What a measured node's name ends in, and the key of its source.
_SUFFIX: Final = "-measured"
_SOURCE: Final = "measured"
#: Bytes of a message that bandwidth decides, on an accelerator and on a processor, and one that latency does.
_LARGE: Final = {True: 256 * 2**20, False: 4 * 2**20}
_SMALL: Final = 1024
_NCCL_TEST: Final = "all_reduce_perf"
#: A line of nccl-tests: bytes, elements, type, operation, root, then out of place microseconds and two rates.
_NCCL_LINE: Final = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)", re.MULTILINE
)
_MOST_SECONDS: Final = 300
#: Digits that a timing of a second or two tells.
_DIGITS: Final = 3
#: A hop takes no less: the launch alone may take longer than guessed.
_LEAST_HOP: Final = 1e-7


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What collectives between ``ranks`` devices reach, ``local_ranks`` of them in each node.

    ``bandwidth`` of a ring inside a node and ``network`` of one device between nodes [byte/s], None with one
    device in a node and with one node; ``seconds`` of an all-reduce of a kilobyte; ``by`` timed them.
    """

    ranks: int
    local_ranks: int
    bandwidth: float | None
    network: float | None
    seconds: float | None
    by: str


def measured_links(bench: TorchBench) -> LinkRates:
    """Return what PyTorch's collectives reach between the processes of torchrun; seconds of wall time.

    Raises UnsupportedError for one process alone, and where processes of a node are no power of two.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(bench.ranks)))
    if bench.ranks == 1:
        raise UnsupportedError("links are timed between two devices or more, and one process runs alone")
    if local not in bench.groups and local > 1:
        raise UnsupportedError(f"links are timed between 2, 4, 8, ... processes of a node, not {local}")
    large = _LARGE[bench.cuda]

    def seconds(operation: str, ranks: int, size: int) -> float:
        return bench.seconds(Point("collective", operation, (ranks, size)))

    inside = seconds("all_reduce", local, large) if local > 1 else None
    small = seconds("all_reduce", local, _SMALL) if local > 1 else None
    across = seconds("all_gather", bench.ranks, large) if bench.ranks > local else None
    return LinkRates(
        ranks=bench.ranks,
        local_ranks=local,
        bandwidth=2.0 * (local - 1) / local * large / inside if inside else None,
        network=(bench.ranks - 1) / bench.ranks * large / across / local if across else None,
        seconds=small,
        by=str(bench.environment),
    )


def nccl_tests_links(devices: int) -> LinkRates | None:
    """Return what ``all_reduce_perf`` of nccl-tests reaches on this machine; None where it is not installed.

    Raises UnsupportedError where it fails, with the last line that it prints.
    """
    program = shutil.which(_NCCL_TEST)
    if program is None:
        return None
    large = _LARGE[True]
    sizes = ("-b", _SMALL, "-e", large, "-f", large // _SMALL, "-g", devices)
    return rates_of_nccl_tests(_printed([program, *map(str, sizes)]), devices)


def rates_of_nccl_tests(text: str, devices: int) -> LinkRates:
    """Return what the lines of nccl-tests say: the bus bandwidth of the largest message.

    >>> rates = rates_of_nccl_tests("268435456 67108864 float sum -1 61356 4.38 7.66 0", 8)
    >>> rates.bandwidth / 1e9, round(rates.seconds, 4)
    (7.66, 0.0614)
    """
    rows = [(int(size), float(us), float(rate)) for size, us, rate in _NCCL_LINE.findall(text)]
    if not rows:
        raise UnsupportedError(f"{_NCCL_TEST} printed no line that can be read")
    (_, first, _), (_, _, rate) = min(rows), max(rows)
    return LinkRates(devices, devices, rate * 1e9, None, first * 1e-6, f"{_NCCL_TEST} of nccl-tests")


def spread_over_devices(processes: int, words: Sequence[str]) -> str:
    """Return what the first of ``processes`` prints of ``python -m autoplan`` with ``words`` under torchrun.

    Raises UnsupportedError without PyTorch, and where the processes fail.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return _printed([sys.executable, *launcher, "-m", "autoplan", *words])


def _printed(command: Sequence[str]) -> str:
    """Return what ``command`` prints; raises UnsupportedError with its error where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"links were not timed within {_MOST_SECONDS} s: {command[0]}") from error
    if done.returncode != 0:
        lines = [x for x in done.stderr.splitlines() if x.strip()] or [f"exit code {done.returncode}"]
        message = next((x for x in lines if "rror: " in x), lines[-1])
        raise UnsupportedError(f"timing links failed: {message[:200]}")
    return done.stdout


def measured_node(node: NodeSpec, kernels: KernelSpec, rates: LinkRates) -> NodeSpec:
    """Return ``node`` with the measured rates, as a file.

    A prediction takes ``collectives.fabric_share`` of a fabric's bandwidth and ``network_share`` of a
    network's, so that the file has the measured rates over these. Pairs of a mesh or bridge change alike.
    """
    network = node.network
    if rates.network is not None:
        old, share = network.bandwidth_per_device, kernels.collectives.network_share
        network = network.model_copy(
            update={"bandwidth_per_device": _number(old, rates.network / share.value)}
        )
    source = f"autoplan hardware --measure: {rates.ranks} ranks, {rates.local_ranks} in a node, by {rates.by}"
    return node.model_copy(
        update={
            "name": f"{node.name}{_SUFFIX}",
            "fabric": _measured_fabric(node.fabric, kernels.collectives, rates),
            "network": network,
            "sources": {**node.sources, _SOURCE: source},
            "derived_from": None,
        }
    )


def _measured_fabric(fabric: Fabric, achieved: Collectives, rates: LinkRates) -> Fabric:
    """Return the fabric with its measured bandwidth, and the latency of a hop beside the launch."""
    if rates.bandwidth is None or rates.seconds is None:
        return fabric
    value = rates.bandwidth / achieved.fabric_share.value
    hop = (rates.seconds - achieved.launch.value) / (2.0 * (rates.local_ranks - 1))
    update = {
        "bandwidth": _number(fabric.bandwidth, value),
        "latency": _number(fabric.latency, max(hop, _LEAST_HOP)),
    }
    if fabric.pair_bandwidth is not None:
        factor = value / fabric.bandwidth.value
        update["pair_bandwidth"] = _number(fabric.pair_bandwidth, factor * fabric.pair_bandwidth.value)
    return fabric.model_copy(update=update)


def _number(old: S, value: float) -> S:
    """Return ``old`` with a measured value."""
    rounded = float(f"{value:.{_DIGITS}g}")
    return old.model_copy(update={"value": rounded, "kind": "measured", "source": _SOURCE, "note": None})
