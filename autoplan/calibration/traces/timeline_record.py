"""What a trace says of one device: its kernels in columns, and what the host did meanwhile.

Notation (this file only)::

    n  kernels, copies and collectives of the device      [1]

A column has 8 bytes an entry at most, so that millions of kernels stay in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.calibration.traces.intervals import NO_TIME, Instants, Times, instants_of
from autoplan.calibration.traces.kernel_class import KINDS, Kind
from autoplan.errors import Problem, SpecError

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
