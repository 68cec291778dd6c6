"""Parts of a load that one engine may get, as integers.

Engines that are alike share a load evenly, so one of k gets 1/k of it; where unlike engines serve together,
shares of both kinds have to add up to the full load.
"""

from __future__ import annotations

from typing import Final

__all__ = ["WHOLE", "shares"]

#: The full load: a multiple of every number up to 10, and of 64. Small, which the solver likes.
WHOLE: Final = 20_160
#: Shares besides 1/k, so that a large engine may serve with small ones.
_UNEVEN: Final = ((2, 3), (3, 4), (2, 5), (3, 5), (4, 5))


def shares(most_engines: int, *, mixed: bool) -> tuple[int, ...]:
    """Return the shares of one engine of at most so many, the largest first [1/WHOLE].

    ``mixed``: also shares that even engines do not have.

    >>> [WHOLE // share for share in shares(4, mixed=False)]
    [1, 2, 3, 4]
    >>> WHOLE * 2 // 3 in shares(2, mixed=True)
    True
    """
    even = {WHOLE // k for k in range(1, most_engines + 1) if WHOLE % k == 0}
    uneven = {WHOLE * a // b for a, b in _UNEVEN} if mixed else set()
    return tuple(sorted(even | uneven, reverse=True))
