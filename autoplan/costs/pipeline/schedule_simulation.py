"""Pipeline schedules played out task by task: a step as it unfolds, and the reference for closed forms.

Notation (this file only)::

    p   stages                              m   microbatches of a step   [1]
    v   virtual stages (chunks) of a stage  i   stage, from 0            [1]
    F   forward of one chunk                                          [s]
    B   its backward; under zero-bubble, the input gradient alone     [s]
    W   its weight gradient, under zero-bubble                        [s]

A stage does its tasks in a fixed order, one at a time. A task starts when the one before it on its stage
has ended and what it needs has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

Kind = Literal["F", "B", "W"]


class Task(NamedTuple):
    """What a stage does for one chunk of one microbatch, both counted from 0."""

    kind: Kind
    microbatch: int
    chunk: int = 0


class Slot(NamedTuple):
    """A task with its start and its end [s]."""

    task: Task
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Trace:
    """What each stage did when: one row of slots a stage, in the order of time."""

    stages: tuple[tuple[Slot, ...], ...]
    chunks: int

    @property
    def seconds(self) -> float:
        """The time from the first forward to the last backward, weight gradients included [s].

        >>> simulate([1, 1], [2, 2], 4, 1, "1f1b").seconds  # 4 x 3 + 3
        15.0
        """
        return max(row[-1].end for row in self.stages)

    @property
    def busy(self) -> tuple[float, ...]:
        """Seconds that each stage works [s].

        >>> simulate([1, 1], [2, 2], 4, 1, "1f1b").busy
        (12.0, 12.0)
        """
        return tuple(sum(slot.end - slot.start for slot in row) for row in self.stages)

    @property
    def idle(self) -> tuple[float, ...]:
        """Seconds of the step that each stage waits [s].

        >>> simulate([1, 1], [2, 2], 4, 1, "1f1b").idle
        (3.0, 3.0)
        """
        return tuple(self.seconds - busy for busy in self.busy)

    @property
    def in_flight(self) -> tuple[float, ...]:
        """Microbatches that each stage holds at most, from the start of F to the end of B, chunks as 1/v.

        Under zero-bubble a part of each is kept until the end of W (Qi et al. 2023, section 2.3).

        >>> simulate([1, 1], [2, 2], 4, 1, "gpipe").in_flight
        (4.0, 4.0)
        """
        return tuple(_most_in_flight(row) / self.chunks for row in self.stages)


def _most_in_flight(row: Sequence[Slot]) -> int:
    in_flight, most = 0, 0
    for slot in row:
        in_flight += {"F": 1, "B": -1, "W": 0}[slot.task.kind]
        most = max(most, in_flight)
    return most


# The orders.


def orders(schedule: str, p: int, m: int, v: int) -> list[list[Task]]:
    """Return the tasks of each stage, in their order.

    gpipe: all forwards, then all backwards, the last microbatch first. 1f1b: min(m, p-i-1) forwards, then
    forward and backward in turn. interleaved: the same over chunks, p microbatches of one chunk at a time,
    after 2(p-i-1) + (v-1)p forwards. zero-bubble (ZB-H1): 1f1b, W following B by i microbatches.

    >>> ["".join(f"{t.kind}{t.microbatch}" for t in stage) for stage in orders("1f1b", 2, 3, 1)]
    ['F0F1B0F2B1B2', 'F0B0F1B1F2B2']
    >>> "".join(f"{t.kind}{t.microbatch}" for t in orders("zero-bubble", 2, 3, 1)[1])
    'F0B0F1B1W0F2B2W1W2'

    Leaves out: Megatron's other group sizes, and microbatches of one step that differ.
    Source: Huang et al. 2019, arXiv:1811.06965, figure 2c; Narayanan et al. 2021, arXiv:2104.04473,
    figure 4, and Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches and
    get_schedule_table; Qi et al. 2023, arXiv:2401.10241, section 2.1 and figure 3 (top).
    """
    _check(schedule, p, m, v)
    return [_ORDERS[schedule](i, p, m, v) for i in range(p)]


def _check(schedule: str, p: int, m: int, v: int) -> None:
    if schedule not in _ORDERS:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(_ORDERS)}")
    if min(p, m, v) < 1:
        raise ValueError(f"p={p}, m={m}, v={v}: whole numbers from 1 are needed")
    if (schedule == "interleaved") != (v > 1):
        raise ValueError(f"schedule {schedule!r} with v={v}: interleaved is what v > 1 means")
    if schedule == "interleaved" and m % p:
        raise ValueError(f"interleaved needs microbatches in multiples of p={p}: got m={m}")


def _gpipe(_i: int, _p: int, m: int, _v: int) -> list[Task]:
    forwards = [Task("F", n) for n in range(m)]
    return forwards + [Task("B", n) for n in reversed(range(m))]


def _one_f_one_b(i: int, p: int, m: int, _v: int) -> list[Task]:
    forwards = [Task("F", n) for n in range(m)]
    backwards = [Task("B", n) for n in range(m)]
    return _in_turn(forwards, backwards, p - i - 1)


def _interleaved(i: int, p: int, m: int, v: int) -> list[Task]:
    groups = [range(first, first + p) for first in range(0, m, p)]
    forwards = [Task("F", n, c) for group in groups for c in range(v) for n in group]
    backwards = [Task("B", n, c) for group in groups for c in reversed(range(v)) for n in group]
    return _in_turn(forwards, backwards, 2 * (p - i - 1) + (v - 1) * p)


def _zero_bubble(i: int, p: int, m: int, v: int) -> list[Task]:
    order = []
    for task in _one_f_one_b(i, p, m, v):
        order.append(task)
        if task.kind == "B" and task.microbatch >= i:
            order.append(Task("W", task.microbatch - i))
    return order + [Task("W", n) for n in range(max(0, m - i), m)]


def _in_turn(forwards: Sequence[Task], backwards: Sequence[Task], warm_up: int) -> list[Task]:
    """Return ``warm_up`` forwards, then one forward and one backward in turn, then what is left."""
    order = list(forwards[:warm_up])
    steady = forwards[warm_up:]
    for forward, backward in zip(steady, backwards, strict=False):
        order += [forward, backward]
    return order + list(backwards[len(steady) :])


_Order: TypeAlias = Callable[[int, int, int, int], list[Task]]

_ORDERS: Final[dict[str, _Order]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
}


# The events.


@dataclass(frozen=True, slots=True)
class _Pipe:
    """The stages as they run: seconds of a chunk by kind and stage, and the ends known so far."""

    seconds: Mapping[Kind, Sequence[float]]
    latency: float
    chunks: int
    ends: dict[tuple[int, Task], float]

    def arrival(self, i: int, task: Task) -> float | None:
        """Return when what ``task`` needs is on stage ``i`` [s], None while that is not known."""
        needs = self._needs(i, task)
        if needs is None:
            return 0.0
        end = self.ends.get(needs)
        return end if end is None or needs[0] == i else end + self.latency

    def _needs(self, i: int, task: Task) -> tuple[int, Task] | None:
        """Return the stage and the task whose result ``task`` on stage ``i`` needs, if any."""
        kind, n, c = task
        last = len(self.seconds["F"]) - 1
        if kind == "W":
            return i, Task("B", n, c)
        if kind == "F":
            before = (i - 1, Task("F", n, c)) if i > 0 else (last, Task("F", n, c - 1))
            return None if i == c == 0 else before
        if i == last and c == self.chunks - 1:
            return i, Task("F", n, c)
        return (i + 1, task) if i < last else (0, Task("B", n, c + 1))

    def advance(self, i: int, order: Sequence[Task], row: list[Slot]) -> bool:
        """Append to ``row`` what stage ``i`` can do by now, and return whether there was anything."""
        done = len(row)
        while len(row) < len(order):
            task = order[len(row)]
            arrival = self.arrival(i, task)
            if arrival is None:
                break
            start = max(arrival, row[-1].end if row else 0.0)
            end = start + self.seconds[task.kind][i]
            self.ends[i, task] = end
            row.append(Slot(task, start, end))
        return len(row) > done


def simulate(
    forward: Sequence[float],
    backward: Sequence[float],
    m: int,
    v: int,
    schedule: str,
    latency: float = 0.0,
    weight: Sequence[float] | None = None,
) -> Trace:
    """Return what each stage does when, in a step of ``m`` microbatches.

    start = max(end of the task before on the stage, end of the task needed + latency if elsewhere).
    ``forward`` and ``backward`` are seconds of each stage for one microbatch, all chunks together;
    ``weight`` is the part of ``backward`` that zero-bubble does separately, and nothing to other schedules;
    ``latency`` is seconds on the wire between neighbours, which keep no device busy.

    >>> trace = simulate([1, 1], [2, 2], 4, 1, "1f1b")
    >>> trace.seconds, trace.idle, trace.in_flight
    (15.0, (3.0, 3.0), (2.0, 1.0))
    >>> simulate([1, 1], [2, 2], 4, 2, "interleaved").seconds
    13.5
    >>> simulate([1, 1], [2, 2], 4, 1, "zero-bubble", weight=[1, 1]).seconds
    13.0

    Leaves out: transfers that share a link or wait for their receiver, chunks of a stage that differ.
    Source: the dependencies of Narayanan et al. 2021, arXiv:2104.04473, section 2.2, and, between B and W,
    of Qi et al. 2023, arXiv:2401.10241, section 2.
    """
    work = orders(schedule, len(forward), m, v)
    pipe = _Pipe(_seconds(forward, backward, v, schedule, weight), float(latency), v, {})
    rows = _run(pipe, work)
    return Trace(tuple(map(tuple, rows)), v)


def _seconds(
    forward: Sequence[float],
    backward: Sequence[float],
    v: int,
    schedule: str,
    weight: Sequence[float] | None,
) -> dict[Kind, list[float]]:
    """Return seconds of one chunk by kind and stage."""
    if schedule != "zero-bubble":
        weight = [0.0] * len(forward)
    if weight is None:
        raise ValueError("zero-bubble needs the weight gradient's part of backward")
    both = zip(backward, weight, strict=True)
    return {
        "F": [f / v for f in forward],
        "B": [(b - w) / v for b, w in both],
        "W": [w / v for w in weight],
    }


def _run(pipe: _Pipe, work: Sequence[Sequence[Task]]) -> list[list[Slot]]:
    """Return the slots of each stage: whatever ends wakes the adjacent stages."""
    rows: list[list[Slot]] = [[] for _ in work]
    awake = deque(range(len(work)))
    while awake:
        i = awake.popleft()
        if pipe.advance(i, work[i], rows[i]):
            awake.extend({(i - 1) % len(work), (i + 1) % len(work)} - {i})
    if any(len(row) < len(order) for row, order in zip(rows, work, strict=True)):
        raise AssertionError("a schedule waits for itself")
    return rows
