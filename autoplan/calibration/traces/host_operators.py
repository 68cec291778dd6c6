"""Operators of the host as kernels, for a trace without a device: PyTorch on a CPU, with Gloo.

Operators contain others. At each moment of a thread the innermost one counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoplan.calibration.traces.intervals import Times, instants_of
from autoplan.calibration.traces.kernel_class import KINDS, kind_of_operator
from autoplan.calibration.traces.timeline_record import KernelColumns

__all__ = ["Operators", "operator_kernels"]


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
