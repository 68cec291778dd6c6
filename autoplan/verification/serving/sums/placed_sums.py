"""Sums of engines that have a place on the nodes of a cluster.

Notation (this file only)::

    p  devices in the order of their nodes    u  devices that engines take           [1]
    s  part of the load
    f[p, u, s]  most tokens of engines that lie within the first p devices           [1/10 s]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Placed", "pack", "placed_choice"]

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
    """Take the room of an engine off the nodes, full nodes for a large one; False where there is none."""
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
        used: (int(whole[used]), _traced(engines, added, (devices, used, load_units)))
        for used in range(1, devices + 1)
        if whole[used] > 0
    }


def _traced(
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
