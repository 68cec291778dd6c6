"""Choice of a scheme for a distributed matrix product, by enumeration, and what another machine would change.

Notation (this file only)::

    t   measured time of a collective, and t0 of its smallest message      [s]
    x   latency over that of the links, and y bandwidth over theirs        [1]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from itertools import permutations
from math import isqrt
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, divisors
from autoplan.costs.device.machine import Machine
from autoplan.costs.matmul.distributed_product import (
    GridAxis,
    Grids,
    SchemeMemory,
    SchemeTimes,
    Terms,
    rounds_of,
    scheme_memory,
    scheme_name,
    scheme_times,
    sent_bytes,
    sent_messages,
    transfers_of,
)
from autoplan.costs.matmul.product import MOST_EXTENT, Product, with_extent
from autoplan.costs.matmul.product_costs import forward_seconds, inference_tensors, needed_memory
from autoplan.schema.costmodel.kernel_spec import CollectiveTable
from autoplan.schema.job import Job
from autoplan.schema.precision import SchemeName


@dataclass(frozen=True, slots=True)
class ChosenScheme:
    """Index of the best of all ``candidates`` and its time [s]; None and infinite where none is feasible.

    ``conflict`` is then a minimal set of rules that no candidate keeps: ``memory``, ``scheme``.
    """

    index: int | None
    seconds: float
    candidates: int
    conflict: tuple[str, ...] = ()


def choose_scheme(priced: PricedSchemes, limit: float, allowed: Collection[SchemeName] = ()) -> ChosenScheme:
    """Return the fastest candidate whose memory is within ``limit`` [byte], of the schemes ``allowed``.

    All candidates are priced, so that the least time is that of an array. ``allowed`` left out, all are. Of
    equally fast ones, the one with least memory, and of those the first.
    """
    seconds, needed = priced.times.seconds, priced.memory.needed
    fits = needed <= limit
    named = np.array([not allowed or name in allowed for name in priced.names])
    feasible = np.flatnonzero(fits & named)
    if not len(feasible):
        both = bool(fits.any() and named.any())
        conflict = ("memory", "scheme") if both else ("memory",) if named.any() else ("scheme",)
        return ChosenScheme(None, np.inf, len(named), conflict)
    index = int(feasible[np.lexsort((needed[feasible], seconds[feasible]))[0]])
    return ChosenScheme(index, float(seconds[index]), len(named))


#: What makes a candidate another choice: its scheme, and the parts of its grid.
GridKey = tuple[SchemeName, int, int, int, int]


@dataclass(frozen=True, slots=True)
class SchemeQuestion:
    """A product on several devices: where operands are, the job that prices it, and its machine."""

    product: Product
    terms: Terms
    job: Job
    machine: Machine
    workspace: float


@dataclass(frozen=True, slots=True, eq=False)
class PricedSchemes:
    """Candidates with their names, times, memory, and the bytes and messages that a device sends."""

    grids: Grids
    names: tuple[SchemeName, ...]
    times: SchemeTimes
    memory: SchemeMemory
    bytes: Array
    messages: Array

    def key(self, i: int) -> GridKey:
        """Return what makes candidate ``i`` another choice: its scheme and its grid."""
        g = self.grids
        return self.names[i], int(g.batch[i]), int(g.rows[i]), int(g.columns[i]), int(g.inner[i])


def priced_schemes(question: SchemeQuestion, grids: Grids) -> PricedSchemes:
    """Return the candidates with their prices, all from the cost model."""
    product, terms = question.product, question.terms
    transfers, rounds = transfers_of(grids, product, terms), rounds_of(grids, product)
    columns = zip(
        *(x.tolist() for x in (grids.batch, grids.rows, grids.columns, grids.inner, grids.shifted)),
        strict=True,
    )
    return PricedSchemes(
        grids=grids,
        names=tuple(
            scheme_name(int(b), int(r), int(s), int(c), shifted=bool(shifted))
            for b, r, s, c, shifted in columns
        ),
        times=scheme_times(grids, product, terms, question.machine),
        memory=scheme_memory(grids, product, terms, question.job, question.workspace),
        bytes=rounds * sum((sent_bytes(x) for x in transfers), np.zeros(())),
        messages=rounds * sum((sent_messages(x) for x in transfers), np.zeros(())),
    )


def undominated(priced: PricedSchemes) -> NDArray[np.intp]:
    """Return the candidates that no other of the same scheme and grid beats in time and memory at once.

    Whatever the limit of memory and the schemes that are allowed, one of these is best.
    """
    alike: dict[GridKey, list[int]] = {}
    for i in range(len(priced.grids)):
        alike.setdefault(priced.key(i), []).append(i)
    candidates: list[int] = []
    for indices in alike.values():
        least = np.inf
        for i in sorted(indices, key=lambda i: (priced.times.seconds[i], priced.memory.needed[i], i)):
            if priced.memory.needed[i] < least:
                candidates.append(i)
                least = priced.memory.needed[i]
    return np.array(sorted(candidates), dtype=np.intp)


FlipParameter = Literal["latency", "bandwidth", "rows"]

#: Furthest factor that is looked at, and the ratio of neighbouring ones: a choice that holds only between
#: two of them is not seen.
_FURTHEST: Final = 1000.0
_RATIO: Final = 1.5
#: Relative width to which a factor is bisected.
_WIDTH: Final = 1e-6
#: Candidates up to which all are looked at.
_MOST_CANDIDATES: Final = 8_000


@dataclass(frozen=True, slots=True)
class ChoiceFlip:
    """Two neighbouring values of a parameter with different choices; ``near`` has that of the question.

    Latency and bandwidth are factors on those of the network, inside one node of the fabric; ``rows`` is m.
    ``choices`` are the schemes with their grids at both, ``seconds`` their times there, of all candidates
    priced there. ``far`` without a choice: nothing fits there.
    """

    parameter: FlipParameter
    near: float
    far: float
    choices: tuple[GridKey, GridKey | None]
    seconds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _FlipSpace:
    """The candidates of a question, those looked at, and the schemes ``allowed``."""

    question: SchemeQuestion
    all_grids: Grids
    grids: Grids
    keys: tuple[GridKey, ...]
    limit: float
    allowed: Collection[SchemeName]

    @classmethod
    def of(
        cls, question: SchemeQuestion, priced: PricedSchemes, limit: float, allowed: Collection[SchemeName]
    ) -> _FlipSpace:
        """Return the space; of many candidates only those that are not dominated are looked at."""
        count = len(priced.grids)
        seen = np.arange(count) if count <= _MOST_CANDIDATES else undominated(priced)
        keys = tuple(priced.key(i) for i in seen.tolist())
        return cls(question, priced.grids, priced.grids.take(seen), keys, limit, allowed)

    def admitted(self, question: SchemeQuestion) -> NDArray[np.bool_]:
        """Return which candidates fit, are allowed, and have rows for each part."""
        product, grids = question.product, self.grids
        memory = scheme_memory(grids, product, question.terms, question.job, question.workspace)
        named = np.array([not self.allowed or key[0] in self.allowed for key in self.keys])
        admitted: NDArray[np.bool_] = (memory.needed <= self.limit) & (grids.rows <= product.m) & named
        return admitted


def changed_question(question: SchemeQuestion, parameter: FlipParameter, value: float) -> SchemeQuestion:
    """Return ``question`` with another number of rows, or with latencies or bandwidths times ``value``.

    These are those of the network where the devices are on several nodes, else those of the fabric.
    """
    if parameter == "rows":
        return replace(question, product=replace(question.product, m=int(value)))
    across, machine = question.job.cluster.nodes > 1, question.machine
    if parameter == "latency":
        return replace(question, machine=with_scaled_links(machine, across=across, latency=value))
    return replace(question, machine=with_scaled_links(machine, across=across, bandwidth=value))


def choice_flips(
    question: SchemeQuestion, priced: PricedSchemes, limit: float, allowed: Collection[SchemeName] = ()
) -> Iterator[ChoiceFlip]:
    """Yield the nearest flip of each parameter upwards and downwards, as far as a factor of 1,000.

    The nearest change on a grid of factors 1.5 apart is bisected: to neighbouring numbers of rows, and to a
    millionth of a factor. Then all candidates are priced on both sides; what they do not confirm is left out.
    """
    space = _FlipSpace.of(question, priced, limit, allowed)
    usual, _ = _chosen(space, question)
    parameters: tuple[FlipParameter, ...] = ("latency", "bandwidth", "rows")
    for parameter in parameters:
        best = _chooser(space, parameter, usual)
        here = float(question.product.m) if parameter == "rows" else 1.0
        for upwards in (True, False):
            edge = _edge(best, here, integral=parameter == "rows", upwards=upwards)
            flip = _proven(space, parameter, edge, usual) if edge else None
            if flip:
                yield flip


def _chooser(
    space: _FlipSpace, parameter: FlipParameter, usual: GridKey | None
) -> Callable[[float], GridKey | None]:
    """Return a function from a value to the fastest choice that is admitted, None where none is.

    That is ``usual`` as long as no other is faster: equals are no flip.
    """
    fixed = space.admitted(space.question)
    as_usual = np.array([key == usual for key in space.keys])

    def best(value: float) -> GridKey | None:
        question = changed_question(space.question, parameter, value)
        admitted = space.admitted(question) if parameter == "rows" else fixed
        times = scheme_times(space.grids, question.product, question.terms, question.machine)
        seconds = np.where(admitted, times.seconds, np.inf)
        i = int(np.argmin(seconds))
        if np.min(seconds, where=as_usual, initial=np.inf) == seconds[i] < np.inf:
            return usual
        return space.keys[i] if np.isfinite(seconds[i]) else None

    return best


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Neighbouring numbers of rows: with ``one`` a single device is as fast, with ``several`` all are faster.

    ``choice`` is the scheme of these, and ``seconds`` are the times of one and of several, each at its rows.
    """

    one: float
    several: float
    choice: GridKey
    seconds: tuple[float, float]


def break_even(
    question: SchemeQuestion, priced: PricedSchemes, limit: float, allowed: Collection[SchemeName] = ()
) -> BreakEven | None:
    """Return the nearest numbers of rows from which it pays to use several devices; None without.

    One device has all of A and W at the start, and of Y at the end; where it does not hold them it is not as
    fast. Looked for among fewer rows where several devices pay now, among more where they do not. Found like
    a flip, and confirmed like one.
    """
    space = _FlipSpace.of(question, priced, limit, allowed)

    def faster(rows: float) -> bool:
        return _several_seconds(space, rows) < _one_seconds(question, rows)

    here = float(question.product.m)
    edge = _edge(faster, here, integral=True, upwards=not faster(here))
    if edge is None:
        return None
    several, one = edge if faster(edge[0]) else edge[::-1]
    _, rival = _chosen(space, changed_question(question, "rows", one))
    choice, seconds = _chosen(space, changed_question(question, "rows", several))
    alone = _one_seconds(question, one)
    if choice is None or alone > rival or seconds >= _one_seconds(question, several):
        return None
    return BreakEven(one, several, choice, (alone, seconds))


def _one_seconds(question: SchemeQuestion, rows: float) -> float:
    """Return the time of so many rows on one device [s], infinite where it does not hold them."""
    product = with_extent(question.product, "m", int(rows))
    tensors = inference_tensors(product, (question.workspace, 0.0))
    fits = needed_memory(tensors, question.job).fits
    return forward_seconds(product, question.machine) if fits else np.inf


def _several_seconds(space: _FlipSpace, rows: float) -> float:
    """Return the time of so many rows under the fastest candidate [s], infinite where none is admitted."""
    question = changed_question(space.question, "rows", rows)
    times = scheme_times(space.grids, question.product, question.terms, question.machine)
    return float(np.min(np.where(space.admitted(question), times.seconds, np.inf)))


def _edge(
    best: Callable[[float], object], here: float, *, integral: bool, upwards: bool
) -> tuple[float, float] | None:
    """Return two neighbouring values between which the choice changes, the nearer one first; None without."""
    choice = best(here)
    least, most = (1.0, float(MOST_EXTENT)) if integral else (0.0, np.inf)
    low, factor = here, 1.0
    while factor < _FURTHEST:
        factor *= _RATIO
        value = here * factor if upwards else here / factor
        value = min(most, max(least, float(round(value)) if integral else value))
        if best(value) != choice:
            return _bisected(best, low, value, integral=integral)
        low = value
    return None


def _bisected(
    best: Callable[[float], object], near: float, far: float, *, integral: bool
) -> tuple[float, float]:
    choice = best(near)
    while abs(far - near) > (1.0 if integral else _WIDTH * near):
        middle = (near + far) / 2.0
        middle = float(round(middle)) if integral else middle
        if middle in {near, far}:
            break
        if best(middle) == choice:
            near = middle
        else:
            far = middle
    return near, far


def _proven(
    space: _FlipSpace, parameter: FlipParameter, edge: tuple[float, float], usual: GridKey | None
) -> ChoiceFlip | None:
    """Return the flip as all candidates have it on both sides; None where the choice is the same."""
    sides = (changed_question(space.question, parameter, value) for value in edge)
    (key, seconds), (other, other_seconds) = (_chosen(space, side, usual) for side in sides)
    if key is None or key == other:
        return None
    return ChoiceFlip(parameter, *edge, (key, other), (seconds, other_seconds))


def _chosen(
    space: _FlipSpace, question: SchemeQuestion, usual: GridKey | None = None
) -> tuple[GridKey | None, float]:
    """Return the choice of all candidates, None if nothing is possible, and its time [s].

    That is ``usual`` where no other is faster.
    """
    grids = space.all_grids.take(space.all_grids.rows <= question.product.m)
    if not len(grids):
        return None, np.inf
    priced = priced_schemes(question, grids)
    chosen = choose_scheme(priced, space.limit, space.allowed)
    if chosen.index is None:
        return None, chosen.seconds
    equals = np.flatnonzero((priced.times.seconds == chosen.seconds) & (priced.memory.needed <= space.limit))
    key = usual if usual in {priced.key(i) for i in equals.tolist()} else priced.key(chosen.index)
    return key, chosen.seconds


def with_scaled_links(
    machine: Machine, *, across: bool = False, latency: float = 1.0, bandwidth: float = 1.0
) -> Machine:
    """Return ``machine`` with x times the latency and y times the bandwidth of a level of its links [1].

    Inside a node start-up of a collective and hops scale with x, and the time of bytes with 1 / y; of a
    measured table x t0 + (t - t0) / y, which is the table itself where both are 1. ``across`` nodes hops and
    bandwidth of the network do, and nothing inside a node changes.

    >>> with_scaled_links(machine) == machine
    True
    >>> faster = with_scaled_links(machine, across=True, bandwidth=2.0).links
    >>> faster.network_bandwidth / machine.links.network_bandwidth, faster.tables == machine.links.tables
    (2.0, True)

    Leaves out: a protocol that is chosen by the size of a message, and would change with the latency.
    Source: the latency-bandwidth model (Hockney 1994, doi:10.1016/S0167-8191(06)80021-9).
    """
    links = machine.links
    if latency == bandwidth == 1.0:
        return machine
    if across:
        scaled = replace(
            links,
            network_bandwidth=bandwidth * links.network_bandwidth,
            network_latency=latency * links.network_latency,
        )
    else:
        scaled = replace(
            links,
            fabric_bandwidth=bandwidth * links.fabric_bandwidth,
            pair_bandwidth=bandwidth * links.pair_bandwidth,
            fabric_latency=latency * links.fabric_latency,
            launch=latency * links.launch,
            tables=tuple(_scaled(table, latency, bandwidth) for table in links.tables),
            least=tuple(_scaled(table, latency, bandwidth) for table in links.least),
        )
    return replace(machine, links=scaled)


def _scaled(table: CollectiveTable, latency: float, bandwidth: float) -> CollectiveTable:
    smallest = table.microseconds[0]
    times = (latency * smallest + max(0.0, t - smallest) / bandwidth for t in table.microseconds)
    return table.model_copy(update={"microseconds": tuple(times)})


#: Panels that the inner extent of a device may be cut into, and the narrowest of them.
PANELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_NARROWEST: Final = 64

_AXES: Final[tuple[GridAxis, ...]] = ("batch", "rows", "columns", "inner")


class GridRow(NamedTuple):
    """One candidate: the fields of ``Grids``, in their order."""

    batch: int
    rows: int
    columns: int
    inner: int
    batch_stride: int
    rows_stride: int
    columns_stride: int
    inner_stride: int
    steps: int
    shifted: int
    together: int
    overlapped: int


def scheme_space(product: Product, devices: int, devices_per_node: int, terms: Terms) -> Grids:
    """Return every candidate on ``devices`` devices; none where no part of a product is left for some.

    Grids are all products b r s c = devices with no part empty; where they cross nodes, with each order of
    their axes on the devices. Panels: ``PANELS`` that leave ``_NARROWEST`` elements each. Square grids that
    c divides also shift blocks.
    """
    rows = [
        row
        for grid in _grids(product, devices)
        for strides in _orders(grid, crossing=devices > devices_per_node)
        for row in _rows(grid, strides, product, terms)
    ]
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(fields(Grids))).T
    return Grids(**{field.name: column for field, column in zip(fields(Grids), columns, strict=True)})


def _grids(product: Product, devices: int) -> Iterator[tuple[int, int, int, int]]:
    for batch in divisors(devices):
        for rows in divisors(devices // batch):
            for columns in divisors(devices // batch // rows):
                inner = devices // batch // rows // columns
                extents = (product.batch, product.m, product.n, product.k)
                if all(
                    part <= extent
                    for part, extent in zip((batch, rows, columns, inner), extents, strict=True)
                ):
                    yield batch, rows, columns, inner


def _orders(grid: tuple[int, int, int, int], *, crossing: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield the strides of the axes in each order; inside a node one order stands for all."""
    split = [axis for axis, parts in enumerate(grid) if parts > 1]
    for order in permutations(split) if crossing else [tuple(reversed(split))]:
        strides, stride = [1, 1, 1, 1], 1
        for axis in order:
            strides[axis] = stride
            stride *= grid[axis]
        yield strides[0], strides[1], strides[2], strides[3]


def _rows(
    grid: tuple[int, int, int, int], strides: tuple[int, int, int, int], product: Product, terms: Terms
) -> Iterator[GridRow]:
    """Yield a grid with each number of steps, with and without overlap, and each way to run a batch."""
    batch, rows, columns, inner = grid
    ways = (0, 1) if product.batch > batch else (1,)
    for together in ways:
        for steps in _panels(grid, product, terms):
            for overlapped in (0, 1) if steps > 1 else (0,):
                yield GridRow(*grid, *strides, steps, 0, together, overlapped)
        square = rows == columns > 1 and rows % inner == 0 and isqrt(rows * columns) == rows
        if square and terms.start == "one-copy" and product.k >= rows:
            steps = rows // inner
            for overlapped in (0, 1) if steps > 1 else (0,):
                yield GridRow(*grid, *strides, steps, 1, together, overlapped)


def _panels(grid: tuple[int, int, int, int], product: Product, terms: Terms) -> Iterator[int]:
    """Yield numbers of panels; one where nothing is gathered."""
    _, rows, columns, inner = grid
    depth = -(-product.k // inner)
    gathers = (rows > 1 or columns > 1) and terms.start == "one-copy"
    for panels in PANELS:
        if panels == 1 or (gathers and depth // panels >= _NARROWEST):
            yield panels
