"""Nsight Systems' reports, exported as SQLite: ``nsys export --type sqlite report.nsys-rep``.

Tables and columns are those of NVIDIA's export schema (Nsight Systems, Post-Collection Analysis Guide, SQLite
Schema Reference). Tables are made only where a report has something to put in. Times are in nanoseconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeGuard
from urllib.parse import quote

from autoplan.calibration.traces.kineto import is_allocation, is_loader, is_optimizer, rank_of_name, step_of
from autoplan.calibration.traces.timeline_record import (
    DeviceFacts,
    DeviceTrace,
    HostTrace,
    Instants,
    KernelColumns,
    ProcessGroup,
    StepRange,
    Times,
    collective_of,
    columns_of,
    instants_of,
    kind_of_kernel,
    merged_steps,
)
from autoplan.catalog import open_file
from autoplan.errors import CatalogError, Problem, SpecError

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES: Final = "NVTX_EVENTS"
#: A row for each launch of a CUDA graph whose kernels were not recorded, which is what nsys does by default.
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NAMES: Final = "StringIds"
#: Beyond this, names of kernels are no names.
_MOST_NAMES: Final = 2_000_000
_LATEST: Final = 2**61


def read_nsight(path: Path) -> list[DeviceTrace]:
    """Return what a report says of each device of each process.

    Raises SpecError for a database that is no such report, CatalogError for one that cannot be read.
    """
    open_file(path).close()
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            return _Report(connection, str(path)).traces(rank_of_name(path.name))
    except sqlite3.Error as error:
        raise CatalogError(f"cannot read {path} as SQLite: {error}; export the report again") from error


class _Report:
    """A report as a database; only its plain tables are read, views could compute without end."""

    def __init__(self, connection: sqlite3.Connection, file: str) -> None:
        self.connection, self.file = connection, file
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
        )
        self.tables = {name: self._columns(name) for (name,) in tables.fetchall() if isinstance(name, str)}
        if next(self._rows(_GRAPHS, "start"), None) is not None:
            message = (
                "CUDA graphs were recorded without their kernels, whose time would count as idle:"
                " record with `nsys profile --cuda-graph-trace node`"
            )
            raise SpecError([Problem(message, _GRAPHS, file)])
        if _KERNELS not in self.tables:
            message = (
                "no table of kernels: record with `nsys profile --trace cuda,nvtx`, and export as SQLite"
            )
            raise SpecError([Problem(message, _KERNELS, file)])
        self.names = self._names()

    def _columns(self, table: str) -> set[str]:
        quoted = table.replace('"', '""')
        return {str(row[1]) for row in self.connection.execute(f'PRAGMA table_info("{quoted}")')}

    def _names(self) -> dict[int, str]:
        rows = self._rows(_NAMES, "id", "value")
        return {
            row[0]: row[1]
            for _, row in zip(range(_MOST_NAMES), rows, strict=False)
            if isinstance(row[1], str)
        }

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table; a column that it lacks is None."""
        present = self.tables.get(table)
        if present is None:
            return
        chosen = ", ".join(f'"{column}"' if column in present else "NULL" for column in columns)
        yield from self.connection.execute(f'SELECT {chosen} FROM "{table}"')  # noqa: S608 - our own names

    def _span(self, table: str, row: int, start: object, end: object) -> tuple[int, int]:
        """Return start and end of a row [ns]; raises SpecError for malformed times."""
        if not _is_instant(start):
            raise self._problem(f"{repr(start)[:40]} is no time in nanoseconds", table, row, "start")
        if not _is_instant(end):
            raise self._problem(f"{repr(end)[:40]} is no time in nanoseconds", table, row, "end")
        if end < start:
            raise self._problem(f"a duration of {end - start} ns is negative", table, row, "end")
        return start, end

    def _problem(self, message: str, table: str, row: int, key: str) -> SpecError:
        return SpecError([Problem(message, f"{table}, row {row + 1}, {key}", self.file)])

    def _name(self, *resolved: object) -> str:
        """Return the first name that a row has, as a text or as a number of ``StringIds``."""
        for value in resolved:
            if isinstance(value, str) and value:
                return value
            if isinstance(value, int) and value in self.names:
                return self.names[value]
        return "unknown"

    def devices(self) -> dict[tuple[int, int], KernelColumns]:
        """Return the kernels and copies of each process and device."""
        devices: dict[tuple[int, int], KernelColumns] = {}
        wanted = ("start", "end", "deviceId", "globalPid", "correlationId", "demangledName", "shortName")
        for number, row in enumerate(self._rows(_KERNELS, *wanted)):
            start, end = self._span(_KERNELS, number, row[0], row[1])
            name = self._name(*row[5:])
            columns = columns_of(devices, _place(row[3], row[2]), self.file)
            if kind_of_kernel(name) == "communication":
                group, operation = ProcessGroup(), collective_of(name)
                columns.add(start, end, "communication", name, _key(row[3], row[4]), group, operation)
            else:
                columns.add(start, end, kind_of_kernel(name), name, _key(row[3], row[4]))
        for table in _COPIES:
            for number, row in enumerate(self._rows(table, *wanted[:5])):
                start, end = self._span(table, number, row[0], row[1])
                columns = columns_of(devices, _place(row[3], row[2]), self.file)
                name = "Memcpy" if table == _COPIES[0] else "Memset"
                columns.add(start, end, "copy", name, _key(row[3], row[4]))
        return devices

    def calls(self) -> tuple[tuple[Instants, Instants, Instants], Instants]:
        """Return keys, starts and ends of the host's calls, and when it asked the driver for memory."""
        columns = KernelColumns()
        allocations = []
        rows = self._rows(_CALLS, "start", "end", "globalTid", "correlationId", "nameId")
        for number, row in enumerate(rows):
            start, end = self._span(_CALLS, number, row[0], row[1])
            columns.start.append(start)
            columns.end.append(end)
            columns.correlation.append(_key(row[2], row[3]))
            if is_allocation(self._name(row[4])):
                allocations.append(start)
        keys = (columns.correlation, columns.start, columns.end)
        return (instants_of(keys[0]), instants_of(keys[1]), instants_of(keys[2])), instants_of(allocations)

    def ranges(self) -> tuple[tuple[StepRange, ...], Times, Times]:
        """Return the steps, the waits for data and the optimizer steps that NVTX ranges name."""
        steps: list[StepRange] = []
        ranges_of: dict[bool, tuple[list[int], list[int]]] = {True: ([], []), False: ([], [])}
        for number, (start, end, text, index) in enumerate(
            self._rows(_RANGES, "start", "end", "text", "textId")
        ):
            name = self._name(text, index)
            step = step_of(name)
            if end is None or (step is None and not is_loader(name) and not is_optimizer(name)):
                continue
            begin, finish = self._span(_RANGES, number, start, end)
            if step is not None:
                steps.append(StepRange(step, begin, finish))
            else:
                ranges_of[is_loader(name)][0].append(begin)
                ranges_of[is_loader(name)][1].append(finish)
        loader, optimizer = (Times.of(*map(instants_of, ranges_of[x])) for x in (True, False))
        return merged_steps(steps), loader, optimizer

    def traces(self, rank: int | None) -> list[DeviceTrace]:
        """Return the report by device."""
        devices = self.devices()
        if not devices:
            raise SpecError([Problem("no kernel was recorded", _KERNELS, self.file)])
        calls, allocations = self.calls()
        steps, loader, optimizer = self.ranges()
        host = HostTrace(steps, loader, allocations)
        alone = len(devices) == 1
        return [
            columns.trace(
                DeviceFacts(
                    source=self.file,
                    rank=rank if alone else None,
                    device=str(device),
                    on_host=False,
                    groups=tuple(columns.groups),
                    host=host,
                ),
                calls,
                optimizer,
            )
            for (_, device), columns in sorted(devices.items())
        ]


def _is_instant(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) < _LATEST


def _place(process: object, device: object) -> tuple[int, int]:
    """Return process and device of a row, 0 where it names none."""
    return _process(process), device if isinstance(device, int) else 0


def _process(serialized: object) -> int:
    """Return the process of a serialized id: its lowest 24 bits are the thread's."""
    return serialized >> 24 if isinstance(serialized, int) else 0


def _key(serialized: object, correlation: object) -> int:
    """Return a key for a call: correlations count from 1 in every process."""
    if not isinstance(correlation, int):
        return -1
    return ((_process(serialized) & 0xFFFFFF) << 38) | (correlation & 0x3FFFFFFFFF)
