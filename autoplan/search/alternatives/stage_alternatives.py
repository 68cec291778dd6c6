"""Non-dominated alternatives of each stage: for each number of layers, the fastest recompute mix that fits.

The makespan does not decrease when a stage's backward grows (``costs.pipeline.critical_path``). So for a
given number of layers the mix with the least recompute time that fits dominates the others, except for
gradient reduction that a longer backward overlaps (``reduction_overlap`` adds mixes for that). Where the
user's rules distinguish mixes, dominance holds within each class (``recompute_mixes``). The solver
decides how many layers each stage holds.

Integer scaling of seconds and bytes for CP-SAT: costs are rounded up, capacities down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, ByMode
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import Stages, end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.schema.recompute import FULL, MODES, listed_modes, total
from autoplan.schema.user_rules.expression import Node
from autoplan.search.space.priced_candidates import PricedCandidates, Schedule
from autoplan.search.space.recompute_mixes import StageRules, keeps

#: Position of each mode among the counts of an alternative, and of the first count in a table's rows.
_POSITION: Final[dict[str, int]] = {mode.name: i for i, mode in enumerate(MODES)}
_COUNTS: Final = 8


class Alternative(NamedTuple):
    """One alternative of a stage: its layers and recompute mix, its time and memory in ticks.

    Times are those of one virtual stage and one microbatch. ``first`` counts the layers of the stages before
    it, where an alternative is for one place only, else it is -1. ``weight_ticks`` is the weight-gradient
    pass, where the schedule splits backward. ``recomputed`` has the layers with each mode of ``MODES``.
    """

    layers: int
    forward_ticks: int
    backward_ticks: int
    stage_ticks: int
    end_of_step_ticks: int
    memory_ticks: int
    first: int = -1
    weight_ticks: int = 0
    recomputed: tuple[int, ...] = (0,) * len(MODES)

    @staticmethod
    def of(entry: Sequence[int]) -> Alternative:
        """Return the alternative of a row of ``alternative_table``."""
        return Alternative._make((*entry[:_COUNTS], tuple(entry[_COUNTS:])))

    def count(self, quantity: str) -> int:
        """Return its layers, or those with a recompute mode."""
        return self.layers if quantity == "layers" else self.recomputed[_POSITION[quantity]]

    @property
    def input_ticks(self) -> int:
        """Ticks of the input-gradient pass, where the schedule splits backward."""
        return self.backward_ticks - self.weight_ticks


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The alternatives of each stage of one candidate, from which the solver chooses one a stage.

    A step takes the makespan of the schedule and the longest end of step. ``rules`` are the user's rules
    across stages; ``placed`` says that layers differ, so that each alternative is for one place.
    """

    stages: tuple[tuple[Alternative, ...], ...]
    schedule: Schedule
    rules: tuple[Node, ...] = ()
    placed: bool = False

    @property
    def empty(self) -> bool:
        """Whether some stage has no alternative."""
        return not all(self.stages)

    def least_end_of_step(self, stages: int) -> int:
        """Return a lower bound on the end of step, from the first ``stages`` stages [ticks]."""
        return max(min(o.end_of_step_ticks for o in row) for row in self.stages[:stages])

    def by_begin(self, stage: int) -> Callable[[int], Sequence[Alternative]]:
        """Return a function: the alternatives of ``stage`` behind so many layers of earlier stages."""
        row = self.stages[stage]
        return _grouped(row, [o.first for o in row]) if self.placed else lambda _: row

    def by_end(self, stage: int, layers: int) -> Callable[[int], Sequence[Alternative]]:
        """Return a function: the alternatives of ``stage`` before so many of all ``layers``."""
        row = self.stages[stage]
        ends = [layers - o.first - o.layers for o in row]
        return _grouped(row, ends) if self.placed else lambda _: row

    @property
    def fixed(self) -> bool:
        """Whether every stage has exactly one alternative."""
        return all(len(row) == 1 for row in self.stages)

    @property
    def quickest(self) -> Alternatives:
        """The fastest alternative, which is the first, for each place and number of layers."""
        if not self.rules:
            return self
        rows = (tuple({(o.first, o.layers): o for o in reversed(row)}.values())[::-1] for row in self.stages)
        return replace(self, stages=tuple(rows))

    def keeps_rules(self, chosen: Sequence[Alternative]) -> bool:
        """Return whether ``chosen``, one alternative a stage, satisfies the rules across stages."""
        if not self.rules:
            return True
        names = ("layers", *_POSITION)
        entries = {(name, i): o.count(name) for name in names for i, o in enumerate(chosen)}
        return keeps(self.rules, entries, len(chosen))


def _grouped(row: Sequence[Alternative], keys: Sequence[int]) -> Callable[[int], Sequence[Alternative]]:
    groups: dict[int, list[Alternative]] = {}
    for key, alternative in zip(keys, row, strict=True):
        groups.setdefault(key, []).append(alternative)
    return lambda key: groups.get(key, ())


def uniform_alternatives(
    rows: Sequence[tuple[Alternative, ...]], layers: int
) -> tuple[tuple[Alternative, ...], ...]:
    """Return the alternatives of uniform recompute: patterns that every stage has, with ``layers`` in all."""
    most_layers: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        for o in row:
            for pattern in _recompute_patterns(o):
                most = most_layers.setdefault(pattern, [0] * len(rows))
                most[i] = max(most[i], o.layers)
    uniform = {pattern for pattern, most in most_layers.items() if min(most) > 0 and sum(most) >= layers}
    return tuple(tuple(o for o in row if not uniform.isdisjoint(_recompute_patterns(o))) for row in rows)


def _recompute_patterns(alternative: Alternative) -> Iterator[object]:
    """Yield the recompute patterns of an alternative: its counts, and all of its layers in one mode."""
    yield alternative.recomputed
    for mode in _POSITION:
        if alternative.layers == alternative.count(mode):
            yield mode


def alternatives_by_rules(
    group: PricedCandidates,
    position: int,
    rules: StageRules,
    place: tuple[int, int],
    most: tuple[float, float],
    scale: Scale,
) -> list[Alternative]:
    """Return the fastest mix of each class that the rules distinguish, for a stage at a place.

    ``place`` is the number of layers before the stage, and of its own; ``most`` is its memory limit [bytes]
    and its time limit [s]. The fastest of all comes first.
    """
    layers, coefficients_of, v = place[1], group.holding(position, rules.stage), int(group.v[position])
    count, (limit, longest) = np.array(float(layers)), most
    mix = mixes(layers, group.modes, int(group.candidates.recompute_num_layers[position]))
    stage = coefficients_of(*place, mix)
    memory, fits = stage_fits(stage.memory, count, mix, limit)
    seconds = stage_forward(stage, count) + stage_backward(stage, count, mix)
    feasible = np.flatnonzero((fits > 0) & (seconds <= longest))
    feasible = feasible[rules.allows(layers, mixes_at(mix, feasible))]
    order = feasible[np.lexsort((memory[feasible], seconds[feasible]))]
    ordered = mixes_at(mix, order)
    stage = coefficients_of(*place, ordered)
    classes: dict[tuple[int, ...], Alternative] = {}
    for alternative in priced_mixes(stage, layers, ordered, memory[order], v=v, scale=scale):
        classes.setdefault(tuple(alternative.count(name) for name in sorted(rules.seen)), alternative)
    return list(classes.values())


_NO_LAYERS: Final = np.zeros(())


@lru_cache(maxsize=1024)
def mixes(layers: int, modes: frozenset[str], unit: int) -> dict[str, Array]:
    """Return all counts of layers with each recompute mode that ``modes`` allow.

    Full recompute is in multiples of ``unit`` layers, the recompute unit.
    """
    counts, listed = np.arange(layers + 1.0), listed_modes(modes)
    axes = [counts[:: unit if mode == FULL else 1] if mode in modes else counts[:1] for mode in listed]
    # The count of the first mode changes fastest.
    grid = np.meshgrid(*reversed(axes), indexing="ij")[::-1]
    mix = {mode: of_mode.ravel() for mode, of_mode in zip(listed, grid, strict=True)}
    recomputed = total(mix, np.zeros(()))
    return mixes_at(mix, recomputed <= layers if "none" in modes else recomputed == layers)


def mixes_at(mix: ByMode, index: NDArray[Any]) -> dict[str, Array]:
    """Return the counts of the mixes at ``index`` (a mask or indices)."""
    return {mode: counts[index] for mode, counts in mix.items()}


def priced_mixes(
    stage: Stages, layers: int, mix: ByMode, memory: Array, *, v: int, scale: Scale
) -> list[Alternative]:
    """Return recompute mixes of one stage as alternatives (``stage``: coefficients of all, or of each)."""
    table = alternative_table(stage, np.array(float(layers)), mix, memory, v=v, scale=scale)
    return [Alternative.of(entry) for entry in table.tolist()]


def alternative_table(
    stage: Stages, layers: Array, mix: ByMode, memory: Array, *, v: Array | int, scale: Scale
) -> NDArray[np.int64]:
    """Return the fields of ``Alternative`` on the last axis, for stages' coefficients of the same shape.

    Its counts come last. ``mix`` is the layers with each recompute mode, ``memory`` their need [bytes].
    """
    forward = scale.step_ticks(stage_forward(stage, layers) / v)
    weight_ticks: NDArray[np.int64] = np.zeros((), dtype=np.int64)
    backward = stage_backward(stage, layers, mix)
    if np.any(stage.split):
        weight = stage_weight(stage, layers)
        weight_ticks, backward = scale.step_ticks(weight / v), backward - weight
    backward_ticks = scale.step_ticks(backward / v) + weight_ticks
    columns = (
        layers.astype(np.int64),
        forward,
        backward_ticks,
        forward + backward_ticks,
        scale.step_ticks(end_of_step(stage, layers, mix).total),
        scale.memory_ticks(memory),
        np.array(-1),
        weight_ticks,
        *(mix.get(mode, _NO_LAYERS).astype(np.int64) for mode in _POSITION),
    )
    shape = np.broadcast_shapes(*(column.shape for column in columns))
    table: NDArray[np.int64] = np.empty((*shape, len(columns)), dtype=np.int64)
    for i, column in enumerate(columns):
        table[..., i] = column
    return table


class Incumbent(NamedTuple):
    """A feasible layout that is given to the solver as a hint: its candidate, and one alternative a stage."""

    candidate: int
    chosen: tuple[Alternative, ...]


def part_ticks(alternatives: Alternatives, chosen: Sequence[Alternative]) -> list[list[int]]:
    """Return the ticks of ``chosen``, one alternative a stage: a row for each pass of the schedule."""
    return [[getattr(o, part) for o in chosen] for part in alternatives.schedule.parts]


def slowest_path_ticks(alternatives: Alternatives, chosen: Sequence[Alternative]) -> int:
    """Return a lower bound on ``step_ticks``: all work of one stage, and a pass of the stages before it.

    With a split backward, the stages before it are left out.
    """
    s, before, longest = alternatives.schedule, 0, 0
    for o in chosen:
        longest = max(longest, before + s.m * s.v * o.stage_ticks)
        before += 0 if s.split_backward else o.stage_ticks
    return longest + max(o.end_of_step_ticks for o in chosen)


def step_ticks(alternatives: Alternatives, chosen: Sequence[Alternative]) -> int:
    """Return the step time of ``chosen``, one alternative a stage: the objective [ticks]."""
    parts = tuple(map(tuple, part_ticks(alternatives, chosen)))
    return _makespan(alternatives.schedule, parts) + max(o.end_of_step_ticks for o in chosen)


@lru_cache(maxsize=2**14)
def _makespan(schedule: Schedule, parts: tuple[tuple[int, ...], ...]) -> int:
    # One layout is the heuristic's, the labels' and the solver's, under one limit after the other.
    return schedule.time(parts, max)


#: Ticks of the longest step and of the memory limit. Their product stays below 2**53, so that sums of
#: time and, by far smaller, memory are exact in the solver's floating-point relaxation too.
_STEP_TICKS = 2**36
_MEMORY_TICKS = 2**16


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one tick of time [s] and of memory [byte]."""

    tick_seconds: float
    tick_bytes: float

    @staticmethod
    def of(longest_seconds: float, limit_bytes: float) -> Scale:
        """Return the scale on which the longest step and the memory limit take the full range of ticks."""
        return Scale(longest_seconds / _STEP_TICKS, limit_bytes / _MEMORY_TICKS)

    @property
    def limit_bytes(self) -> float:
        """The memory limit that takes the full range of ticks [byte]."""
        return self.tick_bytes * _MEMORY_TICKS

    def step_ticks(self, seconds: Array) -> NDArray[np.int64]:
        """Return ``seconds`` in ticks, rounded up."""
        return _up(seconds, self.tick_seconds)

    def memory_ticks(self, size: Array) -> NDArray[np.int64]:
        """Return ``size`` [byte] in ticks, rounded up."""
        return _up(size, self.tick_bytes)

    def memory_limit_ticks(self, limit: float) -> int:
        """Return a capacity of ``limit`` [byte] in ticks, rounded down."""
        return int(np.floor(limit / self.tick_bytes))


def _up(amount: Array, tick: float) -> NDArray[np.int64]:
    ticks: NDArray[np.int64] = np.ceil(np.asarray(amount) / tick).astype(np.int64)
    return ticks
