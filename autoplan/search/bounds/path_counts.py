"""Paths of a schedule's precedence graph as counts of the passes of each stage.

A row of the model bounds the makespan from below by the length of one path. ``usual_paths`` are critical for
most layouts; where a layout takes longer than its rows say, ``longest_path`` gives the critical path to add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.search.space.priced_candidates import Schedule

#: Forwards [0] and backwards [1] of each stage on a path, shape [2, p]; with a split backward,
#: input gradients [1] and weight gradients [2], shape [3, p].
Passes: TypeAlias = NDArray[np.int64]


class Paths:
    """Pool of the paths that rows are made of, by schedule; paths added once serve later models."""

    def __init__(self) -> None:
        self._paths: dict[Schedule, list[Passes]] = {}

    def of(self, schedule: Schedule) -> list[Passes]:
        """Return the usual paths of ``schedule``, and those added so far."""
        return self._paths.setdefault(schedule, usual_paths(schedule))

    def critical(self, schedule: Schedule, ticks: Sequence[Sequence[int]], makespan: int) -> Paths:
        """Return a pool of one path alone, which is as long as ``makespan`` for these ticks of each stage."""
        paths, pool = self.of(schedule), Paths()
        lengths = np.tensordot(np.array(paths), np.array(ticks), axes=2)
        longest = int(lengths.argmax())
        path = paths[longest] if lengths[longest] == makespan else longest_path(schedule, ticks)
        pool._paths[schedule] = [path]
        return pool

    def add(self, schedule: Schedule, ticks: Sequence[Sequence[int]]) -> Passes | None:
        """Add and return the critical path for these ticks of each stage; None where the pool has it."""
        path, paths = longest_path(schedule, ticks), self.of(schedule)
        if any(np.array_equal(path, other) for other in paths):
            return None
        paths.append(path)
        return path


class _Path:
    """Length of a path in ticks, and its composition: parts with their multiplicities.

    A path without parts passes one entry once. The passes are counted only for the longest path.
    """

    __slots__ = ("entry", "parts", "ticks")

    def __init__(self, ticks: int, parts: tuple[tuple[int, _Path], ...], entry: int = -1) -> None:
        self.ticks = ticks
        self.parts = parts
        self.entry = entry

    def __add__(self, other: _Path) -> _Path:
        """Return the concatenation of two paths."""
        return _Path(self.ticks + other.ticks, ((1, self), (1, other)))

    def __rmul__(self, times: int) -> _Path:
        """Return the path repeated ``times`` times."""
        return _Path(times * self.ticks, ((times, self),))

    def passes(self, entries: int) -> NDArray[np.int64]:
        """Return how often the path passes each of the entries."""
        counts: NDArray[np.int64] = np.zeros(entries, dtype=np.int64)
        stack = [(1, self)]
        while stack:
            times, path = stack.pop()
            stack += [(times * count, part) for count, part in path.parts]
            if not path.parts:
                counts[path.entry] += times
        return counts


def longest_path(schedule: Schedule, ticks: Sequence[Sequence[int]]) -> Passes:
    """Return the critical path of the schedule, for these ticks of each part and stage."""
    p = schedule.p
    paths = [
        [_Path(time, (), kind * p + stage) for stage, time in enumerate(row)]
        for kind, row in enumerate(ticks)
    ]
    return schedule.time(paths, _longest).passes(len(ticks) * p).reshape(len(ticks), p)


def _longest(paths: Sequence[_Path]) -> _Path:
    return max(paths, key=lambda path: path.ticks)


def usual_paths(schedule: Schedule) -> list[Passes]:
    """Return the paths that are critical for most layouts.

    For each stage s: once through the stages before it and all chunks on s; and, where s has a steady state,
    twice through s and the stages after it, with the other chunks on s.
    """
    if schedule.split_backward:
        return [path for s in range(schedule.p) for path in _split_backward_paths(schedule, s)]
    p, chunks = schedule.p, schedule.m * schedule.v
    paths = []
    for s in range(p):
        through_stage = np.zeros((2, p), dtype=np.int64)
        through_stage[:, :s], through_stage[:, s] = 1, chunks
        paths.append(through_stage)
        steady = steady_rounds(schedule, s)
        if steady >= (schedule.v - 1) * p:
            around = np.ones((2, p), dtype=np.int64)
            around[:, s:] = 2
            around[:, s] += steady
            paths.append(around)
    return paths


def _split_backward_paths(schedule: Schedule, s: int) -> Iterator[Passes]:
    """Yield paths of a schedule with split backward that stay on stage ``s``.

    The first microbatch arrives at s, or passes the last stage and returns to s; then s does all its work.
    The path ends with its weight gradients, or the last input gradient continues to the first stage.
    """
    p, m = schedule.p, schedule.m
    for through_last in (False, True) if m >= p > s + 1 else (False,):
        path = np.zeros((3, p), dtype=np.int64)
        path[0, :s], path[:, s] = 1, m
        if through_last:
            path[0, s] -= p - 1 - s
            path[:2, s + 1 :] = 1
        yield path
        if s and m > s:
            to_first = path.copy()
            to_first[2, s] -= s + 1
            to_first[1, :s] += 1
            to_first[2, 0] += 1
            yield to_first


def steady_rounds(schedule: Schedule, s: int) -> int:
    """Return the chunks of stage ``s`` in steady state: those besides the two that later stages also have."""
    later_stages = schedule.p - 1 - s
    return schedule.m * schedule.v - 2 - (later_stages if schedule.v == 1 else 2 * later_stages)
