"""Time of one product on one device, forward and backward, and how much of it is modelled.

Notation (this file only)::

    m, n, k  extents of Y [m, n] = A [m, k] times W [k, n]               [1]
    W        achieved HBM bandwidth                                 [byte/s]
    x        share of the time outside of measured tables                [1]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.kernels import gemm_seconds_at_rate
from autoplan.costs.device.machine import Machine
from autoplan.costs.matmul.product import Product, element_size, hbm_bytes
from autoplan.costs.uncertainty import MEASURED_PRECISIONS
from autoplan.schema.job import Job

__all__ = ["backward_seconds", "forward_seconds", "kernel_seconds", "traffic_bytes", "unmeasured"]


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
    >>> machine, n = machine_of(load_job("llama3-8b-8x-a100")), np.array(4096.0)
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

    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
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

    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
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

    >>> job = load_job("llama3-8b-8x-a100")
    >>> [forward_seconds(Product(m, 8192, 8192), unmeasured(job, machine_of(job))) > 0 for m in (4096, 1)]
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
