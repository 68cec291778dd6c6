"""Rounding of PyTorch's caching allocator: blocks of a tensor, and segments that the device gives.

Notation (this file only)::

    b  bytes of a tensor                                                  [byte]
    B  bytes of its block: counted in ``memory_allocated``                [byte]
    S  bytes of its segment: counted in ``memory_reserved``               [byte]
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from autoplan.costs.core.candidates import Array

__all__ = ["block_bytes", "segment_bytes"]

#: PyTorch 2.13, c10/core/AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kRoundLarge; and
#: c10/cuda/CUDACachingAllocator.cpp for the segment of 20 MiB that tensors above kSmallSize share.
_BLOCK: Final = 512
_SMALL: Final = 2**20
_SMALL_SEGMENT: Final = 2 * 2**20
_SHARED_SEGMENT: Final = 20 * 2**20
_LARGE_ROUNDING: Final = 2 * 2**20


def block_bytes(size: ArrayLike) -> Array:
    """Return B [byte]: b rounded up to 512 bytes, 0 where there is no tensor.

    >>> block_bytes([0, 1, 512, 513]).tolist()
    [0.0, 512.0, 512.0, 1024.0]

    Leaves out: PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions.
    Source: PyTorch 2.13, c10/core/AllocatorConfig.h.
    """
    blocks: Array = np.ceil(np.asarray(size, dtype=np.float64) / _BLOCK) * _BLOCK
    return blocks


def segment_bytes(size: ArrayLike) -> Array:
    """Return the most that a tensor reserves [byte]: S of a tensor with a segment to itself.

    2 MiB up to 1 MiB, 20 MiB up to 20 MiB, above b rounded up to 2 MiB: non-decreasing in b.

    >>> (segment_bytes([0, 2**20, 2**20 + 1, 50 * 2**20 - 1]) / 2**20).tolist()
    [0.0, 2.0, 20.0, 50.0]

    Leaves out: tensors that share a segment, and tensors from 10 to 20 MiB, whose segment is their own size:
    both reserve less.
    Source: PyTorch 2.13, c10/core/AllocatorConfig.h; c10/cuda/CUDACachingAllocator.cpp, get_allocation_size.
    """
    tensor = np.asarray(size, dtype=np.float64)
    large = np.ceil(tensor / _LARGE_ROUNDING) * _LARGE_ROUNDING
    shared = np.where(tensor <= _SMALL, _SMALL_SEGMENT, np.maximum(large, _SHARED_SEGMENT))
    segments: Array = np.where(tensor > 0, shared, 0.0)
    return segments
