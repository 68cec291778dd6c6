"""Number formats of matrix products."""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["EIGHT_BITS", "Precision"]

Precision = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8"]

#: Those whose products of weights run in 8 bits. In the second, each 32 elements have a scale, which the
#: matrix units apply (OCP Microscaling Formats, version 1.0).
EIGHT_BITS: Final[tuple[Precision, ...]] = ("fp8", "mxfp8")
