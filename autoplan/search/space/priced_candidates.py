"""Candidates with their cost coefficients: input of bounds, stage alternatives and the solver's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints, taken, uniform_recompute_mode
from autoplan.costs.core.codes import ScheduleCode
from autoplan.costs.core.layer_types import LayerTypes, layer_types_of
from autoplan.costs.core.scope import microbatches, scope_of
from autoplan.costs.device.machine import Machine
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.costs.pipeline.critical_path import Amount, Largest, makespan
from autoplan.costs.stage.mixed_stages import mixed_stages_of, price_layer_types
from autoplan.costs.stage.stage_times import Stages
from autoplan.rules.user_constraints import OwnRule, embedding_and_loss_counted, own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout
from autoplan.schema.stage_layers import even_stages
from autoplan.schema.user_rules.expression import Known, Node, Uniform, left_of
from autoplan.search.space.rank_orders import order_classes
from autoplan.search.space.recompute_mixes import StageRules, parts_of, stage_rules
from autoplan.search.space.stage_contents import Places, places_of

__all__ = ["PricedCandidates", "Schedule", "open_conjuncts", "priced"]

#: Entries of one array [C, p, L] that are processed at once: 1.6 MB of floats, which fit a core's cache.
_BLOCK = 200_000
#: Arrays of contents that are processed together, where there is one for each layer type.
_SEVERAL = 4

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
class PricedCandidates:
    """Candidates of one pipeline depth and their stage coefficients.

    ``m`` microbatches and ``v`` virtual stages have shape [C]. ``rules`` has the conjuncts of the user's own
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
    def pp(self) -> int:
        """Pipeline depth."""
        return self.candidates.pp

    @property
    def stages(self) -> Stages:
        """Coefficients of stages where the model has one layer type."""
        return self.kinds[0]

    def schedule(self, position: int) -> Schedule:
        """Return the schedule of the candidate at ``position``."""
        m, v, gpipe = self.m[position], self.v[position], self.gpipe[position]
        split_backward = self.candidates.schedule[position] == ScheduleCode.ZERO_BUBBLE
        return Schedule(self.pp, int(m), int(v), bool(gpipe), bool(split_backward))

    @property
    def fewest(self) -> Array:
        """Minimum number of layers of a stage of each candidate, shape [C]: one per virtual stage.

        One less where embedding and head count as layers.
        """
        fewest: Array = self.v - (self.layers % self.v > 0)
        return fewest

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

    def holding(self, position: int, stage: int) -> Callable[[int, int, Array, Array], Stages]:
        """Return a function of first layer, layers and recompute that gives a stage's coefficients."""
        kinds, places = [kind.take((position, stage)) for kind in self.kinds], self.places
        if places is None:
            return lambda first, layers, selective, full: kinds[0]  # noqa: ARG005 - one layer type

        def coefficients(first: int, layers: int, selective: Array, full: Array) -> Stages:
            order = places.order(stage, first, layers)
            return mixed_stages_of(kinds, places.prefixes.held(order, selective, full))

        return coefficients

    def parts(self, position: int) -> tuple[Node, ...]:
        """Return the open conjuncts of the user's own rules for the candidate at ``position``."""
        return self.rules[position] if self.rules else ()

    def uniform_part(self, position: int) -> Node:
        """Return the open part of a rule that asks for uniform recompute, for a candidate."""
        fixed = self.even or self.pp == 1
        layers = even_stages(self.layers, self.pp, int(self.v[position])) if fixed else None
        return _uniform_part(self.pp, layers)

    def requires_uniform_recompute(self, position: int) -> bool:
        """Return whether a rule of the user requires uniform recompute of the stages of a candidate."""
        return bool(self.rules) and self.uniform_part(position) in self.rules[position]

    def by_uniform_cases(self, position: int) -> bool:
        """Return whether a candidate is solved once per uniform recompute mix of its stages.

        With several layer types the cost of recompute depends on the place of a stage: the solver has the
        rule as a constraint instead.
        """
        return self.places is None and self.requires_uniform_recompute(position)

    def stage_rules(self, position: int) -> tuple[StageRules, ...]:
        """Return the user's own rules on each stage of the candidate at ``position``."""
        return stage_rules(self.parts(position), self.pp)

    def layout(
        self, position: int, layers: Sequence[int], selective: Sequence[int], full: Sequence[int]
    ) -> Layout:
        """Return the layout of the candidate at ``position`` with these stages."""
        return self.candidates.layout(position, layers, selective, full)

    def rounding(self, position: int) -> float:
        """Return an upper bound on the rounding error of the candidate's step [ticks].

        A path has at most mv + p forwards, as many backwards (and weight gradients where the backward is
        split), and an end of step, all rounded up by less than one.
        """
        parts = len(self.schedule(position).parts)
        return parts * float(self.m[position] * self.v[position] + self.pp) + 1.0

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


def priced(
    job: Job, candidates: Candidates, machine: Machine, modes: frozenset[str], *, even: bool
) -> list[PricedCandidates]:
    """Return ``candidates`` with their cost coefficients, in groups that share their modes and splits.

    Groups differ in offloaded activations and in whether embedding and head count as layers; with several
    layer types also in the number of virtual stages.
    """
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    counted = {
        v: embedding_and_loss_counted(job, candidates.pp, v) for v in np.unique(candidates.vpp).tolist()
    }
    parts = _partitioned(candidates, candidates.uniform_recompute)
    parts = [
        subset for part in parts for subset in _partitioned(part, [counted[v] for v in part.vpp.tolist()])
    ]
    if kinds.several:
        parts = [subset for part in parts for subset in _partitioned(part, part.vpp)]
    return [
        PricedCandidates(
            layers=job.model.layers,
            modes=_modes_of(c, modes),
            even=even or counted[int(c.vpp[0])],
            candidates=c,
            kinds=price_layer_types(job, c, machine, _footprints(job, c, kinds)),
            m=microbatches(job, c),
            v=c.vpp.astype(np.float64),
            gpipe=c.schedule == ScheduleCode.GPIPE,
            rules=open_conjuncts(job, c, own_rules(job)),
            places=places_of(kinds.sequence, c.pp, int(c.vpp[0]), even=even) if kinds.several else None,
        )
        for c in parts
    ]


def _partitioned(candidates: Candidates, column: Ints | list[bool]) -> list[Candidates]:
    """Return ``candidates`` partitioned by their value in ``column``."""
    numbers = np.unique(column)
    if len(numbers) == 1:
        return [candidates]
    return [candidates.take(np.asarray(column) == number) for number in numbers]


def _modes_of(candidates: Candidates, modes: frozenset[str]) -> frozenset[str]:
    """Return the recompute modes of candidates of which none, or all, have offloaded activations."""
    only = uniform_recompute_mode(int(candidates.offload[0]))
    return modes if only is None else frozenset({only})


def _footprints(job: Job, candidates: Candidates, kinds: LayerTypes) -> list[Footprint]:
    """Return the memory footprint of each layer type, computed once for all rank orders."""
    group = order_classes(candidates)
    first = np.unique(group, return_index=True)[1]
    representatives = candidates.take(first)
    return [taken(footprint_of(scope_of(kind, representatives)), group) for kind in kinds.jobs(job)]


@lru_cache(maxsize=256)
def _uniform_part(stages: int, layers: tuple[int, ...] | None) -> Node:
    entries = {("layers", i): n for i, n in enumerate(layers or ())}
    return left_of(Uniform("recompute"), Known({}, stages, entries))


def open_conjuncts(
    job: Job, candidates: Candidates, rules: Sequence[OwnRule]
) -> tuple[tuple[Node, ...], ...]:
    """Return the open conjuncts of ``rules`` for each candidate.

    Empty where none remain for any candidate.
    """
    residual_rules = [what_is_left(job, rule.relation, candidates) for rule in rules]
    # Candidates with the same residual rule share one object; comparing trees by value is slow.
    parts_by_identity: dict[tuple[int, ...], tuple[Node, ...]] = {}
    parts = []
    for nodes in zip(*residual_rules, strict=True):
        key = tuple(map(id, nodes))
        if key not in parts_by_identity:
            parts_by_identity[key] = tuple(dict.fromkeys(parts_of(nodes)))
        parts.append(parts_by_identity[key])
    return tuple(parts) if any(parts) else ()
