"""Cases of a rule that asks for uniform recompute: one for each way to recompute every stage alike.

Either all layers of every stage are recomputed in one way, or every stage recomputes the same numbers of
layers. In each case the mix of a stage follows from its layers, so that nothing is left to say across stages:
bounds are exact in recompute, menus have one option for each number of layers, and splits follow by dynamic
programming as without the rule. A layout keeps the rule where it belongs to a case.

A case is passed over where its bound is above the best known, or where the bytes that it saves leave no room
for all layers; both are looked at before anything is priced for each number of layers. So is one
that recomputes more than another on every stage without room for more layers on any: each of its layouts has
one of the other case beside it, with the same layers. That is no slower: recompute adds the same to every
backward, every path of a schedule passes the first stage's backward, and a tail gets shorter by no more than
its stage's backward grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array
from autoplan.costs.memory.footprint import bytes_to_save, stage_fits
from autoplan.costs.stage.stage_times import Stages, stage_backward, stage_forward
from autoplan.schema.user_rules.expression import Node
from autoplan.search.alternatives.integer_scaling import Scale
from autoplan.search.alternatives.primal_heuristic import offered
from autoplan.search.alternatives.stage_alternatives import Alternative, Alternatives, alternative_table
from autoplan.search.bounds.step_bound import (
    Bound,
    bound_by,
    least_busy,
    least_end_of_step,
    least_of_stages,
    longest_stage,
)
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import StageRules, across, stage_rules

__all__ = ["Case", "Cases"]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to recompute alike under a limit: its number, bounds, and prices by stage and layers, [p, L].

    ``seconds`` is infinite where a stage cannot hold as many layers.
    """

    number: int
    step_seconds: float
    stage_sum: float
    tail: float
    seconds: Array
    memory: Array


@dataclass(slots=True)
class Cases:
    """All ways of one candidate to recompute its stages alike, W of them.

    ``selective`` and ``full`` are layers of every stage, -1 for all of them. ``bounds`` holds what no step of
    a case is below under the tightest limit asked for and below it.
    """

    one: PricedCandidates
    selective: NDArray[np.int64]
    full: NDArray[np.int64]
    floor: Array
    bounds: Array
    stages: Stages
    allowed: NDArray[np.bool_]
    rules: tuple[StageRules, ...]
    across: tuple[Node, ...]

    @staticmethod
    def of(group: PricedCandidates, position: int) -> Cases:
        """Return the cases of the candidate at ``position``, whose rules ask for uniform recompute."""
        one = group.take(np.array([position]))
        selective, full = _ways(one)
        stages, allowed = one.stages.take((0, slice(None), None)), one.allowed()[0]
        floor = _floor(one, stages, allowed, selective, full)
        parts = tuple(part for part in one.parts(0) if part != one.uniform_part(0))
        return Cases(
            one=one,
            selective=selective,
            full=full,
            floor=floor,
            bounds=floor.copy(),
            stages=stages,
            allowed=allowed,
            rules=stage_rules(parts, one.pp),
            across=across(parts),
        )

    def within(self, limit: float, most: float, *, remember: bool) -> Iterator[Case]:
        """Yield cases that may take at most ``most`` seconds within ``limit`` bytes, least bound first.

        With ``remember``, what is found out holds for this limit and all tighter ones.
        """
        looked_at = np.flatnonzero((self.bounds if remember else self.floor) <= most)
        room = self._have_room(looked_at, limit)
        index = looked_at[room]
        if remember:
            self.bounds[looked_at[~room]] = inf
        if not len(index):
            return
        seconds, memory = self._priced(index, limit)
        lower = bound_by(self.one, _staircase(seconds, self.allowed))
        held = np.where(np.isfinite(seconds), np.arange(1, self.one.layers + 1), 0).max(axis=2).sum(axis=1)
        steps = np.where(held >= self.one.layers, lower.step_seconds, inf)
        if remember:
            self.bounds[index] = np.maximum(self.bounds[index], steps)
        worth = np.flatnonzero(steps <= most)
        for i in self._undominated(
            index, worth[np.argsort(steps[worth], kind="stable")], lower, seconds, most
        ):
            yield _case(int(index[i]), lower, i, seconds[i], memory[i])

    def _undominated(
        self, index: NDArray[np.int64], worth: NDArray[np.int64], lower: Bound, seconds: Array, most: float
    ) -> Iterator[int]:
        """Yield those ``worth`` a look, positions in ``index``, that no other one makes needless."""
        if not self.comparable or len(worth) < 2:
            yield from worth.tolist()
            return
        schedule, tail = self.one.schedule(0), float(lower.tail.min())
        longest = longest_stage(schedule, float(lower.stage_sum[worth].min()), most - tail)
        room = np.where(seconds <= longest, np.arange(1, self.one.layers + 1), 0).max(axis=2)
        counts = np.stack([self.selective[index], self.full[index]], axis=1)
        kept: list[int] = []
        for i in worth.tolist():
            # All layers, -1, are no count that could be compared.
            beside = (counts[kept] >= 0).all(axis=1) & (counts[kept] <= counts[i]).all(axis=1)
            if not (beside & (room[kept] >= room[i]).all(axis=1)).any():
                kept.append(i)
                yield i

    @property
    def comparable(self) -> bool:
        """Whether more recompute is of use for room alone: no other rule sees it, and it costs the same."""
        costs = {"selective": self.stages.selective, "full": self.stages.full}
        dear = all(cost.min() == cost.max() > 0 for mode, cost in costs.items() if mode in self.one.modes)
        return dear and not self.across and not any(rules.alone for rules in self.rules)

    def alternatives(self, case: Case, scale: Scale, margin: float, most: float) -> Alternatives:
        """Return the menu of ``case``, complete for steps of up to ``most`` seconds and a ``margin`` more."""
        one, held = self.one, np.arange(1.0, self.one.layers + 1)
        longest = longest_stage(one.schedule(0), case.stage_sum, most * (1 + margin) - case.tail)
        wanted = offered(one, case.seconds, longest)
        stages, v = self.stages, int(one.v[0])
        selective, full = (x[0, 0] for x in self._mixes(np.array([case.number])))
        table = alternative_table(stages, held, (selective, full), case.memory, v=v, scale=scale)
        rows = (table[i, self._wanted(i, case, wanted[i])].tolist() for i in range(one.pp))
        chosen = tuple(tuple(Alternative(*entry) for entry in row) for row in rows)
        return Alternatives(chosen, one.schedule(0), self.across)

    def _wanted(self, stage: int, case: Case, seconds: Array) -> NDArray[np.int64]:
        """Return the layers, less one, of finite ``seconds`` on a stage that the rules about it allow."""
        index, rules = np.flatnonzero(np.isfinite(seconds)), self.rules[stage]
        if not rules.alone:
            return index
        selective, full = (x[0, 0, index] for x in self._mixes(np.array([case.number])))
        rows = zip(index.tolist(), selective, full, strict=True)
        allowed = [bool(rules.allows(n + 1, np.array([s]), np.array([f]))[0]) for n, s, f in rows]
        kept: NDArray[np.int64] = index[np.array(allowed, dtype=bool)]
        return kept

    def _mixes(self, index: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return layers recomputed selectively and whole, for each number of layers, shape [W, 1, L]."""
        held = np.arange(1.0, self.one.layers + 1)
        selective, full = (
            np.where(count[index, None, None] < 0, held, count[index, None, None])
            for count in (self.selective, self.full)
        )
        return selective, full

    def _have_room(self, index: NDArray[np.int64], limit: float) -> NDArray[np.bool_]:
        """Return which cases save so many bytes that the stages may hold all layers; where in doubt, true."""
        one, held, memory = self.one, np.arange(1.0, self.one.layers + 1), self.stages.memory
        needed = _staircase(np.where(self.allowed, bytes_to_save(memory, held, limit), inf), held > 0)
        selective, full = self.selective[index], self.full[index]
        saved = selective * (memory.none - memory.selective) + full * (memory.none - memory.full)
        rows = zip(needed, np.broadcast_to(saved, (one.pp, len(index))), strict=True)
        room = sum(np.searchsorted(need, save, side="right") for need, save in rows)
        enough: NDArray[np.bool_] = (room >= one.layers) | (selective < 0) | (full < 0)
        return enough

    def _priced(self, index: NDArray[np.int64], limit: float) -> tuple[Array, Array]:
        """Return the seconds of a stage, infinite where it does not fit, and its bytes, shape [W, p, L]."""
        one, held = self.one, np.arange(1.0, self.one.layers + 1)
        selective, full = self._mixes(index)
        again, each = selective + full, int(one.candidates.checkpoint[0])
        valid = (again <= held) & (full % each == 0)
        if "none" not in one.modes:
            valid &= again == held
        stages = self.stages
        memory, fits = stage_fits(stages.memory, held, selective, full, limit)
        seconds = stage_forward(stages, held) + stage_backward(stages, held, selective, full)
        return np.where(valid & (fits > 0) & self.allowed, seconds, inf), memory


def _ways(one: PricedCandidates) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the layers that every stage recomputes selectively and whole; -1 stands for all of them."""
    each, fewest = int(one.candidates.checkpoint[0]), one.layers // one.pp
    counts = np.arange(fewest + 1)
    some = counts if "selective" in one.modes else counts[:1]
    whole = counts[::each] if "full" in one.modes else counts[:1]
    pairs = [(s, f) for s in some.tolist() for f in whole.tolist() if s + f <= fewest]
    pairs += [(-1, 0)] if "selective" in one.modes else []
    pairs += [(0, -1)] if "full" in one.modes else []
    selective, full = np.array(pairs, dtype=np.int64).T
    return selective, full


def _floor(
    one: PricedCandidates,
    stages: Stages,
    allowed: NDArray[np.bool_],
    selective: NDArray[np.int64],
    full: NDArray[np.int64],
) -> Array:
    """Return what no step of each case is below, whatever the memory.

    Recompute of as many layers on every stage adds the same to any split of the layers.
    """
    held, none = np.arange(1.0, one.layers + 1), np.zeros(())
    seconds = stage_forward(stages, held) + stage_backward(stages, held, none, none)
    alone = np.where(allowed, seconds, inf)[None]
    total, slowest = least_of_stages(one, alone)
    counts = (np.maximum(count, 0)[:, None] for count in (selective, full))
    more = sum(
        (count * cost[:, 0] for count, cost in zip(counts, (stages.selective, stages.full), strict=True)),
        np.zeros((1, one.pp)),
    )
    tail = least_end_of_step(one)
    floor: Array = least_busy(one, total + more.sum(axis=1), slowest + more.min(axis=1)) + tail
    return floor


def _staircase(seconds: Array, allowed: NDArray[np.bool_]) -> Array:
    """Return for each number of layers the least seconds of as many or more: what bounds are made of."""
    least = np.minimum.accumulate(seconds[..., ::-1], axis=-1)[..., ::-1]
    return np.where(allowed, least, inf)


def _case(number: int, lower: Bound, i: int, seconds: Array, memory: Array) -> Case:
    tail = lower.tail[i] if len(lower.tail) > 1 else lower.tail[0]
    return Case(number, float(lower.step_seconds[i]), float(lower.stage_sum[i]), float(tail), seconds, memory)
