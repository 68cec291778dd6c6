"""Memory limit of a device, and the workspace of its GEMM library.

Notation (this file only)::

    M  device memory visible to frameworks                                            [byte]
    s  fragmentation: reserved over allocated bytes of what comes and goes             [1]
    u  share by which fragmentation may exceed s                                       [1]
    w  workspace that PyTorch gives cuBLAS once for each stream, by architecture      [byte]
"""

from __future__ import annotations

from typing import Final, NamedTuple

from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.job import Job


class Overheads(NamedTuple):
    """Fragmentation and CUDA context, central and at the upper ends of their ranges."""

    fragmentation: float
    context: float
    high_fragmentation: float
    high_context: float


def overheads_of(job: Job) -> Overheads:
    """Return s [1] and the CUDA context [byte], and their upper ends: s (1 + u), at most the stack's own.

    >>> overheads = overheads_of(job)
    >>> overheads.fragmentation <= overheads.high_fragmentation, overheads.context < overheads.high_context
    (True, True)

    Leaves out: communicators, see costs/memory/footprint.py.
    Source: the stack's file.
    """
    policy, upper = job.stack.memory, 1.0 + job.stack.uncertainty.fragmentation.value
    share, context = policy.allocator_fragmentation, policy.cuda_context
    most = max(share.value, min(share.value * upper, share.high))
    return Overheads(share.value, context.value, most, context.high)


def memory_limit_bytes(job: Job) -> float:
    """Return the memory limit of a device [byte]: M less the headroom, at most the job's own limit.

    Leaves out: memory of a display or of other processes.
    >>> memory_limit_bytes(job) / 2**30
    79.15
    """
    usable = usable_bytes(job) * (1.0 - job.limits.memory_headroom)
    limit = job.limits.peak_memory
    return usable if limit is None else min(usable, limit)


def reported_memory_bytes(job: Job, peak: float, needed: float) -> tuple[float, float]:
    """Return the 90 % interval of the peak memory that a run reports [byte], of what is predicted.

    Runs report what their allocator has cached beside what they need, and hold what nobody wrote down: the
    upper end is far from ``peak``, but no run reports more than the device has. ``needed`` is what has to be
    free for the layout to fit, and does not depend on the interval.

    >>> [round(x / 2**30, 1) for x in reported_memory_bytes(job, 20.0 * 2**30, 21.0 * 2**30)]
    [17.8, 29.0]
    >>> reported_memory_bytes(job, 70.0 * 2**30, 71.0 * 2**30)[1] == usable_bytes(job)
    True

    Source: peak memory of published runs over what is predicted, publications weighing alike.
    """
    spread = job.stack.uncertainty
    reported = min(peak * (1.0 + spread.memory_higher.value), usable_bytes(job))
    return peak * (1.0 - spread.memory_lower.value), max(needed, reported)


def usable_bytes(job: Job) -> float:
    """Return M, the device memory visible to frameworks [byte].

    Source: the device's file.
    >>> usable_bytes(job) / 2**30  # GiB
    79.15
    """
    return job.cluster.device.memory.usable.value


#: Architectures on which PyTorch gives cuBLAS the workspace of Hopper.
_LARGE_WORKSPACE: Final = frozenset({"hopper", "blackwell"})
#: Architectures on which PyTorch gives hipBLAS the larger workspace (gfx94, gfx95), and both sizes.
_LARGE_HIPBLAS: Final = frozenset({"cdna3", "cdna4"})
_HIPBLAS: Final = (32 * 2.0**20, 128 * 2.0**20)
#: Workspace of cuBLASLt and of hipBLASLt.
_LT_WORKSPACE: Final = {"nvidia": 2.0**20, "amd": 76 * 2.0**20}


def cublas_workspace_bytes(device: DeviceSpec, before_hopper: float, from_hopper: float) -> float:
    """Return w of a device [byte] of the two sizes that an engine's file has.

    >>> sizes, names = (2 * 2**22 + 8 * 2**14, 2**25), ("a100-sxm4-80gb", "h100-sxm5-80gb")
    >>> [cublas_workspace_bytes(load_entry("device", name), *sizes) for name in names]
    [8519680, 33554432]

    Leaves out: CUBLAS_WORKSPACE_CONFIG in the environment; streams other than the first, with one each.
    Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.
    """
    return from_hopper if device.architecture in _LARGE_WORKSPACE else before_hopper


def hipblas_workspace_bytes(device: DeviceSpec) -> float:
    """Return the workspace that PyTorch gives hipBLAS on a device of AMD [byte].

    >>> [hipblas_workspace_bytes(load_entry("device", x)) / 2**20 for x in ("mi250x", "mi300x")]
    [32.0, 128.0]

    Leaves out: HIPBLAS_WORKSPACE_CONFIG in the environment.
    Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.
    """
    small, large = _HIPBLAS
    return large if device.architecture in _LARGE_HIPBLAS else small


def lt_workspace_bytes(device: DeviceSpec) -> float:
    """Return the workspace that PyTorch gives cuBLASLt or hipBLASLt [byte]; 0 for other makers.

    >>> [lt_workspace_bytes(load_entry("device", x)) / 2**20 for x in ("a100-sxm4-80gb", "mi300x")]
    [1.0, 76.0]

    Leaves out: CUBLASLT_WORKSPACE_SIZE in the environment; TORCH_CUBLASLT_UNIFIED_WORKSPACE=1, with which
    cuBLASLt uses that of cuBLAS.
    Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseCUDABlasLtWorkspaceSize.
    """
    return _LT_WORKSPACE.get(device.vendor, 0.0)
