"""Paths of a schedule as counts: how often each stage's forward and backward are on them.

A row of the model says that a step takes at least the time of one path. A few paths are known to matter
(``usual_paths``); another is looked for where a layout takes longer than its rows say (``longest_path``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoplan.search.space.priced_candidates import Schedule

__all__ = ["Passes", "Paths", "longest_path", "steady_rounds", "usual_paths"]

#: Forwards [0] and backwards [1] of each stage on a path, shape [2, p]; where weight gradients are done
#: apart, input gradients [1] and weight gradients [2], shape [3, p].
Passes: TypeAlias = NDArray[np.int64]


class Paths:
    """The paths that rows are made of, by schedule; those that were looked for serve later questions, too."""

    def __init__(self) -> None:
        self._found: dict[Schedule, list[Passes]] = {}

    def of(self, schedule: Schedule) -> list[Passes]:
        """Return the usual paths of ``schedule``, and those found so far."""
        return self._found.setdefault(schedule, usual_paths(schedule))

    def add(self, schedule: Schedule, ticks: Sequence[Sequence[int]]) -> Passes | None:
        """Return the longest path for these ticks of each stage; None where it is known already."""
        path, known = longest_path(schedule, ticks), self.of(schedule)
        if any(np.array_equal(path, other) for other in known):
            return None
        known.append(path)
        return path


class _Path:
    """Ticks of a path for the layout in question, and what it is made of: parts, each so many times over.

    One without parts passes an entry once. What a path passes is counted for the longest alone.
    """

    __slots__ = ("entry", "parts", "ticks")

    def __init__(self, ticks: int, parts: tuple[tuple[int, _Path], ...], entry: int = -1) -> None:
        self.ticks = ticks
        self.parts = parts
        self.entry = entry

    def __add__(self, other: _Path) -> _Path:
        """Return one path after the other."""
        return _Path(self.ticks + other.ticks, ((1, self), (1, other)))

    def __rmul__(self, times: int) -> _Path:
        """Return the path ``times`` over."""
        return _Path(times * self.ticks, ((times, self),))

    def passes(self, entries: int) -> NDArray[np.int64]:
        """Return how often the path passes each of the entries."""
        counts: NDArray[np.int64] = np.zeros(entries, dtype=np.int64)
        left = [(1, self)]
        while left:
            times, path = left.pop()
            left += [(times * often, part) for often, part in path.parts]
            if not path.parts:
                counts[path.entry] += times
        return counts


def longest_path(schedule: Schedule, ticks: Sequence[Sequence[int]]) -> Passes:
    """Return the path that takes as long as the schedule does, for these ticks of each part and stage."""
    p = schedule.p
    paths = [
        [_Path(time, (), kind * p + stage) for stage, time in enumerate(row)]
        for kind, row in enumerate(ticks)
    ]
    return schedule.time(paths, _longest).passes(len(ticks) * p).reshape(len(ticks), p)


def _longest(paths: Sequence[_Path]) -> _Path:
    return max(paths, key=lambda path: path.ticks)


def usual_paths(schedule: Schedule) -> list[Passes]:
    """Return the paths that take the time of most layouts, of schedules that go in turn.

    For each stage s: once through the stages before it and all chunks on s; and, where the schedule gets
    as far, twice through s and the stages behind it, and the other chunks on s.
    """
    if schedule.apart:
        return [path for s in range(schedule.p) for path in _paths_apart(schedule, s)]
    p, chunks = schedule.p, schedule.m * schedule.v
    paths = []
    for s in range(p):
        alone = np.zeros((2, p), dtype=np.int64)
        alone[:, :s], alone[:, s] = 1, chunks
        paths.append(alone)
        steady = steady_rounds(schedule, s)
        if steady >= (schedule.v - 1) * p:
            around = np.ones((2, p), dtype=np.int64)
            around[:, s:] = 2
            around[:, s] += steady
            paths.append(around)
    return paths


def _paths_apart(schedule: Schedule, s: int) -> Iterator[Passes]:
    """Yield paths that stay on stage ``s`` of a schedule that does weight gradients apart.

    The first microbatch comes to s, or on to the last stage and back to it; s does all it has; its weight
    gradients end the step, or the last backward goes on to the first stage.
    """
    p, m = schedule.p, schedule.m
    for filled in (False, True) if m >= p > s + 1 else (False,):
        path = np.zeros((3, p), dtype=np.int64)
        path[0, :s], path[:, s] = 1, m
        if filled:
            path[0, s] -= p - 1 - s
            path[:2, s + 1 :] = 1
        yield path
        if s and m > s:
            onwards = path.copy()
            onwards[2, s] -= s + 1
            onwards[1, :s] += 1
            onwards[2, 0] += 1
            yield onwards


def steady_rounds(schedule: Schedule, s: int) -> int:
    """Return how many chunks stage ``s`` passes on the path around it, beside two as all behind it."""
    behind = schedule.p - 1 - s
    return schedule.m * schedule.v - 2 - (behind if schedule.v == 1 else 2 * behind)
