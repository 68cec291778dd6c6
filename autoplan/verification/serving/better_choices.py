"""Whether any choice of engines is better than a front: exactly, by all sums of engines.

Notation (this file only)::

    a choice is how many engines of which option; objectives are integers, each to be small
    f[n, s]     most tokens of choices, or of engines of one set of classes, that take n devices and a
                part s of the load                                                                   [1/10 s]
    p           devices in the order of their nodes    u  devices that engines take                  [1]
    f[p, u, s]  most tokens of engines that lie within the first p devices                           [1/10 s]

Engines of one set share its load as those of one class do, so each set has a table f of its own. Sets of
several classes take the same part of each of theirs; what remains of a class has to be a sum of engines that
only it goes to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, gcd, isfinite
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.served_prediction import PooledPrediction, ServedPrediction
from autoplan.deadline import Deadline
from autoplan.rules.engine_rules import least_rate_per_device
from autoplan.schema.serving.serving_choices import ServingObjective, allowed_values
from autoplan.schema.serving.serving_spec import ServingJob
from autoplan.verification.serving.option_listing import LOAD_PARTS, ListedOption

_TIMES: Final[frozenset[str]] = frozenset({"time_to_first_token", "time_per_output_token", "request_latency"})
_TENTHS: Final = 10
_MICROSECONDS: Final = 1_000_000
#: A time without end [us].
_ENDLESS: Final = 10**15
#: Most sums of one table; larger questions are left to bounds.
_MOST_SUMS: Final = 2_000_000_000
#: Most sums of engines that have a place on nodes, of which all are in memory.
_MOST_PLACED: Final = 25_000_000
#: Most ways of engines for several classes to share these.
_MOST_WAYS: Final = 200_000

Box = tuple[float, ...]
#: The largest value of each objective.
Bounds = Mapping[ServingObjective, float]
Table = NDArray[np.int64]


def integral_time(predicted: ServedPrediction | PooledPrediction, name: str) -> int:
    """Return a time, rounded up [us]; of a maximum only the time per token counts."""
    if predicted.load.kind == "maximum" and name != "time_per_output_token":
        return 0
    value = getattr(predicted, name)
    return ceil(value * _MICROSECONDS) if isfinite(value) else _ENDLESS


def integral_tokens(rate: float) -> int:
    """Return tokens a second, rounded down [1/10 s]."""
    return floor(rate * _TENTHS)


def _tokens(option: ListedOption) -> int:
    return integral_tokens(option.predicted.output_tokens_per_second)


def choice_values(
    rate: int, devices: int, times: Mapping[str, int], objectives: Sequence[ServingObjective]
) -> tuple[int, ...]:
    """Return the objectives of a choice by its tokens [1/10 s], devices and slowest times [us]."""
    return tuple(times[name] if name in _TIMES else _value(name, rate, devices) for name in objectives)


def _value(name: ServingObjective, rate: int, devices: int) -> int:
    if name == "devices":
        return devices
    return -rate if name == "throughput" else -(rate // devices)


def boxes_beyond(
    values: Sequence[tuple[int, ...]], objectives: Sequence[ServingObjective], thinning: float
) -> list[Bounds]:
    """Return boxes of objective space that together hold all values better than ``values`` by the thinning.

    A box has a largest value for each objective. Each of ``values`` cuts a box into one for each objective,
    in which it bounds that objective alone.
    """
    boxes, count = {(np.inf,) * len(objectives)}, len(objectives)
    for values_of_plan in values:
        steps = [value - max(1, ceil(abs(value) * thinning)) for value in values_of_plan]
        cut = {(*box[:i], min(box[i], steps[i]), *box[i + 1 :]) for box in boxes for i in range(count)}
        boxes = {box for box in cut if not any(_within(box, other) for other in cut)}
    return [dict(zip(objectives, box, strict=True)) for box in sorted(boxes)]


def _within(box: Box, other: Box) -> bool:
    return box != other and all(a <= b for a, b in zip(box, other, strict=True))


@dataclass(slots=True)
class ChoiceSearch:
    """All choices of options that hold a job's limits.

    ``settle`` returns an option as its simulation leaves it; None where it breaks a limit.
    """

    job: ServingJob
    options: list[ListedOption]
    devices: int
    settle: Callable[[ListedOption], ListedOption | None]
    deadline: Deadline
    #: Boxes that were not decided.
    undecided: int = 0

    def better(self, box: Bounds) -> list[tuple[int, ListedOption]]:
        """Return a choice within ``box``; none if none exists, or where that stays undecided."""
        while True:
            if self.deadline.over:
                return self._left_undecided()
            chosen = self._choice_of_formats(self._within_times(box), box)
            if not chosen:
                return []
            settled_by_id = {id(option): self.settle(option) for _, option in chosen}
            if all(settled_by_id[id(option)] is option for _, option in chosen):
                return chosen
            settled = (settled_by_id.get(id(option), option) for option in self.options)
            self.options = [option for option in settled if option is not None]

    def _left_undecided(self) -> list[tuple[int, ListedOption]]:
        """Return no choice, and count the box as one that was not decided."""
        self.undecided += 1
        return []

    def _choice_of_formats(self, options: list[ListedOption], box: Bounds) -> list[tuple[int, ListedOption]]:
        """Return a choice within the box; its engines have the same formats unless the job mixes them."""
        undecided, by_formats = self.undecided, dict[tuple[str, ...], list[ListedOption]]()
        for option in options:
            formats = () if self.job.search.mixed_formats else option.formats
            by_formats.setdefault(formats, []).append(option)
        for several in by_formats.values():
            if not self._bounded_out(several, box) and (chosen := self._choice(several, box)):
                return chosen
        # However many formats are left undecided, the box is one.
        self.undecided = min(self.undecided, undecided + 1)
        return []

    def _within_times(self, box: Bounds) -> list[ListedOption]:
        bounds = [(name, most) for name, most in box.items() if name in _TIMES]
        return [
            option
            for option in self.options
            if all(integral_time(option.predicted, name) <= most for name, most in bounds)
        ]

    def _bounded_out(self, options: Sequence[ListedOption], box: Bounds) -> bool:
        """Return whether no mix of options reaches the box: none has as many tokens a device, or a load."""
        if not options:
            return True
        each = max(_tokens(option) / option.devices for option in options)
        least = min(option.devices for option in options)
        for name, most in box.items():
            if name == "devices" and most < least:
                return True
            if name == "throughput" and -most > each * self.devices:
                return True
            if name not in _TIMES | {"devices", "throughput"} and -most > each:
                return True
        return False

    def _choice(self, options: list[ListedOption], box: Bounds) -> list[tuple[int, ListedOption]]:
        """Return a choice within the box by all sums of engines."""
        by_class = any(option.classes for option in options)
        several = self._choice_of_classes if by_class else self._choice_of_sums
        chosen = several(options, box)
        if pack(chosen, self.job.cluster.devices, self.job.cluster.node.devices):
            return chosen
        if by_class or self._engines() is not None:
            return self._left_undecided()
        return self._placed(options, box)

    def _choice_of_sums(self, options: list[ListedOption], box: Bounds) -> list[tuple[int, ListedOption]]:
        """Return a choice within the box, wherever its engines lie."""
        fastest = _fastest(options)
        unit = gcd(LOAD_PARTS, *(option.share for option in fastest)) or LOAD_PARTS
        load_units = LOAD_PARTS // unit if fastest[0].share else 0
        engines = self._engines()
        layers = 1 if engines is None else max(engines) + 1
        if self.devices * (load_units + 1) * len(fastest) * layers > _MOST_SUMS:
            return self._left_undecided()
        if engines is None:
            tables = [_sums(fastest, self.devices, load_units, unit)]
        else:
            tables = _sums_of_engines(fastest, self.devices, (load_units, unit), max(engines))
        for count, (table, parents) in enumerate(tables):
            if engines is not None and count not in engines:
                continue
            for devices in range(1, self.devices + 1):
                rate = int(table[devices, load_units])
                if rate > 0 and self.reaches(rate, devices, box):
                    path = (tables, count) if engines is not None else ([(table, parents)], None)
                    return _traced(fastest, path, (devices, load_units), unit)
        return []

    def _placed(self, options: list[ListedOption], box: Bounds) -> list[tuple[int, ListedOption]]:
        """Return a choice within the box whose engines have a place on the nodes."""
        fastest, cluster = _fastest(options), self.job.cluster
        unit = gcd(LOAD_PARTS, *(option.share for option in fastest)) or LOAD_PARTS
        load_units = LOAD_PARTS // unit if fastest[0].share else 0
        if (cluster.devices + 1) ** 2 * (load_units + 1) > _MOST_PLACED:
            return self._left_undecided()
        engines = [(option.devices, option.share // unit, _tokens(option)) for option in fastest]
        choices = placed_choice(engines, cluster.devices, cluster.node.devices, load_units)
        for devices, (rate, numbers) in choices.items():
            if devices <= self.devices and self.reaches(rate, devices, box):
                return [(count, fastest[number]) for number, count in Counter(numbers).items()]
        return []

    def _choice_of_classes(self, options: list[ListedOption], box: Bounds) -> list[tuple[int, ListedOption]]:
        """Return a choice within the box whose engines serve every class of requests completely."""
        names = tuple(requests.name for requests in self.job.workload.classes)
        unit = gcd(LOAD_PARTS, *(option.share for option in options))
        load_units = LOAD_PARTS // unit
        by_set: dict[tuple[str, ...], list[ListedOption]] = {}
        for option in options:
            by_set.setdefault(option.classes or names, []).append(option)
        fastest = {classes: _fastest(of_set) for classes, of_set in by_set.items()}
        work = self.devices * (load_units + 1) * sum(map(len, fastest.values()))
        if self._engines() is not None or work > _MOST_SUMS:
            return self._left_undecided()
        sums = {classes: _sums(of_set, self.devices, load_units, unit) for classes, of_set in fastest.items()}
        tables = [SetTable(classes, table) for classes, (table, _) in sums.items()]
        choices = class_sums(tables, names, self.devices, load_units, _MOST_WAYS)
        if choices is None:
            return self._left_undecided()
        for devices, choice in sorted(choices.items()):
            if devices and self.reaches(choice.tokens, devices, box):
                return [
                    counted
                    for classes, number, part in choice.parts
                    for counted in _traced(fastest[classes], ([sums[classes]], None), (number, part), unit)
                ]
        return []

    def _engines(self) -> tuple[int, ...] | None:
        allowed = self.job.search.replicas
        return None if isinstance(allowed, str) else allowed_values(allowed, ())

    def reaches(self, rate: int, devices: int, box: Bounds) -> bool:
        """Return whether this throughput of these devices holds the limits and lies within the box."""
        limits = self.job.limits
        if rate < ceil((limits.throughput or 0.0) * _TENTHS):
            return False
        if rate < ceil(least_rate_per_device(self.job) * _TENTHS) * devices:
            return False
        return all(_value(name, rate, devices) <= most for name, most in box.items() if name not in _TIMES)


def _fastest(options: Sequence[ListedOption]) -> list[ListedOption]:
    """Return, of the options with the same devices and part of the load, the one of most tokens."""
    best: dict[tuple[int, int], ListedOption] = {}
    for option in options:
        key = option.devices, option.share
        if key not in best or _tokens(option) > _tokens(best[key]):
            best[key] = option
    return list(best.values())


def _sums(options: Sequence[ListedOption], devices: int, load_units: int, unit: int) -> tuple[Table, Table]:
    """Return f for every number of devices and part of the load, and the option that was added last."""
    table = np.full((devices + 1, load_units + 1), -1, dtype=np.int64)
    parents = np.full((devices + 1, load_units + 1), -1, dtype=np.int64)
    table[0, 0] = 0
    for n in range(1, devices + 1):
        for number, option in enumerate(options):
            if option.devices <= n:
                _add(table[n - option.devices], table[n], parents[n], (option, number, unit))
    return table, parents


def _sums_of_engines(
    options: Sequence[ListedOption], devices: int, load: tuple[int, int], most: int
) -> list[tuple[Table, Table]]:
    """Return f and the options added last for each number of engines."""
    load_units, unit = load
    empty = np.full((devices + 1, load_units + 1), -1, dtype=np.int64)
    first = empty.copy()
    first[0, 0] = 0
    tables = [(first, empty.copy())]
    for _ in range(most):
        before, (table, parents) = tables[-1][0], (empty.copy(), empty.copy())
        for n in range(1, devices + 1):
            for number, option in enumerate(options):
                if option.devices <= n:
                    _add(before[n - option.devices], table[n], parents[n], (option, number, unit))
        tables.append((table, parents))
    return tables


def _add(before: Table, row: Table, parents: Table, added: tuple[ListedOption, int, int]) -> None:
    """Add one engine of an option to every sum ``before`` where that gives more."""
    option, number, unit = added
    shift, length = option.share // unit, len(row)
    source, target = before[: length - shift], row[shift:]
    more = np.where(source >= 0, source + _tokens(option), -1)
    better = more > target
    target[better] = more[better]
    parents[shift:][better] = number


def _traced(
    options: Sequence[ListedOption],
    path: tuple[Sequence[tuple[Table, Table]], int | None],
    at: tuple[int, int],
    unit: int,
) -> list[tuple[int, ListedOption]]:
    """Return the engines of a sum, those alike together."""
    tables, layer = path
    counts: dict[int, int] = {}
    devices, part = at
    while devices:
        number = int(tables[layer if layer is not None else 0][1][devices, part])
        counts[number] = counts.get(number, 0) + 1
        devices -= options[number].devices
        part -= options[number].share // unit
        layer = None if layer is None else layer - 1
    return [(count, options[number]) for number, count in counts.items()]


Classes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetTable:
    """Sums of the engines of one set of classes: f by devices and part of the load, -1 without engines."""

    classes: Classes
    tokens: NDArray[np.int64]

    def reachable(self, devices: int, part: int) -> Iterator[tuple[int, int]]:
        """Yield the devices and parts of sums up to ``devices`` and ``part``, nothing taken first."""
        rows, columns = np.nonzero(self.tokens[: devices + 1, : part + 1] >= 0)
        yield from zip(rows.tolist(), columns.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class ClassSum:
    """A choice by set of classes: its devices and part of the load; and the tokens of all [1/10 s]."""

    tokens: int
    parts: tuple[tuple[Classes, int, int], ...]


def class_sums(
    tables: Sequence[SetTable], names: Sequence[str], devices: int, load_units: int, most: int
) -> dict[int, ClassSum] | None:
    """Return for each number of devices the choice of most tokens that serves every class completely.

    None for more than ``most`` ways of sets of several classes to share the load.

    >>> f = np.full((3, 2), -1)
    >>> f[0, 0], f[1, 1] = 0, 50  # one device serves the full load of its class, 5 tokens a second
    >>> sums = class_sums([SetTable(("a",), f), SetTable(("b",), f)], ["a", "b"], 2, 1, 100)
    >>> {number: choice.tokens for number, choice in sums.items()}
    {2: 100}
    """
    alone = {table.classes[0]: table for table in tables if len(table.classes) == 1}
    shared = [table for table in tables if len(table.classes) > 1]
    best: dict[int, ClassSum] = {}
    start = ClassSum(0, ())
    ways = _shared(shared, start, devices, dict.fromkeys(names, load_units))
    for number, (taken, used, left) in enumerate(ways, start=1):
        if number > most:
            return None
        for total, choice in _alone(alone, taken, devices, used, left).items():
            if total not in best or choice.tokens > best[total].tokens:
                best[total] = choice
    return best


def _shared(
    tables: Sequence[SetTable], taken: ClassSum, devices: int, left: Mapping[str, int]
) -> Iterator[tuple[ClassSum, int, dict[str, int]]]:
    """Yield what engines of several classes take, the devices of that, and what each class then has left."""
    if not tables:
        yield taken, 0, dict(left)
        return
    table, rest = tables[0], tables[1:]
    part_left = min(left[name] for name in table.classes)
    for number, part in table.reachable(devices, part_left):
        more = ClassSum(
            taken.tokens + int(table.tokens[number, part]),
            (*taken.parts, (table.classes, number, part)) if number else taken.parts,
        )
        remaining = {name: amount - part * (name in table.classes) for name, amount in left.items()}
        for choice, used, final in _shared(rest, more, devices - number, remaining):
            yield choice, used + number, final


def _alone(
    tables: Mapping[str, SetTable], taken: ClassSum, devices: int, used: int, left: Mapping[str, int]
) -> dict[int, ClassSum]:
    """Return by devices the most tokens with engines of single classes for what these have left."""
    sums = {used: taken}
    for name, part in left.items():
        if not part:
            continue
        if name not in tables:
            return {}
        column, longer = tables[name].tokens[:, part], dict[int, ClassSum]()
        for number in np.nonzero(column >= 0)[0].tolist():
            for total, choice in sums.items():
                tokens = choice.tokens + int(column[number])
                longest = longer.get(total + number)
                if total + number <= devices and (longest is None or tokens > longest.tokens):
                    longer[total + number] = ClassSum(tokens, (*choice.parts, ((name,), number, part)))
        sums = longer
    return sums


Tables = NDArray[np.int64]


class Placed(Protocol):
    """What takes devices."""

    @property
    def devices(self) -> int:
        """Devices of it."""


def pack(chosen: Iterable[tuple[int, Placed]], devices: int, node: int) -> bool:
    """Return whether engines fit into nodes, the largest first; False where that is not clear."""
    rooms = [node] * -(-devices // node)
    for count, option in sorted(chosen, key=lambda pair: -pair[1].devices):
        for _ in range(count):
            if not _placed(rooms, option.devices, node):
                return False
    return True


def _placed(rooms: list[int], size: int, node: int) -> bool:
    """Take an engine's devices from the nodes, whole nodes for a large one; False where they lack room."""
    needed = [node] * (size // node) + [size % node] * (size % node > 0)
    for part in needed:
        place = next((i for i, room in enumerate(rooms) if room >= part), None)
        if place is None:
            return False
        rooms[place] -= part
    return True


def placed_choice(
    engines: Sequence[tuple[int, int, int]], devices: int, node: int, load_units: int
) -> dict[int, tuple[int, list[int]]]:
    """Return for each number of devices taken the most tokens of engines that share the whole load.

    ``engines`` are devices, units of the load and tokens of each; beside the tokens stands the number of
    each engine that is chosen. One after the other lies where the last one ends, within a node or from
    the first device of one; a device may stay idle.
    """
    best = np.full((devices + 1, devices + 1, load_units + 1), -1, dtype=np.int64)
    added = np.full(best.shape, -1, dtype=np.int16)
    best[0, 0, 0] = 0
    for p in range(1, devices + 1):
        best[p] = best[p - 1]
        for number, (size, part, tokens) in enumerate(engines):
            start = p - size
            if start < 0 or (start % node + size > node and start % node):
                continue
            source = best[start, : devices + 1 - size, : load_units + 1 - part]
            target = best[p, size:, part:]
            more = np.where(source >= 0, source + tokens, -1)
            better = more > target
            target[better] = more[better]
            added[p, size:, part:][better] = number
    whole = best[devices, :, load_units]
    return {
        used: (int(whole[used]), _traced_engines(engines, added, (devices, used, load_units)))
        for used in range(1, devices + 1)
        if whole[used] > 0
    }


def _traced_engines(
    engines: Sequence[tuple[int, int, int]], added: NDArray[np.int16], at: tuple[int, int, int]
) -> list[int]:
    """Return the engines of a sum; where none was added last, a device is idle."""
    p, used, part = at
    chosen = []
    while used:
        number = int(added[p, used, part])
        if number < 0:
            p -= 1
            continue
        chosen.append(number)
        size, share, _ = engines[number]
        p, used, part = p - size, used - size, part - share
    return chosen
