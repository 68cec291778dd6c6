"""Time of a distributed product on one device of it, with and without overlapped panels.

Notation (this file only)::

    C           seconds of a step's GEMM                                   [s]
    T           seconds of a step's transfers                              [s]
    S           steps                                                      [1]
    E           exposed seconds of T behind C                              [s]
    j           rounds, see ``transfers``                                  [1]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Machine
from autoplan.costs.matmul.grids import Grids, Terms
from autoplan.costs.matmul.product import Product, element_size
from autoplan.costs.matmul.product_time import kernel_seconds, traffic_bytes
from autoplan.costs.matmul.transfers import Transfer, rounds_of, transfer_traffic, transfers_of
from autoplan.costs.network.overlap import Traffic, exposed_seconds

__all__ = ["SchemeTimes", "compute_seconds", "scheme_times"]


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
