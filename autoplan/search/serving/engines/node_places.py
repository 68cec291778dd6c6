"""Places of engines on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["fit_nodes"]


def fit_nodes(sizes: Iterable[int], devices: int, node: int) -> bool:
    """Return whether engines have a place on nodes, the largest first; False where that is not clear.

    >>> fit_nodes([3, 3], 8, 4), fit_nodes([3, 3, 2], 8, 4)
    (True, False)
    """
    # Nodes by their free devices: best fit, so that thousands of nodes take no longer than their kinds.
    free = [0] * node + [-(-devices // node)]
    parts = [part for size in sizes for part in (*[node] * (size // node), size % node) if part]
    for part in sorted(parts, reverse=True):
        room = next((room for room in range(part, node + 1) if free[room]), None)
        if room is None:
            return False
        free[room] -= 1
        free[room - part] += 1
    return True
