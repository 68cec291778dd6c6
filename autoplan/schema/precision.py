"""Words of fixed lists: number formats, optimizers, and how a matrix product is split over devices."""

from __future__ import annotations

from typing import Final, Literal

Precision = Literal["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]

#: Those whose products of weights run in 8 or 4 bits. In mxfp8 each 32 elements have a scale, in nvfp4 each
#: 16, which the matrix units apply (OCP Microscaling Formats, version 1.0; NVIDIA 2025, arXiv 2509.25149).
NARROW: Final[tuple[Precision, ...]] = ("fp8", "mxfp8", "nvfp4")

Optimizer = Literal[
    "adamw", "adam", "sgd", "adamw-8bit", "adamw-bf16", "lion", "muon", "paged-adamw", "paged-adamw-8bit"
]

SchemeName = Literal["batch", "rows", "columns", "inner", "summa", "cannon", "2.5d", "3d"]
StartState = Literal["one-copy", "in-place"]
ResultState = Literal["sharded", "replicated"]
