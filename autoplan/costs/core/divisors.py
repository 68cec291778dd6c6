"""Divisors of an integer.

Notation (this file only)::

    n  a positive integer      d  a divisor of n      [1]
"""

from __future__ import annotations

from math import isqrt


def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of ``n``, ascending [1].

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)

    If d divides n, so does n / d, and the smaller of the two is at most the square root of n.
    """
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))
