"""Candidates with the memory of their stages, and of those that fit the coefficients of their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import (
    Array,
    ByMode,
    Candidates,
    Ints,
    ScheduleCode,
    distinct,
    joined,
    mapped,
    recompute_mode,
)
from autoplan.costs.core.layer_types import LayerTypes, layer_types_of
from autoplan.costs.core.scope import Scope, microbatches, scope_of
from autoplan.costs.device.machine import Machine
from autoplan.costs.layer.layer_time import LayerTimes
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.costs.pipeline.critical_path import Amount, Largest, makespan
from autoplan.costs.stage.mixed_stages import block_times, mixed_stages_of, price_layer_types
from autoplan.costs.stage.stage_times import Stages
from autoplan.deadline import check_deadline
from autoplan.rules.user_constraints import (
    UserRule,
    embedding_and_loss_counted,
    remainders_of,
    user_rules_of,
    without_layers,
)
from autoplan.schema.job import Job
from autoplan.schema.stage_layers import even_stages
from autoplan.schema.user_rules.expression import Known, Node, Uniform, left_of
from autoplan.search.space.choices import first_of_classes, order_classes, with_searched_modes
from autoplan.search.space.recompute_mixes import StageRules, parts_of, stage_rules
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


X = TypeVar("X", bound=Amount)

_FULL_BACKWARD: Final = ("forward_ticks", "backward_ticks")


class Schedule(NamedTuple):
    """Stages, microbatches and virtual stages of one candidate, and whether it runs GPipe.

    ``split_backward`` says that the backward is split into input and weight gradients: zero-bubble.
    """

    p: int
    m: int
    v: int
    gpipe: bool
    split_backward: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Fields of ``Alternative`` that the makespan depends on."""
        return ("forward_ticks", "input_ticks", "weight_ticks") if self.split_backward else _FULL_BACKWARD

    def time(self, times: Sequence[Sequence[X]], largest: Largest[X]) -> X:
        """Return the makespan of the schedule; ``times`` [parts, p] are those of one chunk."""
        forward, backward, *weight = times
        return makespan(
            forward, backward, self.m, self.v, largest, gpipe=self.gpipe, weight=weight[0] if weight else None
        )


@dataclass(frozen=True, slots=True)
class PricedCandidates(CandidateGroup):
    """Candidates of one pipeline depth and their stage coefficients.

    ``m`` microbatches and ``v`` virtual stages have shape [C]. ``rules`` has the conjuncts of the user's
    rules that remain open for each candidate; it is empty where none remain for any.
    ``kinds`` has the coefficients for each layer type. With several layer types all candidates have the same
    number of virtual stages, and ``places`` has the layer ranges that a stage may have.
    """

    layers: int
    modes: frozenset[str]
    even: bool
    candidates: Candidates
    kinds: tuple[Stages, ...]
    m: Array
    v: Array
    gpipe: NDArray[np.bool_]
    rules: tuple[tuple[Node, ...], ...] = ()
    places: Places | None = None

    @property
    def stages(self) -> Stages:
        """Coefficients of stages where the model has one layer type."""
        return self.kinds[0]

    @property
    def footprints(self) -> tuple[Footprint, ...]:
        """Memory coefficients of stages, for each layer type."""
        return tuple(kind.memory for kind in self.kinds)

    def schedule(self, position: int) -> Schedule:
        """Return the schedule of the candidate at ``position``."""
        m, v, gpipe = self.m[position], self.v[position], self.gpipe[position]
        split_backward = int(self.candidates.schedule[position]) == ScheduleCode.ZERO_BUBBLE
        return Schedule(self.pp, int(m), int(v), bool(gpipe), split_backward)

    @property
    def split_backward(self) -> NDArray[np.bool_]:
        """Whether the backward of each candidate is split into input and weight gradients, shape [C]."""
        split_backward: NDArray[np.bool_] = self.candidates.schedule == ScheduleCode.ZERO_BUBBLE
        return split_backward

    def take(self, index: NDArray[np.int64]) -> PricedCandidates:
        """Return the candidates at ``index``."""
        return PricedCandidates(
            layers=self.layers,
            modes=self.modes,
            even=self.even,
            candidates=self.candidates.take(index),
            kinds=tuple(kind.take(index) for kind in self.kinds),
            m=self.m[index],
            v=self.v[index],
            gpipe=self.gpipe[index],
            rules=tuple(self.rules[i] for i in index.tolist()) if self.rules else (),
            places=self.places,
        )

    def holding(self, position: int, stage: int) -> Callable[[int, int, ByMode], Stages]:
        """Return a function of first layer, layers and recompute that gives a stage's coefficients."""
        kinds, places = [kind.take((position, stage)) for kind in self.kinds], self.places
        if places is None:
            return lambda first, layers, recomputed: kinds[0]  # noqa: ARG005 - one layer type

        def coefficients(first: int, layers: int, recomputed: ByMode) -> Stages:
            order = places.order(stage, first, layers)
            return mixed_stages_of(kinds, places.prefixes.layer_counts(order, recomputed))

        return coefficients

    def parts(self, position: int) -> tuple[Node, ...]:
        """Return the open conjuncts of the user's rules for the candidate at ``position``."""
        return self.rules[position] if self.rules else ()

    def uniform_part(self, position: int) -> Node:
        """Return the open part of a rule that asks for uniform recompute, for a candidate."""
        fixed = self.even or self.pp == 1
        layers = even_stages(self.layers, self.pp, int(self.v[position])) if fixed else None
        return _uniform_part(self.pp, layers, self.modes)

    def requires_uniform_recompute(self, position: int) -> bool:
        """Return whether a rule of the user requires uniform recompute of the stages of a candidate."""
        return bool(self.rules) and _has_part(self.rules[position], self.uniform_part(position))

    def by_uniform_cases(self, position: int) -> bool:
        """Return whether a candidate is solved once per uniform recompute mix of its stages.

        With several layer types the cost of recompute depends on the place of a stage: the solver has the
        rule as a constraint instead.
        """
        return self.places is None and self.requires_uniform_recompute(position)

    def stage_rules(self, position: int) -> tuple[StageRules, ...]:
        """Return the user's rules on each stage of the candidate at ``position``."""
        return stage_rules(self.parts(position), self.pp)

    def rounding(self, position: int) -> float:
        """Return an upper bound on the rounding error of the candidate's step [ticks].

        A path has at most mv + p forwards, as many backwards (and weight gradients where the backward is
        split), and an end of step, all rounded up by less than one.
        """
        parts = len(self.schedule(position).parts)
        return parts * float(self.m[position] * self.v[position] + self.pp) + 1.0


def priced(job: Job, sized: SizedCandidates, machine: Machine) -> PricedCandidates:
    """Return candidates with the cost coefficients of time, too."""
    searched = with_searched_modes(job)
    return _with_prices(job, sized, price_layer_types(searched, sized.candidates, machine, sized.footprints))


def all_priced(job: Job, groups: Sequence[SizedCandidates], machine: Machine) -> list[PricedCandidates]:
    """Return ``groups`` with the cost coefficients of time, too; those of one depth are priced together."""
    at_depth: dict[int, list[SizedCandidates]] = {}
    for group in groups:
        at_depth.setdefault(group.pp, []).append(group)
    searched = with_searched_modes(job)
    together = [joined([group.candidates for group in several]) for several in at_depth.values()]
    blocks = block_times(searched, together, machine)
    prices = {
        several[0].pp: _prices_of_depth(searched, several, candidates, machine, of_depth)
        for several, candidates, of_depth in zip(at_depth.values(), together, blocks, strict=True)
    }
    return [_with_prices(job, group, next(prices[group.pp])) for group in groups]


def _prices_of_depth(
    job: Job,
    groups: Sequence[SizedCandidates],
    candidates: Candidates,
    machine: Machine,
    blocks: Sequence[LayerTimes],
) -> Iterator[tuple[Stages, ...]]:
    """Yield the prices of one group of a depth after the other, as views of those of all ``candidates``."""
    footprints = tuple(map(joined, zip(*(group.footprints for group in groups), strict=True)))
    kinds = price_layer_types(job, candidates, machine, footprints, blocks)
    begin = 0
    for group in groups:
        end = begin + len(group.candidates)
        yield tuple(kind.take(slice(begin, end)) for kind in kinds)
        begin = end


def _with_prices(job: Job, sized: SizedCandidates, kinds: tuple[Stages, ...]) -> PricedCandidates:
    c = sized.candidates
    return PricedCandidates(
        layers=sized.layers,
        modes=sized.modes,
        even=sized.even,
        candidates=c,
        kinds=kinds,
        m=microbatches(job, c),
        v=sized.v,
        gpipe=c.schedule == ScheduleCode.GPIPE,
        rules=open_conjuncts(job, c, user_rules_of(job)),
        places=sized.places,
    )


@lru_cache(maxsize=1024)
def _has_part(parts: tuple[Node, ...], part: Node) -> bool:
    # Trees hash once, but are compared from the top each time.
    return part in parts


@lru_cache(maxsize=256)
def _uniform_part(stages: int, layers: tuple[int, ...] | None, modes: frozenset[str]) -> Node:
    entries = {("layers", i): n for i, n in enumerate(layers or ())} | without_layers(modes, stages)
    return left_of(Uniform("recompute"), Known({}, stages, entries))


def open_conjuncts(
    job: Job, candidates: Candidates, rules: Sequence[UserRule]
) -> tuple[tuple[Node, ...], ...]:
    """Return the open conjuncts of ``rules`` for each candidate.

    Empty where none remain for any candidate.
    """
    if not rules:
        return ()
    residual_rules = [remainders_of(job, rule.relation, candidates) for rule in rules]
    rows = zip(*(numbers.tolist() for _, numbers in residual_rules), strict=True)
    # Candidates with the same residual rules share one object; comparing trees by value is slow.
    parts_by_row: dict[tuple[int, ...], tuple[Node, ...]] = {}
    parts = []
    for row in rows:
        if row not in parts_by_row:
            nodes = [left[number] for (left, _), number in zip(residual_rules, row, strict=True)]
            parts_by_row[row] = tuple(dict.fromkeys(parts_of(nodes)))
        parts.append(parts_by_row[row])
    return tuple(parts) if any(parts) else ()
