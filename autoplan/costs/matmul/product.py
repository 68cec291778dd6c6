"""One matrix product: its extents, the formats of its operands, its FLOPs and bytes.

Notation (this file only)::

    m, n, k  extents of Y [m, n] = A [m, k] times W [k, n]               [1]
    g        independent products of the same extents                    [1]
    a, y     bytes of an element of A and W, and of Y                 [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from autoplan.schema.precision import Precision
from autoplan.schema.serving.weight_formats import FORMATS

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
    Source: autoplan/schema/serving/weight_formats.py; OCP Microscaling Formats, version 1.0, for mxfp8.
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
