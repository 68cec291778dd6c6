"""Mixes with more recompute than needed, which hide more of the gradient reduction behind their backward.

A longer backward takes from a stage's tail at most what it adds to the stage's time. Where every longest
path passes the stage, the step gets no shorter, and the menu's mix, the one with the least recompute, is as
good as any. Every path passes the first stage, whose last backward ends the pipeline, and under GPipe all
stages. Under 1F1B with m > p, a path that passes stage j by neither forward nor backward fills up at a stage
s < j, where w_s F^_s > S_{s+1} >= U_{s+1}, the sum of t behind s (``costs.pipeline.critical_path``). Where no
split of the layers leaves the stages behind s so little work, there is nothing to gain, which is nearly
everywhere.

What is left is offered: mixes of a stage that may be hidden, with ever shorter tails, down to the tail of the
first stage with its least recompute, since a step has no shorter one. Where the user's own rules tell mixes
apart, every mix stands for those that they do not tell from it; where recompute is to be uniform, for itself.
Where weight gradients are done apart, reductions run beside those, and recompute hides none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autoplan.costs.core.candidates import Array
from autoplan.costs.memory.footprint import stage_fits
from autoplan.costs.stage.stage_times import Stages, stage_backward
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.layer_splits import least_behind
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, mixes, priced_mixes
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import StageRules

__all__ = ["with_shorter_tails"]


def with_shorter_tails(
    alternatives: Alternatives, group: PricedCandidates, position: int, limit: float, busy: int, scale: Scale
) -> Alternatives:
    """Return ``alternatives`` with some that recompute more to hide more, in up to ``busy`` ticks."""
    if (
        alternatives.schedule.gpipe
        or alternatives.schedule.apart
        or alternatives.schedule.p == 1
        or group.asks_uniform(position)
    ):
        return alternatives
    enough = min(o.tail_ticks for o in alternatives.stages[0])
    stages: list[tuple[Alternative, ...]] = []
    below = _hidden_below(alternatives, group.layers, busy)
    rules, each = group.stage_rules(position), int(group.candidates.checkpoint[position])
    for i, (row, longest) in enumerate(zip(alternatives.stages, below, strict=True)):
        # Coefficients are taken where a stage's tails are looked at, which is seldom.
        at = partial(_coefficients, group, position, i)
        hides = bool(group.stages.hides_reduce[position, i])
        tails = _Tails(
            at, hides, limit, group.modes, rules[i], alternatives.schedule.v, enough, longest, scale, each
        )
        stages.append(tuple(o for first in row for o in (first, *tails.shorter(first))))
    return (
        alternatives if tuple(stages) == alternatives.stages else replace(alternatives, stages=tuple(stages))
    )


def _coefficients(
    group: PricedCandidates, position: int, stage: int, first: int, layers: int, selective: Array, full: Array
) -> Stages:
    return group.holding(position, stage)(first, layers, selective, full)


def _hidden_below(alternatives: Alternatives, layers: int, busy: int) -> list[int]:
    """Return for each stage the ticks from which on every longest path passes it."""
    s = alternatives.schedule
    slowest = busy // (s.m * s.v) + 1
    if s.v > 1 or s.m <= s.p:
        return [0] + [slowest] * (s.p - 1)
    fewest = [min(o.both_ticks for o in row) for row in alternatives.stages]
    behind, forward, below = least_behind(alternatives, layers, busy), 0, [0] * s.p
    for i in range(s.p - 1):
        forward = max(forward, *(o.forward_ticks for o in alternatives.stages[i]))
        alone = (s.p - 1 - i) * forward
        if behind[i + 1] < alone:
            others = sum(fewest[i + 1 :])
            for j in range(i + 1, s.p):
                below[j] = max(below[j], min(slowest, alone - (others - fewest[j])))
    return below


@dataclass(frozen=True, slots=True)
class _Tails:
    """What bounds the options of a stage with more recompute than needed; ``at`` gives its coefficients.

    Tails of at most ``enough`` ticks are short enough; stages of ``longest`` ticks or more are not hidden.
    Layers are recomputed whole in multiples of ``each``.
    """

    at: Callable[[int, int, Array, Array], Stages]
    hides: bool
    limit: float
    modes: frozenset[str]
    rules: StageRules
    v: int
    enough: int
    longest: int
    scale: Scale
    each: int

    def shorter(self, first: Alternative) -> list[Alternative]:
        """Return options of as many layers as ``first`` with ever more recompute and ever shorter tails."""
        hidden = self.hides and first.both_ticks < self.longest
        if first.tail_ticks <= self.enough or not hidden:
            return []
        found = [first]
        for option in sorted(
            self._slower(first), key=lambda o: (o.backward_ticks, o.tail_ticks, o.memory_ticks)
        ):
            if option.tail_ticks < found[-1].tail_ticks:
                found.append(option)
            if found[-1].tail_ticks <= self.enough:
                break
        return found[1:]

    def _slower(self, first: Alternative) -> list[Alternative]:
        """Return options that fit and take longer than ``first``, but not too long."""
        held = np.array(float(first.layers))
        selective, full = mixes(first.layers, self.modes, self.each)
        stage = self.at(first.first, first.layers, selective, full)
        memory, fits = stage_fits(stage.memory, held, selective, full, self.limit)
        backward = self.scale.step_ticks(stage_backward(stage, held, selective, full) / self.v)
        both = first.forward_ticks + backward
        worth = (fits > 0) & (backward > first.backward_ticks) & (both < self.longest)
        worth &= self.rules.alike(selective, full, (first.selective, first.full))
        left = np.flatnonzero(worth)
        left = left[self.rules.allows(first.layers, selective[left], full[left])]
        selective, full = selective[left], full[left]
        stage = self.at(first.first, first.layers, selective, full)
        chosen = priced_mixes(stage, first.layers, selective, full, memory[left], v=self.v, scale=self.scale)
        return [o._replace(first=first.first) for o in chosen] if first.first >= 0 else chosen
