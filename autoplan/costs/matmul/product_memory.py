"""Memory of one product on one device: what inference and training keep, and what they need to fit.

Notation (this file only)::

    P  bytes that stay: weights, optimizer states, workspace                  [byte]
    D  bytes that come and go: activations and their gradients                [byte]
    s  parts that split-k cuts the inner dimension into                          [1]

Rounding of PyTorch's caching allocator: blocks of a tensor, and segments that the device gives.

Notation (this file only)::

    b  bytes of a tensor                                                  [byte]
    B  bytes of its block: counted in ``memory_allocated``                [byte]
    S  bytes of its segment: counted in ``memory_reserved``               [byte]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.optimizer_states import state_bytes
from autoplan.costs.core.scope import at_precision
from autoplan.costs.device.memory_limit import memory_limit_bytes, overheads_of
from autoplan.costs.matmul.product import Product, bytes_of
from autoplan.schema.job import Job

__all__ = [
    "LiveTensor",
    "NeededMemory",
    "device_total",
    "inference_tensors",
    "largest_split",
    "needed_memory",
    "split_k_bytes",
    "training_events",
]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One allocation: its name, bytes, and whether it stays between steps (``resident``)."""

    name: str
    size: int
    resident: bool = False


@dataclass(frozen=True, slots=True)
class NeededMemory:
    """Bytes of a device at one event: allocated, reserved at most, in total, and what must fit.

    ``needed`` is the end of the 90 % interval that the fit rule asks for, ``limit`` usable memory less the
    headroom.
    """

    allocated: float
    reserved: float
    total: float
    needed: float
    limit: float

    @property
    def fits(self) -> bool:
        """Return whether ``needed`` is within ``limit`` [1].

        >>> NeededMemory(1.0, 2.0, 3.0, 4.0, limit=5.0).fits
        True
        """
        return self.needed <= self.limit


def split_k_bytes(product: Product, parts: int) -> int:
    """Return the bytes of split-k's partial sums [byte]: 4 s g m n, in fp32; none of one part.

    >>> split_k_bytes(Product(128, 128, 65536), 4), split_k_bytes(Product(128, 128, 65536), 1)
    (262144, 0)

    Leaves out: kernels that add partial sums with atomics, in the output's format.
    Source: NVIDIA cuBLAS documentation, cublasLtReductionScheme_t (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE).
    """
    return 4 * parts * product.batch * product.m * product.n if parts > 1 else 0


def largest_split(product: Product, workspace: float) -> int:
    """Return the most parts whose partial sums are within a ``workspace`` of so many bytes [1], at least 1.

    >>> largest_split(Product(1024, 1024, 65536), 2**25), largest_split(Product(8192, 8192, 8192), 2**25)
    (8, 1)

    Leaves out: which split the heuristics choose among those that the workspace admits.
    Source: NVIDIA cuBLAS documentation, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES.
    """
    return max(1, int(workspace // (4 * product.batch * product.m * product.n)))


def inference_tensors(
    product: Product, workspaces: tuple[float, float], parts: int = 1
) -> tuple[LiveTensor, ...]:
    """Return what is allocated while Y is computed [byte]: A, W, bias, residual, Y, and the workspaces.

    ``workspaces`` are those of cuBLAS and cuBLASLt, or hipBLAS and hipBLASLt. Partial sums of split-k are in
    the first where they fit, else in a buffer of their own.

    >>> [(x.name, x.size) for x in inference_tensors(Product(2, 3, 4), (1024.0, 0.0))]
    [('W', 24), ('workspace', 1024), ('A', 16), ('Y', 12)]

    Source: PyTorch, aten/src/ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl.
    """
    m, n, k, g = product.m, product.n, product.k, product.batch
    partial = split_k_bytes(product, parts)
    tensors = (
        LiveTensor("W", bytes_of(g * k * n, product.operands), resident=True),
        LiveTensor("bias", bytes_of(g * n, product.output) if product.bias else 0, resident=True),
        LiveTensor("workspace", ceil(workspaces[0]), resident=True),
        LiveTensor("workspace (Lt)", ceil(workspaces[1]), resident=True),
        LiveTensor("A", bytes_of(g * m * k, product.operands)),
        LiveTensor("residual", bytes_of(g * m * n, product.output) if product.residual else 0),
        LiveTensor("split-k partial sums", partial if partial > workspaces[0] else 0),
        LiveTensor("Y", bytes_of(g * m * n, product.output)),
    )
    return tuple(tensor for tensor in tensors if tensor.size)


def training_events(
    product: Product, job: Job, workspaces: tuple[float, float], parts: int = 1
) -> dict[str, tuple[LiveTensor, ...]]:
    """Return what is allocated at the events of a training step of the product [byte].

    Forward keeps A for the weight gradient; backward has dY, then dX and dW; the step has the states. Bytes
    of a parameter are those of the job's stack at its precision.

    >>> events = training_events(Product(2, 3, 4), load_job("llama3-8b-8x-a100"), (0.0, 0.0))
    >>> {event: sum(x.size for x in tensors) for event, tensors in events.items()}
    {'forward': 244, 'backward': 260, 'step': 216}

    Leaves out: what precedes and follows the product; a residual's gradient, which is dY.
    Source: PyTorch, tools/autograd/derivatives.yaml, addmm; Rajbhandari et al. 2020, arXiv:1910.02054,
    section 3.1, for the states; the stack's file for their bytes.
    """
    m, n, k, g = product.m, product.n, product.k, product.batch
    tensors = inference_tensors(product, workspaces, parts)
    activations = {tensor.name: tensor for tensor in tensors if not tensor.resident}
    states, gradient = _states(g * k * n, g * n if product.bias else 0, job)
    states += tuple(tensor for tensor in tensors if tensor.name.startswith("workspace"))
    policy = at_precision(job).stack.memory
    output = LiveTensor("dY", bytes_of(g * m * n, product.output))
    below = LiveTensor("dX", bytes_of(g * m * k, product.output))
    update = LiveTensor("update", policy.optimizer_temporary_bytes * g * k * n)
    before = (gradient,) if policy.gradients_persist else ()
    events = {
        "forward": (*states, *before, *activations.values()),
        "backward": (*states, gradient, activations["A"], output, below),
        "step": (*states, gradient, update),
    }
    return {event: tuple(x for x in tensors if x.size) for event, tensors in events.items()}


def _states(matrix: int, vector: int, job: Job) -> tuple[tuple[LiveTensor, ...], LiveTensor]:
    """Return parameters and optimizer states of a matrix and a bias, and their gradients [byte]."""
    policy = at_precision(job).stack.memory
    of_matrix, of_vector = state_bytes(job.optimizer, policy)
    states = (
        LiveTensor("W", policy.parameter_bytes * matrix, resident=True),
        LiveTensor("bias", policy.parameter_bytes * vector, resident=True),
        LiveTensor("copies of W", (policy.autocast_bytes + policy.fp8_copy_bytes) * matrix, resident=True),
        LiveTensor("optimizer states", ceil(of_matrix * matrix + of_vector * vector), resident=True),
    )
    of_each = policy.gradient_bytes + policy.gradient_copy_bytes
    persist = policy.gradients_persist
    return states, LiveTensor("dW", of_each * (matrix + vector), resident=persist)


def device_total(
    resident: Array, moving: Array, job: Job, communicators: Array | float = 0.0
) -> tuple[Array, Array]:
    """Return what P = ``resident`` and D = ``moving`` take on a device, and what a limit must allow [byte].

    P + D x fragmentation + context + communicators: central, and at the end of the interval that the job's
    fit rule asks for.

    >>> job = load_job("llama3-8b-8x-a100")
    >>> total, needed = device_total(np.array(2.0**30), np.array(2.0**30), job)
    >>> bool(2.0**31 < total < needed)
    True

    Source: the stack's file; autoplan/costs/memory/footprint.py, which has the same rule.
    """
    overheads = overheads_of(job)
    total: Array = resident + moving * overheads.fragmentation + overheads.context + communicators
    if job.limits.memory_confidence == "central":
        return total, total
    return total, resident + moving * overheads.high_fragmentation + overheads.high_context + communicators


def needed_memory(tensors: tuple[LiveTensor, ...], job: Job) -> NeededMemory:
    """Return what ``tensors`` take on a device and whether they fit [byte]: P + D x share + context.

    P and D are rounded as the allocator does; share and context are the stack's, for ``needed`` at the upper
    end of their range as for any layout.

    >>> job = load_job("llama3-8b-8x-a100")
    >>> one = needed_memory((LiveTensor("A", 2**30),), job)
    >>> [x / 2**30 for x in (one.allocated, one.reserved)], one.fits, one.total < one.needed < one.limit
    ([1.0, 1.0], True, True)

    Leaves out: memory of other processes.
    Source: the stack's file; autoplan/costs/memory/footprint.py, which has the same rule.
    """
    resident = np.asarray(
        sum(segment_bytes(tensor.size) for tensor in tensors if tensor.resident), dtype=np.float64
    )
    moving = np.asarray(sum(segment_bytes(x.size) for x in tensors if not x.resident), dtype=np.float64)
    total, needed = device_total(resident, moving, job)
    return NeededMemory(
        allocated=float(sum(block_bytes(tensor.size) for tensor in tensors)),
        reserved=float(resident + moving),
        total=float(total),
        needed=float(needed),
        limit=memory_limit_bytes(job),
    )


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
