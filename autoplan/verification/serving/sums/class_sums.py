"""Sums of engines that make the full load of every class, where engines are for some classes alone.

Notation (this file only)::

    f[n, s]  most tokens of engines of a set of classes on n devices with a part s of its load   [1/10 s]

Engines of one set share its load as those of one class do, so each set has a table f of its own. Sets of
several classes take the same part of each of theirs; what remains of a class has to be a sum of engines that
only it goes to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassSum", "SetTable", "class_sums"]

Classes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetTable:
    """Sums of the engines of one set of classes: f by devices and part of the load, -1: there is none."""

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

    None where there are more than ``most`` ways of sets of several classes to share the load.

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
