"""The scheme, grid and panel width of a distributed product, chosen by enumeration of all candidates.

Prices of the candidates of a distributed product, and the dominated ones among them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.device.machine import Machine
from autoplan.costs.matmul.distributed_memory import SchemeMemory, scheme_memory
from autoplan.costs.matmul.distributed_time import SchemeTimes, scheme_times
from autoplan.costs.matmul.grids import Grids, SchemeName, Terms, scheme_name
from autoplan.costs.matmul.product import Product
from autoplan.costs.matmul.transfers import rounds_of, sent_bytes, sent_messages, transfers_of
from autoplan.schema.job import Job

__all__ = ["ChosenScheme", "choose_scheme"]


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
