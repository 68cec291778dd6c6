"""What a trace says of one device: its kernels in columns, what each does, and what the host did meanwhile.

What a kernel or an operator does is told by its name: those of cuBLAS, CUTLASS, cuDNN, FlashAttention,
hipBLASLt (Tensile), Triton, NCCL, RCCL and ATen as PyTorch Profiler and Nsight Systems show them, and of ATen
operators and Gloo where a trace has no device. Sets of time are sorted intervals that do not touch, in whole
nanoseconds.

Notation (this file only)::

    n  kernels, copies and collectives of the device; intervals of a set      w  windows      [1]

A column has 8 bytes an entry at most, so that millions of kernels stay in memory.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import Problem, SpecError

Kind = Literal[
    "gemm",
    "attention",
    "elementwise",
    "other",
    "recompute",
    "optimizer",
    "communication",
    "copy",
    "bubble",
]

#: In the order in which concurrent work is attributed: a moment counts for the first of them.
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_COLLECTIVES: Final = (
    (
        "all_reduce",
        re.compile(r"all_?reduce|cross_device_reduce|allreduce_fusion|multimem_all", re.IGNORECASE),
    ),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("send", re.compile(r"send_?recv|(?<![a-z])(i?send|i?recv)(?![a-z])", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
)
#: DeepEP's kernels dispatch and combine tokens, as all-to-all does.
_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|msccl|deep_ep|nvshmem|cross_device_reduce|oneccl|hccl|mscclpp|symm_mem|allreduce_fusion",
    re.IGNORECASE,
)
_DEEP_EP: Final = re.compile(r"deep_ep|nvshmem", re.IGNORECASE)
_ATTENTION: Final = re.compile(
    r"flash|fmha|attention|attn|sdpa|mha_|efficient_attention|\bFwdSm|ring_attn", re.IGNORECASE
)
_GEMM: Final = re.compile(
    r"gemm|gemv|cutlass.*(?:conv|fprop|dgrad|wgrad)|cijk_|nvjet|splitkreduce|matmul|_mm_|\bmm_|cublas"
    r"|xmma|wgmma|tensorop|implicit_convolve|convolve|winograd|cudnn.*(?:conv|engine)|_bmm|triton_mm"
    r"|deep_gemm|hmma|imma|sm\d+_.*fprop|grouped_mm|dot_kernel|scudnn|hcudnn|wgrad|dgrad|fft\dd_",
    re.IGNORECASE,
)
_COPY: Final = re.compile(r"^mem(?:cpy|set)|copybuffer|fillbuffer", re.IGNORECASE)
_OPTIMIZER: Final = re.compile(
    r"adam|lamb_|_lamb|sgd|adagrad|adafactor|multi_tensor_apply|multitensorapply|muon|_foreach_",
    re.IGNORECASE,
)
_ELEMENTWISE: Final = re.compile(
    r"elementwise|at::native|triton_(?:poi|red|per|for)|softmax|norm|reduce_kernel|gelu|silu|swiglu|relu"
    r"|dropout|rope|rotary|embedding|cross_entropy|index|scatter|gather|cat_?array|transpose|permute"
    r"|distribution|fill|copy|cast|cub::|thrust::|bias|welford|topk|sort|quant|hipcub|rocprim"
    r"|triton__|::bn_|nchw|nhwc|offsetskernel|scalepacked|to_dense",
    re.IGNORECASE,
)

_OPERATOR_GEMM: Final = re.compile(r"(?:mm|mv|dot|linear|matmul|bmm|einsum|conv\w*)_?(?:_backward\w*)?$")
_OPERATOR_ATTENTION: Final = re.compile(r"attention|_flash|scaled_dot")
_OPERATOR_OPTIMIZER: Final = re.compile(r"_fused_(?:adam|sgd|adagrad)|_foreach_")
_BACKEND: Final = re.compile(r"(gloo|mpi|ucc):(\w+)$")


@lru_cache(maxsize=65_536)
def kind_of_kernel(name: str) -> Kind:
    """Return what a kernel of a device does.

    >>> kind_of_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'communication'
    >>> kind_of_kernel("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn")
    'gemm'
    >>> kind_of_kernel("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>")
    'attention'
    """
    ordered: tuple[tuple[Kind, re.Pattern[str]], ...] = (
        ("communication", _COMMUNICATION),
        ("copy", _COPY),
        ("optimizer", _OPTIMIZER),
        ("attention", _ATTENTION),
        ("gemm", _GEMM),
        ("elementwise", _ELEMENTWISE),
    )
    return next((kind for kind, pattern in ordered if pattern.search(name)), "other")


@lru_cache(maxsize=65_536)
def kind_of_operator(name: str) -> Kind | None:
    """Return what an operator on the host computes; None for what only calls others.

    >>> kind_of_operator("aten::addmm"), kind_of_operator("aten::mul_"), kind_of_operator("c10d::allreduce_")
    ('gemm', 'elementwise', None)
    """
    space, _, operator = name.partition("::")
    if space == "c10d" or not operator or name == "record_param_comms":
        return None
    if _OPERATOR_OPTIMIZER.search(operator):
        return "optimizer"
    if _OPERATOR_ATTENTION.search(operator):
        return "attention"
    if _OPERATOR_GEMM.search(operator):
        return "gemm"
    return "elementwise" if space in {"aten", "torchvision", "quantized", "prims"} else "other"


@lru_cache(maxsize=4_096)
def collective_of(name: str) -> str:
    """Return the operation of a kernel of communication, ``unknown`` where the name says none.

    >>> collective_of("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    'send'
    >>> collective_of("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)")
    'reduce_scatter'
    """
    if _DEEP_EP.search(name):
        return "all_to_all"
    # What follows names a reduction, a type and arguments, as in ``AllGather_RING_LL_Sum_int8_t(...)``.
    head = name.partition("(")[0].partition("<")[0]
    return next((operation for operation, pattern in _COLLECTIVES if pattern.search(head)), "unknown")


def known_collective(name: str) -> str | None:
    """Return the operation that a process group's annotation names: ``gloo:all_reduce``.

    >>> known_collective("gloo:all_reduce"), known_collective("aten::add")
    ('all_reduce', None)
    """
    match = _BACKEND.fullmatch(name)
    return collective_of(match[2]) if match else None


Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Times:
    """A set of time: the starts and ends of its intervals [ns], shape [n] each, sorted, without overlap."""

    start: Instants
    end: Instants

    @staticmethod
    def of(start: Instants, end: Instants) -> Times:
        """Return the union of intervals, in any order and overlapping.

        >>> Times.of(np.array([5, 0, 1]), np.array([6, 2, 3])).seconds  # 0 to 3, 5 to 6
        4e-09
        """
        positive = end > start
        start, end = start[positive], end[positive]
        if not len(start):
            return NO_TIME
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        begins = np.concatenate([[True], start[1:] > end[:-1]])
        ends = np.concatenate([begins[1:], [True]])
        return Times(start[begins], end[ends])

    @property
    def seconds(self) -> float:
        """Length of the set [s]."""
        return float((self.end - self.start).sum()) / 1e9

    def within(self, start: Instants, end: Instants) -> Instants:
        """Return how much of each window from ``start`` to ``end`` is in the set [ns], shape [w].

        >>> Times.of(np.array([0, 5]), np.array([2, 9])).within(np.array([1]), np.array([6])).tolist()
        [2]
        """
        return self._until(end) - self._until(start)

    def _until(self, instant: Instants) -> Instants:
        """Return the length of the set before each instant [ns]."""
        if not len(self.start):
            return np.zeros_like(instant)
        before = np.concatenate([[0], np.cumsum(self.end - self.start)])
        index = np.searchsorted(self.start, instant, side="right")
        last = np.maximum(index - 1, 0)
        partial = np.clip(instant - self.start[last], 0, self.end[last] - self.start[last])
        covered: Instants = np.where(index > 0, before[last] + partial, 0).astype(np.int64)
        return covered

    def holds(self, instant: Instants) -> NDArray[np.bool_]:
        """Return whether each instant is in the set.

        >>> Times.of(np.array([2]), np.array([4])).holds(np.array([1, 2, 3, 4])).tolist()
        [False, True, True, False]
        """
        if not len(self.start):
            return np.zeros(len(instant), dtype=np.bool_)
        index = np.searchsorted(self.start, instant, side="right") - 1
        inside: NDArray[np.bool_] = (index >= 0) & (instant < self.end[np.maximum(index, 0)])
        return inside

    def gaps(self, start: int, end: int) -> Times:
        """Return what of the window from ``start`` to ``end`` is not in the set.

        >>> gaps = Times.of(np.array([2]), np.array([3])).gaps(0, 5)
        >>> gaps.start.tolist(), gaps.end.tolist()
        ([0, 3], [2, 5])
        """
        inside = (self.end > start) & (self.start < end)
        begins = np.concatenate([[start], np.minimum(self.end[inside], end)])
        ends = np.concatenate([np.maximum(self.start[inside], start), [end]])
        positive = ends > begins
        return Times(begins[positive].astype(np.int64), ends[positive].astype(np.int64))


NO_TIME = Times(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def instants_of(values: Sequence[int] | array[int]) -> Instants:
    """Return instants as an array [ns].

    >>> instants_of([1, 2]).dtype.name
    'int64'
    """
    return np.asarray(values, dtype=np.int64)


def united(sets: Sequence[Times]) -> Times:
    """Return the union of sets of time.

    >>> one, two = (Times.of(np.array([x]), np.array([x + 2])) for x in (0, 1))
    >>> united([one, two]).seconds
    3e-09
    """
    if not sets:
        return NO_TIME
    return Times.of(np.concatenate([x.start for x in sets]), np.concatenate([x.end for x in sets]))


_MOST_NAMES: Final = 100_000
#: Devices of one trace: a file has those of a process or of a node, or the stages of a predicted step.
_MOST_DEVICES: Final = 2_048
_LONGEST_NAME: Final = 160
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group as a trace names it; ``ranks`` are those that it lists, maybe not all.

    ``part`` is the part of a step that autoplan's trace names.
    """

    name: str = ""
    description: str = ""
    size: int | None = None
    ranks: tuple[int, ...] = ()
    part: str | None = None

    @property
    def stride(self) -> int | None:
        """Distance between its ranks, None where it is not even or not told."""
        steps = {b - a for a, b in zip(self.ranks, self.ranks[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else None


@dataclass(frozen=True, slots=True)
class StepRange:
    """A step as the host annotated it [ns]."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class HostTrace:
    """What the host did: steps, waits for data, and calls of the allocator to the device."""

    steps: tuple[StepRange, ...] = ()
    loader: Times = NO_TIME
    allocations: Instants = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a trace says of a device besides its kernels.

    ``on_host`` says that operators of the host stand for kernels. ``groups`` are those of its collectives.
    """

    source: str
    rank: int | None
    device: str
    on_host: bool
    groups: tuple[ProcessGroup, ...]
    host: HostTrace


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """Kernels of one device, sorted by start; every column has shape [n].

    Times are in ns. ``kind`` indexes ``KINDS``, ``name`` ``names``; ``group`` and ``operation`` index those
    of communication and are -1 elsewhere. ``launched`` and ``returned`` are when the host's call began and
    ended, -1 where the trace does not say.
    """

    facts: DeviceFacts
    start: Instants
    end: Instants
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    group: NDArray[np.int32]
    operation: NDArray[np.int32]
    message_bytes: NDArray[np.float64]
    launched: Instants
    returned: Instants
    names: tuple[str, ...]
    operations: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    def times(self, chosen: NDArray[np.bool_]) -> Times:
        """Return the time in which a kernel of those chosen runs."""
        return Times.of(self.start[chosen], self.end[chosen])

    def of_kind(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Return which kernels are of one of ``kinds``, shape [n]."""
        chosen: NDArray[np.bool_] = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
        return chosen


@dataclass(slots=True)
class KernelColumns:
    """Columns of a device that grow by one kernel at a time."""

    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    name: array[int] = field(default_factory=lambda: array("i"))
    group: array[int] = field(default_factory=lambda: array("i"))
    operation: array[int] = field(default_factory=lambda: array("i"))
    message_bytes: array[float] = field(default_factory=lambda: array("d"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    names: dict[str, int] = field(default_factory=dict)
    groups: dict[ProcessGroup, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)

    def add(  # noqa: PLR0913, PLR0917 - a column for each
        self,
        start: int,
        end: int,
        kind: Kind,
        name: str,
        correlation: int = -1,
        group: ProcessGroup | None = None,
        operation: str = "",
        message_bytes: float = 0.0,
    ) -> None:
        """Append one kernel."""
        self.start.append(start)
        self.end.append(end)
        self.kind.append(_CODES[kind])
        self.name.append(_index(self.names, name[:_LONGEST_NAME], _MOST_NAMES))
        self.group.append(-1 if group is None else _index(self.groups, group, _MOST_NAMES))
        self.operation.append(_index(self.operations, operation, _MOST_NAMES) if operation else -1)
        self.message_bytes.append(message_bytes)
        self.correlation.append(correlation)

    def trace(
        self, facts: DeviceFacts, calls: tuple[Instants, Instants, Instants], optimizer: Times
    ) -> DeviceTrace:
        """Return the columns sorted by start.

        ``calls`` are correlations, starts and ends of launches; kernels that the host launched within
        ``optimizer`` are its step.
        """
        order = np.argsort(instants_of(self.start), kind="stable")
        launched, returned = _calls_of(instants_of(self.correlation)[order], calls)
        kind = np.asarray(self.kind, dtype=np.int8)[order]
        if not facts.on_host:
            busy = (kind != KINDS.index("communication")) & (kind != KINDS.index("copy"))
            kind = np.where(busy & optimizer.holds(launched), KINDS.index("optimizer"), kind).astype(np.int8)
        return DeviceTrace(
            facts=facts,
            start=instants_of(self.start)[order],
            end=instants_of(self.end)[order],
            kind=kind,
            name=np.asarray(self.name, dtype=np.int32)[order],
            group=np.asarray(self.group, dtype=np.int32)[order],
            operation=np.asarray(self.operation, dtype=np.int32)[order],
            message_bytes=np.asarray(self.message_bytes, dtype=np.float64)[order],
            launched=launched,
            returned=returned,
            names=tuple(self.names),
            operations=tuple(self.operations),
        )


def columns_of(devices: dict[T, KernelColumns], device: T, file: str) -> KernelColumns:
    """Return the columns of a device, new ones where it is not known yet; raises SpecError beyond many."""
    columns = devices.get(device)
    if columns is None:
        if len(devices) >= _MOST_DEVICES:
            message = (
                f"kernels of over {_MOST_DEVICES:,} devices: one trace has those of a process or of a node;"
                " give a file for each"
            )
            raise SpecError([Problem(message, "$", file)])
        columns = devices[device] = KernelColumns()
    return columns


def merged_steps(ranges: Iterable[StepRange]) -> tuple[StepRange, ...]:
    """Return one range for each step, in the order of time: several threads or devices may annotate it.

    >>> merged_steps([StepRange(1, 5, 8), StepRange(1, 4, 7), StepRange(0, 0, 3)])
    (StepRange(number=0, start=0, end=3), StepRange(number=1, start=4, end=8))
    """
    steps_by_number: dict[int, StepRange] = {}
    for x in ranges:
        earlier = steps_by_number.get(x.number, x)
        steps_by_number[x.number] = StepRange(x.number, min(x.start, earlier.start), max(x.end, earlier.end))
    return tuple(sorted(steps_by_number.values(), key=lambda x: (x.start, x.number)))


def _index(indices: dict[T, int], value: T, most: int) -> int:
    """Return the number of a value; those beyond ``most`` share the last one."""
    if value not in indices and len(indices) >= most:
        return most - 1
    return indices.setdefault(value, len(indices))


def _calls_of(correlation: Instants, calls: tuple[Instants, Instants, Instants]) -> tuple[Instants, Instants]:
    """Return when the host's call of each kernel began and ended [ns], -1 where none is known."""
    names, starts, ends = calls
    unknown = np.full(len(correlation), -1, dtype=np.int64)
    if not len(names):
        return unknown, unknown
    order = np.argsort(names, kind="stable")
    names, starts, ends = names[order], starts[order], ends[order]
    index = np.minimum(np.searchsorted(names, correlation), len(names) - 1)
    matched = (names[index] == correlation) & (correlation >= 0)
    return np.where(matched, starts[index], unknown), np.where(matched, ends[index], unknown)
