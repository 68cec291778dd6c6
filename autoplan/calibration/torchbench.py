"""Timing of measurement points with PyTorch, an optional dependency that is imported on first use.

Measurement of points in sequence; points that a file already contains are skipped.
"""

from __future__ import annotations

import importlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from autoplan.calibration.record import (
    Environment,
    Point,
    PointGrid,
    Record,
    collective_points,
    device_points,
)
from autoplan.errors import UnsupportedError

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
