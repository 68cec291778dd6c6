"""One extent of a product that is left out: the largest that fits, the smallest that is compute-bound.

Notation (this file only)::

    x           the extent that is left out: m, n or k                        [1]
    f           FLOPs for each unit of x: 2 g m n k / x                       [FLOP]
    s, b        bytes for each unit of x, and those that x does not change    [byte]
    r           ridge: peak rate over memory bandwidth                        [1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final, Literal

from autoplan.costs.matmul.product import Product, flops_of, hbm_bytes

__all__ = ["MOST_EXTENT", "Extent", "largest_extent", "ridge_point", "smallest_compute_bound", "with_extent"]

Extent = Literal["m", "n", "k"]

#: Largest extent that is considered: an element of it is a byte of a device of 2^50 bytes.
MOST_EXTENT: Final = 2**40


def with_extent(product: Product, extent: Extent, value: int) -> Product:
    """Return ``product`` with another ``extent`` [1].

    >>> with_extent(Product(1, 2, 3), "k", 9).k
    9
    """
    changes: dict[str, int] = {extent: value}
    return replace(product, **changes)  # type: ignore[arg-type]


def largest_extent(fits: Callable[[int], bool]) -> int:
    """Return the largest x from 1 to 2^40 that ``fits`` [1], 0 where none does.

    By bisection: exact where larger extents never fit better, as with memory that only grows.

    >>> largest_extent(lambda x: 6 * x + 3 <= 100), largest_extent(lambda x: x < 1)
    (16, 0)
    """
    low, high = 0, 1
    while high <= MOST_EXTENT and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return min(low, MOST_EXTENT)


def ridge_point(peak: float, bandwidth: float) -> Fraction:
    """Return r, the FLOPs a byte from which a kernel is compute-bound [FLOP/byte]: peak over bandwidth.

    >>> round(float(ridge_point(312e12, 2.039e12)), 1)  # A100 SXM 80 GB in bf16
    153.0

    Leaves out: what kernels reach of either; caches.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    return Fraction(peak) / Fraction(bandwidth)


def smallest_compute_bound(product: Product, extent: Extent, ridge: Fraction) -> int | None:
    """Return the smallest x whose intensity is at least r [1], exactly; None where no x has it.

    f x / (s x + b) >= r, so x >= r b / (f - r s) where f > r s: each unit of x adds s bytes, and its FLOPs
    must pay for these alone.

    >>> smallest_compute_bound(Product(1, 8192, 8192), "m", Fraction(153))
    159
    >>> smallest_compute_bound(Product(100, 1, 8192), "n", Fraction(153)) is None  # at most 100 FLOP/byte
    True

    Leaves out: what kernels reach of either rate.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    one, two = with_extent(product, extent, 1), with_extent(product, extent, 2)
    slope = hbm_bytes(two) - hbm_bytes(one)
    fixed = hbm_bytes(one) - slope
    gain = flops_of(one) - ridge * slope
    if gain <= 0:
        return None
    return max(1, ceil(ridge * fixed / gain))
