"""Candidates with their prices: what bounds, menus and the solver's model read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, Candidates, Ints, only_mode, taken
from autoplan.costs.core.layer_types import LayerTypes, layer_types_of
from autoplan.costs.core.scope import microbatches, scope_of
from autoplan.costs.device.machine import Machine
from autoplan.costs.memory.footprint import Footprint, footprint_of
from autoplan.costs.pipeline.critical_path import Amount, Largest, pipeline_time
from autoplan.costs.stage.mixed_stages import mixed_stages_of, price_layer_types
from autoplan.costs.stage.stage_times import Stages
from autoplan.rules.user_constraints import OwnRule, embedding_and_loss_counted, own_rules, what_is_left
from autoplan.schema.job import Job
from autoplan.schema.layout import ORDERS, SCHEDULES, Layout
from autoplan.schema.stage_layers import even_stages
from autoplan.schema.user_rules.expression import Known, Node, Uniform, left_of
from autoplan.search.space.rank_orders import regardless_of_order
from autoplan.search.space.recompute_mixes import StageRules, parts_of, stage_rules
from autoplan.search.space.stage_contents import Places, places_of

__all__ = ["PricedCandidates", "Schedule", "own_parts", "priced"]

#: Entries of one array [C, p, L] that are worked on at once: 1.6 MB of floats, which a core keeps at hand.
_BLOCK = 200_000
#: Arrays of contents that are worked on together, where there is one for each kind of layers.
_SEVERAL = 4

X = TypeVar("X", bound=Amount)

_ZERO_BUBBLE: Final = SCHEDULES.index("zero-bubble")
_WHOLE: Final = ("forward_ticks", "backward_ticks")


class Schedule(NamedTuple):
    """Stages, microbatches and virtual stages of one candidate, and whether it runs GPipe.

    ``apart`` says that weight gradients are done apart from input gradients: zero-bubble.
    """

    p: int
    m: int
    v: int
    gpipe: bool
    apart: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """What the time of the schedule is made of, as ``Alternative`` calls it."""
        return ("forward_ticks", "input_ticks", "weight_ticks") if self.apart else _WHOLE

    def time(self, times: Sequence[Sequence[X]], largest: Largest[X]) -> X:
        """Return the time of the schedule; ``times`` are of one chunk, a row of stages for each part."""
        forward, backward, *weight = times
        return pipeline_time(
            forward, backward, self.m, self.v, largest, gpipe=self.gpipe, weight=weight[0] if weight else None
        )


@dataclass(frozen=True, slots=True)
class PricedCandidates:
    """Candidates of one pipeline depth and their stage coefficients.

    ``m`` microbatches and ``v`` virtual stages have shape [C]. ``rules`` holds what the user's own rules
    leave to decide for each candidate, as parts that all have to hold; empty where they leave nothing.
    ``kinds`` has the coefficients for each kind of layer. Where there are several, all candidates have as
    many virtual stages, and ``places`` says what a stage may hold.
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
        """The coefficients of stages whose layers are all alike."""
        return self.kinds[0]

    def schedule(self, position: int) -> Schedule:
        """Return the schedule of the candidate at ``position``."""
        m, v, gpipe = self.m[position], self.v[position], self.gpipe[position]
        apart = self.candidates.schedule[position] == _ZERO_BUBBLE
        return Schedule(self.pp, int(m), int(v), bool(gpipe), bool(apart))

    @property
    def fewest(self) -> Array:
        """The fewest layers that a stage of each candidate may have, shape [C]: one a virtual stage.

        One less where embedding and head count as layers.
        """
        fewest: Array = self.v - (self.layers % self.v > 0)
        return fewest

    @property
    def apart(self) -> NDArray[np.bool_]:
        """Which candidates do weight gradients apart, shape [C]."""
        apart: NDArray[np.bool_] = self.candidates.schedule == _ZERO_BUBBLE
        return apart

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
        """Return what gives a stage's coefficients for its first layer, layers and their recompute."""
        kinds, places = [kind.take((position, stage)) for kind in self.kinds], self.places
        if places is None:
            return lambda first, layers, selective, full: kinds[0]  # noqa: ARG005 - layers are alike

        def at(first: int, layers: int, selective: Array, full: Array) -> Stages:
            order = places.order(stage, first, layers)
            return mixed_stages_of(kinds, places.prefixes.held(order, selective, full))

        return at

    def parts(self, position: int) -> tuple[Node, ...]:
        """Return what the user's own rules leave to decide for the candidate at ``position``."""
        return self.rules[position] if self.rules else ()

    def uniform_part(self, position: int) -> Node:
        """Return what a rule that asks for uniform recompute leaves to decide for a candidate."""
        fixed = self.even or self.pp == 1
        held = even_stages(self.layers, self.pp, int(self.v[position])) if fixed else None
        return _uniform_part(self.pp, held)

    def asks_uniform(self, position: int) -> bool:
        """Return whether a rule of the user's own wants every stage of a candidate recomputed alike."""
        return bool(self.rules) and self.uniform_part(position) in self.rules[position]

    def by_cases(self, position: int) -> bool:
        """Return whether a candidate is looked at once for each way to recompute all of its stages alike.

        Where layers differ, what a stage's recompute costs depends on its place: the solver has the rule.
        """
        return self.places is None and self.asks_uniform(position)

    def stage_rules(self, position: int) -> tuple[StageRules, ...]:
        """Return what they say about each stage."""
        return stage_rules(self.parts(position), self.pp)

    def layout(
        self, position: int, layers: Sequence[int], selective: Sequence[int], full: Sequence[int]
    ) -> Layout:
        """Return the layout of the candidate at ``position`` with these stages."""
        c, i = self.candidates, position
        return Layout(
            tp=int(c.tp[i]),
            pp=c.pp,
            dp=int(c.dp[i]),
            cp=int(c.cp[i]),
            ep=int(c.ep[i]),
            expert_tensor=int(c.etp[i]),
            microbatch=int(c.microbatch[i]),
            layers=tuple(layers),
            selective=tuple(selective),
            full=tuple(full),
            zero=int(c.zero[i]),
            vpp=int(c.vpp[i]),
            sequence_parallel=bool(c.sequence_parallel[i]),
            schedule=SCHEDULES[int(c.schedule[i])],
            # Without whole recompute no layers share an input.
            checkpoint=int(c.checkpoint[i]) if any(full) else 1,
            optimizer_offload=bool(c.optimizer_offload[i]),
            activation_offload=bool(c.moved[i]),
            offload_every=int(c.offload_every[i]),
            shard=int(c.shard[i]),
            order=ORDERS[int(c.order[i])],
        )

    def rounding(self, position: int) -> float:
        """Return by how many ticks at most a step of the candidate is rounded up.

        A path has at most mv + p forwards, as many backwards (and weight gradients apart), and a tail, each
        rounded up by less than one.
        """
        parts = len(self.schedule(position).parts)
        return parts * float(self.m[position] * self.v[position] + self.pp) + 1.0

    @property
    def block_size(self) -> int:
        """How many candidates to work on at once, so that arrays [C, p, L] stay small."""
        each = self.places.contents * _SEVERAL if self.places else self.pp * self.layers
        return max(1, _BLOCK // each)

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield positions of candidates, block by block."""
        size = self.block_size
        positions = np.arange(len(self.candidates))
        yield from (positions[i : i + size] for i in range(0, len(positions), size))

    def allowed(self) -> NDArray[np.bool_]:
        """Return which stages may hold how many layers (1 to L), shape [C, p, L].

        Whole virtual stages, leaving some to the others; the even split where only that is wanted.
        """
        v = self.candidates.vpp[:, None]
        if self.even:
            fixed = np.array([even_stages(self.layers, self.pp, int(vpp)) for vpp in v[:, 0]])
            only: NDArray[np.bool_] = np.arange(1, self.layers + 1) == fixed[:, :, None]
            return only
        held = np.arange(1, self.layers + 1)[None, :]
        free = (held % v == 0) & (held <= self.layers - (self.pp - 1) * v)
        if self.pp == 1:
            free &= held == self.layers
        shape = (len(self.candidates), self.pp, self.layers)
        return np.broadcast_to(free[:, None, :], shape)


def priced(
    job: Job, candidates: Candidates, machine: Machine, modes: frozenset[str], *, even: bool
) -> list[PricedCandidates]:
    """Return ``candidates`` with all that the search needs to know of them.

    One group, and one for each recompute of layers whose activations are in host memory, and one of virtual
    stages that count embedding and head; where layers differ one for each number of virtual stages.
    """
    kinds = layer_types_of(job.model, job.workload.sequence_length)
    counted = {
        v: embedding_and_loss_counted(job, candidates.pp, v) for v in np.unique(candidates.vpp).tolist()
    }
    parts = _alike(candidates, candidates.moved)
    parts = [one for part in parts for one in _alike(part, [counted[v] for v in part.vpp.tolist()])]
    if kinds.several:
        parts = [one for part in parts for one in _alike(part, part.vpp)]
    return [
        PricedCandidates(
            layers=job.model.layers,
            modes=_modes_of(c, modes),
            even=even or counted[int(c.vpp[0])],
            candidates=c,
            kinds=price_layer_types(job, c, machine, _footprints(job, c, kinds)),
            m=microbatches(job, c),
            v=c.vpp.astype(np.float64),
            gpipe=c.schedule == SCHEDULES.index("gpipe"),
            rules=own_parts(job, c, own_rules(job)),
            places=places_of(kinds.sequence, c.pp, int(c.vpp[0]), even=even) if kinds.several else None,
        )
        for c in parts
    ]


def _alike(candidates: Candidates, column: Ints | list[bool]) -> list[Candidates]:
    """Return ``candidates`` in parts that have the same number in ``column``."""
    numbers = np.unique(column)
    if len(numbers) == 1:
        return [candidates]
    return [candidates.take(np.asarray(column) == number) for number in numbers]


def _modes_of(candidates: Candidates, modes: frozenset[str]) -> frozenset[str]:
    """Return the recompute modes of candidates of which none, or all, have activations in host memory."""
    only = only_mode(int(candidates.offload[0]))
    return modes if only is None else frozenset({only})


def _footprints(job: Job, candidates: Candidates, kinds: LayerTypes) -> list[Footprint]:
    """Return the memory of each kind of layers; orders of ranks share what one of them takes."""
    same = regardless_of_order(candidates)
    first = np.unique(same, return_index=True)[1]
    some = candidates.take(first)
    return [taken(footprint_of(scope_of(kind, some)), same) for kind in kinds.jobs(job)]


@lru_cache(maxsize=256)
def _uniform_part(stages: int, held: tuple[int, ...] | None) -> Node:
    entries = {("layers", i): n for i, n in enumerate(held or ())}
    return left_of(Uniform("recompute"), Known({}, stages, entries))


def own_parts(job: Job, candidates: Candidates, rules: Sequence[OwnRule]) -> tuple[tuple[Node, ...], ...]:
    """Return what ``rules`` leave to decide for each candidate, as parts that all have to hold.

    Empty where they leave nothing for any.
    """
    left = [what_is_left(job, rule.relation, candidates) for rule in rules]
    # What is left is one object for all candidates that it is the same for; to compare trees takes long.
    found: dict[tuple[int, ...], tuple[Node, ...]] = {}
    parts = []
    for nodes in zip(*left, strict=True):
        key = tuple(map(id, nodes))
        if key not in found:
            found[key] = tuple(dict.fromkeys(parts_of(nodes)))
        parts.append(found[key])
    return tuple(parts) if any(parts) else ()
