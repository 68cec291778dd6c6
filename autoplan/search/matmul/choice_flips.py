"""Where the choice of a scheme flips: the nearest latency, bandwidth and number of rows, proven."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.matmul.distributed_memory import scheme_memory
from autoplan.costs.matmul.distributed_time import scheme_times
from autoplan.costs.matmul.extents import MOST_EXTENT, with_extent
from autoplan.costs.matmul.grids import Grids, SchemeName
from autoplan.costs.matmul.product_memory import inference_tensors, needed_memory
from autoplan.costs.matmul.product_time import forward_seconds
from autoplan.costs.matmul.scaled_links import with_scaled_links
from autoplan.search.matmul.scheme_choice import (
    GridKey,
    PricedSchemes,
    SchemeQuestion,
    choose_scheme,
    priced_schemes,
    undominated,
)

__all__ = ["BreakEven", "ChoiceFlip", "FlipParameter", "break_even", "changed_question", "choice_flips"]

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
