"""Mixes with more recompute than memory needs: a longer backward overlaps more of the gradient reduction.

A longer backward shortens a stage's end of step by at most what it adds to the stage's time. Where every
critical path passes the stage, the step does not get shorter, and the mix with the least recompute is
optimal. Every path passes the first stage, whose last backward ends the pipeline, and under GPipe all stages.
Under 1F1B with m > p, a critical path that does not pass stage j goes through the warm-up of a stage s < j,
where w_s F^_s > S_{s+1} >= U_{s+1}, the sum of t behind s (``costs.pipeline.critical_path``). For nearly
every job no layer split gives the stages behind s so little work, and nothing is added.

Otherwise mixes are added for stages that may be off the critical path, with ever shorter ends of step, down
to the least of a step: that of the first stage with its least recompute, or of any stage with unlimited
overlap. Stages whose end of step is that of unlimited overlap need no mixes. Where the user's rules
distinguish mixes, this is done within each class; where recompute has to be uniform, not at all. Under a
split backward, reductions overlap with weight-gradient passes, and recompute overlaps with none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import ByMode
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import Stages, end_of_step_floor
from autoplan.deadline import check_deadline
from autoplan.search.alternatives.layer_splits import least_suffix_sums
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Scale,
    alternative_table,
    mixes,
    mixes_at,
)
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import StageRules

#: Positions of fields in an ``Alternative``: those that a mix is compared by, and those it is sorted by.
_TIMES: Final = [Alternative._fields.index(f"{name}_ticks") for name in ("backward", "stage", "end_of_step")]
_ORDER: Final = [Alternative._fields.index(f"{name}_ticks") for name in ("backward", "end_of_step", "memory")]


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
    below = _off_critical_path_below(alternatives, group.layers, makespan)
    ends = [[max(enough, floor) for floor in row] for row in floors]
    by_content = _stages_by_content(alternatives, group.stages.overlaps_reduce[position] > 0, below, ends)
    if not by_content:
        return alternatives
    mixed = _Mixes(group, position, limit, scale)
    shorter = {
        (stage.number, stage.first): _ever_shorter(slower, stage.first, enough)
        for stages in by_content.values()
        for stage, slower in zip(stages, mixed.slower(stages), strict=True)
    }
    stages = tuple(
        tuple(o for first in row for o in (first, *shorter.get((i, first), ())))
        for i, row in enumerate(alternatives.stages)
    )
    return alternatives if stages == alternatives.stages else replace(alternatives, stages=stages)


def _stages_by_content(
    alternatives: Alternatives,
    overlaps: NDArray[np.bool_],
    below: Sequence[int],
    ends: Sequence[Sequence[int]],
) -> dict[tuple[int, int, int], list[_HidingStage]]:
    """Return the stages whose end of step may get shorter, those with the same layers together.

    They overlap reduction, are faster than ``below`` and have a longer end of step than ``ends`` [ticks].
    """
    by_content: dict[tuple[int, int, int], list[_HidingStage]] = {}
    for i in np.flatnonzero(overlaps).tolist():
        for o, end in zip(alternatives.stages[i], ends[i], strict=True):
            if o.end_of_step_ticks > end and o.stage_ticks < below[i]:
                place = (o.first, i) if alternatives.placed else (-1, -1)
                by_content.setdefault((o.layers, *place), []).append(_HidingStage(i, o, below[i]))
    return by_content


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


class _HidingStage(NamedTuple):
    """A stage with its alternative of least recompute; one of ``longest`` ticks is on every critical path."""

    number: int
    first: Alternative
    longest: int


@dataclass(frozen=True, slots=True)
class _Mixes:
    """Recompute mixes of the stages of one candidate, within ``limit`` bytes."""

    group: PricedCandidates
    position: int
    limit: float
    scale: Scale

    def slower(self, stages: Sequence[_HidingStage]) -> Iterator[list[list[int]]]:
        """Yield for each of ``stages`` the alternatives that fit, with a longer backward and a shorter end.

        They are fields of ``Alternative``, the shortest backward first. All stages have the same number of
        layers; where layers differ, they are one stage at one place, once for each class of its mixes.
        """
        check_deadline()
        group, layers = self.group, stages[0].first.layers
        unit, v = int(group.candidates.recompute_num_layers[self.position]), int(group.v[self.position])
        mix = mixes(layers, group.modes, unit)
        count, coefficients = np.array(float(layers)), self._coefficients(stages, mix)
        memory, fits = stage_fits(coefficients.memory, count, mix, self.limit)
        table = alternative_table(coefficients, count, mix, memory, v=v, scale=self.scale)
        # Where layers differ, classes of mixes that the user's rules distinguish share one place.
        table = np.broadcast_to(table, (len(stages), *table.shape[-2:]))
        backward, both, end = (table[..., i] for i in _TIMES)
        firsts = np.array([(*(o[i] for i in _TIMES), longest) for _, o, longest in stages])[..., None]
        worth = (fits > 0) & (backward > firsts[:, 0]) & (both < firsts[:, 3]) & (end < firsts[:, 2])
        rules = group.stage_rules(self.position) if group.parts(self.position) else None
        for stage, entries, mask in zip(stages, table, worth, strict=True):
            index = np.flatnonzero(mask)
            if rules is not None:
                index = _allowed(index, rules[stage.number], stage.first, mix)
            yield sorted(entries[index].tolist(), key=itemgetter(*_ORDER))

    def _coefficients(self, stages: Sequence[_HidingStage], mix: ByMode) -> Stages:
        """Return the coefficients of ``stages``, for [stages, mixes]."""
        if self.group.places is None:
            return self.group.stages.take((self.position, [stage.number for stage in stages], None))
        number, first, _ = stages[0]
        return self.group.holding(self.position, number)(first.first, first.layers, mix)


def _allowed(
    index: NDArray[np.int64], rules: StageRules, first: Alternative, mix: ByMode
) -> NDArray[np.int64]:
    """Return the mixes at ``index`` that the rules allow and do not distinguish from ``first``."""
    reference = {mode: first.count(mode) for mode in mix}
    index = index[rules.indistinguishable(mixes_at(mix, index), reference)]
    return index[rules.allows(first.layers, mixes_at(mix, index))]


def _ever_shorter(slower: Sequence[Sequence[int]], first: Alternative, enough: int) -> list[Alternative]:
    """Return those of ``slower`` whose end of step is shorter than all before, until ``enough`` ticks."""
    shortened: list[Alternative] = []
    least = first.end_of_step_ticks
    for entry in slower:
        alternative = Alternative.of(entry)
        if alternative.end_of_step_ticks < least:
            shortened.append(alternative._replace(first=first.first))
            least = alternative.end_of_step_ticks
        if least <= enough:
            break
    return shortened
