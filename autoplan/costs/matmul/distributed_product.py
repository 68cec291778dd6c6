"""A distributed product: the grids that split it, what its devices send, its time, and a device's memory.

Notation (this file only)::

    b           groups of devices that the batch is split over                     [1]
    r, s, c     parts of the rows of A, of the columns of W, of the inner extent   [1]
    p           devices: b r s c                                                   [1]
    q           side of the square grid of Cannon's scheme and of 2.5D             [1]
    M, N, K, G  a device's extents m/r, n/s, k/c, and its products                 [1]
    S           steps: panels that are gathered, or blocks that are shifted        [1]
    j           rounds: 1 where a batch communicates together, else G              [1]
    V           bytes of the full tensor of one call                               [byte]
    a, y, z     bytes of an element of A and W, of Y, of a partial sum             [byte]
    P, D        bytes that stay, and that come and go                              [byte]
    C, T        seconds of a step's GEMM, and of its transfers                     [s]
    E           exposed seconds of T behind C                                      [s]
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Links, Machine
from autoplan.costs.matmul.product import Product, element_size
from autoplan.costs.matmul.product_costs import device_total, kernel_seconds, segment_bytes, traffic_bytes
from autoplan.costs.memory.footprint import buffer_bytes
from autoplan.costs.network.collectives import Group, Operation, bus_bandwidth_factor, ring_step_seconds
from autoplan.costs.network.overlap import Traffic, exposed_seconds, traffic_of
from autoplan.schema.job import Job
from autoplan.schema.precision import ResultState, SchemeName, StartState

GridAxis = Literal["batch", "rows", "columns", "inner"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Where operands are before and the result afterwards.

    ``one-copy``: A and W are split over all devices, in the layout of the scheme. ``in-place``: each device
    has the blocks of A and W that it needs. ``sharded``: Y is split over all devices; ``replicated``: each
    has all of it.
    """

    start: StartState = "one-copy"
    result: ResultState = "sharded"


@dataclass(frozen=True, slots=True, eq=False)
class Grids:
    """Candidates as arrays of shape [C]: b, r, s, c with their strides, steps, and switches of 0 or 1.

    ``shifted``: blocks move to neighbours (Cannon, 2.5D), else panels are gathered; ``together``: products of
    a batch communicate in one message; ``overlapped``: the next panel moves while one is multiplied.
    """

    batch: Array
    rows: Array
    columns: Array
    inner: Array
    batch_stride: Array
    rows_stride: Array
    columns_stride: Array
    inner_stride: Array
    steps: Array
    shifted: Array
    together: Array
    overlapped: Array

    def __len__(self) -> int:
        """Return C."""
        return len(self.batch)

    def take(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Grids:
        """Return the candidates at ``chosen`` indices, or where it is true [1].

        >>> one = np.ones(3)
        >>> len(Grids(*[one] * 12).take(np.array([True, False, True])))
        2
        """
        return Grids(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def group(self, axis: GridAxis) -> Group:
        """Return the group of devices along ``axis``: ranks and stride [1].

        >>> group = Grids(one, 2 * one, 4 * one, *[one] * 9).group("columns")
        >>> group.ranks.tolist(), group.stride.tolist()
        ([4.0], [1.0])
        """
        return Group(getattr(self, axis), getattr(self, f"{axis}_stride"))

    @property
    def devices(self) -> Array:
        """p, the devices of each candidate [1].

        >>> Grids(one, 2 * one, 4 * one, *[one] * 9).devices.tolist()
        [8.0]
        """
        devices: Array = self.batch * self.rows * self.columns * self.inner
        return devices

    def blocks(self, product: Product) -> tuple[Array, Array, Array, Array]:
        """Return M, N, the inner extent of a step, and G [1]: of the device with most.

        >>> grids = Grids(one, 2 * one, 4 * one, one, *[one] * 4, 3 * one, 0 * one, one, one)
        >>> [float(x[0]) for x in grids.blocks(Product(9, 16, 99))]
        [5.0, 4.0, 33.0, 1.0]
        """
        inner = np.where(self.shifted == 1, self.rows, self.inner * self.steps)
        return (
            np.ceil(product.m / self.rows),
            np.ceil(product.n / self.columns),
            np.ceil(product.k / inner),
            np.ceil(product.batch / self.batch),
        )


def scheme_name(batch: int, rows: int, columns: int, inner: int, *, shifted: bool = False) -> SchemeName:
    """Return what a grid's scheme is called; that of one product where a batch is split as well.

    >>> scheme_name(1, 1, 4, 1), scheme_name(1, 2, 2, 1), scheme_name(1, 2, 2, 2, shifted=True)
    ('columns', 'summa', '2.5d')

    Source: van de Geijn and Watts 1997 (SUMMA); Cannon 1969; Solomonik and Demmel 2011 (2.5D); Agarwal et al.
    1995 (3D).
    """
    if shifted:
        return "cannon" if inner == 1 else "2.5d"
    split: list[SchemeName] = [
        name  # type: ignore[misc]
        for name, parts in (("rows", rows), ("columns", columns), ("inner", inner))
        if parts > 1
    ]
    if not split:
        return "batch" if batch > 1 else "rows"
    if len(split) == 1:
        return split[0]
    return "summa" if inner == 1 else "3d"


#: ``before`` the steps, in each ``step``, and ``after`` them.
Phase = Literal["before", "step", "after"]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Calls of one kind that each device takes part in; arrays of shape [C].

    A collective on V bytes over ``group``, or a ``shift``: V bytes to a neighbour. ``calls`` are those of a
    round.
    """

    name: str
    phase: Phase
    operation: Operation | Literal["shift"]
    group: Group
    size: Array
    calls: Array


def rounds_of(grids: Grids, product: Product) -> Array:
    """Return j, the rounds in which a device goes through its products [1].

    >>> one = np.ones(2)
    >>> grids = Grids(*[one] * 8, steps=one, shifted=0 * one, together=np.array([0.0, 1.0]), overlapped=one)
    >>> rounds_of(grids, Product(8, 8, 8, batch=6)).tolist()
    [6.0, 1.0]
    """
    rounds: Array = np.where(grids.together == 1, 1.0, np.ceil(product.batch / grids.batch))
    return rounds


def transfers_of(grids: Grids, product: Product, terms: Terms) -> list[Transfer]:
    """Return all transfers of a round.

    Gathered panels: all-gathers of a M K/S over s and of a N K/S over r, S times. Shifted blocks (q x q x c):
    all-gathers of a M k/q and a N k/q over c, one shift of each to align them, and q/c - 1 to go on. Then a
    reduce-scatter of z M N over c, and an all-gather of y G m n over all devices where the result is
    replicated; where only the inner extent is split, an all-reduce instead of both.

    >>> two = np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, steps=two, shifted=0 * one, together=one,
    ...               overlapped=one)
    >>> for x in transfers_of(grids, Product(8, 8, 8), Terms()):
    ...     if x.calls[0]:
    ...         print(x.name, x.operation, x.size.tolist(), x.calls.tolist())  # 2 x 4 x 4 bytes, twice
    A all_gather [32.0] [2.0]
    W all_gather [32.0] [2.0]

    Leaves out: broadcasts instead of all-gathers, which send more: each device holds its share of every panel
    (block-cyclic along the inner extent).
    Source: van de Geijn and Watts 1997, doi:10.1002/(SICI)1096-9128(199704)9:4<255::AID-CPE250>3.0.CO;2-2;
    Cannon 1969; Solomonik and Demmel 2011, doi:10.1007/978-3-642-23397-5_10; Agarwal et al. 1995,
    doi:10.1147/rd.395.0575.
    """
    m, n, k, g = grids.blocks(product)
    each = np.where(grids.together == 1, g, 1.0)
    a, z = float(element_size(product.operands)), float(element_size(product.partial))
    block_a, block_w = a * m * k * each, a * n * k * each
    shifted = grids.shifted
    gathers = (1 - shifted) * grids.steps * (terms.start == "one-copy")
    going = np.maximum(0.0, grids.steps - 1.0)
    along_rows, along_columns = grids.group("columns"), grids.group("rows")
    depth = grids.group("inner")
    return [
        Transfer("copies of A", "before", "all_gather", depth, block_a, shifted),
        Transfer("copies of W", "before", "all_gather", depth, block_w, shifted),
        Transfer("alignment of A", "before", "shift", along_rows, block_a, shifted),
        Transfer("alignment of W", "before", "shift", along_columns, block_w, shifted),
        Transfer("A", "step", "all_gather", along_rows, block_a, gathers),
        Transfer("W", "step", "all_gather", along_columns, block_w, gathers),
        Transfer("shifts of A", "step", "shift", along_rows, block_a, shifted * going),
        Transfer("shifts of W", "step", "shift", along_columns, block_w, shifted * going),
        *_of_result(grids, product, terms, z * m * n * each),
    ]


def _of_result(grids: Grids, product: Product, terms: Terms, partial: Array) -> list[Transfer]:
    """Return the transfers of Y: of partial sums, and of the finished blocks."""
    depth, one = grids.group("inner"), np.ones(len(grids))
    world = Group(grids.devices, one)
    replicated = float(terms.result == "replicated")
    reduced = replicated * (grids.inner == grids.devices)
    y = float(element_size(product.output))
    outputs = y * product.batch * product.m * product.n / rounds_of(grids, product)
    return [
        Transfer("Y", "after", "all_reduce", depth, partial, reduced),
        Transfer("Y", "after", "reduce_scatter", depth, partial, (grids.inner > 1) - reduced),
        Transfer("Y", "after", "all_gather", world, outputs, replicated - reduced),
    ]


def sent_bytes(transfer: Transfer) -> Array:
    """Return what a device sends in all calls of a round [byte]: f(n) V, and V of a shift; 0 of one rank.

    >>> shift = Transfer("A", "step", "shift", Group(2 * one, one), 10 * one, 3 * one)
    >>> sent_bytes(shift).tolist()
    [30.0]

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, for the collectives.
    """
    factor = np.ones_like(transfer.size)
    if transfer.operation != "shift":
        factor = bus_bandwidth_factor(transfer.operation, transfer.group.ranks)
    sent: Array = np.where(transfer.group.ranks > 1, factor * transfer.size * transfer.calls, 0.0)
    return sent


def sent_messages(transfer: Transfer) -> Array:
    """Return the messages that a device sends in all calls of a round [1]: n - 1 in a ring, one in a shift.

    >>> sent_messages(Transfer("Y", "after", "all_reduce", Group(4 * one, one), one, 2 * one)).tolist()
    [12.0]

    Leaves out: slices in which a library sends a message; trees.
    Source: Chan et al. 2007, doi:10.1002/cpe.1206, section 5, for rings.
    """
    ring = transfer.group.ranks - 1.0
    steps = {"shift": np.minimum(1.0, ring), "all_reduce": 2.0 * ring}.get(transfer.operation, ring)
    messages: Array = steps * transfer.calls
    return messages


def transfer_traffic(transfer: Transfer, links: Links) -> Traffic:
    """Return the traffic of one call [s]; nothing where the group has one rank.

    >>> links = Links(8, 1e9, 1e9, False, 0.0, 1e9, 0.0, 0.0, ())
    >>> shift = Transfer("A", "step", "shift", Group(2 * one, one), 1e9 * one, one)
    >>> transfer_traffic(shift, links).seconds.tolist()
    [1.0]

    Leaves out: A and W that move at the same time, over different links.
    Source: autoplan/costs/network/collectives.py.
    """
    if transfer.operation != "shift":
        return traffic_of(transfer.operation, transfer.size, transfer.group, links)
    moving = transfer.group.ranks > 1
    seconds = np.where(moving, ring_step_seconds(transfer.size, transfer.group, links), 0.0)
    return Traffic(seconds, seconds)


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

    >>> grids = Grids(*[one] * 8, steps=one, shifted=0 * one, together=one, overlapped=one)
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

    >>> two = np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, 8 * one, 0 * one, one, one)
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

    >>> two = np.full(1, 2.0)
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

    >>> two = np.full(1, 2.0)
    >>> grids = Grids(one, two, two, one, one, two, one, one, two, 0 * one, one, one)
    >>> memory = scheme_memory(grids, Product(8192, 8192, 8192), Terms(), job, 0.0)
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
