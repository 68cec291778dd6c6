"""Time and memory of a distributed product on one device of it, with and without overlapped panels.

Notation (this file only)::

    C           seconds of a step's GEMM                                           [s]
    T           seconds of a step's transfers                                      [s]
    S           steps                                                              [1]
    E           exposed seconds of T behind C                                      [s]
    j           rounds, see ``transfers``                                          [1]
    a, y, z     bytes of an element of A and W, of Y, of a partial sum             [byte]
    M, N, K, G  a device's extents and its products, see ``grids``                 [1]
    P, D        bytes that stay, and that come and go                              [byte]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Machine
from autoplan.costs.matmul.grids import GridAxis, Grids, Terms
from autoplan.costs.matmul.product import Product, element_size
from autoplan.costs.matmul.product_costs import device_total, kernel_seconds, segment_bytes, traffic_bytes
from autoplan.costs.matmul.transfers import Transfer, rounds_of, transfer_traffic, transfers_of
from autoplan.costs.memory.footprint import buffer_bytes
from autoplan.costs.network.overlap import Traffic, exposed_seconds
from autoplan.schema.job import Job


@dataclass(frozen=True, slots=True, eq=False)
class SchemeTimes:
    """Seconds of each candidate, arrays of shape [C]: all GEMMs, all transfers, and both with overlap.

    ``serial`` is their sum, ``overlapped`` hides transfers behind GEMMs where there are several steps, and
    ``seconds`` is the one that the candidate asks for.
    """

    compute: Array
    communication: Array
    serial: Array
    overlapped: Array
    seconds: Array


def compute_seconds(grids: Grids, product: Product, machine: Machine) -> tuple[Array, Array]:
    """Return C of a round's first step, and of each other step [s], which reads partial sums besides.

    A GEMM of (M, N, K/S); where a batch runs together its GEMMs are one kernel.

    >>> one = np.ones(1)
    >>> grids = Grids(*[one] * 8, steps=one, shifted=0 * one, together=one, overlapped=one)
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> first, other = compute_seconds(grids, Product(64, 8192, 64), machine)
    >>> bool(first < other)
    True

    Leaves out: the slices of a panel that are not contiguous.
    Source: autoplan/costs/device/kernels.py.
    """
    m, n, k, g = grids.blocks(product)
    groups = np.where(grids.together == 1, g, 1.0)
    traffic = traffic_bytes(product, m, n, k, groups)
    accumulated_bytes = groups * m * n * float(element_size(product.partial))
    return (
        kernel_seconds((m, n, k), traffic, machine, groups),
        kernel_seconds((m, n, k), traffic + accumulated_bytes, machine, groups),
    )


def scheme_times(grids: Grids, product: Product, terms: Terms, machine: Machine) -> SchemeTimes:
    """Return the times of each candidate [s], shape [C].

    Without overlap j (before + sum of C and T over S steps + after). With overlap the first panel is waited
    for and each other one is hidden behind the GEMM before it: j (before + T + S C + (S - 1) E + after).

    >>> one, two = np.ones(1), np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, 8 * one, 0 * one, one, one)
    >>> machine = machine_of(load_job("llama3-8b-8x-a100"))
    >>> times = scheme_times(grids, Product(16384, 16384, 16384), Terms(), machine)
    >>> bool(times.compute < times.overlapped < times.serial)
    True

    Leaves out: the reduction, which could begin with the first rows of Y; contention between A and W.
    Source: van de Geijn and Watts 1997, section 4, for the pipeline; the interference is the stack's.
    """
    first, other = compute_seconds(grids, product, machine)
    rounds, others = rounds_of(grids, product), np.maximum(0.0, grids.steps - 1.0)
    compute = first + others * other
    calls = np.where(grids.shifted == 1, others, grids.steps)
    step, outside, in_steps = _communication(transfers_of(grids, product, terms), machine)
    exposed = exposed_seconds(other, step, machine)
    waited = np.where(calls > others, step.seconds, 0.0)
    serial = rounds * (outside + compute + in_steps)
    hidden = rounds * (outside + compute + waited + others * np.minimum(exposed, step.seconds))
    return SchemeTimes(
        compute=rounds * compute,
        communication=rounds * (outside + in_steps),
        serial=serial,
        overlapped=hidden,
        seconds=np.where(grids.overlapped == 1, hidden, serial),
    )


def _communication(transfers: list[Transfer], machine: Machine) -> tuple[Traffic, Array, Array]:
    """Return the traffic of one step, and the seconds of all calls of a round outside of and in the steps."""
    step = Traffic(np.zeros(()), np.zeros(()))
    outside = in_steps = np.zeros(())
    for transfer in transfers:
        if not np.any(transfer.calls):
            continue
        traffic = transfer_traffic(transfer, machine.links)
        if transfer.phase == "step":
            step = step + traffic.scaled(np.minimum(1.0, transfer.calls))
            in_steps = in_steps + transfer.calls * traffic.seconds
        else:
            outside = outside + transfer.calls * traffic.seconds
    return step, outside, in_steps


_AXES: tuple[GridAxis, ...] = ("batch", "rows", "columns", "inner")


@dataclass(frozen=True, slots=True, eq=False)
class SchemeMemory:
    """Bytes of a device, arrays of shape [C]: tensors, all of it, and what must be within the limit."""

    tensors: Array
    communicators: Array
    total: Array
    needed: Array


def scheme_tensors(grids: Grids, product: Product, terms: Terms) -> dict[str, Array]:
    """Return the tensors of a device [byte]: its shares of A, W and Y, buffers of panels, partial sums.

    Shares of A and W are a G M K / s and a G N K / r (over c as well where blocks are shifted, which are then
    copied), all of them where operands are in place; two buffers where panels overlap or blocks shift, else
    one. Partial sums z M N have a tensor of their own where they are summed over c, or in another format.

    >>> one, two = np.ones(1), np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, two, 0 * one, one, one)
    >>> {name: float(size[0]) for name, size in scheme_tensors(grids, Product(8, 8, 8), Terms()).items()}
    {'W': 32.0, 'A': 32.0, 'Y': 32.0, 'panels of A': 64.0, 'panels of W': 64.0, 'partial sums': 0.0}

    Leaves out: staging buffers of the communication library, which are the communicators'.
    Source: Solomonik and Demmel 2011, doi:10.1007/978-3-642-23397-5_10, section 3, for the copies of 2.5D.
    """
    m, n, k, g = grids.blocks(product)
    a, y, z = (float(element_size(x)) for x in (product.operands, product.output, product.partial))
    placed = terms.start == "in-place"
    depth = np.ceil(product.k / grids.inner)
    together = np.where(grids.together == 1, g, 1.0)
    share_a = m * depth / (1.0 if placed else grids.columns)
    share_w = n * depth / (1.0 if placed else grids.rows)
    double = np.where((grids.shifted == 1) | ((grids.overlapped == 1) & (grids.steps > 1)), 2.0, 1.0)
    moved = 0.0 if placed else together * double * k * a
    several = (grids.inner > 1) | ((grids.steps > 1) & (z != y))
    result_elements = np.full(len(grids), float(product.batch * product.m * product.n))
    return {
        "W": a * np.ceil(g * share_w),
        "A": a * np.ceil(g * share_a),
        "Y": y * (result_elements if terms.result == "replicated" else np.ceil(g * m * n / grids.inner)),
        "panels of A": np.where(grids.columns > 1, moved * m, 0.0),
        "panels of W": np.where(grids.rows > 1, moved * n, 0.0),
        "partial sums": np.where(several, z * together * m * n, 0.0),
    }


def scheme_memory(grids: Grids, product: Product, terms: Terms, job: Job, workspace: float) -> SchemeMemory:
    """Return the memory of a device for each candidate [byte], shape [C].

    W and the workspace stay, the rest comes and goes; each is rounded as the allocator does. Communicators:
    one for each axis with several ranks, and one of all devices unless an axis has all of them.

    >>> one, two = np.ones(1), np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, two, 0 * one, one, one)
    >>> memory = scheme_memory(grids, Product(8192, 8192, 8192), Terms(), load_job("llama3-8b-8x-a100"), 0.0)
    >>> memory.tensors.tolist(), memory.communicators.tolist()  # 3 x 32 MiB and 4 x 32; MB: 2 x 544 + 688
    ([234881024.0], [1776000000.0])

    Leaves out: memory of other processes.
    Source: the stack's file, for fragmentation, context and communicators.
    """
    tensors = scheme_tensors(grids, product, terms)
    resident = segment_bytes(tensors["W"]) + segment_bytes(workspace)
    moving = sum((segment_bytes(size) for name, size in tensors.items() if name != "W"), np.zeros(()))
    axes = [grids.group(axis).ranks for axis in _AXES]
    world = np.where(np.max(axes, axis=0) == grids.devices, 1.0, grids.devices)
    communicators = sum((buffer_bytes(ranks, job) for ranks in (*axes, world)), np.zeros(()))
    total, needed = device_total(resident, moving, job, communicators)
    return SchemeMemory(sum(tensors.values(), np.zeros(())), communicators, total, needed)
