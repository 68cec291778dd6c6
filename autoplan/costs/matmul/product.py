"""One matrix product: extents and formats, FLOPs and bytes, and the least words that any algorithm moves.

Notation (this file only)::

    m, n, k  extents of Y [m, n] = A [m, k] times W [k, n]                         [1]
    g        independent products of the same extents                              [1]
    a, y     bytes of an element of A and W, and of Y                           [byte]
    x        an extent that is left out: m, n or k                                 [1]
    f        FLOPs for each unit of x: 2 g m n k / x                            [FLOP]
    s, b     bytes for each unit of x, and those that x does not change         [byte]
    r        ridge: peak rate over memory bandwidth                                [1]

Of lower bounds::

    x, y, z  the three extents in descending order                                 [1]
    p        devices, each with as many of the products                            [1]
    M        elements that a device's memory holds                                 [1]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, sqrt
from typing import Final, Literal

from autoplan.schema.precision import Precision
from autoplan.schema.serving.engine_layout import FORMATS

_BITS_OF_BYTE: Final = 8
#: Bits of an element, and of the 8-bit scale that mxfp8 has for each 32 (OCP Microscaling Formats, 1.0).
_MXFP8: Final = Fraction(8) + Fraction(8, 32)
_FP32: Final = Fraction(32)


@dataclass(frozen=True, slots=True)
class Product:
    """A product Y = A W + bias + residual, ``batch`` times; A and W in ``operands``, Y in ``output``.

    Partial sums that leave registers, between panels or devices, are in ``partial``.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    operands: Precision = "bf16"
    output: Precision = "bf16"
    partial: Precision = "bf16"
    bias: bool = False
    residual: bool = False


def output_precision(operands: Precision) -> Precision:
    """Return the format of Y where none is asked for: that of A and W, bf16 where they are narrower.

    >>> output_precision("fp16"), output_precision("fp8")
    ('fp16', 'bf16')

    Source: PyTorch 2.13, torch.matmul gives the format of its operands; torch._scaled_mm bf16.
    """
    return operands if operands in {"bf16", "fp16", "fp32"} else "bf16"


def element_size(precision: Precision) -> Fraction:
    """Return the bytes of an element with its share of a scale [byte], exactly.

    >>> [float(element_size(x)) for x in ("fp32", "bf16", "fp8", "mxfp8", "nvfp4")]
    [4.0, 2.0, 1.0, 1.03125, 0.5625]

    Leaves out: the one scale of a tensor or row in fp8.
    Source: autoplan/schema/serving/engine_layout.py; OCP Microscaling Formats, version 1.0, for mxfp8.
    """
    if precision == "fp32":
        bits = _FP32
    elif precision == "mxfp8":
        bits = _MXFP8
    else:
        weight_format = FORMATS[precision]
        bits = Fraction(weight_format.bits) + (
            Fraction(weight_format.scale_bits, weight_format.group) if weight_format.group else 0
        )
    return bits / _BITS_OF_BYTE


def bytes_of(elements: int, precision: Precision) -> int:
    """Return the bytes of a tensor [byte], rounded up to whole ones.

    >>> bytes_of(4096 * 4096, "bf16"), bytes_of(3, "nvfp4")
    (33554432, 2)
    """
    return ceil(elements * element_size(precision))


def flops_of(product: Product) -> int:
    """Return the FLOPs of the product [FLOP]: 2 g m n k, a multiplication and an addition each.

    >>> flops_of(Product(2, 3, 4))
    48

    Leaves out: bias and residual, one addition an element of Y each.
    Source: Golub and Van Loan, Matrix Computations, section 1.1.
    """
    return 2 * product.batch * product.m * product.n * product.k


def hbm_bytes(product: Product) -> Fraction:
    """Return the least bytes between HBM and the cores [byte]: A, W, bias and residual read, Y written.

    a g (m k + k n) + y g (m n), and y n for a bias, y g m n for a residual. Accumulation in fp32 is in
    registers and moves nothing.

    >>> [int(hbm_bytes(Product(1000, 1000, 1000, residual=x))) for x in (False, True)]
    [6000000, 8000000]

    Leaves out: operands that are read again where they exceed the caches.
    Source: Williams et al. 2009, doi:10.1145/1498765.1498785, compulsory traffic.
    """
    m, n, k, g = product.m, product.n, product.k, product.batch
    a, y = element_size(product.operands), element_size(product.output)
    outputs = g * m * n * (2 if product.residual else 1) + (g * n if product.bias else 0)
    return a * g * (m * k + k * n) + y * outputs


def intensity(product: Product) -> Fraction:
    """Return FLOPs a byte of HBM traffic, exactly [FLOP/byte].

    >>> float(intensity(Product(1024, 1024, 1024)))  # 2 x 1024^3 / (3 x 2 x 1024^2)
    341.3333333333333

    Source: Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    return Fraction(flops_of(product), hbm_bytes(product))


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


def least_words_of_any_memory(m: float, n: float, k: float, p: float) -> float:
    """Return the elements of A and W that some device must receive, and of Y send, with any memory [1].

    D - (m n + m k + n k) / p where operands begin and the result ends in one copy, and D is
    (x y + x z) / p + y z for p <= x / y; 2 (x y z^2 / p)^(1/2) + x y / p for p <= x y / z^2;
    3 (x y z / p)^(2/3) above: one, two and three extents are split.

    >>> round(least_words_of_any_memory(1000, 1000, 1000, 8))  # 3 x 250,000 less 3 x 125,000
    375000
    >>> least_words_of_any_memory(1024, 8, 8, 4)  # tall and skinny: all of the small matrix, less its quarter
    48.0

    Leaves out: algorithms that multiply with fewer than m n k products (Strassen).
    Source: Al Daas et al. 2022, arXiv:2205.13407, with tight constants; Ballard et al. 2012,
    arXiv:1202.3177, without.
    """
    x, y, z = sorted((m, n, k), reverse=True)
    if p <= x / y:
        accessed = (x * y + x * z) / p + y * z
    elif p <= x * y / z**2:
        accessed = 2.0 * sqrt(x * y * z**2 / p) + x * y / p
    else:
        accessed = 3.0 * (x * y * z / p) ** (2.0 / 3.0)
    return max(0.0, accessed - (x * y + x * z + y * z) / p)


def least_words_for_memory(m: float, n: float, k: float, p: float, memory: float) -> float:
    """Return the elements that some device must send and receive together with M elements of memory [1].

    m n k / (2 sqrt(2) p sqrt(M)) - M, at least 0: less memory, more communication.

    >>> least_words_for_memory(4000, 4000, 4000, 8, 5000) > least_words_for_memory(4000, 4000, 4000, 8, 20000)
    True

    Leaves out: algorithms that multiply with fewer than m n k products (Strassen).
    Source: Irony, Toledo and Tiskin 2004, doi:10.1016/j.jpdc.2004.03.021; Ballard et al. 2011,
    arXiv:0905.2485, for all of linear algebra.
    """
    return max(0.0, m * n * k / (2.0 * sqrt(2.0) * p * sqrt(memory)) - memory)


def least_words(m: float, n: float, k: float, p: float, memory: float) -> float:
    """Return the elements that some device must send, where devices send as much as they receive [1].

    The larger of both bounds, of which the one with M elements of memory counts what is sent and received.

    >>> round(least_words(1000, 1000, 1000, 8, 1e12))
    375000

    Source: as for both.
    """
    return max(least_words_of_any_memory(m, n, k, p), least_words_for_memory(m, n, k, p, memory) / 2.0)
