"""Mixes with more recompute than memory needs: a longer backward overlaps more of the gradient reduction.

A longer backward shortens a stage's end of step by at most what it adds to the stage's time. Where every
critical path passes the stage, the step does not get shorter, and the mix with the least recompute is
optimal. Every path passes the first stage, whose last backward ends the pipeline, and under GPipe all stages.
Under 1F1B with m > p, a critical path that does not pass stage j goes through the warm-up of a stage s < j,
where w_s F^_s > S_{s+1} >= U_{s+1}, the sum of t behind s (``costs.pipeline.critical_path``). For nearly
every job no layer split gives the stages behind s so little work, and nothing is added.

Otherwise mixes are added for stages that may be off the critical path, with ever shorter ends of step, down
to the least of a step: that of the first stage with its least recompute, or of any stage with unlimited
overlap. Stages whose own end of step is that of unlimited overlap need no mixes. Where the user's own rules
distinguish mixes, this is done within each class; where recompute has to be uniform, not at all. Under a
split backward, reductions overlap with weight-gradient passes, and recompute overlaps with none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import Stages, end_of_step_floor, stage_backward
from autoplan.deadline import check_deadline
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.layer_splits import least_suffix_sums
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, mixes, priced_mixes
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import StageRules

__all__ = ["with_more_reduction_overlap"]


def with_more_reduction_overlap(
    alternatives: Alternatives,
    group: PricedCandidates,
    position: int,
    limit: float,
    makespan: int,
    scale: Scale,
) -> Alternatives:
    """Return ``alternatives`` and those with more recompute and a shorter end of step, in ``makespan``."""
    if (
        alternatives.schedule.gpipe
        or alternatives.schedule.split_backward
        or alternatives.schedule.p == 1
        or group.requires_uniform_recompute(position)
    ):
        return alternatives
    floors = _end_of_step_floors(alternatives, group, position, scale)
    enough = max(min(o.end_of_step_ticks for o in alternatives.stages[0]), *map(min, floors))
    stages: list[tuple[Alternative, ...]] = []
    below = _off_critical_path_below(alternatives, group.layers, makespan)
    rules, unit = group.stage_rules(position), int(group.candidates.recompute_num_layers[position])
    for i, (row, longest, least) in enumerate(zip(alternatives.stages, below, floors, strict=True)):
        check_deadline()
        at = _Coefficients(group, position, i)
        overlaps = bool(group.stages.overlaps_reduce[position, i])
        ends = _EndsOfStep(
            at, overlaps, limit, group.modes, rules[i], alternatives.schedule.v, enough, longest, scale, unit
        )
        stages.append(
            tuple(
                o
                for first, floor in zip(row, least, strict=True)
                for o in (first, *ends.shorter(first, floor))
            )
        )
    return (
        alternatives if tuple(stages) == alternatives.stages else replace(alternatives, stages=tuple(stages))
    )


class _Coefficients:
    """Coefficients of a stage, taken from those of its group when they are first needed: few stages do."""

    def __init__(self, group: PricedCandidates, position: int, stage: int) -> None:
        self._take = partial(group.holding, position, stage)

    @cached_property
    def _holding(self) -> Callable[[int, int, Array, Array], Stages]:
        return self._take()

    def __call__(self, first: int, layers: int, selective: Array, full: Array) -> Stages:
        return self._holding(first, layers, selective, full)


def _end_of_step_floors(
    alternatives: Alternatives, group: PricedCandidates, position: int, scale: Scale
) -> list[list[int]]:
    """Return for each stage and alternative the end of step with unlimited overlap [ticks].

    With several layer types it is 0: it depends on the place of a stage.
    """
    if alternatives.placed:
        return [[0] * len(row) for row in alternatives.stages]
    stages = group.stages.take((position, slice(None), None))
    counts = np.arange(1.0, 1 + max(o.layers for row in alternatives.stages for o in row))
    ticks = scale.step_ticks(end_of_step_floor(stages, counts)).tolist()
    return [
        [of_stage[o.layers - 1] for o in row]
        for of_stage, row in zip(ticks, alternatives.stages, strict=True)
    ]


def _off_critical_path_below(alternatives: Alternatives, layers: int, makespan: int) -> list[int]:
    """Return for each stage the ticks from which on every critical path passes it."""
    s = alternatives.schedule
    slowest = makespan // (s.m * s.v) + 1
    if s.v > 1 or s.m <= s.p:
        return [0] + [slowest] * (s.p - 1)
    fewest = [min(o.stage_ticks for o in row) for row in alternatives.stages]
    suffix_sums, forward, below = least_suffix_sums(alternatives, layers, makespan), 0, [0] * s.p
    for i in range(s.p - 1):
        forward = max(forward, *(o.forward_ticks for o in alternatives.stages[i]))
        warm_up = (s.p - 1 - i) * forward
        if suffix_sums[i + 1] < warm_up:
            others = sum(fewest[i + 1 :])
            for j in range(i + 1, s.p):
                below[j] = max(below[j], min(slowest, warm_up - (others - fewest[j])))
    return below


@dataclass(frozen=True, slots=True)
class _EndsOfStep:
    """Alternatives of one stage with more recompute than memory needs; ``at`` gives its coefficients.

    An end of step of ``enough`` ticks need not get shorter; a stage of ``longest`` ticks or more is on every
    critical path. ``unit`` is the layers per recompute unit.
    """

    at: Callable[[int, int, Array, Array], Stages]
    overlaps: bool
    limit: float
    modes: frozenset[str]
    rules: StageRules
    v: int
    enough: int
    longest: int
    scale: Scale
    unit: int

    def shorter(self, first: Alternative, floor: int) -> list[Alternative]:
        """Return alternatives of ``first.layers`` layers with more recompute and shorter ends of step.

        None of them has an end of step of less than ``floor`` ticks.
        """
        off_path = self.overlaps and first.stage_ticks < self.longest
        if first.end_of_step_ticks <= max(self.enough, floor) or not off_path:
            return []
        shortened = [first]
        for alternative in sorted(
            self._slower(first), key=lambda o: (o.backward_ticks, o.end_of_step_ticks, o.memory_ticks)
        ):
            if alternative.end_of_step_ticks < shortened[-1].end_of_step_ticks:
                shortened.append(alternative)
            if shortened[-1].end_of_step_ticks <= self.enough:
                break
        return shortened[1:]

    def _slower(self, first: Alternative) -> list[Alternative]:
        """Return the alternatives that fit, slower than ``first`` and faster than ``longest``."""
        count = np.array(float(first.layers))
        selective, full = mixes(first.layers, self.modes, self.unit)
        stage = self.at(first.first, first.layers, selective, full)
        backward = self.scale.step_ticks(stage_backward(stage, count, selective, full) / self.v)
        both = first.forward_ticks + backward
        worth = (backward > first.backward_ticks) & (both < self.longest)
        worth &= self.rules.indistinguishable(selective, full, (first.selective, first.full))
        index = np.flatnonzero(worth)
        if not len(index):
            return []
        index = index[self.rules.allows(first.layers, selective[index], full[index])]
        selective, full = selective[index], full[index]
        stage = self.at(first.first, first.layers, selective, full)
        memory, fits = stage_fits(stage.memory, count, selective, full, self.limit)
        memory, fitting = np.broadcast_to(memory, selective.shape), np.flatnonzero(fits > 0)
        if not len(fitting):
            return []
        selective, full, memory = selective[fitting], full[fitting], memory[fitting]
        stage = self.at(first.first, first.layers, selective, full)
        chosen = priced_mixes(stage, first.layers, selective, full, memory, v=self.v, scale=self.scale)
        return [o._replace(first=first.first) for o in chosen] if first.first >= 0 else chosen
