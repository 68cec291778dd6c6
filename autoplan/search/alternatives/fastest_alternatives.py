"""The fastest recompute mix of every stage and number of layers that fits, of several candidates at once.

The arrays of one candidate are small: most of their time is that of calls. So candidates that are opened one
after the other, with the same bound, are priced together.

Uniform recompute is a case distinction: one case for each recompute mix that all stages share. Either all
layers of every stage are recomputed in one mode, or every stage recomputes the same numbers of layers. In
each case the mix of a stage follows from its number of layers, so that no rule across stages remains: bounds
are exact in recompute, a stage has one alternative for each number of layers, and layer splits follow by
dynamic programming. A layout satisfies the rule if and only if it belongs to a case.

A case is pruned where its bound exceeds the incumbent, or where the bytes that it saves are too few for all
layers to fit; both are tested before the case is priced for each number of layers. It is also pruned where it
is dominated: another case recomputes less on every stage, and every stage fits as many layers. Each of its
layouts then has one of the other case with the same layer split, which is no slower: recompute adds the same
to every backward, every path of a schedule passes the first stage's backward, and an end of step gets shorter
by no more than its stage's backward grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoplan.costs.core.candidates import Array, ByMode, Ints
from autoplan.costs.memory.footprint import bytes_to_save, stage_fits
from autoplan.costs.stage.stage_times import Stages, stage_backward, stage_forward
from autoplan.schema.recompute import FULL, listed_modes, total
from autoplan.schema.user_rules.expression import Node
from autoplan.search.alternatives.layer_splits import useful_counts
from autoplan.search.alternatives.stage_alternatives import (
    Alternative,
    Alternatives,
    Scale,
    alternative_table,
    alternatives_by_rules,
    mixes_at,
    uniform_alternatives,
)
from autoplan.search.bounds.step_bound import (
    Bound,
    bound_by,
    least_end_of_step,
    least_makespan,
    least_of_stages,
    longest_stage,
    most_layers_within,
)
from autoplan.search.space.priced_candidates import PricedCandidates
from autoplan.search.space.recompute_mixes import StageRules, across, stage_rules

#: Entries of one array [C, p, n, f] that are priced at once: 1.6 MB of floats.
_BLOCK: Final = 200_000
#: Times the least bound of a batch from which on a step says little: the next incumbent is far below it.
_FAR: Final = 1.5


class RecentFastest:
    """Alternatives of one candidate after the other; those of a batch are priced together."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._batch: Bound | None = None
        self._first_alone = False
        self._priced: _Fastest | None = None

    def begin(self, batch: Bound, most: float) -> None:
        """Expect candidates of ``batch`` next, for steps of up to ``most`` seconds."""
        self._batch, self._priced = batch, None
        # The first candidate then gives an incumbent that excludes most of the others.
        self._first_alone = most > _FAR * float(batch.step_seconds.min())

    def of(
        self, group: PricedCandidates, position: int, limit: float, most: float, lower: Bound
    ) -> Alternatives:
        """Return the alternatives of a candidate for steps of up to ``most`` seconds.

        ``lower`` has its bound under the ``limit`` [bytes], in the row ``position``.
        """
        useful, longest = _useful(group, position, most, lower)
        if lower is not self._batch or self._first_alone or group.parts(position):
            self._first_alone = False
            return alternatives_of(group, position, limit, useful, self._scale, longest=longest)
        if self._priced is None or position not in self._priced.rows:
            following = lower.step_seconds >= lower.step_seconds[position]
            positions = np.flatnonzero(following & (lower.step_seconds <= most))
            positions = positions[np.argsort(lower.step_seconds[positions], kind="stable")]
            offered = [np.isfinite(_useful(group, i, most, lower)[0]) for i in positions.tolist()]
            self._priced = _Fastest.of(group, positions, limit, np.array(offered), self._scale)
        return self._priced.alternatives(position, useful)


def _useful(group: PricedCandidates, position: int, most: float, lower: Bound) -> tuple[Array, float]:
    """Return the times of a candidate's stages by useful number of layers, and the longest of them [s]."""
    busy = most - float(lower.tail[position])
    longest = longest_stage(group.schedule(position), float(lower.stage_sum[position]), busy)
    return useful_counts(group, lower.stage_seconds[position], longest), longest


def alternatives_of(
    group: PricedCandidates,
    position: int,
    limit: float,
    offered: Array,
    scale: Scale,
    *,
    longest: float = inf,
) -> Alternatives:
    """Return the alternatives of the candidate at ``position`` with every device within ``limit`` bytes.

    ``offered`` [p, L] is finite for the useful layer counts of a stage. Alternatives of more than ``longest``
    seconds may be left out.
    """
    useful = np.isfinite(offered)
    fastest = _Fastest.of(group, np.array([position]), limit, useful[None], scale)
    alternatives = fastest.alternatives(position, offered)
    if not group.parts(position) or not useful.any():
        return alternatives
    stages = _under_rules(group, position, alternatives.stages, useful, (limit, longest), scale)
    return Alternatives(stages, alternatives.schedule, across(group.parts(position)))


def _under_rules(
    group: PricedCandidates,
    position: int,
    stages: tuple[tuple[Alternative, ...], ...],
    useful: NDArray[np.bool_],
    most: tuple[float, float],
    scale: Scale,
) -> tuple[tuple[Alternative, ...], ...]:
    """Return ``stages`` under the user's rules: the fastest allowed mix of each class of the rules.

    ``most`` is the memory limit [bytes] and the time limit [s] of a stage.
    """
    rows = []
    for row, rules in zip(stages, group.stage_rules(position), strict=True):
        if rules.of_recompute:
            counts = (np.flatnonzero(useful[rules.stage]) + 1).tolist()
            by_count = [alternatives_by_rules(group, position, rules, (-1, n), most, scale) for n in counts]
            rows.append(tuple(o for chosen in by_count for o in chosen))
        else:
            rows.append(tuple(o for o in row if rules.allows(o.layers, {})[0]))
    return (
        uniform_alternatives(rows, group.layers)
        if group.requires_uniform_recompute(position)
        else tuple(rows)
    )


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest alternatives of candidates, for the same numbers of layers ``counts`` [n].

    ``rows`` maps positions in the group to rows of ``table`` [C, p, n, fields of ``Alternative``] and of
    ``fits`` [C, p, n], which says where the limit allows a mix.
    """

    group: PricedCandidates
    rows: dict[int, int]
    counts: Ints
    table: NDArray[np.int64]
    fits: NDArray[np.bool_]

    @staticmethod
    def of(
        group: PricedCandidates, positions: Ints, limit: float, offered: NDArray[np.bool_], scale: Scale
    ) -> _Fastest:
        """Return those of the first of ``positions``, as many as are priced at once.

        ``offered`` [C, p, L] says which numbers of layers are useful.
        """
        counts = np.flatnonzero(offered.any(axis=(0, 1))) + 1
        enumerated = max(1, len(_enumerated_modes(group.modes)))
        entries = group.pp * len(counts) * (int(counts.max(initial=0)) + 1) ** enumerated
        at = positions[: max(1, _BLOCK // max(1, entries))]
        rows = {position: row for row, position in enumerate(at.tolist())}
        if not len(counts):
            none = np.zeros((len(at), group.pp, 0, 0), dtype=np.int64)
            return _Fastest(group, rows, counts, none, none[..., 0].astype(bool))
        # Coefficients with an axis for the layers and one for the mixes of a number of layers.
        stages, layers = group.stages.take((at, slice(None), None, None)), counts[:, None].astype(np.float64)
        unit = group.candidates.recompute_num_layers[at, None, None, None]
        mix, memory, fits = _fastest_mix(stages, layers, limit, group.modes, scale, unit)
        v = group.v[at, None, None, None]
        table = alternative_table(stages, layers, mix, memory, v=v, scale=scale)
        return _Fastest(group, rows, counts, table[..., 0, :], fits[..., 0])

    def alternatives(self, position: int, offered: Array) -> Alternatives:
        """Return the alternatives of a candidate; ``offered`` [p, L] is finite for those that are useful."""
        row = self.rows[position]
        listed = np.isfinite(offered[:, self.counts - 1]) & self.fits[row]
        entries = self.table[row][listed].tolist()
        chosen = map(Alternative.of, entries)
        stages = tuple(tuple(islice(chosen, count)) for count in listed.sum(axis=1).tolist())
        return Alternatives(stages, self.group.schedule(position))


_NONE: Final = np.zeros(())


def _fastest_mix(
    stages: Stages, layers: Array, limit: float, modes: frozenset[str], scale: Scale, unit: Ints
) -> tuple[dict[str, Array], Array, NDArray[np.bool_]]:
    """Return the fastest mix (layers with each mode), its memory and whether it fits, [C, p, n, 1].

    For each numbers of layers with the other modes, of full recompute multiples of ``unit``, the fewest that
    fit with the first mode follow from the bytes to save; among equal times the mix with the least memory is
    taken. ``stages`` has coefficients [C, p, 1, 1], ``layers`` shape [n, 1] and ``unit`` [C, 1, 1, 1].
    """
    others = _enumerated(layers, modes, unit)
    first = next((mode for mode in listed_modes(modes) if mode in modes - others.keys()), None)
    mix: dict[str, Array] = dict.fromkeys(listed_modes(modes), _NONE) | others
    enumerated = total(others, _NONE)
    if first is not None:
        mix[first] = _fewest(stages, layers, others, limit, modes, first)
    memory, fits = stage_fits(stages.memory, layers, mix, limit)
    if first is not None:
        # The recompute workspace of the last layers, or what the first one saves, may require one or two
        # more.
        for _ in range(2):
            short = (fits == 0) & (total(mix, _NONE) < layers) & (mix[first] < 2 + layers - enumerated)
            if not short.any():
                break
            mix[first] = mix[first] + short
            memory, fits = stage_fits(stages.memory, layers, mix, limit)
    valid = (total(mix, _NONE) <= layers) & (fits > 0)
    if "none" not in modes:
        valid &= total(mix, _NONE) == layers
    cost = sum((count * stages.recompute[mode] for mode, count in mix.items()), _NONE)
    # Memory breaks ties only: its share stays below half a tick of time.
    ranked = np.where(valid, cost + 0.5 * scale.tick_seconds * memory / limit, np.inf)
    best = ranked.argmin(axis=-1)[..., None]
    chosen = {mode: _at(best, count, ranked.shape) for mode, count in mix.items()}
    used = _at(best, memory, ranked.shape)
    return chosen, used, np.take_along_axis(valid, best, axis=-1)


def _at(best: Ints, values: Array, shape: tuple[int, ...]) -> Array:
    """Return the ``values``, broadcast to ``shape``, at the index ``best`` of the last axis."""
    chosen: Array = np.take_along_axis(np.broadcast_to(values, shape), best, axis=-1)
    return chosen


def _enumerated_modes(modes: frozenset[str]) -> tuple[str, ...]:
    """Return the modes whose counts are enumerated: full recompute, and all but the first of the others."""
    in_part = [mode for mode in listed_modes(modes) if mode in modes and mode != FULL]
    return (FULL, *in_part[1:]) if FULL in modes else tuple(in_part[1:])


def _enumerated(layers: Array, modes: frozenset[str], unit: Ints) -> dict[str, Array]:
    """Return every combination of counts of the enumerated modes, shape [C, 1, 1, combinations]."""
    most, enumerated = layers.max(), _enumerated_modes(modes)
    counts = [np.arange((most // unit.min() if mode == FULL else most) + 1.0) for mode in enumerated]
    grid = np.meshgrid(*counts, indexing="ij")
    return {
        mode: of_mode.ravel() * (unit if mode == FULL else 1)
        for mode, of_mode in zip(enumerated, grid, strict=True)
    }


def _fewest(
    stages: Stages, layers: Array, others: ByMode, limit: float, modes: frozenset[str], first: str
) -> Array:
    """Return the fewest layers with the mode ``first`` that fit into memory for each count of the others."""
    remaining = np.maximum(layers - total(others, _NONE), 0.0)
    shape = np.broadcast_shapes(stages.forward.layer.shape, remaining.shape)
    if "none" not in modes:
        return np.broadcast_to(remaining, shape)
    memory = stages.memory
    per_layer = memory.none - memory.recomputed[first]
    short = bytes_to_save(memory, layers, limit)
    for mode, count in others.items():
        short = short - count * (memory.none - memory.recomputed[mode])
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = np.ceil(short / per_layer - 1e-9)
    # Where recompute of the mode saves nothing, no number of layers helps.
    needed = np.where(short <= 0, 0.0, np.where(per_layer > 0, enough, np.inf))
    # Recompute costs nothing where communication overlaps it: use it for all layers.
    needed = np.where((stages.recompute[first] <= 0) & (per_layer > 0), remaining, needed)
    return np.minimum(needed, layers + 1)


#: Bounds of cases are exact for steps up to this factor above those that are asked for.
_LOOKAHEAD = 2.0


@dataclass(frozen=True, slots=True)
class UniformCase:
    """One uniform recompute under a memory limit: bounds, times and memory by stage and layers [p, n].

    ``seconds`` is infinite where as many layers do not fit; n is the most that a stage may have.
    """

    number: int
    step_seconds: float
    stage_sum: float
    tail: float
    seconds: Array
    memory: Array


@dataclass(slots=True)
class UniformCases:
    """All cases of uniform recompute of one candidate, W of them.

    ``recomputed`` has the layers of every stage with each mode, -1 for all of them. ``bounds`` has lower
    bounds of the step of each case, valid under the tightest limit so far and tighter ones. ``possible`` says
    whether the rules on stages leave layouts of a case: 1, 0, or -1 where that is not known yet.
    """

    one: PricedCandidates
    recomputed: Mapping[str, NDArray[np.int64]]
    floor: Array
    bounds: Array
    stages: Stages
    allowed: NDArray[np.bool_]
    rules: tuple[StageRules, ...]
    across: tuple[Node, ...]
    possible: NDArray[np.int8]

    @staticmethod
    def of(group: PricedCandidates, position: int) -> UniformCases:
        """Return the cases of the candidate at ``position``, whose rules require uniform recompute."""
        one = group.take(np.array([position]))
        recomputed = _uniform_mixes(one)
        stages, allowed = one.stages.take((0, slice(None), None)), one.allowed()[0]
        floor = _floor(one, stages, allowed, recomputed)
        parts = tuple(part for part in one.parts(0) if part != one.uniform_part(0))
        return UniformCases(
            one=one,
            recomputed=recomputed,
            floor=floor,
            bounds=floor.copy(),
            stages=stages,
            allowed=allowed,
            rules=stage_rules(parts, one.pp),
            across=across(parts),
            possible=np.full(len(floor), -1, dtype=np.int8),
        )

    def within(self, limit: float, most: float, *, remember: bool) -> Iterator[UniformCase]:
        """Yield the cases whose bound is at most ``most`` seconds within ``limit`` bytes, least bound first.

        With ``remember``, their bounds are stored, for this limit and all tighter ones.
        """
        pending = np.flatnonzero((self.bounds if remember else self.floor) <= most)
        may_fit = self._may_fit(pending, limit)
        index = pending[may_fit]
        if remember:
            self.bounds[pending[~may_fit]] = inf
        if not len(index):
            return
        # No stage of a step within reach has more layers.
        reach = _LOOKAHEAD * most
        layers = most_layers_within(self.one, reach)
        seconds, memory = self._priced(index, limit, layers)
        lower = bound_by(self.one, _monotone(seconds, self.allowed[:, :layers]))
        fitting = np.where(np.isfinite(seconds), np.arange(1, layers + 1), 0).max(axis=2).sum(axis=1)
        steps = np.where(fitting >= self.one.layers, lower.step_seconds, inf)
        proven = steps if layers == self.one.layers else np.minimum(steps, reach)
        if any(rules.of_stage for rules in self.rules):
            near = np.flatnonzero(steps <= most)
            impossible = near[~self._possible(index[near])]
            steps[impossible], proven[impossible] = inf, inf
        if remember:
            self.bounds[index] = np.maximum(self.bounds[index], proven)
        promising = np.flatnonzero(steps <= most)
        for i in self._undominated(
            index, promising[np.argsort(steps[promising], kind="stable")], lower, seconds, most
        ):
            yield _case(int(index[i]), lower, i, seconds[i], memory[i])

    def _possible(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for which cases the rules on each stage allow some number of layers, whatever the limit."""
        unknown = index[self.possible[index] < 0]
        if len(unknown):
            stages = zip(self.rules, self.allowed, strict=True)
            alike = {(rules.of_stage, allowed.tobytes()): (rules, allowed) for rules, allowed in stages}
            self.possible[unknown] = 1
            for rules, allowed in alike.values():
                layers = np.flatnonzero(allowed) + 1
                mix = {mode: x[:, 0, layers - 1] for mode, x in self._mixes(unknown, self.one.layers).items()}
                self.possible[unknown] &= rules.allows(layers, mix).any(axis=1)
        possible: NDArray[np.bool_] = self.possible[index] > 0
        return possible

    def _undominated(
        self,
        index: NDArray[np.int64],
        promising: NDArray[np.int64],
        lower: Bound,
        seconds: Array,
        most: float,
    ) -> Iterator[int]:
        """Yield the positions in ``index``, of those in ``promising``, that no other case dominates."""
        if not self.dominance_applies or len(promising) < 2:
            yield from promising.tolist()
            return
        schedule, tail = self.one.schedule(0), float(lower.tail.min())
        longest = longest_stage(schedule, float(lower.stage_sum[promising].min()), most - tail)
        capacity = np.where(seconds <= longest, np.arange(1, seconds.shape[2] + 1), 0).max(axis=2)
        counts = np.stack([of_mode[index] for of_mode in self.recomputed.values()], axis=1)
        undominated: list[int] = []
        for i in promising.tolist():
            # All layers, -1, is no count to compare.
            others = counts[undominated]
            recomputes_less = (others >= 0).all(axis=1) & (others <= counts[i]).all(axis=1)
            if not (recomputes_less & (capacity[undominated] >= capacity[i]).all(axis=1)).any():
                undominated.append(i)
                yield i

    @property
    def dominance_applies(self) -> bool:
        """Whether dominance applies: recompute costs all stages the same, and no other rule depends on it."""
        costs = [self.stages.recompute[mode] for mode in self.recomputed if mode in self.one.modes]
        uniform_cost = all(cost.min() == cost.max() > 0 for cost in costs)
        return uniform_cost and not self.across and not any(rules.of_stage for rules in self.rules)

    def alternatives(self, case: UniformCase, scale: Scale, margin: float, most: float) -> Alternatives:
        """Return the alternatives of ``case``, complete for steps of ``most`` seconds and a ``margin``."""
        one, longest = self.one, self._longest_stage(case, most * (1 + margin))
        useful = np.isfinite(useful_counts(one, case.seconds, longest))
        layers = np.arange(1.0, useful.shape[1] + 1)
        mix = {mode: x[0] for mode, x in self._mixes(np.array([case.number]), len(layers)).items()}
        # Of all stages and numbers of layers: to index the coefficients would take longer.
        table = alternative_table(self.stages, layers, mix, case.memory, v=int(one.v[0]), scale=scale)
        stage, column = np.nonzero(useful)
        allowed = self._allowed(stage, column + 1, {mode: x[0, column] for mode, x in mix.items()})
        rows: list[list[Alternative]] = [[] for _ in range(one.pp)]
        for i, entry in zip(stage[allowed].tolist(), table[useful][allowed].tolist(), strict=True):
            rows[i].append(Alternative.of(entry))
        return Alternatives(tuple(map(tuple, rows)), one.schedule(0), self.across)

    def _longest_stage(self, case: UniformCase, most: float) -> float:
        """Return the longest time of a stage in steps of up to ``most`` seconds [s]."""
        return longest_stage(self.one.schedule(0), case.stage_sum, most - case.tail)

    def _allowed(self, stage: NDArray[np.int64], layers: NDArray[np.int64], mix: ByMode) -> NDArray[np.bool_]:
        """Return whether the rules on each ``stage`` allow so many ``layers`` with its ``mix``."""
        by_rules, kept = {rules.of_stage: rules for rules in self.rules}, np.ones(len(stage), dtype=bool)
        if len(by_rules) == 1:
            return self.rules[0].allows(layers, mix)
        for of_stage, rules in by_rules.items():
            index = np.flatnonzero(np.array([other.of_stage == of_stage for other in self.rules])[stage])
            kept[index] = rules.allows(layers[index], mixes_at(mix, index))
        return kept

    def _mixes(self, index: NDArray[np.int64], most: int) -> dict[str, Array]:
        """Return layers with each recompute mode by number of layers up to ``most``, shape [W, 1, n]."""
        layers = np.arange(1.0, most + 1)
        return {
            mode: np.where(count[index, None, None] < 0, layers, count[index, None, None])
            for mode, count in self.recomputed.items()
        }

    def _may_fit(self, index: NDArray[np.int64], limit: float) -> NDArray[np.bool_]:
        """Return which cases may save enough bytes for all layers to fit: a necessary condition."""
        one, counts, memory = self.one, np.arange(1.0, self.one.layers + 1), self.stages.memory
        needed = _monotone(np.where(self.allowed, bytes_to_save(memory, counts, limit), inf), counts > 0)
        mix = {mode: count[index] for mode, count in self.recomputed.items()}
        saved = sum(
            (n * (memory.none - memory.recomputed[mode]) for mode, n in mix.items()), np.zeros((1, 1))
        )
        rows = zip(needed, np.broadcast_to(saved, (one.pp, len(index))), strict=True)
        capacity = sum(np.searchsorted(need, save, side="right") for need, save in rows)
        of_all = np.logical_or.reduce([count < 0 for count in mix.values()])
        enough: NDArray[np.bool_] = (capacity >= one.layers) | of_all
        return enough

    def _priced(self, index: NDArray[np.int64], limit: float, most: int) -> tuple[Array, Array]:
        """Return the time of a stage [s], infinite where it does not fit, and its bytes, shape [W, p, n].

        The stage has up to n = ``most`` layers.
        """
        one, layers = self.one, np.arange(1.0, most + 1)
        mix, unit = self._mixes(index, most), int(one.candidates.recompute_num_layers[0])
        recomputed = total(mix, np.zeros(()))
        valid = (recomputed <= layers) & (mix[FULL] % unit == 0)
        if "none" not in one.modes:
            valid &= recomputed == layers
        stages = self.stages
        memory, fits = stage_fits(stages.memory, layers, mix, limit)
        seconds = stage_forward(stages, layers) + stage_backward(stages, layers, mix)
        return np.where(valid & (fits > 0) & self.allowed[:, :most], seconds, inf), memory


def _uniform_mixes(one: PricedCandidates) -> dict[str, NDArray[np.int64]]:
    """Return the layers of every stage with each recompute mode; -1 stands for all of them."""
    unit, fewest = int(one.candidates.recompute_num_layers[0]), one.layers // one.pp
    counts, listed = range(fewest + 1), listed_modes(one.modes)
    options = [counts[:: unit if mode == FULL else 1] if mode in one.modes else counts[:1] for mode in listed]
    rows = [row for row in product(*options) if sum(row) <= fewest]
    rows += [tuple(-(mode == only) for mode in listed) for only in listed if only in one.modes]
    return dict(zip(listed, np.array(rows, dtype=np.int64).T, strict=True))


def _floor(
    one: PricedCandidates,
    stages: Stages,
    allowed: NDArray[np.bool_],
    recomputed: Mapping[str, NDArray[np.int64]],
) -> Array:
    """Return a lower bound on the step of each case without a memory limit [s].

    Recompute of as many layers on every stage adds the same to every layer split.
    """
    layers = np.arange(1.0, one.layers + 1)
    seconds = stage_forward(stages, layers) + stage_backward(stages, layers, {})
    without_recompute = np.where(allowed, seconds, inf)[None]
    total, slowest = least_of_stages(one, without_recompute)
    recompute = sum(
        (np.maximum(count, 0)[:, None] * stages.recompute[mode][:, 0] for mode, count in recomputed.items()),
        np.zeros((1, one.pp)),
    )
    tail = least_end_of_step(one)
    floor: Array = least_makespan(one, total + recompute.sum(axis=1), slowest + recompute.min(axis=1)) + tail
    return floor


def _monotone(seconds: Array, allowed: NDArray[np.bool_]) -> Array:
    """Return the least seconds of as many layers or more, by the number of layers: monotone, for bounds."""
    least = np.minimum.accumulate(seconds[..., ::-1], axis=-1)[..., ::-1]
    return np.where(allowed, least, inf)


def _case(number: int, lower: Bound, i: int, seconds: Array, memory: Array) -> UniformCase:
    tail = lower.tail[i] if len(lower.tail) > 1 else lower.tail[0]
    return UniformCase(
        number, float(lower.step_seconds[i]), float(lower.stage_sum[i]), float(tail), seconds, memory
    )
