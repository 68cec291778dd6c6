"""Candidates with the memory of their stages, before their time is priced: most of them do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import (
    Array,
    Candidates,
    Ints,
    distinct,
    joined,
    mapped,
    recompute_mode,
)
from autoplan.costs.core.layer_types import LayerTypes, layer_types_of
from autoplan.costs.core.scope import Scope, scope_of
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.deadline import check_deadline
from autoplan.rules.user_constraints import embedding_and_loss_counted
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages
from autoplan.search.space.choices import first_of_classes, order_classes, with_searched_modes
from autoplan.search.space.stage_contents import Places, places_of

#: Entries of one array [C, p, L] that are processed at once: 1.6 MB of floats, which fit a core's cache.
_BLOCK = 200_000
#: Arrays of contents that are processed together, where each layer type has one.
_SEVERAL = 4


class CandidateGroup:
    """A group of candidates, and the numbers of layers that their stages may have."""

    __slots__ = ()

    layers: int
    even: bool
    candidates: Candidates
    v: Array
    places: Places | None

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return self.candidates.pp

    @property
    def fewest(self) -> Array:
        """Minimum number of layers of a stage of each candidate, shape [C]: one per virtual stage.

        One less where embedding and head count as layers.
        """
        fewest: Array = self.v - (self.layers % self.v > 0)
        return fewest

    @property
    def block_size(self) -> int:
        """Number of candidates to process at once, so that arrays [C, p, L] stay small."""
        entries = self.places.contents * _SEVERAL if self.places else self.pp * self.layers
        return max(1, _BLOCK // entries)

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield positions of candidates, block by block."""
        size = self.block_size
        positions = np.arange(len(self.candidates))
        yield from (positions[i : i + size] for i in range(0, len(positions), size))

    def allowed(self) -> NDArray[np.bool_]:
        """Return the numbers of layers (1 to L) that a stage may have, shape [C, p, L].

        Multiples of v that leave v layers to every other stage; with ``even``, only the even split.
        """
        v = self.candidates.vpp[:, None]
        if self.even:
            fixed = np.array([even_stages(self.layers, self.pp, int(vpp)) for vpp in v[:, 0]])
            even: NDArray[np.bool_] = np.arange(1, self.layers + 1) == fixed[:, :, None]
            return even
        layers = np.arange(1, self.layers + 1)[None, :]
        possible = (layers % v == 0) & (layers <= self.layers - (self.pp - 1) * v)
        if self.pp == 1:
            possible &= layers == self.layers
        shape = (len(self.candidates), self.pp, self.layers)
        return np.broadcast_to(possible[:, None, :], shape)


@dataclass(frozen=True, slots=True)
class SizedCandidates(CandidateGroup):
    """Candidates of one pipeline depth and the memory coefficients of their stages, for each layer type.

    All have the same recompute ``modes`` and the same kind of split; ``v`` virtual stages have shape [C].
    """

    layers: int
    modes: frozenset[str]
    even: bool
    candidates: Candidates
    footprints: tuple[Footprint, ...]
    v: Array
    places: Places | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What groups have in common that can be joined."""
        v = int(self.v[0]) if self.places is not None else 0
        return self.pp, self.modes, self.even, v, int(self.candidates.uniform_recompute[0])

    def with_others(self, others: Sequence[SizedCandidates]) -> SizedCandidates:
        """Return these candidates and those of ``others``, which have the same ``key``, as one group."""
        groups = [self, *others]
        return replace(
            self,
            candidates=joined([group.candidates for group in groups]),
            footprints=tuple(map(joined, zip(*(group.footprints for group in groups), strict=True))),
            v=np.concatenate([group.v for group in groups]),
        )

    def take(self, index: NDArray[np.int64]) -> SizedCandidates:
        """Return the candidates at ``index``."""
        return replace(
            self,
            candidates=self.candidates.take(index),
            footprints=tuple(_at_rows(footprint, index) for footprint in self.footprints),
            v=self.v[index],
        )


def sized(
    job: Job,
    candidates: Candidates,
    modes: frozenset[str],
    *,
    even: bool,
    footprint: Callable[[Scope], Footprint] = footprint_of,
) -> list[SizedCandidates]:
    """Return ``candidates`` with their memory coefficients, in groups that share their modes and splits.

    ``footprint`` returns the coefficients, or lower bounds of them. Groups differ in offloaded activations
    and in whether embedding and head count as layers; with several layer types also in the number of virtual
    stages.
    """
    return [group for _, group in sized_parts(job, candidates, modes, even=even, footprint=footprint)]


def sized_parts(
    job: Job,
    candidates: Candidates,
    modes: frozenset[str],
    *,
    even: bool,
    footprint: Callable[[Scope], Footprint] = footprint_of,
) -> Iterator[tuple[Ints, SizedCandidates]]:
    """Yield the groups of ``sized``, each with the positions of its candidates."""
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    counted = {
        v: embedding_and_loss_counted(job, candidates.pp, v) for v in distinct(candidates.vpp).tolist()
    }
    parts = _partitioned([np.arange(len(candidates))], candidates.uniform_recompute)
    parts = _partitioned(parts, np.array([counted[v] for v in candidates.vpp.tolist()]))
    if kinds.several:
        parts = _partitioned(parts, candidates.vpp)
    footprints, orders = _footprints(job, candidates, kinds, footprint)
    for index in parts:
        check_deadline()
        c = candidates.take(index)
        v = int(c.vpp[0])
        yield (
            index,
            SizedCandidates(
                layers=job.model.layers,
                modes=_modes_of(c, modes),
                even=even or counted[v],
                candidates=c,
                footprints=tuple(_at_rows(footprint, orders[index]) for footprint in footprints),
                v=c.vpp.astype(np.float64),
                places=places_of(kinds.sequence, c.pp, v, even=even) if kinds.several else None,
            ),
        )


def _partitioned(parts: Sequence[Ints], column: NDArray[np.int64] | NDArray[np.bool_]) -> list[Ints]:
    """Return ``parts``, positions of candidates, partitioned by the value in ``column``."""
    return [index[column[index] == number] for index in parts for number in distinct(column[index])]


def _modes_of(candidates: Candidates, modes: frozenset[str]) -> frozenset[str]:
    """Return the recompute modes of candidates of which none, or all, have offloaded activations."""
    only = recompute_mode(int(candidates.uniform_recompute[0]))
    return modes if only is None else frozenset({only})


def _at_rows(footprint: Footprint, rows: Ints) -> Footprint:
    """Return the coefficients at ``rows``, not copied where these are all rows in order.

    Most coefficients are the same on all stages: one is copied, and the others remain views of it.
    """
    count = len(footprint.none)
    if len(rows) == count and (rows == np.arange(count)).all():
        return footprint

    def at_rows(x: Array) -> Array:
        if x.strides[1] == 0:
            return np.broadcast_to(x[rows, :1], (len(rows), x.shape[1]))
        return x[rows]

    return mapped(footprint, at_rows)


def _footprints(
    job: Job, candidates: Candidates, kinds: LayerTypes, footprint: Callable[[Scope], Footprint]
) -> tuple[list[Footprint], Ints]:
    """Return the memory footprints of each layer type, once for all rank orders, and each candidate's row."""
    rows = order_classes(candidates)
    representatives = candidates.take(first_of_classes(rows))
    jobs = kinds.jobs(with_searched_modes(job))
    return [footprint(scope_of(kind, representatives)) for kind in jobs], rows
