"""Traces of PyTorch Profiler (Kineto), and autoplan's predicted traces, which have the same format.

Categories and arguments are those of Kineto's output_json.cpp and of PyTorch's profiler; older traces spell
categories in capitals.

Operators of the host as kernels, for a trace without a device: PyTorch on a CPU, with Gloo.

Operators contain others. At each moment of a thread the innermost one counts.

Process group, operation and bytes of a collective, as PyTorch writes them into the arguments of a kernel.

Names of the arguments are those of PyTorch's ``record_param_comms`` (torch/csrc/distributed/c10d,
ParamCommsUtils) and of Kineto's output_json.cpp.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from autoplan.calibration.traces.event_stream import trace_items
from autoplan.calibration.traces.timeline_record import (
    KINDS,
    DeviceFacts,
    DeviceTrace,
    HostTrace,
    KernelColumns,
    Kind,
    ProcessGroup,
    StepRange,
    Times,
    collective_of,
    columns_of,
    instants_of,
    kind_of_kernel,
    kind_of_operator,
    known_collective,
    merged_steps,
)
from autoplan.costs.core.prediction import PREDICTED_PART
from autoplan.errors import Problem, SpecError


@dataclass(slots=True)
class Operators:
    """Operators of one thread: starts, ends [ns] and numbers of their names."""

    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    name: array[int] = field(default_factory=lambda: array("q"))

    def add(self, start: int, end: int, name: int) -> None:
        """Append one operator."""
        self.start.append(start)
        self.end.append(end)
        self.name.append(name)

    def innermost(self) -> Iterator[tuple[int, int, int]]:
        """Yield starts, ends and names of the pieces of time in which an operator is the innermost one.

        >>> operators = Operators()
        >>> operators.add(0, 10, 0)
        >>> operators.add(2, 4, 1)
        >>> list(operators.innermost())
        [(0, 2, 0), (2, 4, 1), (4, 10, 0)]
        """
        start, end = instants_of(self.start), instants_of(self.end)
        order = np.lexsort((-end, start)).tolist()
        open_ones: list[tuple[int, int]] = []
        now = 0
        for index in order:
            begin, finish, name = self.start[index], self.end[index], self.name[index]
            while open_ones and open_ones[-1][0] <= begin:
                until, inner = open_ones.pop()
                if until > now:
                    yield now, until, inner
                now = max(now, until)
            if open_ones and begin > now:
                yield now, begin, open_ones[-1][1]
            now = max(now, begin)
            open_ones.append((finish, name))
        while open_ones:
            until, inner = open_ones.pop()
            if until > now:
                yield now, until, inner
            now = max(now, until)


def operator_kernels(
    threads: Mapping[object, Operators], names: list[str], optimizer: Times, columns: KernelColumns
) -> None:
    """Add the innermost operators of each thread to ``columns``; those within ``optimizer`` are its step."""
    for operators in threads.values():
        for start, end, index in operators.innermost():
            kind = kind_of_operator(names[index])
            if kind is not None:
                columns.add(start, end, kind, names[index])
    step, communication = KINDS.index("optimizer"), KINDS.index("communication")
    for at in np.flatnonzero(optimizer.holds(instants_of(columns.start))).tolist():
        if columns.kind[at] != communication:
            columns.kind[at] = step


_DEVICE: Final = frozenset(
    {"kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"}
)
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_CALLS: Final = frozenset(
    {
        "cuda_runtime",
        "cuda_driver",
        "runtime",
        "mtia_runtime",
        "privateuse1_runtime",
        "privateuse1_driver",
        "xpu_runtime",
        "hip_runtime",
    }
)
_OPERATORS: Final = frozenset({"cpu_op", "operator"})
_KIND_OF_PART: Final[dict[object, Kind]] = {
    "recompute": "recompute",
    "optimizer": "optimizer",
    "overhead": "copy",
    "bubble": "bubble",
}
_STEP: Final = re.compile(
    r"ProfilerStep\s*#(\d{1,15})|(?:train(?:ing)?[ _]?)?(?:step|iteration|iter)[ _#:=]*(\d{1,15})",
    re.IGNORECASE,
)
_LOADER: Final = re.compile(
    r"enumerate\(DataLoader\)|data[ _]?load(?:er|ing)|batch[-_]generator", re.IGNORECASE
)
_OPTIMIZER: Final = re.compile(r"Optimizer\.step#|^optimizer(?:[-_. ](?:step|update))?$", re.IGNORECASE)
_ALLOCATION: Final = re.compile(r"(?:cuda|hip)(?:Malloc|Free)(?:_v\d+)?$|cuMem(?:Create|Release)")
_RANK: Final = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
#: Microseconds since 1970, until 2096, and how long an event may take: nanoseconds stay within 64 bits.
_LATEST: Final = 4e15
_LONGEST: Final = 1e14
_NUMBERS: Final = frozenset({int, float})


def read_kineto(path: Path) -> list[DeviceTrace]:
    """Return what a trace of PyTorch Profiler says of each device, of the host alone where it has none.

    Raises SpecError for what is no such trace, CatalogError for a file that cannot be read.
    """
    reader = _KinetoReader(str(path))
    for key, value in trace_items(path):
        if key == "traceEvents":
            reader.event(value)
        elif key == "distributedInfo" and isinstance(value, dict):
            reader.distributed = value
    return reader.traces(rank_of_name(path.name))


def rank_of_name(name: str) -> int | None:
    """Return the rank that the name of a file tells.

    >>> rank_of_name("rank-34.Jul_15.pt.trace.json.gz"), rank_of_name("trace.json")
    (34, None)
    """
    match = _RANK.search(name)
    return int(match[1]) if match else None


def step_of(name: str) -> int | None:
    """Return the number of the step that an annotation names.

    >>> step_of("ProfilerStep#551"), step_of("iteration 12"), step_of("Optimizer.step#AdamW.step")
    (551, 12, None)
    """
    match = _STEP.fullmatch(name)
    return int(match[1] or match[2]) if match else None


def is_loader(name: str) -> bool:
    """Return whether an annotation is a wait for data."""
    return _LOADER.search(name) is not None


def is_optimizer(name: str) -> bool:
    """Return whether an annotation is an optimizer step."""
    return _OPTIMIZER.search(name) is not None


def _is_time(value: object) -> TypeGuard[float]:
    return (
        type(value) in _NUMBERS and abs(value) <= _LATEST  # type: ignore[arg-type]
    )


def is_allocation(name: str) -> bool:
    """Return whether a call asks the driver for memory, or gives it back."""
    return _ALLOCATION.match(name) is not None


@dataclass(slots=True)
class _KinetoReader:
    """Collects what is needed of the events as they come."""

    file: str
    distributed: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    devices: dict[str, KernelColumns] = field(default_factory=dict)
    threads: dict[object, Operators] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    indices: dict[str, int] = field(default_factory=dict)
    backends: list[tuple[int, int, str, str]] = field(default_factory=list)
    steps: list[StepRange] = field(default_factory=list)
    device_steps: list[StepRange] = field(default_factory=list)
    loader: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("q")))
    optimizer: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("q")))
    calls: tuple[array[int], array[int], array[int]] = field(
        default_factory=lambda: (array("q"), array("q"), array("q"))
    )
    allocations: array[int] = field(default_factory=lambda: array("q"))

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        number, self.count = self.count, self.count + 1
        if event.get("ph") != "X":
            return
        category = event.get("cat")
        if not isinstance(category, str):
            return
        category = category.lower()
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if category in _DEVICE:
            self._kernel(event, args, category, number)
        elif category in _CALLS:
            self._call(event, args, number)
        elif category in _OPERATORS:
            self._operator(event, number)
        elif category == "user_annotation":
            self._annotation(event, number)
        elif category == "gpu_user_annotation":
            self._device_annotation(event, number)
        elif PREDICTED_PART in args:
            self._predicted(event, args, number)

    def _span(self, event: Mapping[str, Any], number: int) -> tuple[int, int]:
        """Return start and end of an event [ns]; raises SpecError for malformed times."""
        start, length = event.get("ts"), event.get("dur")
        if not _is_time(start):
            raise self._problem(f"{repr(start)[:40]} is no time in microseconds", number, "ts")
        if not _is_time(length):
            raise self._problem(f"{repr(length)[:40]} is no time in microseconds", number, "dur")
        if length > _LONGEST:
            raise self._problem(f"a duration of {length:g} us is longer than three years", number, "dur")
        if length < 0:
            raise self._problem(f"a duration of {length:g} us is negative", number, "dur")
        begin = round(start * 1000)
        return begin, begin + round(length * 1000)

    def _name(self, event: Mapping[str, Any], number: int) -> str:
        name = event.get("name")
        if not isinstance(name, str):
            raise self._problem("an event needs a name", number, "name")
        return name

    def _problem(self, message: str, number: int, key: str) -> SpecError:
        return SpecError([Problem(message, f"$.traceEvents[{number}].{key}", self.file)])

    def _kernel(self, event: Mapping[str, Any], args: dict[str, Any], category: str, number: int) -> None:
        start, end = self._span(event, number)
        name = self._name(event, number)
        kind: Kind = "copy" if category in _COPIES else kind_of_kernel(name)
        if category not in _COPIES and "Collective name" in args:
            kind = "communication"
        columns = self._columns(str(args.get("device", event.get("pid", 0))))
        correlation = args.get("correlation", -1)
        correlation = correlation if isinstance(correlation, int) and abs(correlation) < 2**62 else -1
        if kind == "communication":
            facts = collective_facts(name, args)
            columns.add(start, end, kind, name, correlation, *facts)
        else:
            columns.add(start, end, kind, name, correlation)

    def _columns(self, device: str) -> KernelColumns:
        if not self.devices:
            self.threads.clear()
        return columns_of(self.devices, device[:40], self.file)

    def _call(self, event: Mapping[str, Any], args: dict[str, Any], number: int) -> None:
        start, end = self._span(event, number)
        if is_allocation(self._name(event, number)):
            self.allocations.append(start)
        correlation = args.get("correlation")
        if isinstance(correlation, int) and abs(correlation) < 2**62:
            for column, value in zip(self.calls, (correlation, start, end), strict=True):
                column.append(value)

    def _operator(self, event: Mapping[str, Any], number: int) -> None:
        """Take in an operator of the host, which counts only where there is no device."""
        if self.devices:
            return
        start, end = self._span(event, number)
        name = self._name(event, number)
        index = self.indices.setdefault(name, len(self.indices))
        if index == len(self.names):
            self.names.append(name)
        thread = str(event.get("tid"))
        self.threads.setdefault(thread, Operators()).add(start, end, index)

    def _annotation(self, event: Mapping[str, Any], number: int) -> None:
        name = self._name(event, number)
        step = step_of(name)
        operation = known_collective(name)
        if step is None and operation is None and not is_loader(name) and not is_optimizer(name):
            return
        start, end = self._span(event, number)
        if step is not None:
            self.steps.append(StepRange(step, start, end))
        elif operation is not None:
            self.backends.append((start, end, name, operation))
        else:
            ranges = self.loader if is_loader(name) else self.optimizer
            ranges[0].append(start)
            ranges[1].append(end)

    def _device_annotation(self, event: Mapping[str, Any], number: int) -> None:
        """Take in a step as the device saw it, which counts where the host was not recorded."""
        step = step_of(self._name(event, number))
        if step is not None:
            self.device_steps.append(StepRange(step, *self._span(event, number)))

    def _predicted(self, event: Mapping[str, Any], args: dict[str, Any], number: int) -> None:
        """Take in an event of autoplan's trace, which names its part."""
        start, end = self._span(event, number)
        part = str(args[PREDICTED_PART])
        columns = self._columns(f"stage {event.get('pid', 0)}")
        name = self._name(event, number)
        if part.endswith("_exposed"):
            group = ProcessGroup(name=part, part=part)
            columns.add(start, end, "communication", name, -1, group, str(args.get("operation", part)))
        else:
            columns.add(start, end, _KIND_OF_PART.get(part, "other"), name)

    def traces(self, rank: int | None) -> list[DeviceTrace]:
        """Return what was read, by device; raises SpecError where there is nothing to count."""
        on_host = not self.devices
        optimizer = Times.of(instants_of(self.optimizer[0]), instants_of(self.optimizer[1]))
        if on_host:
            self._host_device(optimizer)
        if not any(len(columns.start) for columns in self.devices.values()):
            message = (
                f"no kernel and no operator in {self.count} events: profile with ProfilerActivity.CUDA, or"
                " ProfilerActivity.CPU where there is no device"
            )
            raise SpecError([Problem(message, "$.traceEvents", self.file)])
        told = self.distributed.get("rank")
        device_rank = told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else rank
        loader = Times.of(instants_of(self.loader[0]), instants_of(self.loader[1]))
        host = HostTrace(merged_steps(self.steps or self.device_steps), loader, instants_of(self.allocations))
        calls = (instants_of(self.calls[0]), instants_of(self.calls[1]), instants_of(self.calls[2]))
        configured = configured_groups(self.distributed)
        alone = len(self.devices) == 1
        return [
            columns.trace(
                DeviceFacts(
                    source=self.file,
                    rank=device_rank if alone else None,
                    device=device,
                    on_host=on_host,
                    groups=tuple(completed(group, configured) for group in columns.groups),
                    host=host,
                ),
                calls,
                optimizer,
            )
            for device, columns in self.devices.items()
        ]

    def _host_device(self, optimizer: Times) -> None:
        """Make the host a device, with operators and the work of process groups as its kernels."""
        columns = KernelColumns()
        operator_kernels(self.threads, self.names, optimizer, columns)
        alone = [group for group in configured_groups(self.distributed).values() if group.size != 1]
        group = alone[0] if len(alone) == 1 else ProcessGroup()
        for start, end, name, operation in self.backends:
            columns.add(start, end, "communication", name, -1, group, operation)
        self.devices = {"host": columns}


#: Bytes of an element, by the name of its type.
_ELEMENT_BYTES: Final = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
}
_MOST_RANKS: Final = 1 << 16
_LONGEST_LIST: Final = 1 << 20
_ELLIPSIS: Final = "..."


def collective_facts(name: str, args: Mapping[str, Any]) -> tuple[ProcessGroup, str, float]:
    """Return the group, the operation and the bytes of the full tensor of a kernel of communication.

    The full tensor is what is gathered, what is reduced or what a rank sends, as in ``Communication``; 0
    where the trace does not say.
    """
    collective = _text(args.get("Collective name"))
    operation = collective_of(collective) if collective else "unknown"
    if operation == "unknown":
        operation = collective_of(name)
    return _group(args), operation, _message_bytes(operation, args)


def completed(group: ProcessGroup, configured: Mapping[str, ProcessGroup]) -> ProcessGroup:
    """Return a group with the ranks that ``configured`` has of it, where its kernels tell fewer."""
    other = configured.get(group.name)
    if other is None or len(group.ranks) >= len(other.ranks):
        return group
    return ProcessGroup(group.name, group.description or other.description, other.size, other.ranks)


def configured_groups(info: object) -> dict[str, ProcessGroup]:
    """Return the groups that ``distributedInfo`` lists, by name; what is malformed is left out."""
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[str, ProcessGroup] = {}
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str):
            ranks = entry.get("ranks")
            size = _count(entry.get("pg_size"))
            name, description = entry["pg_name"], _text(entry.get("pg_desc"))
            groups[name] = ProcessGroup(name, description, size, _ranks(ranks))
    return groups


def _group(args: Mapping[str, Any]) -> ProcessGroup:
    return ProcessGroup(
        name=_text(args.get("Process Group Name")),
        description=_text(args.get("Process Group Description")),
        size=_count(args.get("Group size")),
        ranks=_ranks(args.get("Process Group Ranks")),
    )


def _message_bytes(operation: str, args: Mapping[str, Any]) -> float:
    elements = [_count(args.get(key)) or 0 for key in ("In msg nelems", "Out msg nelems")]
    element = _text(args.get("dtype")).lower()
    # Types of eight bits have long names: Float8_e4m3fn.
    size = 1 if element.startswith("float8") else _ELEMENT_BYTES.get(element, 0)
    return float(elements[operation == "all_gather"] * size)


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _ranks(value: object) -> tuple[int, ...]:
    """Return the ranks of a list, or of its text, which PyTorch cuts after thirty: ``[0, 8, ..., 248]``."""
    if isinstance(value, str) and len(value) < _LONGEST_LIST:
        value = [int(x) for x in re.findall(r"\d{1,7}", value.partition(_ELLIPSIS)[0])]
    if not isinstance(value, list):
        return ()
    return tuple(x for x in value[:_MOST_RANKS] if isinstance(x, int) and not isinstance(x, bool))
