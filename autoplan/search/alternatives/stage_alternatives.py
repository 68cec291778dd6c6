"""Menus of one candidate: for each stage and number of layers, the fastest recompute that fits.

The pipeline's time never falls when a stage's backward grows (``costs.pipeline.critical_path``), so for given
layers of a stage the mix with the least recompute time that fits is the fastest: the rest is left out,
safely, but for what a longer backward hides of the tail (``reduction_overlap`` adds mixes for that). Where
the user's own rules tell mixes apart, that holds among those they do not (``recompute_mixes``). Which stage
holds how many layers is left to the solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.memory.footprint import bytes_to_save, stage_fits
from autoplan.costs.stage.stage_times import Stages, end_of_step, stage_backward, stage_forward, stage_weight
from autoplan.schema.user_rules.expression import Node
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.space.priced_candidates import PricedCandidates, Schedule
from autoplan.search.space.recompute_mixes import StageRules, across, keeps

__all__ = [
    "Alternative",
    "Alternatives",
    "Incumbent",
    "alternative_table",
    "alternatives_of",
    "mixes",
    "on_every_stage",
    "part_ticks",
    "priced_mixes",
    "step_ticks",
    "told_apart",
]


class Alternative(NamedTuple):
    """One way to fill a stage; times and memory in ticks, times of one virtual stage's microbatch.

    ``first`` counts the layers of the stages before it, where an option is for one place only.
    ``weight_ticks`` are the part of backward that weight gradients take, where they are done apart.
    """

    layers: int
    selective: int
    full: int
    forward_ticks: int
    backward_ticks: int
    both_ticks: int
    tail_ticks: int
    memory_ticks: int
    first: int = -1
    weight_ticks: int = 0

    @property
    def input_ticks(self) -> int:
        """What is left of backward without weight gradients."""
        return self.backward_ticks - self.weight_ticks


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What the solver chooses from for one candidate: one tuple of options a stage.

    A step takes the ``pipeline_time`` of the schedule, and the longest tail. ``rules`` are what the user's
    own rules say across stages; ``placed``, that layers differ, and each option is for one place.
    """

    stages: tuple[tuple[Alternative, ...], ...]
    schedule: Schedule
    rules: tuple[Node, ...] = ()
    placed: bool = False

    @property
    def empty(self) -> bool:
        """Whether some stage has no option."""
        return not all(self.stages)

    def least_end_of_step(self, stages: int) -> int:
        """Return the ticks of tail that the first ``stages`` stages have at least."""
        return max(min(o.tail_ticks for o in row) for row in self.stages[:stages])

    @property
    def fixed(self) -> bool:
        """Whether no stage has a choice."""
        return all(len(row) == 1 for row in self.stages)

    @property
    def quickest(self) -> Alternatives:
        """The menu with one option for each place and number of layers, the quickest: the first of them."""
        if not self.rules:
            return self
        rows = (tuple({(o.first, o.layers): o for o in reversed(row)}.values())[::-1] for row in self.stages)
        return replace(self, stages=tuple(rows))

    def keeps_rules(self, chosen: Sequence[Alternative]) -> bool:
        """Return whether one option a stage keeps what the rules say across stages."""
        if not self.rules:
            return True
        names = ("layers", "selective", "full")
        entries = {(name, i): getattr(o, name) for name in names for i, o in enumerate(chosen)}
        return keeps(self.rules, entries, len(chosen))


def alternatives_of(
    group: PricedCandidates,
    position: int,
    limit: float,
    offered: Array,
    scale: Scale,
    *,
    longest: float = inf,
) -> Alternatives:
    """Return the menu of the candidate at ``position`` with every device within ``limit`` bytes.

    ``offered`` [p, L] marks layer counts worth offering to a stage: those of finite value. Options of more
    than ``longest`` seconds may be left out.
    """
    v = int(group.v[position])
    wanted = np.isfinite(offered)
    counts = np.flatnonzero(wanted.any(axis=0)) + 1
    stages: tuple[tuple[Alternative, ...], ...] = ((),) * group.pp
    if len(counts):
        coefficients = group.stages.take((position, slice(None), None))
        each = int(group.candidates.checkpoint[position])
        chosen, fits = _options(coefficients, counts, limit, group.modes, (v, each), scale)
        fits &= wanted[:, counts - 1]
        stages = tuple(
            tuple(o for o, fit in zip(row, keep, strict=True) if fit)
            for row, keep in zip(chosen, fits.tolist(), strict=True)
        )
        if group.parts(position):
            stages = _kept_by_rules(group, position, stages, wanted, (limit, longest), scale)
    return Alternatives(stages, group.schedule(position), across(group.parts(position)))


def _kept_by_rules(
    group: PricedCandidates,
    position: int,
    stages: tuple[tuple[Alternative, ...], ...],
    wanted: NDArray[np.bool_],
    most: tuple[float, float],
    scale: Scale,
) -> tuple[tuple[Alternative, ...], ...]:
    """Return ``stages`` with the options that keep the user's own rules, and each that rules tell apart.

    ``most`` holds the bytes and the seconds that a stage may take.
    """
    rows = []
    for row, rules in zip(stages, group.stage_rules(position), strict=True):
        if rules.of_recompute:
            counts = (np.flatnonzero(wanted[rules.stage]) + 1).tolist()
            found = [told_apart(group, position, rules, (-1, n), most, scale) for n in counts]
            rows.append(tuple(option for chosen in found for option in chosen))
        else:
            none = np.zeros(1)
            rows.append(tuple(o for o in row if rules.allows(o.layers, none, none)[0]))
    return on_every_stage(rows, group.layers) if group.asks_uniform(position) else tuple(rows)


def on_every_stage(
    rows: Sequence[tuple[Alternative, ...]], layers: int
) -> tuple[tuple[Alternative, ...], ...]:
    """Return the options of ways to recompute that every stage offers, for all ``layers`` between them."""
    held: dict[object, list[int]] = {}
    for i, row in enumerate(rows):
        for option in row:
            for way in _ways(option):
                most = held.setdefault(way, [0] * len(rows))
                most[i] = max(most[i], option.layers)
    kept = {way for way, most in held.items() if min(most) > 0 and sum(most) >= layers}
    return tuple(tuple(o for o in row if not kept.isdisjoint(_ways(o))) for row in rows)


def _ways(option: Alternative) -> Iterator[object]:
    """Yield how a stage recomputes: these counts, or all of its layers in one way."""
    yield option.selective, option.full
    if option.layers == option.full:
        yield "full"
    if option.layers == option.selective:
        yield "selective"


def told_apart(
    group: PricedCandidates,
    position: int,
    rules: StageRules,
    place: tuple[int, int],
    most: tuple[float, float],
    scale: Scale,
) -> list[Alternative]:
    """Return the fastest of each kind of mixes that rules tell apart, for a stage at a place.

    ``place`` is how many layers come before the stage, and how many it has; ``most`` holds the bytes and the
    seconds that it may take. The fastest of all comes first.
    """
    layers, at, v = place[1], group.holding(position, rules.stage), int(group.v[position])
    held, (limit, longest) = np.array(float(layers)), most
    selective, full = mixes(layers, group.modes, int(group.candidates.checkpoint[position]))
    stage = at(*place, selective, full)
    memory, fits = stage_fits(stage.memory, held, selective, full, limit)
    seconds = stage_forward(stage, held) + stage_backward(stage, held, selective, full)
    left = np.flatnonzero((fits > 0) & (seconds <= longest))
    left = left[rules.allows(layers, selective[left], full[left])]
    order = left[np.lexsort((memory[left], seconds[left]))]
    stage = at(*place, selective[order], full[order])
    chosen = priced_mixes(stage, layers, selective[order], full[order], memory[order], v=v, scale=scale)
    kinds: dict[tuple[int, ...], Alternative] = {}
    for option in chosen:
        kinds.setdefault(tuple(getattr(option, name) for name in sorted(rules.seen)), option)
    return list(kinds.values())


def mixes(layers: int, modes: frozenset[str], each: int) -> tuple[Array, Array]:
    """Return all numbers of selectively and of wholly recomputed layers that the modes allow.

    Layers are recomputed whole in multiples of ``each``.
    """
    counts = np.arange(layers + 1.0)
    selective, full = (x.ravel() for x in np.meshgrid(counts, counts[::each]))
    again = selective + full
    allowed = (
        (again <= layers) & ((selective == 0) | ("selective" in modes)) & ((full == 0) | ("full" in modes))
    )
    if "none" not in modes:
        allowed &= again == layers
    return selective[allowed], full[allowed]


def priced_mixes(
    stage: Stages, layers: int, selective: Array, full: Array, memory: Array, *, v: int, scale: Scale
) -> list[Alternative]:
    """Return mixes of one stage (coefficients of any mix, or of these) as options, with ``memory`` [byte]."""
    table = alternative_table(stage, np.array(float(layers)), (selective, full), memory, v=v, scale=scale)
    return [Alternative(*entry) for entry in table.tolist()]


def alternative_table(
    stage: Stages, layers: Array, mix: tuple[Array, Array], memory: Array, *, v: int, scale: Scale
) -> NDArray[np.int64]:
    """Return the entries of options, which are the last axis, for coefficients of stages that fit each.

    ``mix`` are the layers recomputed selectively and whole, ``memory`` what it needs [byte].
    """
    selective, full = mix
    there = scale.step_ticks(stage_forward(stage, layers) / v)
    later: NDArray[np.int64] = np.zeros((), dtype=np.int64)
    more: tuple[NDArray[np.int64], ...] = ()
    backward = stage_backward(stage, layers, selective, full)
    if np.any(stage.split):
        weight = stage_weight(stage, layers)
        later, backward = scale.step_ticks(weight / v), backward - weight
        more = np.array(-1), later
    back = scale.step_ticks(backward / v) + later
    columns = (
        layers.astype(np.int64),
        selective.astype(np.int64),
        full.astype(np.int64),
        there,
        back,
        there + back,
        scale.step_ticks(end_of_step(stage, layers, selective, full).total),
        scale.memory_ticks(memory),
        *more,
    )
    table: NDArray[np.int64] = np.stack(np.broadcast_arrays(*columns), axis=-1)
    return table


def _options(
    stages: Stages,
    counts: NDArray[np.int64],
    limit: float,
    modes: frozenset[str],
    units: tuple[int, int],
    scale: Scale,
) -> tuple[list[list[Alternative]], NDArray[np.bool_]]:
    """Return the options of every stage (coefficients [p, 1]) for every count, and which fit [p, n].

    ``units`` are virtual stages, and layers that share a checkpoint.
    """
    v, each = units
    layers = counts.astype(np.float64)[None, :]
    selective, full, memory, fits = _fastest_mix(stages, layers, limit, modes, scale, each)
    table = alternative_table(stages, layers, (selective, full), memory, v=v, scale=scale).tolist()
    return [[Alternative(*entry) for entry in row] for row in table], fits


def _fastest_mix(
    stages: Stages, layers: Array, limit: float, modes: frozenset[str], scale: Scale, each: int
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Return selective and full layers of the fastest mix, its memory and whether it fits, shape [p, n].

    For each number of wholly recomputed layers, multiples of ``each``, the fewest selective ones that fit are
    found from the bytes to save; among equal times the mix that needs the least memory is taken.
    """
    stages, layers = stages.take((..., None)), layers[..., None]
    most = layers.max() if "full" in modes else 0.0
    full = np.arange(0.0, most + 1, each)
    selective = _fewest_selective(stages, layers, full, limit, modes)
    memory, fits = stage_fits(stages.memory, layers, selective, full, limit)
    if "selective" in modes:
        # What recompute of the last layers brings back, or the first one saves, may ask for one or two more.
        for _ in range(2):
            more = (fits == 0) & (selective + full < layers) & (selective < 2 + layers - full)
            if not more.any():
                break
            selective = selective + more
            memory, fits = stage_fits(stages.memory, layers, selective, full, limit)
    valid = (selective + full <= layers) & (fits > 0)
    if "none" not in modes:
        valid &= selective + full == layers
    cost = selective * stages.selective + full * stages.full
    # Memory breaks ties only: its share stays below half a tick of time.
    ranked = np.where(valid, cost + 0.5 * scale.tick_seconds * memory / limit, np.inf)
    best = ranked.argmin(axis=-1)
    at = (*np.ogrid[: best.shape[0], : best.shape[1]], best)
    s, f, used, fits = (np.broadcast_to(x, ranked.shape)[at] for x in (selective, full, memory, valid))
    return s, f, used, fits


def _fewest_selective(
    stages: Stages, layers: Array, full: Array, limit: float, modes: frozenset[str]
) -> Array:
    """Return for each number of full layers how many selective ones are needed beside them."""
    left = np.maximum(layers - full, 0.0)
    shape = np.broadcast_shapes(stages.forward.layer.shape, left.shape)
    if "selective" not in modes:
        return np.zeros(shape)
    if "none" not in modes:
        return np.broadcast_to(left, shape)
    memory = stages.memory
    per_layer = memory.none - memory.selective
    short = bytes_to_save(memory, layers, limit) - full * (memory.none - memory.full)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.ceil(short / per_layer - 1e-9)
    # Where selective recompute saves nothing, no number of layers helps.
    needed = np.where(short <= 0, 0.0, np.where(per_layer > 0, whole, np.inf))
    # Free where communication hides it: take all of it.
    needed = np.where((stages.selective <= 0) & (per_layer > 0), left, needed)
    return np.minimum(needed, layers + 1)


class Incumbent(NamedTuple):
    """A layout that is known before the solver is asked: which menu it is of, and its options."""

    candidate: int
    chosen: tuple[Alternative, ...]


def part_ticks(alternatives: Alternatives, chosen: Sequence[Alternative]) -> list[list[int]]:
    """Return the ticks of one option a stage, a row for each part of the schedule."""
    return [[getattr(o, part) for o in chosen] for part in alternatives.schedule.parts]


def step_ticks(alternatives: Alternatives, chosen: Sequence[Alternative]) -> int:
    """Return the step time of one option a stage, in ticks: what the model minimises."""
    return alternatives.schedule.time(part_ticks(alternatives, chosen), max) + max(
        o.tail_ticks for o in chosen
    )
