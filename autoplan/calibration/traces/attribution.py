"""Seconds of a step by part, from the kernels of a device.

Every moment of the step counts once: for the first of the sets of time in which it is. The seconds of a set
are what it adds to the union of those before it.

When a step begins and ends on a device.

A step begins on the device when the host has begun it and the device has ended what was launched before: a
device that lags behind its host is still at work on the step before. Nothing is counted twice, and nothing
between two steps is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.calibration.measurement import (
    CollectiveTiming,
    DeviceMeasurement,
    GroupTraffic,
    KernelShare,
    MeasuredParts,
)
from autoplan.calibration.traces.timeline_record import (
    KINDS,
    NO_TIME,
    DeviceTrace,
    Instants,
    Kind,
    ProcessGroup,
    Times,
    instants_of,
    united,
)

#: The part of a step that communication of a group belongs to, given its operation.
PartOf = Callable[[ProcessGroup, str], str]

#: Parts of exposed communication, in the order in which concurrent ones count.
EXPOSED: Final = ("tp_exposed", "cp_exposed", "ep_exposed", "pp_exposed", "dp_exposed", "unknown_exposed")
_COMPUTE: Final[tuple[Kind, ...]] = ("gemm", "attention", "elementwise", "other", "recompute", "optimizer")
_SMALL_NANOSECONDS: Final = 10_000
_LONGEST_KERNELS: Final = 10
#: Collectives of a step whose durations are kept, to compare ranks.
_MOST_DURATIONS: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Window:
    """One step of a device [ns], and the part of each of its collectives."""

    trace: DeviceTrace
    start: int
    end: int
    part: NDArray[np.int8]

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Which kernels begin in the step."""
        chosen: NDArray[np.bool_] = (self.trace.start >= self.start) & (self.trace.start < self.end)
        return chosen

    def seconds(self, times: Times) -> float:
        """Return how much of the step is in a set of time [s]."""
        length = times.within(np.array([self.start]), np.array([self.end]))
        return float(length[0]) / 1e9

    def of_part(self, name: str) -> Times:
        """Return the time in which communication of a part runs."""
        return self.trace.times(self.part == EXPOSED.index(name))


def measurement(
    trace: DeviceTrace, part_of: PartOf, stage: int | None = None, steps: int | None = None
) -> DeviceMeasurement:
    """Return what ``trace`` says of the step of median length, and how long all steps are.

    ``part_of`` names the part of the step of each collective, one of ``EXPOSED``; ``steps`` is how many steps
    a trace without annotations covers.
    """
    windows = step_windows(trace, steps)
    at = windows.median
    window = _Window(trace, int(windows.start[at]), int(windows.end[at]), _parts(trace, part_of))
    lengths = ((windows.end - windows.start) / 1e9).tolist()
    inside = window.inside & ~trace.of_kind("communication", "copy", "bubble")
    durations = (trace.end - trace.start)[inside]
    return DeviceMeasurement(
        source=trace.facts.source,
        device=trace.facts.device,
        rank=trace.facts.rank,
        stage=stage,
        on_host=trace.facts.on_host,
        annotated=windows.annotated,
        step_numbers=windows.numbers,
        step_seconds=tuple(lengths),
        step=windows.numbers[at],
        parts=_measured_parts(window),
        traffic=tuple(_traffic(window)),
        collectives=tuple(_collectives(window)),
        durations=tuple(_durations(window)),
        kernels=len(durations),
        small_kernels=int((durations < _SMALL_NANOSECONDS).sum()),
        median_kernel_seconds=float(np.median(durations)) / 1e9 if len(durations) else 0.0,
        longest=_longest(window),
        allocator_calls=_allocator_calls(windows, trace.facts.host.allocations),
    )


def _allocator_calls(windows: StepWindows, calls: Instants) -> int:
    """Return the allocator's calls to the driver after the first step, in which memory is first asked for."""
    return int(((calls >= windows.end[0]) & (calls < windows.end[-1])).sum())


def _parts(trace: DeviceTrace, part_of: PartOf) -> NDArray[np.int8]:
    """Return the index of the part of each collective, -1 for other kernels, shape [n]."""
    part = np.full(len(trace), -1, dtype=np.int8)
    communicates = trace.of_kind("communication")
    pairs = np.stack([trace.group, trace.operation], axis=1)[communicates]
    if not len(pairs):
        return part
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    names = [
        part_of(
            trace.facts.groups[group] if group >= 0 else ProcessGroup(),
            trace.operations[operation] if operation >= 0 else "unknown",
        )
        for group, operation in distinct.tolist()
    ]
    part[communicates] = np.array([EXPOSED.index(name) for name in names], dtype=np.int8)[inverse.reshape(-1)]
    return part


def _measured_parts(window: _Window) -> MeasuredParts:
    """Return the seconds of the step by part."""
    seconds: dict[str, float] = {}
    union, before = NO_TIME, 0.0
    for name, times in _sets(window):
        union = united([union, times])
        covered = window.seconds(union)
        seconds[name] = covered - before
        before = covered
    busy = Times(union.start, union.end)
    late = _late_launches(window, busy)
    seconds["host"] = window.seconds(united([busy, late])) - before
    length = (window.end - window.start) / 1e9
    seconds["idle"] = max(0.0, length - before - seconds["host"])
    return MeasuredParts(**seconds)


def _sets(window: _Window) -> Iterator[tuple[str, Times]]:
    """Yield the parts and when they run, in the order in which a moment counts for them."""
    trace = window.trace
    for kind in _COMPUTE:
        yield kind, trace.times(trace.of_kind(kind))
    for name in EXPOSED:
        yield name, window.of_part(name)
    yield "copies", trace.times(trace.of_kind("copy"))
    yield "bubble", trace.times(trace.of_kind("bubble"))
    yield "data_loader", trace.facts.host.loader


def _late_launches(window: _Window, busy: Times) -> Times:
    """Return idle moments in which the host had not yet launched what ran next.

    Without a device the host itself computes: between operators it runs Python.
    """
    trace = window.trace
    gaps = busy.gaps(window.start, window.end)
    if trace.facts.on_host:
        return gaps
    index = np.searchsorted(trace.start, gaps.end, side="left")
    following = np.minimum(index, len(trace) - 1)
    returned = np.where(trace.returned[following] >= 0, trace.returned[following], gaps.start)
    # After the last kernel of the trace, only the host can be at work.
    returned = np.where(
        index < len(trace), returned, np.where(trace.returned.max() >= 0, gaps.end, gaps.start)
    )
    return Times.of(gaps.start, np.clip(returned, gaps.start, gaps.end))


def _traffic(window: _Window) -> Iterator[GroupTraffic]:
    """Yield the seconds in which communication of each part runs, hidden or not."""
    trace = window.trace
    compute = trace.times(trace.of_kind(*_COMPUTE))
    hidden = window.seconds(compute)
    for name in EXPOSED:
        times = window.of_part(name)
        if seconds := window.seconds(times):
            yield GroupTraffic(name, seconds, window.seconds(united([compute, times])) - hidden)


def _durations(window: _Window) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield how long each collective of a part takes [s], in the order in which they start."""
    trace = window.trace
    for index, name in enumerate(EXPOSED):
        chosen = window.inside & (window.part == index)
        if chosen.any() and chosen.sum() <= _MOST_DURATIONS:
            yield name, tuple(((trace.end - trace.start)[chosen] / 1e9).tolist())


def _collectives(window: _Window) -> Iterator[CollectiveTiming]:
    """Yield the collectives of the step by part, operation, group size and bytes."""
    trace = window.trace
    chosen = np.flatnonzero(window.inside & (window.part >= 0))
    seconds = (trace.end - trace.start)[chosen] / 1e9
    sizes = [
        trace.facts.groups[g].size or len(trace.facts.groups[g].ranks) if g >= 0 else 0
        for g in trace.group[chosen].tolist()
    ]
    keys = list(
        zip(
            window.part[chosen].tolist(),
            trace.operation[chosen].tolist(),
            sizes,
            trace.message_bytes[chosen].tolist(),
            strict=True,
        )
    )
    for key, rows in sorted(_grouped(keys, seconds.tolist()).items()):
        part, operation, ranks, size = key
        yield CollectiveTiming(
            part=EXPOSED[part],
            operation=trace.operations[operation] if operation >= 0 else "unknown",
            ranks=ranks or None,
            message_bytes=size,
            calls=len(rows),
            shortest_seconds=min(rows),
            median_seconds=float(np.median(rows)),
            total_seconds=sum(rows),
        )


def _grouped(
    keys: Sequence[tuple[int, int, int, float]], values: Sequence[float]
) -> Mapping[tuple[int, int, int, float], list[float]]:
    """Return the values by key."""
    groups: dict[tuple[int, int, int, float], list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    return groups


def _longest(window: _Window) -> tuple[KernelShare, ...]:
    """Return the kernels that take most of the step, by name."""
    trace = window.trace
    chosen = window.inside & ~trace.of_kind("bubble")
    names, seconds = trace.name[chosen], (trace.end - trace.start)[chosen] / 1e9
    sums = np.bincount(names, weights=seconds, minlength=len(trace.names))
    calls = np.bincount(names, minlength=len(trace.names))
    kinds = dict(zip(names.tolist(), trace.kind[chosen].tolist(), strict=True))
    order = np.argsort(-sums, kind="stable")[:_LONGEST_KERNELS].tolist()
    return tuple(
        KernelShare(trace.names[k], KINDS[kinds[k]], int(calls[k]), float(sums[k])) for k in order if calls[k]
    )


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Steps on a device: their numbers, starts and ends [ns]; ``annotated`` where the trace tells them."""

    numbers: tuple[int, ...]
    start: Instants
    end: Instants
    annotated: bool

    @property
    def median(self) -> int:
        """Index of the step of median length, the earlier of two."""
        lengths = self.end - self.start
        order = np.argsort(lengths, kind="stable")
        return int(order[(len(order) - 1) // 2])


def step_windows(trace: DeviceTrace, steps: int | None = None) -> StepWindows:
    """Return the steps of ``trace``: those annotated, or ``steps`` of equal length, or all of it as one.

    A step without a kernel, such as one that the profiler cut off, is left out.
    """
    ranges = trace.facts.host.steps
    if steps is None and ranges:
        bounds = _bounds(trace, instants_of([x.start for x in ranges]), ranges[-1].end)
        numbers = tuple(x.number for x in ranges)
        nonempty = np.flatnonzero(np.diff(np.searchsorted(trace.start, bounds, side="left")) > 0).tolist()
        if nonempty:
            windows = tuple(numbers[k] for k in nonempty), bounds[:-1][nonempty], bounds[1:][nonempty]
            return StepWindows(*windows, annotated=True)
    count, start = steps or 1, int(trace.start.min())
    # Every step lasts a nanosecond at least.
    length = max(int(trace.end.max()) - start, count)
    bounds = start + np.linspace(0, length, count + 1).astype(np.int64)
    return StepWindows(tuple(range(len(bounds) - 1)), bounds[:-1], bounds[1:], annotated=False)


def _bounds(trace: DeviceTrace, begun: Instants, ended: int) -> Instants:
    """Return the instants that part the steps [ns], one more than there are steps."""
    launched = np.where(trace.launched >= 0, trace.launched, trace.start)
    order = np.argsort(launched, kind="stable")
    latest = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(trace.end[order])])
    limits = np.append(begun, ended)
    before = latest[np.searchsorted(launched[order], limits, side="left")]
    bounds: Instants = np.maximum.accumulate(np.maximum(limits, before))
    return bounds
