"""Places of engines on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["fit_nodes"]


def fit_nodes(sizes: Iterable[int], devices: int, node: int) -> bool:
    """Return whether engines have a place on nodes, the largest first; False where that is not clear.

    >>> fit_nodes([3, 3], 8, 4), fit_nodes([3, 3, 2], 8, 4)
    (True, False)
    """
    rooms = [node] * -(-devices // node)
    parts = [part for size in sizes for part in (*[node] * (size // node), size % node) if part]
    for part in sorted(parts, reverse=True):
        place = next((k for k, room in enumerate(rooms) if room >= part), None)
        if place is None:
            return False
        rooms[place] -= part
    return True
