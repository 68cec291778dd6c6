"""Memory and time of one product on one device, and what inference and training need of it to fit.

Notation (this file only)::

    m, n, k  extents of Y [m, n] = A [m, k] times W [k, n]                    [1]
    P  bytes that stay: weights, optimizer states, workspace                  [byte]
    D  bytes that come and go: activations and their gradients                [byte]
    s  parts that split-k cuts the inner dimension into                       [1]
    b  bytes of a tensor                                                      [byte]
    B  bytes of its block: counted in ``memory_allocated``                    [byte]
    S  bytes of its segment: counted in ``memory_reserved``                   [byte]
    W  achieved HBM bandwidth                                                 [byte/s]
    x  share of the time outside of measured tables                           [1]

Blocks and segments are those of PyTorch's caching allocator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from autoplan.costs.core.candidates import Array
from autoplan.costs.core.parameters import state_bytes
from autoplan.costs.core.scope import at_precision
from autoplan.costs.device.kernels import gemm_seconds_at_rate
from autoplan.costs.device.machine import Machine
from autoplan.costs.device.memory_limit import memory_limit_bytes, overheads_of
from autoplan.costs.matmul.product import Product, bytes_of, element_size, hbm_bytes
from autoplan.costs.uncertainty import MEASURED_PRECISIONS
from autoplan.schema.job import Job


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One allocation: its name, bytes, and whether it stays between steps (``resident``)."""

    name: str
    size: int
    resident: bool = False


@dataclass(frozen=True, slots=True)
class NeededMemory:
    """Bytes of a device at one event: allocated, reserved at most, in total, and what must fit.

    ``needed`` is what the fit rule asks for, with fragmentation, ``limit`` usable memory less the
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

    >>> events = training_events(Product(2, 3, 4), job, (0.0, 0.0))
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


def kernel_seconds(
    extents: tuple[Array | float, Array | float, Array | float],
    traffic: Array | float,
    machine: Machine,
    groups: Array | float = 1.0,
) -> Array:
    """Return the time of a GEMM of ``extents`` (m, n, k) that moves ``traffic`` bytes to and from HBM [s].

    ``gemm_seconds`` of the layers, whose traffic is that of operands of the machine's format: HBM bandwidth
    is scaled by it over ``traffic``. ``groups`` of them run as one kernel.

    >>> from autoplan.costs.device.kernels import gemm_seconds
    >>> machine, n = machine_of(job), np.array(4096.0)
    >>> bool(kernel_seconds((n, n, n), 6 * n * n, machine) == gemm_seconds(n, n, n, machine))
    True

    Leaves out: see ``gemm_seconds``.
    Source: autoplan/costs/device/kernels.py.
    """
    m, n, k = (np.asarray(x, dtype=np.float64) for x in extents)
    usual = machine.element_bytes * groups * (m * n + m * k + n * k)
    bandwidth = machine.hbm_bandwidth * (usual / traffic)
    return gemm_seconds_at_rate((m, n, k), machine.gemm, bandwidth, machine.element_bytes, groups)


def forward_seconds(product: Product, machine: Machine) -> float:
    """Return the time of Y = A W [s], with bias and residual in the epilogue.

    >>> plain, added = (forward_seconds(Product(16, 8192, 8192, residual=x), machine) for x in (False, True))
    >>> plain < added < 1.01 * plain
    True

    Leaves out: a residual that a kernel of its own adds, which reads and writes Y once more.
    """
    traffic = float(hbm_bytes(product))
    extents = (float(product.m), float(product.n), float(product.k))
    return float(kernel_seconds(extents, traffic, machine, float(product.batch)))


def backward_seconds(product: Product, machine: Machine) -> tuple[float, float]:
    """Return the times of the input gradient dY W^T and of the weight gradient A^T dY [s].

    GEMMs of (m, k, n) and (k, n, m), as in every layer.

    >>> both = backward_seconds(Product(4096, 4096, 4096), machine)
    >>> both == (forward_seconds(Product(4096, 4096, 4096), machine),) * 2
    True

    Leaves out: the sum of a bias's gradient; fp32 accumulation into an existing gradient.
    Source: autoplan/costs/layer/layer_time.py; PyTorch, tools/autograd/derivatives.yaml, addmm.
    """
    m, n, k = product.m, product.n, product.k
    bare = replace(product, bias=False, residual=False)
    return (
        forward_seconds(replace(bare, m=m, n=k, k=n), machine),
        forward_seconds(replace(bare, m=k, n=n, k=m), machine),
    )


def unmeasured(job: Job, machine: Machine) -> Machine:
    """Return ``machine`` with no time for GEMMs that the device's table covers: what is left is modelled [s].

    >>> [forward_seconds(Product(m, 8192, 8192), unmeasured(job, machine)) > 0 for m in (4096, 1)]
    [False, True]

    Leaves out: interpolation error inside a table.
    Source: autoplan/costs/uncertainty.py, modelled_compute.
    """
    covered = job.precision in MEASURED_PRECISIONS and job.cluster.device.name in job.kernels.devices
    return replace(machine, gemm=replace(machine.gemm, beyond=True)) if covered else machine


def traffic_bytes(product: Product, m: Array, n: Array, k: Array, groups: Array | float = 1.0) -> Array:
    """Return the HBM traffic of GEMMs of other extents in the formats of ``product`` [byte].

    >>> float(traffic_bytes(Product(1, 1, 1), np.array(10.0), np.array(10.0), np.array(10.0)))
    600.0

    Leaves out: bias and residual.
    Source: autoplan/costs/matmul/product.py.
    """
    a, y = float(element_size(product.operands)), float(element_size(product.output))
    moved: Array = groups * (a * (m * k + k * n) + y * m * n)
    return moved
