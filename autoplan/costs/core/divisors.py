"""Degrees and sizes that divide a number evenly.

Notation (this file only)::

    n  what is divided      d  a divisor of it      [1]
"""

from __future__ import annotations

from math import isqrt

__all__ = ["divisors"]


def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of ``n``, ascending [1].

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)

    Leaves out: nothing.
    Source: d divides n where n / d does; one of the two is at most the square root of n.
    """
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))
